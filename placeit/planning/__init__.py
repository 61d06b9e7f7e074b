"""From ops to compiled programs: groups of ops, and segments of groups.

May import ``simulator`` and ``core``. Read :mod:`~placeit.planning.coarsen` first, then :mod:`~placeit.planning.segments`.
"""
