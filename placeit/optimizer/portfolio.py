"""Who takes part in a search that nobody was named for."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["DEFAULT_PLACERS", "LEARNING", "PORTFOLIO", "default_placers"]

LEARNING = "doppler, measured"
"""DOPPLER's policies, trained on what their placements measure (:mod:`placeit.optimizer.learning`); no placer by itself."""

PORTFOLIO: Mapping[str, float] = {
    "heft": 0,
    "cpop": 0,
    "critical-path": 0,
    "metis": 0,
    "random-task-eft": 0,
    "annealing": 0,
    "guided": 120,
    "giph": 120,
}
"""Default placers, and the least budget, in seconds, with which each is asked.

Every single device and a search among plans take part in any case. Importing PyTorch takes two to three seconds, and placing a
model of a hundred groups with GiPH's policy as long again: a tenth of a minute, for placements that are hardly better than
those of annealing. Learning from runs (:data:`LEARNING`) is not among them: with equal budgets it found nothing that is faster
(``python -m benchmarks.portfolio``).
"""

DEFAULT_PLACERS = tuple(name for name, least in PORTFOLIO.items() if not least)
"""Those that are asked whatever the budget is."""


def default_placers(budget: float) -> tuple[str, ...]:
    """Names of the placers for a budget, in seconds."""
    return tuple(name for name, least in PORTFOLIO.items() if budget >= least)
