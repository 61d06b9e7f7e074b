"""Serve requests: the queue of a server, its replicas, sequences that keep state, and refining while it serves.

May import ``measuring``, ``runtime`` and what these may import. Read :mod:`~placeit.serving.server` first. A server is a chain
of classes, each of which builds on the one before: :mod:`~placeit.serving.turns` (whose turn is it),
:mod:`~placeit.serving.answering`, :mod:`~placeit.serving.queueing`, :mod:`~placeit.serving.admitting`,
:mod:`~placeit.serving.replacing` and ``server``. A request waits in :class:`placeit._core.RequestQueue` or in
:mod:`~placeit.serving.waiting`, and :mod:`~placeit.serving.replica_thread` runs it, alone or joined with others
(:mod:`~placeit.serving.batching`).
"""
