"""Simulate placements: the compiled rules of execution, and objectives over simulated runs.

May import ``workloads``, ``devices`` and ``core``, and calls ``placeit._core``. Read :mod:`~placeit.simulator.simulate`
first, then :mod:`~placeit.simulator.scheduler`, by which executors run.
"""
