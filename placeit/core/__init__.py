"""Data structures, errors, files, units and threads that all other packages use.

Imports no other package of placeit. Read :mod:`~placeit.core.graph`, :mod:`~placeit.core.cluster` and
:mod:`~placeit.core.problem` first.
"""
