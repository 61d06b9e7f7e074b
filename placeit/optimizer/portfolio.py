"""Defaults of a search; cheap to import."""

from __future__ import annotations

__all__ = ["DEFAULT_PLACERS", "MOST_POINTS"]

DEFAULT_PLACERS = ("heft", "best-list", "critical-path", "metis", "random-task-eft", "annealing")
"""Default placers. Every single device and a search among plans take part in any case.

None of them learns. With equal budgets, no learning placer found a faster placement: neither the policies that ship with
placeit, which take some seconds to ask (``python -m benchmarks.portfolio``), nor the placers that learn from runs which
placement to measure next (``python -m benchmarks.exploring``).
"""

MOST_POINTS = 12
"""Points of a front of latency and energy, at most."""
