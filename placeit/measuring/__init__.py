"""Measure runs: clocks and blocks, the statistics of races, budgets, the check of outputs, and reports of runs.

May import ``runtime`` and what that may import. Read :mod:`~placeit.measuring.measure` first.
"""
