"""Serve requests: the queue of a server, its replicas, sequences that keep state, and refining while it serves.

May import ``measuring``, ``runtime`` and what these may import. Read :mod:`~placeit.serving.server` first. A request waits in
:class:`placeit._core.RequestQueue` or in :mod:`~placeit.serving.waiting`, and :mod:`~placeit.serving.replica` runs it.
"""
