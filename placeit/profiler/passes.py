"""Runs a plan in blocks of consecutive runs, and records the times of its segments and of the hand-overs between them.

A model that runs again and again finds in the caches what its run before has left there. If programs took turns run by run,
each would find the weights of the others instead: products with one row then take up to twice as long.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Sample
from placeit.core import clock
from placeit.measuring.measure import FEWEST, median_interval
from placeit.planning.coarsen import Grouping
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime

__all__ = ["Block", "Calm", "Passes", "Progress", "Watching", "counted", "left_out", "steady_runs", "unslowed"]

Run = TypeVar("Run")

Progress = Callable[[str, float], None]
"""``progress(what, share)``: what is being done, and which share of it is done."""

FEWEST_CALM = 3
"""Undisturbed blocks from which on no others count."""

_WARM = -1  # turn of a run that is no block
_NARROW = 1.05  # the high end of an interval over the low one
_FEWEST_BLOCKS = 4  # blocks from which on their range says whether times have settled; an interval needs more
_WARMING = 0.25  # of the time that is left, which a second run may take
_FALL = 0.03  # share by which the next run is shorter while a block is not steady yet
_MOST_LEFT_OUT = 4  # runs of a block, at most
_BLOCK_S = 5e-3  # seconds of the runs of a block that count, at least
_SLOW_S = 0.05  # seconds of a run from which on one run of a block counts
_MOST_RUNS = 10  # runs of a block that count, at most


class Watching(Protocol):
    """Tells whether something else disturbs the machine; :class:`placeit.profiler.load.Watch` is one."""

    def begin(self) -> None:
        """Begin a period."""
        ...

    def disturbed(self, *, alone: bool = True) -> bool:
        """Return whether the period was disturbed until now; not ``alone`` if threads of this process had no core each."""
        ...


class Calm:
    """A machine on which nothing else runs."""

    def begin(self) -> None:
        """Begin a period."""

    def disturbed(self, *, alone: bool = True) -> bool:  # noqa: ARG002
        """Return False."""
        return False


def left_out(seconds: Sequence[float]) -> int:
    """Return how many of the first runs of a block do not count.

    The first run never does, as it finds the caches full of what ran before. The next one does not either while the run after
    it takes less by more than 3 %, up to 4 runs in all.

    Args:
        seconds: of each run of the block so far, in order, one at least.
    """
    count = 1
    while count < min(_MOST_LEFT_OUT, len(seconds) - 1) and seconds[count + 1] < seconds[count] * (1.0 - _FALL):
        count += 1
    return count


def counted(seconds: float) -> int:
    """Return how many runs of a block are to count, by the seconds of one run: 5 ms of them, or 2, or 1 of more than 50 ms."""
    fewest = 1 if seconds > _SLOW_S else 2
    return min(max(math.ceil(_BLOCK_S / seconds), fewest), _MOST_RUNS) if seconds > 0 else _MOST_RUNS


def steady_runs(run: Callable[[], Run], seconds: Callable[[Run], float]) -> list[Run]:
    """Run a block until its runs are steady and enough of them count, and return those that count.

    Args:
        run: runs once.
        seconds: tells of what a run returned how long it took.
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
        host: seconds for which the caller waited while no segment had begun or all had ended; NaN if that is not known.
        disturbed: whether something else on the machine disturbed it.
    """

    whole: float
    segments: NDArray[np.float64]
    gaps: Mapping[tuple[int, int], float]
    host: float
    disturbed: bool

    @classmethod
    def of(cls, runs: Sequence[Block], *, disturbed: bool) -> Block:
        """Return the medians of runs, each as a block of one run."""
        routes = runs[0].gaps.keys()
        return cls(
            float(np.median([run.whole for run in runs])),
            np.median([run.segments for run in runs], axis=0),
            {route: float(np.median([run.gaps[route] for run in runs if route in run.gaps])) for route in routes},
            float(np.median([run.host for run in runs])),
            disturbed,
        )


class Passes:
    """A plan with one segment per group, or one segment for all groups, timed in place, block by block.

    In place means: with the cache contents that the segments before it leave. Of a model that keeps state, a run is in the
    middle of a sequence: requests that only lead to others have run before, and the state is as large as they leave it.

    Args:
        executor: of the plan, with inputs in place unless requests are given.
        requests: what it is timed on; none for the inputs in place.
        watch: tells which blocks are disturbed.

    Attributes:
        runs: of the blocks alone, without those that were repeated.
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
        """Run once, alone, as the block of a turn, and return its seconds; without a turn it counts until there is a block."""
        self._alone[turn] = run = self._once()
        self._first_host = run.host
        return run.whole

    def run_warm(self, deadline: float) -> None:
        """Run once, and if there is time for it, again, and forget the first run.

        In its first run a device sets things up: a GPU loads every kernel that it meets, which was seen to take 200 times as
        long as the run itself.

        Args:
            deadline: by ``placeit.core.clock``; a second run that takes as long as the first is to be a small part of the time
                until then.
        """
        if self.run() < _WARMING * (deadline - clock.now()):
            self.run()

    def block(self, turn: int) -> Block:
        """Run alone, again and again until the runs are steady and enough of them count; keep it as the block of a turn.

        Of two blocks of a turn, the one that is undisturbed is kept, or the first.
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
            others: what runs beside it, one at least.
            turn: its number.
            phase: how far into a pass of theirs it begins, in [0, 1): so that not everybody is at the same op, with the same
                weights, at the same time.
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
        """Drop all times measured so far, which were for warming up."""
        self._alone.clear()
        self._loaded.clear()
        self.runs = 0

    @property
    def typical(self) -> float:
        """Median seconds of a run alone."""
        return float(np.median([block.whole for block in _sound(self._alone).values()]))

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of the median seconds of blocks alone; their range if they are fewer than six.

        If fewer than three are undisturbed, it is the range of all, the disturbed ones included.
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
        """How many blocks there are, alone and beside others, and how many of them were disturbed."""
        every = [*self._alone.values(), *self._loaded.values()]
        return len(every), sum(block.disturbed for block in every)

    @property
    def unsure(self) -> bool:
        """True if disturbed blocks count, as there are too few others."""
        return _too_few(self._alone) or _too_few(self._loaded)

    @property
    def seconds(self) -> NDArray[np.float64]:
        """``float64[G]``, median seconds of each group's segment in blocks alone; zero if it runs nothing."""
        return np.median([block.segments for block in _sound(self._alone).values()], axis=0)[self._segment]

    @property
    def load(self) -> NDArray[np.float64]:
        """``float64[G]``, what segments take more beside others: the median over turns; zero if nothing ran beside others."""
        if not self._loaded:
            return np.zeros(len(self._segment))
        return _paired(self._loaded, self._alone, lambda loaded, alone: loaded.segments - alone.segments)[self._segment]

    def beyond(self, other: Passes, share: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
        """Return what each group's segment takes beyond another plan, ``float64[G]``: the median over turns.

        Args:
            other: the other plan.
            share: ``float64[G]``, which part of a run of the other plan is taken off; None for the group's segment there.
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

        By the device of what ended last before it (what it waited for, or what kept its device), and its own. Where a tensor
        moved, its seconds on the link by the plan are left out.
        """
        found: dict[tuple[int, int], list[float]] = {}
        for block in _sound(self._alone).values():
            for route, gap in block.gaps.items():
                found.setdefault(route, []).append(gap)
        return {route: float(np.median(gaps)) for route, gaps in found.items()}

    def _keep_running(self, over: threading.Event) -> None:
        while not over.is_set():
            self._run(_MOST_LEFT_OUT)

    def _run(self, in_row: int) -> float:
        """Run once, or ``in_row`` times on each of several requests, and return the seconds."""
        return self._executor.times(in_row) if self._several else self._executor.time()

    def _runs(self) -> list[Block]:
        """Run until enough runs count, and return these."""
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
            # times of a virtual clock, which are not of this call, say nothing of how long its caller waits
            during = ran.any() and begin[ran].min() < answered and end[ran].max() > called
            host = max(0.0, answered - called - extent) if during else 0.0
        return Block(seconds, end - begin, self._handovers(begin, end), host, disturbed=False)

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


def _paired(
    some: Mapping[int, Block], others: Mapping[int, Block], difference: Callable[[Block, Block], NDArray[np.float64]]
) -> NDArray[np.float64]:
    """Return the median difference of two kinds of blocks over the turns that have sound blocks of both.

    Where no turn has, it is the difference of their medians.
    """
    sound, sound_others = _sound(some), _sound(others)
    turns = sound.keys() & sound_others.keys()
    if not turns:
        return difference(*(Block.of([*each.values()], disturbed=False) for each in (sound, sound_others)))
    return np.asarray(np.median([difference(some[turn], others[turn]) for turn in turns], axis=0), np.float64)


def _sound(blocks: Mapping[int, Block]) -> Mapping[int, Block]:
    """Return the blocks that count: the undisturbed ones, or if there are too few, the faster half of all.

    What disturbs a run makes it longer, so the faster ones are nearer to what it takes.
    """
    if not _too_few(blocks):
        return {turn: block for turn, block in blocks.items() if not block.disturbed}
    faster = sorted(blocks, key=lambda turn: blocks[turn].whole)[: (len(blocks) + 1) // 2]
    return {turn: blocks[turn] for turn in faster}


def _too_few(blocks: Mapping[int, Block]) -> bool:
    """Return whether there are fewer than three undisturbed blocks, and others."""
    return sum(not block.disturbed for block in blocks.values()) < min(FEWEST_CALM, len(blocks))


def _keep(blocks: dict[int, Block], turn: int, block: Block) -> Block:
    before = blocks.get(turn)
    if before is None or (before.disturbed and not block.disturbed):
        blocks[turn] = block
    return blocks[turn]


def unslowed(runtime: Runtime, grouping: Grouping, stack: contextlib.ExitStack) -> Runtime:
    """Return a runtime without emulated links: what one takes is known, and nobody should wait for it."""
    if all(link.origin != "emulated" for link in runtime.cluster.links.values()):
        return runtime
    bare = replace(runtime.cluster, links={})
    opened = Runtime(runtime.model, grouping, bare, precision=runtime.precision, compiling=runtime.compiler.compiling)
    return stack.enter_context(opened)
