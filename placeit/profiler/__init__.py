"""Costs of groups, links and plans: measured, calibrated by real runs, cached on disk; statistics and traces.

May import ``runtime`` and everything that ``runtime`` may import. Read :mod:`~placeit.profiler.costs` first, and the section on
costs in ``docs/architecture.md``.
"""
