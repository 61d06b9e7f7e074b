"""Rules that compare candidates with the incumbent: which are worth a comparison, which are hopeless, and which replace it.

A search, a measured cost and a server that is refined each keep the best known placement, the incumbent, and look for a better
one. Candidates and their runs come from different sources; these rules hold for all of them. A value is the value of an
objective: less is better.
"""

from __future__ import annotations

from placeit.measuring.statistics import Measurement, Ratio, faster_in_any_opening, summed_up

__all__ = ["HOPELESS", "WORTH", "Duel", "compared", "is_hopeless", "is_worth_trying", "why_hopeless"]

HOPELESS = 5.0  # a candidate whose value is more than this multiple of the incumbent's is not worth a run
WORTH = 0.99  # a candidate whose value is below this share of the incumbent's is worth a comparison


def is_worth_trying(expected: float, incumbent: float, share: float = WORTH) -> bool:
    """Return whether a candidate is expected to be enough better than the incumbent to be worth a comparison.

    Args:
        expected: value of the candidate, predicted or measured in another race.
        incumbent: value of the incumbent.
        share: share of the incumbent's value that the candidate has to be below; smaller where comparing costs more.
    """
    return expected < share * incumbent


def is_hopeless(expected: float, incumbent: float, times: float = HOPELESS) -> bool:
    """Return whether a candidate's expected value is over ``times`` times the incumbent's, so that it should not be run."""
    return expected > times * incumbent > 0


def why_hopeless(expected: float, incumbent: float, worse: str) -> str | None:
    """Return why a candidate is hopeless in simulation, with the objective's word for ``worse``; None if it is not."""
    if not is_hopeless(expected, incumbent):
        return None
    return f"simulated {expected / incumbent:.{0 if expected > 10 * incumbent else 1}f} times {worse}"


def compared(candidate: Measurement | None, incumbent: Measurement | None) -> Ratio | None:
    """Return the ratio of a candidate to the incumbent, measured in the same rounds; None if either was not measured.

    The candidate replaces the incumbent if the whole interval of the ratio is below 1 (:attr:`Ratio.faster`). See
    :func:`placeit.measuring.statistics.faster_in_any_opening`, and ``docs/measuring.md`` for how often that is wrong.

    Raises:
        ExecutionError: they have no round in common.
    """
    return None if candidate is None or incumbent is None else faster_in_any_opening(candidate, incumbent)


class Duel:
    """A comparison of a candidate with the incumbent by pairs of runs, each pair at about the same moment.

    The number of pairs is fixed in advance, and they are compared once, at the end: each further comparison could be wrong.

    Args:
        pairs: number of pairs that decide.

    Attributes:
        ratio: time of the candidate over the time of the incumbent, with its interval; None before there are enough pairs.
    """

    def __init__(self, pairs: int) -> None:
        self.ratio: Ratio | None = None
        self._pairs = pairs
        self._candidate: list[float] = []
        self._incumbent: list[float] = []

    def add(self, candidate: float, incumbent: float) -> None:
        """Add a pair of runs, in seconds; compare the two once there are enough pairs."""
        self._candidate.append(candidate)
        self._incumbent.append(incumbent)
        if self.ratio is None and len(self._candidate) >= self._pairs:
            rounds, runs = range(self._pairs), {"candidate": self._candidate, "incumbent": self._incumbent}
            self.ratio = compared(*(summed_up(name, seconds, rounds) for name, seconds in runs.items()))
