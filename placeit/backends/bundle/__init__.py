"""Bundles: a model whose segments are cut for a placement, as an archive or a folder.

:mod:`~placeit.backends.bundle.files` reads and writes the container, :mod:`~placeit.backends.bundle.manifest` describes its
content, and :mod:`~placeit.backends.bundle.model` is the model for a runtime. Read them in this order.
"""
