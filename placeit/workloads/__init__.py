"""Workloads: generated task graphs and device networks, case studies, and models from publications.

May import ``devices`` and ``core``. Read :mod:`~placeit.workloads.registry` first: it names the data sets.
"""
