"""Runs a plan pass after pass, and records the times of its segments and of the hand-overs between them."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.planning.coarsen import Grouping
from placeit.runtime.measure import median_interval
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime

__all__ = ["Passes", "Progress", "unslowed"]

Progress = Callable[[str, float], None]
"""``progress(what, share)``: what is being done, and which share of it is done."""

_NARROW = 1.05  # the high end of an interval over the low one
_WARMING = 0.25  # of the time that is left, which a second run may take


class Passes:
    """A plan with one segment per group, or one segment for all groups, timed in place.

    In place means: with the cache contents that the segments before it leave.

    Args:
        executor: of the plan, with inputs in place.
    """

    def __init__(self, executor: PlanExecutor) -> None:
        self._executor = executor
        self._segment = executor.plan.segment_of
        self._whole: list[float] = []
        self._alone: list[NDArray[np.float64]] = []
        self._loaded: list[NDArray[np.float64]] = []
        self._gaps: dict[tuple[int, int], list[float]] = {}

    def run(self) -> None:
        """Run once, alone."""
        self._whole.append(self._executor.time())
        begin, end = self._last()
        self._alone.append(end - begin)
        for route, gap in self._handovers(begin, end).items():
            self._gaps.setdefault(route, []).append(gap)

    def run_warm(self, deadline: float) -> None:
        """Run once, and if there is time for it, again, and forget the first run.

        In its first run a device sets things up: a GPU loads every kernel that it meets, which was seen to take 200 times as
        long as the run itself.

        Args:
            deadline: by ``placeit.core.clock``; a second run that takes as long as the first is to be a small part of the time
                until then.
        """
        self.run()
        if self._whole[-1] < _WARMING * (deadline - clock.now()):
            self.forget()
            self.run()

    def run_beside(self, others: Sequence[Passes], phase: float) -> None:
        """Run once while other plans run repeatedly on other devices.

        Args:
            others: what runs beside it; if nothing does, neither does this.
            phase: how far into a pass of theirs it begins, in [0, 1): so that not everybody is at the same op, with the same
                weights, at the same time.
        """
        if not others:
            return
        over = threading.Event()
        with ThreadPoolExecutor(len(others), "placeit load") as threads:
            try:
                running = [threads.submit(other._keep_running, over) for other in others]
                time.sleep(phase * max(float(np.median(other._whole)) for other in others))
                self._executor.time()
            finally:
                over.set()
        for other in running:
            other.result()
        begin, end = self._last()
        self._loaded.append(end - begin)

    def _keep_running(self, over: threading.Event) -> None:
        while not over.is_set():
            self._executor.time()

    def forget(self) -> None:
        """Drop all times measured so far, which were for warming up."""
        self._whole.clear()
        self._alone.clear()
        self._loaded.clear()
        self._gaps.clear()

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the median seconds of a run alone; the range of the samples if fewer than six."""
        low, high = median_interval(self._whole)
        return (low, high) if math.isfinite(high) else (min(self._whole), max(self._whole))

    @property
    def settled(self) -> bool:
        """True if more runs alone would hardly change their median: its interval is narrow."""
        low, high = median_interval(self._whole)
        return high <= low * _NARROW

    @property
    def seconds(self) -> NDArray[np.float64]:
        """``float64[G]``, median seconds of each group's segment in runs alone; zero if it runs nothing."""
        return np.median(self._alone, axis=0)[self._segment]

    @property
    def loaded(self) -> NDArray[np.float64]:
        """``float64[G]``, the same for runs beside others; where there were none, nothing slows a run down."""
        return np.median(self._loaded, axis=0)[self._segment] if self._loaded else self.seconds

    @property
    def handovers(self) -> Mapping[tuple[int, int], float]:
        """Median over passes of the mean seconds between the time when a segment could start and its start.

        By the device of what ended last before it (what it waited for, or what kept its device), and its own. Where a tensor
        moved, its seconds on the link by the plan are left out.
        """
        return {route: float(np.median(gaps)) for route, gaps in self._gaps.items()}

    def _last(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ``float64[S]`` twice, when each segment began and ended in the last run; zero if it runs nothing."""
        times = np.zeros((len(self._executor.plan.segments), 2))
        for span in self._executor.spans():
            if span.segment is not None:
                times[span.segment] = span.start, span.finish
        return times[:, 0], times[:, 1]

    def _handovers(self, begin: NDArray[np.float64], end: NDArray[np.float64]) -> dict[tuple[int, int], float]:
        plan = self._executor.plan
        problem, place = plan.problem, plan.placement
        gaps: dict[tuple[int, int], list[float]] = {}
        freed: dict[int, float] = {}  # when what ran before on a device ended
        before: list[list[tuple[int, float]]] = [[] for _ in plan.segments]
        for (u, v), nbytes in zip(problem.edges.tolist(), problem.edge_bytes.tolist(), strict=True):
            before[v].append((u, nbytes))
        for s in np.argsort(begin, kind="stable").tolist():
            if end[s] == 0:
                continue
            d = int(place[s])
            could = [(freed[d], d)] if d in freed else []
            for u, nbytes in before[s]:
                src = int(place[u])
                if end[u] > 0:
                    could.append((end[u] + (0.0 if src == d else nbytes / problem.bandwidth[src, d]), src))
            if could:
                last, src = max(could)
                gaps.setdefault((src, d), []).append(max(0.0, float(begin[s]) - last))
            freed[d] = float(end[s])
        return {route: float(np.mean(seconds)) for route, seconds in gaps.items()}


def unslowed(runtime: Runtime, grouping: Grouping, stack: contextlib.ExitStack) -> Runtime:
    """Return a runtime without emulated links: what one takes is known, and nobody should wait for it."""
    if all(link.origin != "emulated" for link in runtime.cluster.links.values()):
        return runtime
    bare = replace(runtime.cluster, links={})
    opened = Runtime(runtime.model, grouping, bare, precision=runtime.precision, compiling=runtime.compiler.compiling)
    return stack.enter_context(opened)
