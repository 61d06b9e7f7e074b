"""Run a plan in blocks of consecutive runs, and measure the times of its segments and of the hand-overs between them.

A model that runs repeatedly finds data of its previous run in the CPU caches. If programs took turns after every run, each
would find the weights of the others there instead, and matrix products with one row would take up to twice as long.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Sample
from placeit.core import clock
from placeit.measuring.measure import Watching
from placeit.measuring.statistics import FEWEST, median_interval
from placeit.planning.coarsen import Grouping
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.runtime.slots import States

__all__ = ["Block", "Calm", "Passes", "Progress", "counted_runs", "steady_runs", "warm_up_runs", "without_emulated_links"]

Run = TypeVar("Run")

Progress = Callable[[str, float], None]
"""``progress(what, share)``: receives the current step, and the share of it that is done, in [0, 1]."""

MIN_UNDISTURBED = 3
"""Number of undisturbed blocks from which disturbed blocks are ignored."""

_WARM_UP = -1  # key of a single run, which counts only until there is a block
_MAX_STEADY_RATIO = 1.05  # high end of a confidence interval over its low end, up to which times are steady
_MIN_BLOCKS = 4  # minimum number of blocks to decide whether times are steady
_WARM_UP_SHARE = 0.25  # share of the remaining time that a warm-up run may take
_MAX_DECREASE = 0.03  # a run that is shorter than the one before by more than this share shows that the block is not steady yet
_MAX_WARM_UP_RUNS = 4  # maximum number of runs of a block that do not count
_MIN_BLOCK_S = 5e-3  # minimum total of the runs of a block that count
_SLOW_RUN_S = 0.05  # time of a run above which only one run of a block counts
_MAX_RUNS = 10  # maximum number of runs of a block that count


class Calm:
    """A monitor that reports no disturbance, for a machine on which nothing else runs."""

    def begin(self) -> None:
        """Start a period of observation."""

    def disturbed(self, *, alone: bool = True) -> bool:  # noqa: ARG002
        """Return False."""
        return False


def warm_up_runs(seconds: Sequence[float]) -> int:
    """Return the number of warm-up runs at the start of a block, which do not count.

    The first run is always a warm-up run, since the caches hold the data of an earlier program. Each further run is one while
    the run after it is more than 3 % shorter, up to 4 runs in total.

    Args:
        seconds: seconds of each run of the block so far, in order; at least one.
    """
    count = 1
    while count < min(_MAX_WARM_UP_RUNS, len(seconds) - 1) and seconds[count + 1] < seconds[count] * (1.0 - _MAX_DECREASE):
        count += 1
    return count


def counted_runs(seconds: float) -> int:
    """Return how many runs of a block count, given the seconds of one: 5 ms of runs, at least 2 (1 above 50 ms), at most 10."""
    fewest = 1 if seconds > _SLOW_RUN_S else 2
    return min(max(math.ceil(_MIN_BLOCK_S / seconds), fewest), _MAX_RUNS) if seconds > 0 else _MAX_RUNS


def steady_runs(run: Callable[[], Run], seconds: Callable[[Run], float]) -> list[Run]:
    """Run a block until its runs are steady and enough of them count, and return the results of the runs that count.

    Args:
        run: runs once, and returns a result.
        seconds: returns the seconds of a run, given its result.
    """
    runs = [run()]
    times = [seconds(runs[0])]
    while len(runs) - warm_up_runs(times) < counted_runs(times[-1]):
        runs.append(run())
        times.append(seconds(runs[-1]))
    return runs[warm_up_runs(times) :]


@dataclass(frozen=True, eq=False)
class Block:
    """Medians of the runs of a block that count.

    Attributes:
        whole: seconds of a run.
        segments: ``float64[S]``, seconds of each segment; zero for a segment that computes nothing.
        gaps: seconds of hand-overs by pair of devices; see :attr:`Passes.handovers`.
        host: seconds that the caller waited before the first segment began and after the last one ended; NaN if unknown.
        disturbed: whether other work on the machine disturbed the block.
    """

    whole: float
    segments: NDArray[np.float64]
    gaps: Mapping[tuple[int, int], float]
    host: float
    disturbed: bool

    @classmethod
    def of(cls, runs: Sequence[Block], *, disturbed: bool) -> Block:
        """Return the medians of several runs, each of which is a block of one run."""
        routes = runs[0].gaps.keys()
        return cls(
            float(np.median([run.whole for run in runs])),
            np.median([run.segments for run in runs], axis=0),
            {route: float(np.median([run.gaps[route] for run in runs if route in run.gaps])) for route in routes},
            float(np.median([run.host for run in runs])),
            disturbed,
        )


class Passes:
    """Measured times of the segments of a plan, in blocks of runs.

    Each segment runs with the CPU caches as the previous segments leave them. If the model keeps state, each run is in the
    middle of a sequence, after requests that set the state.

    Args:
        executor: executor of the plan. Its inputs have to be set unless requests are given.
        requests: the requests to time; empty to use the inputs of the executor.
        watch: monitor that detects disturbed blocks; None for no monitor.
        reached: states before the requests, if other executors share them (:attr:`placeit.runtime.runtime.Runtime.reached`).

    Attributes:
        runs: number of runs in blocks without load, not counting repeated blocks.
    """

    def __init__(
        self,
        executor: PlanExecutor,
        requests: Sequence[Sample] = (),
        watch: Watching | None = None,
        reached: dict[int, States | None] | None = None,
    ) -> None:
        if requests:
            executor.set_requests(requests, reached)
        self._executor, self._several = executor, len(requests) > 1
        self._watch: Watching = Calm() if watch is None else watch
        self._segment = executor.plan.segment_of
        self._alone: dict[int, Block] = {}  # by turn
        self._loaded: dict[int, Block] = {}
        self._first_host_s, self._run_count = 0.0, 0
        self.runs = 0

    def run(self, turn: int = _WARM_UP) -> float:
        """Run once without load, as the block of a turn, and return the seconds.

        Without a turn, the run counts until there is a block.
        """
        self._alone[turn] = run = self._timed_run()
        self._first_host_s = run.host
        return run.whole

    def run_warm(self, deadline: float) -> None:
        """Run once to warm up, and once more to measure if there is time.

        The first run on a device can take much longer: a GPU loads each kernel at its first use, which took up to 200 times as
        long as the run itself.

        Args:
            deadline: time by :func:`placeit.core.clock.now`. The second run is made if the first one took less than a quarter
                of the time until the deadline.
        """
        if self.run() < _WARM_UP_SHARE * (deadline - clock.now()):
            self.run()

    def block(self, turn: int) -> Block:
        """Run a block without load on other devices, and store it as the block of a turn.

        If a turn has a block already, the new block replaces it only if the old one was disturbed and the new one was not.
        """
        self._watch.begin()
        before, runs = self._run_count, self._counted_block()
        self._alone.pop(_WARM_UP, None)
        if turn not in self._alone:
            self.runs += self._run_count - before
        return _store(self._alone, turn, Block.of(runs, disturbed=self._watch.disturbed()))

    def block_beside(self, others: Sequence[Passes], turn: int, phase: float) -> Block:
        """Run a block under load: other plans run repeatedly on other devices at the same time.

        Args:
            others: the other plans, at least one.
            turn: number of the turn.
            phase: share of a run of the other plans, in [0, 1), after which the block begins. It should differ between blocks,
                so that the plans do not always run the same op, with the same weights, at the same time.
        """
        stop = threading.Event()
        self._watch.begin()
        with ThreadPoolExecutor(len(others), "placeit load") as threads:
            try:
                running = [threads.submit(other._run_until, stop) for other in others]
                time.sleep(phase * max(other.median_s for other in others))
                runs = self._counted_block()
            finally:
                stop.set()
        for other in running:
            other.result()
        return _store(self._loaded, turn, Block.of(runs, disturbed=self._watch.disturbed(alone=False)))

    def forget(self) -> None:
        """Discard all times measured so far."""
        self._alone.clear()
        self._loaded.clear()
        self.runs = 0

    @property
    def median_s(self) -> float:
        """Median seconds of a run without load."""
        return float(np.median([block.whole for block in _valid_blocks(self._alone).values()]))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the median seconds of blocks without load; their range if there are fewer than six.

        If fewer than three blocks are undisturbed, it is the range of all blocks, including disturbed ones.
        """
        few = _too_few(self._alone)
        seconds = [block.whole for block in (self._alone if few else _valid_blocks(self._alone)).values()]
        return (min(seconds), max(seconds)) if few or len(seconds) < FEWEST else median_interval(seconds)

    @property
    def steady(self) -> bool:
        """Whether the confidence interval of the blocks without load is narrower than 5 %."""
        if len(self._alone) < _MIN_BLOCKS or self.unsure:
            return False
        low, high = self.interval
        return high <= low * _MAX_STEADY_RATIO

    @property
    def disturbed(self) -> tuple[int, int]:
        """Number of blocks, with and without load, and number of disturbed blocks among them."""
        every = [*self._alone.values(), *self._loaded.values()]
        return len(every), sum(block.disturbed for block in every)

    @property
    def unsure(self) -> bool:
        """Whether disturbed blocks count, because there are too few undisturbed ones."""
        return _too_few(self._alone) or _too_few(self._loaded)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """``float64[G]``, median seconds of each group's segment in blocks without load; zero if it computes nothing."""
        return np.median([block.segments for block in _valid_blocks(self._alone).values()], axis=0)[self._segment]

    @property
    def load(self) -> NDArray[np.float64]:
        """``float64[G]``, additional seconds of each group's segment under load, the median over turns; zero without load."""
        if not self._loaded:
            return np.zeros(len(self._segment))
        return _paired(self._loaded, self._alone, lambda loaded, alone: loaded.segments - alone.segments)[self._segment]

    def beyond(self, other: Passes, share: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Subtract times in another plan from the time of each group's segment: ``float64[G]``, the median over turns.

        Args:
            other: the other plan.
            share: ``float64[G]``, share of a run of the other plan to subtract; None to subtract the group's segment there.
        """
        segment, other_segment = self._segment, other._segment

        def difference(some: Block, others: Block) -> NDArray[np.float64]:
            subtracted = others.segments[other_segment] if share is None else share * others.segments.max()
            return np.asarray(some.segments[segment] - subtracted, np.float64)

        return _paired(self._alone, other._alone, difference)

    @property
    def host(self) -> float:
        """Median seconds that the caller waited before the first segment began and after the last one ended."""
        known = [block.host for block in _valid_blocks(self._alone).values() if not math.isnan(block.host)]
        return float(np.median(known)) if known else self._first_host_s

    @property
    def handovers(self) -> Mapping[tuple[int, int], float]:
        """Median over blocks of the mean seconds from the time at which a segment could have started to its start.

        Keys are pairs of devices: of the segment that it waited for last (a producer, or the previous segment on the same
        device), and its own. The planned time of a transfer is subtracted.
        """
        found: dict[tuple[int, int], list[float]] = {}
        for block in _valid_blocks(self._alone).values():
            for route, gap in block.gaps.items():
                found.setdefault(route, []).append(gap)
        return {route: float(np.median(gaps)) for route, gaps in found.items()}

    def _run_until(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._run(_MAX_WARM_UP_RUNS)

    def _run(self, in_row: int) -> float:
        """Run once, or ``in_row`` times on each of several requests, and return the seconds."""
        return self._executor.times(in_row) if self._several else self._executor.time()

    def _counted_block(self) -> list[Block]:
        """Run a block, and return the runs that count."""
        if self._several:  # the executor reports only the last run of each request
            return [self._timed_run(1 + counted_runs(self._alone[min(self._alone)].whole if self._alone else math.inf))]
        return steady_runs(self._timed_run, lambda run: run.whole)

    def _timed_run(self, in_row: int = 1) -> Block:
        """Run once, or ``in_row`` times on each of several requests, and return the times of the last run."""
        self._run_count += in_row
        called = time.perf_counter()
        seconds = self._run(in_row)
        answered = time.perf_counter()
        begin, end = self._last_times()
        ran = end > 0
        extent = float(end[ran].max() - begin[ran].min()) if ran.any() else 0.0
        if in_row > 1:
            host, seconds = math.nan, extent
        elif self._several:
            host = max(0.0, seconds - extent)
        else:
            # times by a virtual clock are outside this call, and do not show how long the caller waits
            during = ran.any() and begin[ran].min() < answered and end[ran].max() > called
            host = max(0.0, answered - called - extent) if during else 0.0
        return Block(seconds, end - begin, self._handovers(begin, end), host, disturbed=False)

    def _last_times(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return when each segment began and ended in the last run, ``float64[S]`` each; zero if it computes nothing."""
        times = np.zeros((len(self._executor.plan.segments), 2))
        for span in self._executor.spans():
            if span.segment is not None:
                times[span.segment] = span.start, span.finish
        return times[:, 0], times[:, 1]

    def _handovers(self, begin: NDArray[np.float64], end: NDArray[np.float64]) -> dict[tuple[int, int], float]:
        plan = self._executor.plan
        problem, place = plan.problem, plan.placement
        gaps: dict[tuple[int, int], list[float]] = {}
        device_free: dict[int, float] = {}  # end of the last segment on each device
        producers: list[list[tuple[int, float]]] = [[] for _ in plan.segments]
        for (u, v), nbytes in zip(problem.edges.tolist(), problem.edge_bytes.tolist(), strict=True):
            producers[v].append((u, nbytes))
        for s in np.argsort(begin, kind="stable").tolist():
            if end[s] == 0:
                continue
            d = int(place[s])
            ready = [(device_free[d], d)] if d in device_free else []
            for u, nbytes in producers[s]:
                src = int(place[u])
                if end[u] > 0:
                    ready.append((end[u] + (0.0 if src == d else nbytes / problem.bandwidth[src, d]), src))
            if ready:
                last, src = max(ready)
                gaps.setdefault((src, d), []).append(max(0.0, float(begin[s]) - last))
            device_free[d] = float(end[s])
        return {route: float(np.mean(seconds)) for route, seconds in gaps.items()}


def _paired(
    some: Mapping[int, Block], others: Mapping[int, Block], difference: Callable[[Block, Block], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the median difference of two kinds of blocks, over the turns in which both are valid.

    If there is no such turn, return the difference of their medians.
    """
    valid, valid_others = _valid_blocks(some), _valid_blocks(others)
    turns = valid.keys() & valid_others.keys()
    if not turns:
        return difference(*(Block.of([*each.values()], disturbed=False) for each in (valid, valid_others)))
    return np.asarray(np.median([difference(some[turn], others[turn]) for turn in turns], axis=0), np.float64)


def _valid_blocks(blocks: Mapping[int, Block]) -> Mapping[int, Block]:
    """Return the blocks that count: the undisturbed ones, or if there are too few, the faster half of all blocks.

    Disturbances make runs longer, so the faster half is closer to the undisturbed time.
    """
    if not _too_few(blocks):
        return {turn: block for turn, block in blocks.items() if not block.disturbed}
    faster = sorted(blocks, key=lambda turn: blocks[turn].whole)[: (len(blocks) + 1) // 2]
    return {turn: blocks[turn] for turn in faster}


def _too_few(blocks: Mapping[int, Block]) -> bool:
    """Return whether fewer than three blocks are undisturbed, and at least one is disturbed."""
    return sum(not block.disturbed for block in blocks.values()) < min(MIN_UNDISTURBED, len(blocks))


def _store(blocks: dict[int, Block], turn: int, block: Block) -> Block:
    before = blocks.get(turn)
    if before is None or (before.disturbed and not block.disturbed):
        blocks[turn] = block
    return blocks[turn]


def without_emulated_links(runtime: Runtime, grouping: Grouping, stack: contextlib.ExitStack) -> Runtime:
    """Return a runtime without emulated links, since measuring their known delays would waste time."""
    if all(link.origin != "emulated" for link in runtime.cluster.links.values()):
        return runtime
    bare = replace(runtime.cluster, links={})
    opened = Runtime(runtime.model, grouping, bare, precision=runtime.precision, compiling=runtime.compiler.compiling)
    return stack.enter_context(opened)
