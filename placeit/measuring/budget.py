"""Estimates of the time that the steps of a search take."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from placeit.measuring.blocks import block_s, trial_s
from placeit.measuring.statistics import FEWEST

__all__ = ["CHECKS", "STEP_S", "TRIFLE_S", "min_budget_s", "race_s", "rounds_within"]

CHECKS = 4  # runs of a candidate whose outputs are compared, before and after it is measured
REFERENCES = 3  # runs of the uncut model, for outputs to compare with
TRIFLE_S, STEP_S = 0.5, 0.2  # seconds that a search, and each of some of its steps, may take whatever the budget


def race_s(seconds: Iterable[float], rounds: int, *, period: float = 0.0, checks: int = CHECKS) -> float:
    """Return the seconds that a race takes: checks of outputs, trials, and a block of each candidate in each round.

    Args:
        seconds: seconds of one run of each candidate.
        rounds: number of rounds.
        period: seconds from the start of a run to the start of the next, if runs start at a pace.
        checks: runs of each candidate whose outputs are compared.
    """
    return sum(checks * one + trial_s(one, period=period) + rounds * block_s(one, period=period) for one in seconds)


def rounds_within(budget: float, seconds: Iterable[float], *, period: float = 0.0) -> int:
    """Return the number of rounds of a race that fit into a budget; negative if not even checks and trials fit.

    Args:
        budget: seconds for the whole race.
        seconds: seconds of one run of each candidate.
        period: seconds from the start of a run to the start of the next, if runs start at a pace.
    """
    runs = list(seconds)
    before, with_one = (race_s(runs, rounds, period=period) for rounds in (0, 1))
    return int((budget - before) // (with_one - before)) if runs else sys.maxsize


def min_budget_s(seconds: Iterable[float]) -> float:
    """Return the smallest budget that allows to compare a placement over several devices with the best single device.

    It covers a pass over the model, cut into its groups, on each device, and a race between the best single device and one
    placement that takes as long.

    Args:
        seconds: seconds of a run of the whole model on each device.
    """
    runs = list(seconds)
    return sum(runs) + (REFERENCES * min(runs) if runs else 0.0) + race_s([min(runs)] * 2 if runs else [], FEWEST)
