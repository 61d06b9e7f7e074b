"""Defaults of a search; cheap to import."""

from __future__ import annotations

from placeit.core.extras import installed

__all__ = ["DEFAULT_PLACERS", "MAX_POINTS"]

_METIS = ("metis",) if installed("pymetis") else ()

DEFAULT_PLACERS = ("heft", "best-list", "critical-path", *_METIS, "random-task-eft", "dp", "annealing")
"""Default placers. Every single device and a search among plans take part in any case. METIS is one of them where it is
installed: its package has wheels for x86-64 only.

None of them learns. With equal budgets, no learning placer found a faster placement: neither the policies that ship with
placeit, which take some seconds to ask (``python -m benchmarks.portfolio``), nor the placers that learn from runs which
placement to measure next (``python -m benchmarks.exploring``).
"""

MAX_POINTS = 12
"""Points of a front of latency and energy, at most."""
