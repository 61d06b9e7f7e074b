"""Decide whether no split can be faster than the whole CPU, which is known before splits are profiled or compiled."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeit.optimizer.candidates import plain_candidates
from placeit.placers.bound import lower_bound
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.measure import FAILURES, median_interval
from placeit.workbench import Workbench

__all__ = ["MARGIN", "Excluded", "excluded"]

MARGIN = 0.1  # share of the bound, for what is not in it: the parts of a model may gain from caches of their own
_RUNS = 7  # of a plain device, after two for warming up


@dataclass(frozen=True)
class Excluded:
    """Why no split can be the answer.

    Attributes:
        name: of the plain device that is faster than all of them.
        bound_s: what every split takes at least, by the least times of the whole model on the devices.
    """

    name: str
    bound_s: float

    def why(self, seconds: float) -> str:
        """Say it, given the seconds that the answer takes."""
        margin = f"{MARGIN:.0%}".replace("%", " %")
        return (
            f"no split placement can be faster: each takes at least {self.bound_s * 1e3:.3g} ms, by a lower bound less "
            f"{margin} for its error, and this takes {seconds * 1e3:.3g} ms"
        )


def excluded(session: Workbench, core: NDArray[np.float64]) -> Excluded | None:
    """Say why no split can be faster than a plain device; None if some split may be, or if that is not known.

    Args:
        session: of which nothing else runs meanwhile.
        core: ``float64[G, D]``, the least seconds of groups inside the whole model on each device.
    """
    problem = Segmenter(session.grouping, replace(Costs.zero(len(core), session.cluster), core=core)).problem()
    bound = (1.0 - MARGIN) * lower_bound(problem)
    for candidate, alone in plain_candidates(session, problem):
        try:
            with alone.session.executor(candidate.plan) as executor:
                seconds = [executor.time() for _ in range(2 + _RUNS)][2:]
        except FAILURES:  # the search says so when it measures it
            continue
        _, high = median_interval(seconds)
        if high < bound:
            return Excluded(candidate.name, bound)
    return None
