"""Data structures that all other packages use, and errors, files, units and threads.

Imports no other package of placeit. Read :mod:`~placeit.core.graph`, :mod:`~placeit.core.cluster` and
:mod:`~placeit.core.problem` first.
"""
