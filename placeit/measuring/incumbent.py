"""The incumbent and its candidates: what is worth trying, what is hopeless, and what takes the incumbent's place.

A search, a measured cost and a server that is refined each keep the best that they know, the incumbent, and look for something
better. They differ in who proposes candidates and in what a run of one is; these rules hold for all of them. Values are those
of an objective: less is better.
"""

from __future__ import annotations

from placeit.measuring.measure import Measurement, Ratio, faster_in_any_opening, summed_up

__all__ = ["HOPELESS", "WORTH", "Duel", "compared", "is_hopeless", "is_worth_trying", "why_hopeless"]

HOPELESS = 5.0  # times the incumbent's value, above which a candidate is not worth a run
WORTH = 0.99  # of the incumbent's value, below which a candidate is worth what it takes to compare the two


def is_worth_trying(expected: float, incumbent: float, share: float = WORTH) -> bool:
    """Return whether a candidate is expected to be so much better than the incumbent that it is worth a comparison.

    Args:
        expected: value of the candidate, predicted or measured in another race.
        incumbent: value of the incumbent.
        share: of the incumbent's value, which the candidate has to be below; less where comparing costs more.
    """
    return expected < share * incumbent


def is_hopeless(expected: float, incumbent: float, times: float = HOPELESS) -> bool:
    """Return whether a candidate is expected to be so many times as bad as the incumbent that it is not run at all."""
    return expected > times * incumbent > 0


def why_hopeless(expected: float, incumbent: float, worse: str) -> str | None:
    """Explain why a candidate is hopeless in simulation, given the objective's word for more of it; None if it is not."""
    if not is_hopeless(expected, incumbent):
        return None
    return f"simulated {expected / incumbent:.{0 if expected > 10 * incumbent else 1}f} times {worse}"


def compared(candidate: Measurement | None, incumbent: Measurement | None) -> Ratio | None:
    """Compare a candidate with what ran in the same rounds; None if one of the two was not measured.

    The candidate takes the incumbent's place if the ratio is below 1 beyond its interval (:attr:`Ratio.faster`). See
    :func:`placeit.measuring.measure.faster_in_any_opening`, and ``docs/measuring.md`` for how often that is wrong.

    Raises:
        ExecutionError: they have no round in common.
    """
    return None if candidate is None or incumbent is None else faster_in_any_opening(candidate, incumbent)


class Duel:
    """A candidate against the incumbent by pairs of runs, each at about the same moment, until there are enough to decide.

    The number of pairs is settled before, and there is one look at the end: each more is a chance to be wrong.

    Args:
        pairs: that decide.

    Attributes:
        ratio: time of the candidate over that of the incumbent, with its interval; None before it is decided.
    """

    def __init__(self, pairs: int) -> None:
        self.ratio: Ratio | None = None
        self._pairs = pairs
        self._candidate: list[float] = []
        self._incumbent: list[float] = []

    def add(self, candidate: float, incumbent: float) -> None:
        """Take a pair of runs into account, in seconds."""
        self._candidate.append(candidate)
        self._incumbent.append(incumbent)
        if self.ratio is None and len(self._candidate) >= self._pairs:
            rounds, runs = range(self._pairs), {"candidate": self._candidate, "incumbent": self._incumbent}
            self.ratio = compared(*(summed_up(name, some, rounds) for name, some in runs.items()))
