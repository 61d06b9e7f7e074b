"""Limits and results of refining a served placement (:mod:`placeit.workbench.refining`)."""

from __future__ import annotations

from dataclasses import dataclass

from placeit.core.errors import UsageError
from placeit.measuring.statistics import Ratio

__all__ = ["Limits", "Refinement"]


@dataclass(frozen=True)
class Limits:
    """Limits on the cost of refining.

    Attributes:
        share: share of the requests that try a candidate; at most 0.5.
        tail: how large the 95th percentile of the other requests' seconds may become, as a multiple of its value before.
        core: share of the time of one core for searching and compiling.
    """

    share: float = 0.05
    tail: float = 1.1
    core: float = 0.05

    def __post_init__(self) -> None:
        if not (0 < self.share <= 0.5 and self.tail >= 1 and 0 < self.core <= 1):
            raise UsageError(f"Limits of refining: 0 < share <= 0.5, tail >= 1, 0 < core <= 1; got {self}.")


@dataclass(frozen=True)
class Refinement:
    """Results of refining so far.

    Attributes:
        requests: number of requests that have ended well since refining began.
        explored: number of these requests that tried a candidate.
        checks: number of extra runs that check the outputs of candidates, on the devices that serve.
        tried: number of candidates that requests were given to, in all trials.
        switches: how often the server has changed to a candidate.
        before: 95th and 99th percentile of the seconds of requests, from begin to end, before the last trial; None before the
            first trial.
        others: 95th and 99th percentile of the seconds of requests that did not try the candidate, during the last trial
            and during the check before it; None if there were too few of them.
        ratio: time of the last candidate over the time of the plan that it was to replace; None if they were not compared.
        seconds: seconds of one core that searching and compiling took.
        doing: the current activity, in words.
        reason: why the last candidate was adopted or not, or why refining has ended; None before then.
    """

    requests: int = 0
    explored: int = 0
    checks: int = 0
    tried: int = 0
    switches: int = 0
    before: tuple[float, float] | None = None
    others: tuple[float, float] | None = None
    ratio: Ratio | None = None
    seconds: float = 0.0
    doing: str = "waiting for requests"
    reason: str | None = None

    @property
    def share(self) -> float:
        """Share of candidates in all runs: requests and extra runs."""
        runs = self.requests + self.checks
        return (self.explored + self.checks) / runs if runs else 0.0
