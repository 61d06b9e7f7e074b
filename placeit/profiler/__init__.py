"""Costs of groups and links: measured, predicted, calibrated and cached; recordings and traces of runs.

May import ``runtime`` and everything that ``runtime`` may import. Read :mod:`~placeit.profiler.costs` first, and the section on
costs in ``docs/architecture.md``.
"""
