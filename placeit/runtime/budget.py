"""Estimates of the time that the steps of a search need."""

from __future__ import annotations

from collections.abc import Iterable

from placeit.runtime.measure import FEWEST, WARMUP

__all__ = ["CHECKS", "STEP_S", "TRIFLE_S", "least", "needed"]

CHECKS = 4  # runs of what is measured whose outputs are compared, before and after
REFERENCES = 3  # runs of the uncut model, for outputs to compare with
TRIFLE_S, STEP_S = 0.5, 0.2  # what nobody minds, of a search, and of each of several steps of it


def needed(seconds: Iterable[float], rounds: int) -> float:
    """Return the seconds that a race takes, given the seconds of one run of each candidate."""
    return (rounds + WARMUP + CHECKS) * sum(seconds)


def least(seconds: Iterable[float]) -> float:
    """Return the least seconds to compare placements over several devices with the best single device.

    They pay for a pass over the model that is cut into its groups, on each device, and for a race of the best single device and
    one placement that takes as long.

    Args:
        seconds: of a run of the whole model on each device.
    """
    runs = list(seconds)
    return sum(runs) + (REFERENCES * min(runs) if runs else 0.0) + needed([min(runs)] * 2 if runs else [], FEWEST)
