"""Blocks of runs over a plan: which runs count, what disturbed blocks mean, and what runs beside others."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.backends.base import Sample
from placeit.core import clock
from placeit.core.cluster import Cluster, Device
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler import passes
from placeit.profiler.passes import Passes, counted_runs, warm_up_runs
from placeit.runtime.spans import Span
from tests.small_models import inception_like

GROUPING = coarsen(inception_like().graph)
GROUPS = len(GROUPING.groups)
WHOLE = Segmenter(GROUPING, Costs.zero(GROUPS, Cluster((Device("a"),)))).plan(np.zeros(GROUPS, np.int32))


class Clock:
    """A clock of callers, by which known executors run."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture(autouse=True)
def clock_of_callers(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Let no time pass but what executors say that they take."""
    fake = Clock()
    monkeypatch.setattr(passes, "time", fake)
    return fake


class Known:
    """An executor of the whole model as one segment, whose runs take known seconds.

    Args:
        seconds: of each run.
        before, after: seconds for which its caller waits beside that.
    """

    plan = WHOLE

    def __init__(self, seconds: Iterable[float], fake: Clock | None = None, before: float = 0.0, after: float = 0.0) -> None:
        self.seconds, self.clock, self.around = iter(seconds), Clock() if fake is None else fake, (before, after)
        self.runs, self.asked, self.span = 0, list[int](), list[Any]()

    def time(self) -> float:
        self.runs += 1
        took = next(self.seconds)
        begin = self.clock.now + self.around[0]
        self.clock.now = begin + took + self.around[1]
        self.span = [Span("compute", ("a",), 0, 0, begin, begin + took)]
        return took

    def times(self, count: int) -> float:
        self.asked.append(count)
        return sum(self.time() for _ in range(count))

    def spans(self) -> list[Any]:
        return self.span

    def set_requests(self, requests: Sequence[Sample], reached: object = None) -> None:
        pass


class Disturbing:
    """A watch that says of each period in turn whether it was disturbed."""

    def __init__(self, *disturbed: bool) -> None:
        self.answers = iter(disturbed)

    def begin(self) -> None:
        pass

    def disturbed(self, *, alone: bool = True) -> bool:
        return next(self.answers)


def passes_of(seconds: Iterable[float], watch: Any = None, **known: Any) -> tuple[Passes, Known]:
    executor = Known(seconds, **known)
    return Passes(cast("Any", executor), (), watch), executor


def blocks(*wholes: float, watch: Any = None) -> Passes:
    """Passes of blocks of two slow runs each, of which the second one counts, with these seconds."""
    made, _ = passes_of([seconds for each in wholes for seconds in (2 * each, each)], watch)
    for turn in range(len(wholes)):
        made.block(turn)
    return made


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        ([5.0], 1),
        ([5.0, 3.0], 1),
        ([5.0, 3.0, 3.0], 1),
        ([5.0, 3.0, 2.95], 1),  # less than 3 % shorter
        ([5.0, 4.0, 3.0, 3.0], 2),
        ([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0], 4),  # bounded
        ([1.0, 1.0, 2.0, 1.0], 1),  # what comes after the first steady run counts, disturbed or not
    ],
)
def test_first_runs_are_left_out_while_the_next_is_shorter(seconds: list[float], expected: int) -> None:
    assert warm_up_runs(seconds) == expected


@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=30))
def test_at_least_one_run_and_at_most_four_are_left_out(seconds: list[float]) -> None:
    assert 1 <= warm_up_runs(seconds) <= 4
    assert warm_up_runs(seconds) == warm_up_runs(seconds[: max(6, warm_up_runs(seconds) + 2)])  # later runs change nothing


@pytest.mark.parametrize(("seconds", "runs"), [(20e-6, 10), (1e-3, 5), (4e-3, 2), (0.02, 2), (0.06, 1), (0.0, 10)])
def test_a_block_is_milliseconds_of_a_tiny_model_and_few_runs_of_a_slow_one(seconds: float, runs: int) -> None:
    assert counted_runs(seconds) == runs


def test_a_block_has_the_median_of_steady_runs() -> None:
    made, executor = passes_of([5.1e-3, 4.0e-3, 2.8e-3, 2.75e-3, 9.9])
    assert made.block(0).whole == pytest.approx(2.775e-3)
    assert executor.runs == 4  # two that count, after two that found the caches full of something else
    slow, executor = passes_of(itertools.repeat(0.1))
    slow.block(0)
    assert executor.runs == 2


@pytest.mark.parametrize(
    ("wholes", "steady"),
    [
        ([1.0] * 4, True),
        ([1.0] * 3, False),  # too few
        ([1.0, 1.2] * 3, False),
        ([1.0] * 11 + [9.0], True),  # one block says nothing of the median
    ],
)
def test_times_are_steady_once_the_interval_of_their_median_is_narrow(wholes: list[float], *, steady: bool) -> None:
    assert blocks(*wholes).steady is steady


def test_disturbed_blocks_do_not_count_if_there_are_three_others() -> None:
    made = blocks(1.0, 9.0, 1.1, 8.0, 1.2, watch=Disturbing(False, True, False, True, False))
    assert made.interval == (1.0, 1.2)
    assert made.median_s == 1.1
    assert not made.unsure
    assert made.disturbed == (5, 2)


def test_where_too_few_blocks_are_undisturbed_the_faster_half_counts_and_the_interval_is_that_of_all() -> None:
    made = blocks(1.0, 3.0, 1.1, 4.0, 2.0, 2.5, 2.2, watch=Disturbing(False, True, False, True, True, True, True))
    assert made.unsure
    assert not made.steady
    assert made.median_s == pytest.approx(1.55)  # of 1, 1.1, 2 and 2.2
    assert made.interval == (1.0, 4.0)


def test_a_disturbed_block_that_is_repeated_gives_way_to_an_undisturbed_one() -> None:
    made, _ = passes_of([0.2, 0.9, 0.2, 0.1, 0.2, 0.3], Disturbing(True, False, False))
    assert made.block(0).disturbed
    assert made.block(0).whole == pytest.approx(0.1)
    assert made.block(0).whole == pytest.approx(0.1), "a second undisturbed one does not take its place"
    assert made.disturbed == (1, 0)


def test_differences_are_paired_by_turn() -> None:
    """The machine becomes slower and slower: differences of medians over other turns would be wrong."""
    mine, theirs = blocks(1.1, 2.1, 4.1, 8.1), blocks(1.0, 2.0, 4.0)
    np.testing.assert_allclose(mine.beyond(theirs), 0.1)
    share = np.full(GROUPS, 0.5)
    np.testing.assert_allclose(mine.beyond(theirs, share), 1.1)


def test_differences_of_turns_that_only_one_has_are_those_of_medians() -> None:
    mine, _ = passes_of([0.4, 0.2])
    mine.block(7)
    np.testing.assert_allclose(mine.beyond(blocks(0.1, 0.1)), 0.1)


def test_the_host_part_is_what_the_caller_waits_beside_the_segments(clock_of_callers: Clock) -> None:
    made, _ = passes_of(itertools.repeat(0.01), fake=clock_of_callers, before=3e-3, after=2e-3)
    made.block(0)
    assert made.host == pytest.approx(5e-3)


def test_times_of_a_virtual_clock_say_nothing_of_the_host(monkeypatch: pytest.MonkeyPatch, clock_of_callers: Clock) -> None:
    virtual, looks = Clock(), itertools.count(1000.0)
    monkeypatch.setattr(clock_of_callers, "perf_counter", lambda: next(looks))
    made, _ = passes_of(itertools.repeat(0.01), fake=virtual)
    made.block(0)
    assert made.host == 0.0


def test_several_requests_are_measured_in_the_last_of_some_runs_in_a_row() -> None:
    """Of a sequence, the runs before it bring its state to its size, and fill the caches with what it reads."""
    executor = Known([9.0, 0.05, 0.03, 0.02, 0.01, 0.03])
    made = Passes(cast("Any", executor), [Sample({}, 0.0), Sample({}, 1.0)])
    made.run()
    made.block(0)
    made.block(1)
    assert executor.asked == [1, 2, 3]  # as many as the known time of a run allows
    assert made.seconds == pytest.approx([0.03] * GROUPS)


class Forever:
    """Seconds of runs without end, and an event once one has begun."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.running = seconds, threading.Event()

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        self.running.set()
        return self.seconds


def test_a_block_beside_others_begins_within_one_run_of_theirs(
    monkeypatch: pytest.MonkeyPatch, clock_of_callers: Clock
) -> None:
    waited, runs = list[float](), Forever(0.25)
    neighbour, _ = passes_of(runs)
    neighbour.block(0)
    runs.running.clear()

    def sleep(seconds: float) -> None:
        runs.running.wait()
        waited.append(seconds)

    monkeypatch.setattr(clock_of_callers, "sleep", sleep)
    mine, _ = passes_of([0.1, 0.1, 0.2, 0.13])
    mine.block(0)
    mine.block_beside([neighbour], 0, phase=0.5)
    assert waited == [0.125]
    np.testing.assert_allclose(mine.load, 0.03)


@pytest.mark.parametrize(
    ("first", "left", "runs"),
    [
        (0.7, 60.0, 2),  # a GPU that loads its kernels
        (0.7, 2.0, 1),  # there is no time for more
    ],
)
def test_a_first_run_counts_only_if_there_is_no_time_for_another(first: float, left: float, runs: int) -> None:
    made, executor = passes_of([first, 0.003])
    made.run_warm(clock.now() + left)
    assert executor.runs == runs
    assert made.interval == ((first, first) if runs == 1 else (0.003, 0.003))
