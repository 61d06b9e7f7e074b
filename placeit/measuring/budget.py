"""Estimates of the time that the steps of a search need."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from placeit.measuring.blocks import block_s, trial_s
from placeit.measuring.statistics import FEWEST

__all__ = ["CHECKS", "STEP_S", "TRIFLE_S", "least", "needed", "rounds_within"]

CHECKS = 4  # runs of a candidate whose outputs are compared, before and after it is measured
REFERENCES = 3  # runs of the uncut model, for outputs to compare with
TRIFLE_S, STEP_S = 0.5, 0.2  # seconds that a search, and each of several steps of it, may take whatever the budget


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
    """Return the number of rounds of a race that fit into ``room`` seconds; negative if not even checks and trials fit.

    Args:
        room: seconds for the whole race.
        seconds: of one run of each candidate.
        period: seconds from the start of a run to the start of the next, if runs start at a pace.
    """
    runs = list(seconds)
    before, with_one = (needed(runs, rounds, period=period) for rounds in (0, 1))
    return int((room - before) // (with_one - before)) if runs else sys.maxsize


def least(seconds: Iterable[float]) -> float:
    """Return the fewest seconds in which placements over several devices can be compared with the best single device.

    They cover a pass over the model, cut into its groups, on each device, and a race between the best single device and one
    placement that takes as long.

    Args:
        seconds: of a run of the whole model on each device.
    """
    runs = list(seconds)
    return sum(runs) + (REFERENCES * min(runs) if runs else 0.0) + needed([min(runs)] * 2 if runs else [], FEWEST)
