"""The decision of a search, and the length of the race that makes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from placeit.measuring.measure import Ratio
from placeit.optimizer.candidates import Candidate

__all__ = ["DECISION_ROUNDS", "Decision", "decision_rounds"]

DECISION_ROUNDS, _MOST_DECISION_ROUNDS = 26, 75  # of the race that decides, where runs vary little, and at most
_STEADY = 0.12  # how much a ratio of two runs may vary, as a share of it, for so few rounds to be enough


@dataclass(frozen=True, eq=False)
class Decision:
    """The decision of a search.

    Attributes:
        winner: the best placement; None if nothing was measured.
        single: the single device that it was compared with, or that it is; None if there is none.
        ratio: objective of the best placement over several devices over that of the single one; None if they were not compared.
        hurried: whether there was no time for a decision.
    """

    winner: Candidate | None = None
    single: Candidate | None = None
    ratio: Ratio | None = None
    hurried: bool = False


def decision_rounds(single: Candidate, split: Candidate) -> int:
    """Rounds of the race that decides: more where a gain is likely and runs vary much, by earlier races of the two."""
    assert single.value is not None  # noqa: S101
    assert split.value is not None  # noqa: S101
    if split.value.median >= single.value.median:
        return DECISION_ROUNDS
    variance = 0.0
    for value in (single.value, split.value):
        logs = np.log(np.maximum(value.samples, np.finfo(float).tiny))
        variance += float(1.48 * np.median(abs(logs - np.median(logs)))) ** 2
    return int(np.clip(DECISION_ROUNDS * variance / _STEADY**2, DECISION_ROUNDS, _MOST_DECISION_ROUNDS))
