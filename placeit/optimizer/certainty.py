"""Show by a lower bound, before splits are profiled or compiled, that no split can be faster than the whole CPU."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from placeit.core.units import percentage
from placeit.measuring.measure import FAILURES
from placeit.measuring.statistics import median_interval
from placeit.optimizer.whole_models import plain_candidates
from placeit.placers.bound import lower_bound
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.passes import steady_runs
from placeit.workbench import Workbench

__all__ = ["MARGIN", "Excluded", "excluded"]

MARGIN = 0.1  # share of the bound, for a gain that it ignores: a part of the model may fit caches that the whole does not
_RUNS = 7  # timed runs of a plain device, after two warm-up runs
_BLOCKS = 3  # blocks of runs on each device, by which the error of its costs is measured


@dataclass(frozen=True)
class Excluded:
    """Proof that no split can be the answer.

    Attributes:
        name: the plain device that is faster than every split.
        bound_s: lower bound of the seconds of any split, less the margin.
    """

    name: str
    bound_s: float

    def why(self, seconds: float) -> str:
        """Return the reason as a sentence, given the seconds that the answer takes."""
        return (
            f"no split placement can be faster: each takes at least {self.bound_s * 1e3:.3g} ms, by a lower bound less "
            f"{percentage(MARGIN)} for its error, and this takes {seconds * 1e3:.3g} ms"
        )


def excluded(session: Workbench, core: NDArray[np.float64], room: float) -> Excluded | None:
    """Return the proof that no split can be faster than a plain device; None if there is no proof.

    The bound's own error is measured on each device: the sum of the groups' times, over the time that the whole model takes
    when it runs there alone. If the bound is too high by more than its margin on some device, it proves nothing; otherwise the
    excess is subtracted.

    Args:
        session: its devices must be idle during the call.
        core: ``float64[G, D]``, minimum seconds of each group inside the whole model on each device.
        room: seconds in which plain devices have to compile the model.
    """
    segmenter = Segmenter(session.grouping, replace(Costs.zero(len(core), session.cluster), core=core))
    problem = segmenter.problem()
    bound, checked = (1.0 - MARGIN) * lower_bound(problem), False
    for candidate, alone in plain_candidates(session, problem, room):
        try:
            with alone.session.executor(candidate.plan) as executor:
                seconds = [executor.time() for _ in range(2 + _RUNS)][2:]
        except FAILURES:  # the search reports it when it measures this candidate
            continue
        _, high = median_interval(seconds)
        if high < bound and not checked:
            factors = _factors(session, segmenter)
            if factors is None or (factors < 1.0 - MARGIN).any():
                return None
            bound, checked = (1.0 - MARGIN) * lower_bound(replace(problem, compute=core * factors)), True
        if high < bound:
            return Excluded(candidate.name, bound)
    return None


def _factors(session: Workbench, segmenter: Segmenter) -> NDArray[np.float64] | None:
    """Return the time of the whole model alone on each device over the sum of its groups' times, at most 1: ``float64[D]``.

    None if some device cannot run the whole model.
    """
    sums = segmenter.costs.core.sum(axis=0)
    if not np.isfinite(sums).all() or (sums <= 0).any():
        return None
    seconds_of_devices: list[list[float]] = [[] for _ in sums]
    try:
        with contextlib.ExitStack() as stack:
            plans = [segmenter.plan(np.full(len(segmenter.costs.core), d, np.int32)) for d in range(len(sums))]
            executors = [stack.enter_context(session.executor(plan, alone=True)) for plan in plans]
            for _ in range(_BLOCKS):
                for executor, seconds in zip(executors, seconds_of_devices, strict=True):
                    seconds += steady_runs(executor.time, float)
    except FAILURES:
        return None
    alone = np.array([np.median(seconds) for seconds in seconds_of_devices])
    return np.asarray(np.minimum(alone / sums, 1.0), np.float64)
