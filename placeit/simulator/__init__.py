"""Simulate placements: compiled rules of execution, and objectives that value simulated runs.

May import ``devices`` and ``core``, and calls ``placeit._core``. Read :mod:`~placeit.simulator.simulate`
first, then :mod:`~placeit.simulator.scheduler`, which decides what executors run.
"""
