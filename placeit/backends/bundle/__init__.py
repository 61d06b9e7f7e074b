"""Bundles: a placed model with its segments already cut, as one archive or folder.

:mod:`~placeit.backends.bundle.files` reads and writes the container, :mod:`~placeit.backends.bundle.manifest` describes its
content, and :mod:`~placeit.backends.bundle.model` is the model for a runtime. Read them in this order.
"""
