"""Bundles: a placed model whose segments are cut already, as one archive or folder.

:mod:`~placeit.backends.bundle.files` reads and writes the container, :mod:`~placeit.backends.bundle.manifest` says what is in
it, and :mod:`~placeit.backends.bundle.model` is the model that a runtime is given. Read them in this order.
"""
