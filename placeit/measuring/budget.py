"""Estimates of the time that the steps of a search need."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from placeit.measuring.blocks import block_s, trial_s
from placeit.measuring.measure import FEWEST

__all__ = ["CHECKS", "STEP_S", "TRIFLE_S", "least", "needed", "rounds_within"]

CHECKS = 4  # runs of what is measured whose outputs are compared, before and after
REFERENCES = 3  # runs of the uncut model, for outputs to compare with
TRIFLE_S, STEP_S = 0.5, 0.2  # what nobody minds, of a search, and of each of several steps of it


def needed(seconds: Iterable[float], rounds: int, *, period: float = 0.0, checks: int = CHECKS) -> float:
    """Return the seconds that a race takes: checks of outputs, trials, and a block of each candidate in each round.

    Args:
        seconds: of one run of each candidate.
        rounds: of the race.
        period: seconds from the start of a run to the start of the next, if runs start at a pace.
        checks: runs of each candidate whose outputs are compared.
    """
    return sum(checks * one + trial_s(one, period=period) + rounds * block_s(one, period=period) for one in seconds)


def rounds_within(room: float, seconds: Iterable[float], *, period: float = 0.0) -> int:
    """Return how many rounds of a race there is time for in ``room`` seconds; fewer than none if there is too little for any.

    Args:
        room: seconds for all of it.
        seconds: of one run of each candidate.
        period: as of :func:`needed`.
    """
    runs = list(seconds)
    before, with_one = (needed(runs, rounds, period=period) for rounds in (0, 1))
    return int((room - before) // (with_one - before)) if runs else sys.maxsize


def least(seconds: Iterable[float]) -> float:
    """Return the least seconds to compare placements over several devices with the best single device.

    They pay for a pass over the model that is cut into its groups, on each device, and for a race of the best single device and
    one placement that takes as long.

    Args:
        seconds: of a run of the whole model on each device.
    """
    runs = list(seconds)
    return sum(runs) + (REFERENCES * min(runs) if runs else 0.0) + needed([min(runs)] * 2 if runs else [], FEWEST)
