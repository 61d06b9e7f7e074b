"""Refining: what it may take, and what has come of it; :mod:`placeit.workbench.refining` does it."""

from __future__ import annotations

from dataclasses import dataclass

from placeit.core.errors import UsageError
from placeit.measuring.measure import Ratio

__all__ = ["Limits", "Refinement"]


@dataclass(frozen=True)
class Limits:
    """Limits of what refining may take.

    Attributes:
        share: of the requests, that try a candidate; at most a half.
        tail: 95th percentile of the seconds of the others, as a multiple of what it was before.
        core: of a core's time, for searching and compiling.
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
        requests: that have ended well since it began.
        explored: how many of them tried a candidate.
        checks: runs besides, on the devices that serve, which check the outputs of candidates.
        tried: candidates that requests were given to, in all trials.
        switches: how often the server has changed to one.
        before: 95th and 99th percentile of the seconds of requests, from begin to end, before the last trial; None before the
            first trial.
        meanwhile: the same percentiles over requests during the last trial, and during the check before it, that did not try
            the candidate; None if they were too few.
        ratio: seconds of the last candidate over those of the plan it was to replace; None if they were not compared.
        seconds: of a core, for searching and compiling.
        doing: what it does.
        reason: why the last candidate was taken or not, or refining has ended; None before.
    """

    requests: int = 0
    explored: int = 0
    checks: int = 0
    tried: int = 0
    switches: int = 0
    before: tuple[float, float] | None = None
    meanwhile: tuple[float, float] | None = None
    ratio: Ratio | None = None
    seconds: float = 0.0
    doing: str = "waiting for requests"
    reason: str | None = None

    @property
    def share(self) -> float:
        """Share of the requests, and of the runs besides, that a candidate had."""
        runs = self.requests + self.checks
        return (self.explored + self.checks) / runs if runs else 0.0
