"""Grouping of ops, and segments of groups, which are compiled and run.

May import ``simulator`` and ``core``. Read :mod:`~placeit.planning.coarsen` first, then :mod:`~placeit.planning.segments`.
"""
