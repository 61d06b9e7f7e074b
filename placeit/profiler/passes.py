"""Run a plan in blocks of consecutive runs, and record the times of its segments and of the hand-overs between them.

A model that runs repeatedly finds in the caches what its previous run left there. If programs took turns run by run, each would
find the weights of the others instead: products with one row then take up to twice as long.
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

__all__ = ["Block", "Calm", "Passes", "Progress", "counted", "left_out", "steady_runs", "unslowed"]

Run = TypeVar("Run")

Progress = Callable[[str, float], None]
"""``progress(what, share)``: the current step, and the share of it that is done."""

FEWEST_CALM = 3
"""Number of undisturbed blocks from which on disturbed blocks do not count."""

_WARM = -1  # turn of a run that is no block
_NARROW = 1.05  # high end of an interval over its low end, up to which it is narrow
_FEWEST_BLOCKS = 4  # blocks from which on their range tells whether times are steady; an interval needs more
_WARMING = 0.25  # share of the time left that a second run may take
_FALL = 0.03  # share by which a run is shorter than the one before while a block is not steady yet
_MAX_LEFT_OUT = 4  # most runs of a block that do not count
_BLOCK_S = 5e-3  # least seconds of the runs of a block that count
_SLOW_S = 0.05  # seconds of a run from which on one run of a block counts
_MAX_RUNS = 10  # most runs of a block that count


class Calm:
    """A monitor for a machine on which nothing else runs."""

    def begin(self) -> None:
        """Begin a period."""

    def disturbed(self, *, alone: bool = True) -> bool:  # noqa: ARG002
        """Return False."""
        return False


def left_out(seconds: Sequence[float]) -> int:
    """Return how many of the first runs of a block do not count.

    The first run never counts, since the caches hold the data of an earlier program. The next one does not count either while
    the run after it is shorter by more than 3 %, up to 4 runs in all.

    Args:
        seconds: seconds of each run of the block so far, in order; at least one.
    """
    count = 1
    while count < min(_MAX_LEFT_OUT, len(seconds) - 1) and seconds[count + 1] < seconds[count] * (1.0 - _FALL):
        count += 1
    return count


def counted(seconds: float) -> int:
    """Return how many runs of a block count, by the seconds of one: 5 ms of runs, at least 2 (1 if over 50 ms), at most 10."""
    fewest = 1 if seconds > _SLOW_S else 2
    return min(max(math.ceil(_BLOCK_S / seconds), fewest), _MAX_RUNS) if seconds > 0 else _MAX_RUNS


def steady_runs(run: Callable[[], Run], seconds: Callable[[Run], float]) -> list[Run]:
    """Run a block until its runs are steady and enough of them count, and return those that count.

    Args:
        run: runs once.
        seconds: returns the seconds of a run from its result.
    """
    runs = [run()]
    times = [seconds(runs[0])]
    while len(runs) - left_out(times) < counted(times[-1]):
        runs.append(run())
        times.append(seconds(runs[-1]))
    return runs[left_out(times) :]


@dataclass(frozen=True, eq=False)
class Block:
    """Medians of the runs of a block that count.

    Attributes:
        whole: seconds of a run.
        segments: ``float64[S]``, seconds of each segment; zero if it runs nothing.
        gaps: seconds of hand-overs by route; see :attr:`Passes.handovers`.
        host: seconds for which the caller waited while no segment had begun or all had ended; NaN if unknown.
        disturbed: whether other work on the machine disturbed it.
    """

    whole: float
    segments: NDArray[np.float64]
    gaps: Mapping[tuple[int, int], float]
    host: float
    disturbed: bool

    @classmethod
    def of(cls, runs: Sequence[Block], *, disturbed: bool) -> Block:
        """Return the medians of runs, each given as a block of one run."""
        routes = runs[0].gaps.keys()
        return cls(
            float(np.median([run.whole for run in runs])),
            np.median([run.segments for run in runs], axis=0),
            {route: float(np.median([run.gaps[route] for run in runs if route in run.gaps])) for route in routes},
            float(np.median([run.host for run in runs])),
            disturbed,
        )


class Passes:
    """Times of a plan that has one segment per group, or one segment for all groups, in place and block by block.

    In place means with the caches as the previous segments leave them. For a model that keeps state, a run is in the middle of
    a sequence: requests that only lead up to it have run before, and the state has the size that they leave.

    Args:
        executor: executor of the plan, with inputs set unless requests are given.
        requests: the requests to time; empty for the inputs that are set.
        watch: tells which blocks are disturbed.

    Attributes:
        runs: number of runs in blocks alone, without the blocks that were repeated.
    """

    def __init__(self, executor: PlanExecutor, requests: Sequence[Sample] = (), watch: Watching | None = None) -> None:
        if requests:
            executor.set_requests(requests)
        self._executor, self._several = executor, len(requests) > 1
        self._watch: Watching = Calm() if watch is None else watch
        self._segment = executor.plan.segment_of
        self._alone: dict[int, Block] = {}  # by turn
        self._loaded: dict[int, Block] = {}
        self._first_host, self._made = 0.0, 0
        self.runs = 0

    def run(self, turn: int = _WARM) -> float:
        """Run once, alone, as the block of a turn, and return the seconds; without a turn, it counts until there is a block."""
        self._alone[turn] = run = self._once()
        self._first_host = run.host
        return run.whole

    def run_warm(self, deadline: float) -> None:
        """Run once, and if there is time for it, again, and forget the first run.

        A device sets things up in its first run: a GPU loads every kernel that it meets, which was seen to take 200 times as
        long as the run itself.

        Args:
            deadline: by :func:`placeit.core.clock.now`. There is time for a second run if the first took less than a quarter of
                the time until then.
        """
        if self.run() < _WARMING * (deadline - clock.now()):
            self.run()

    def block(self, turn: int) -> Block:
        """Run alone, repeatedly, until the runs are steady and enough of them count; keep them as the block of a turn.

        Of two blocks of a turn, the undisturbed one is kept, or else the first.
        """
        self._watch.begin()
        before, runs = self._made, self._runs()
        self._alone.pop(_WARM, None)
        if turn not in self._alone:
            self.runs += self._made - before
        return _keep(self._alone, turn, Block.of(runs, disturbed=self._watch.disturbed()))

    def block_beside(self, others: Sequence[Passes], turn: int, phase: float) -> Block:
        """Run a block while other plans run repeatedly on other devices.

        Args:
            others: the plans that run beside it, at least one.
            turn: number of the turn.
            phase: how far into a pass of the others it begins, in [0, 1), so that they are not all at the same op, with the
                same weights, at the same time.
        """
        over = threading.Event()
        self._watch.begin()
        with ThreadPoolExecutor(len(others), "placeit load") as threads:
            try:
                running = [threads.submit(other._keep_running, over) for other in others]
                time.sleep(phase * max(other.typical for other in others))
                runs = self._runs()
            finally:
                over.set()
        for other in running:
            other.result()
        return _keep(self._loaded, turn, Block.of(runs, disturbed=self._watch.disturbed(alone=False)))

    def forget(self) -> None:
        """Drop all times measured so far, which were for warm-up."""
        self._alone.clear()
        self._loaded.clear()
        self.runs = 0

    @property
    def typical(self) -> float:
        """Median seconds of a run alone."""
        return float(np.median([block.whole for block in _sound(self._alone).values()]))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the median seconds of blocks alone; their range if there are fewer than six.

        If fewer than three are undisturbed, it is the range of all, disturbed ones included.
        """
        few = _too_few(self._alone)
        seconds = [block.whole for block in (self._alone if few else _sound(self._alone)).values()]
        return (min(seconds), max(seconds)) if few or len(seconds) < FEWEST else median_interval(seconds)

    @property
    def settled(self) -> bool:
        """True if more blocks alone would hardly change their median: their interval is narrow."""
        if len(self._alone) < _FEWEST_BLOCKS or self.unsure:
            return False
        low, high = self.interval
        return high <= low * _NARROW

    @property
    def disturbed(self) -> tuple[int, int]:
        """Number of blocks, alone and beside others, and number of disturbed ones among them."""
        every = [*self._alone.values(), *self._loaded.values()]
        return len(every), sum(block.disturbed for block in every)

    @property
    def unsure(self) -> bool:
        """True if disturbed blocks count, since there are too few others."""
        return _too_few(self._alone) or _too_few(self._loaded)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """``float64[G]``, median seconds of each group's segment in blocks alone; zero if it runs nothing."""
        return np.median([block.segments for block in _sound(self._alone).values()], axis=0)[self._segment]

    @property
    def load(self) -> NDArray[np.float64]:
        """``float64[G]``, additional seconds of segments beside other plans: the median over turns; zero if none ran so."""
        if not self._loaded:
            return np.zeros(len(self._segment))
        return _paired(self._loaded, self._alone, lambda loaded, alone: loaded.segments - alone.segments)[self._segment]

    def beyond(self, other: Passes, share: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return the seconds of each group's segment beyond its time in another plan, ``float64[G]``: the median over turns.

        Args:
            other: the other plan.
            share: ``float64[G]``, share of a run of the other plan to subtract; None to subtract the group's segment there.
        """
        mine, its = self._segment, other._segment

        def difference(some: Block, others: Block) -> NDArray[np.float64]:
            theirs = others.segments[its] if share is None else share * others.segments.max()
            return np.asarray(some.segments[mine] - theirs, np.float64)

        return _paired(self._alone, other._alone, difference)

    @property
    def host(self) -> float:
        """Median seconds for which the caller waited while no segment had begun or all had ended."""
        known = [block.host for block in _sound(self._alone).values() if not math.isnan(block.host)]
        return float(np.median(known)) if known else self._first_host

    @property
    def handovers(self) -> Mapping[tuple[int, int], float]:
        """Median over blocks of the mean seconds between the time when a segment could start and its start.

        Keys are two devices: of the segment that ended last before it (which it waited for, or which kept its device busy), and
        its own. If a tensor moved, its seconds on the link by the plan are subtracted.
        """
        found: dict[tuple[int, int], list[float]] = {}
        for block in _sound(self._alone).values():
            for route, gap in block.gaps.items():
                found.setdefault(route, []).append(gap)
        return {route: float(np.median(gaps)) for route, gaps in found.items()}

    def _keep_running(self, over: threading.Event) -> None:
        while not over.is_set():
            self._run(_MAX_LEFT_OUT)

    def _run(self, in_row: int) -> float:
        """Run once, or ``in_row`` times on each of several requests, and return the seconds."""
        return self._executor.times(in_row) if self._several else self._executor.time()

    def _runs(self) -> list[Block]:
        """Run until enough runs count, and return the ones that do."""
        if self._several:  # only the last run of each request is known, and the runs before it are left out
            return [self._once(1 + counted(self._alone[min(self._alone)].whole if self._alone else math.inf))]
        return steady_runs(self._once, lambda run: run.whole)

    def _once(self, in_row: int = 1) -> Block:
        """Run once, or ``in_row`` times on each of several requests, and return the last run."""
        self._made += in_row
        called = time.perf_counter()
        seconds = self._run(in_row)
        answered = time.perf_counter()
        begin, end = self._last()
        ran = end > 0
        extent = float(end[ran].max() - begin[ran].min()) if ran.any() else 0.0
        if in_row > 1:
            host, seconds = math.nan, extent
        elif self._several:
            host = max(0.0, seconds - extent)
        else:
            # a virtual clock's times lie outside this call, and do not tell how long its caller waits
            during = ran.any() and begin[ran].min() < answered and end[ran].max() > called
            host = max(0.0, answered - called - extent) if during else 0.0
        return Block(seconds, end - begin, self._handovers(begin, end), host, disturbed=False)

    def _last(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the begin and the end of each segment in the last run, ``float64[S]`` each; zero if it runs nothing."""
        times = np.zeros((len(self._executor.plan.segments), 2))
        for span in self._executor.spans():
            if span.segment is not None:
                times[span.segment] = span.start, span.finish
        return times[:, 0], times[:, 1]

    def _handovers(self, begin: NDArray[np.float64], end: NDArray[np.float64]) -> dict[tuple[int, int], float]:
        plan = self._executor.plan
        problem, place = plan.problem, plan.placement
        gaps: dict[tuple[int, int], list[float]] = {}
        freed: dict[int, float] = {}  # end of the last segment on each device
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


def _paired(
    some: Mapping[int, Block], others: Mapping[int, Block], difference: Callable[[Block, Block], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the median difference of two kinds of blocks over the turns that have sound blocks of both.

    If there is no such turn, it is the difference of their medians.
    """
    sound, sound_others = _sound(some), _sound(others)
    turns = sound.keys() & sound_others.keys()
    if not turns:
        return difference(*(Block.of([*each.values()], disturbed=False) for each in (sound, sound_others)))
    return np.asarray(np.median([difference(some[turn], others[turn]) for turn in turns], axis=0), np.float64)


def _sound(blocks: Mapping[int, Block]) -> Mapping[int, Block]:
    """Return the blocks that count: the undisturbed ones, or if there are too few, the faster half of all.

    A disturbance makes a run longer, so the faster ones are nearer to the true time.
    """
    if not _too_few(blocks):
        return {turn: block for turn, block in blocks.items() if not block.disturbed}
    faster = sorted(blocks, key=lambda turn: blocks[turn].whole)[: (len(blocks) + 1) // 2]
    return {turn: blocks[turn] for turn in faster}


def _too_few(blocks: Mapping[int, Block]) -> bool:
    """Return whether fewer than three blocks are undisturbed, and some are disturbed."""
    return sum(not block.disturbed for block in blocks.values()) < min(FEWEST_CALM, len(blocks))


def _keep(blocks: dict[int, Block], turn: int, block: Block) -> Block:
    before = blocks.get(turn)
    if before is None or (before.disturbed and not block.disturbed):
        blocks[turn] = block
    return blocks[turn]


def unslowed(runtime: Runtime, grouping: Grouping, stack: contextlib.ExitStack) -> Runtime:
    """Return a runtime without emulated links: their delays are known, and need not be waited for."""
    if all(link.origin != "emulated" for link in runtime.cluster.links.values()):
        return runtime
    bare = replace(runtime.cluster, links={})
    opened = Runtime(runtime.model, grouping, bare, precision=runtime.precision, compiling=runtime.compiler.compiling)
    return stack.enter_context(opened)
