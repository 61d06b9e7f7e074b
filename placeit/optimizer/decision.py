"""The decision of a search, and the length of the race that makes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeit.measuring.statistics import Ratio
from placeit.optimizer.candidates import Candidate

__all__ = ["DECISION_ROUNDS", "Decision", "decision_rounds"]

DECISION_ROUNDS, _MAX_DECISION_ROUNDS = 26, 75  # rounds of the deciding race: if runs vary little, and at most
_STEADY = 0.12  # relative deviation of the ratio of two runs, up to which the minimum of rounds is enough


@dataclass(frozen=True, eq=False)
class Decision:
    """The decision of a search.

    Attributes:
        winner: the best placement; None if nothing was measured.
        single: the single device that the winner was compared with, or the winner itself; None if no single device runs.
        ratio: objective of the best placement over several devices, over the single device's; None if they were not compared.
        hurried: whether there was no time left for the deciding race.
    """

    winner: Candidate | None = None
    single: Candidate | None = None
    ratio: Ratio | None = None
    hurried: bool = False


def decision_rounds(single: Candidate, split: Candidate) -> int:
    """Return the number of rounds of the deciding race: more if a gain is likely and earlier races of the two vary much."""
    assert single.value is not None  # noqa: S101
    assert split.value is not None  # noqa: S101
    if split.value.median >= single.value.median:
        return DECISION_ROUNDS
    variance = 0.0
    for value in (single.value, split.value):
        logs = np.log(np.maximum(value.samples, np.finfo(float).tiny))
        variance += float(1.48 * np.median(abs(logs - np.median(logs)))) ** 2
    return int(np.clip(DECISION_ROUNDS * variance / _STEADY**2, DECISION_ROUNDS, _MAX_DECISION_ROUNDS))
