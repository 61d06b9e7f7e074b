"""Passes over a plan: when their times have settled, and how far into its neighbours' runs a run beside them begins."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from small_models import inception_like

from placeit.core import clock
from placeit.core.cluster import Cluster, Device
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler import passes
from placeit.profiler.passes import Passes

GROUPING = coarsen(inception_like().graph)
GROUPS = len(GROUPING.groups)
WHOLE = Segmenter(GROUPING, Costs.zero(GROUPS, Cluster((Device("a"),)))).plan(np.zeros(GROUPS, np.int32))


class Known:
    """An executor of the whole model as one segment, whose runs take known seconds."""

    plan = WHOLE

    def __init__(self, seconds: Iterator[float]) -> None:
        self.seconds = seconds
        self.runs = 0

    def time(self) -> float:
        self.runs += 1
        return next(self.seconds)

    def spans(self) -> list[Any]:
        return []


def timed(*seconds: float) -> Passes:
    """Passes that have taken so many seconds."""
    made = Passes(cast("Any", Known(iter(seconds))))
    for _ in seconds:
        made.run()
    return made


@pytest.mark.parametrize(
    ("seconds", "settled"),
    [
        ([1.0] * 6, True),
        ([1.0] * 5, False),  # too few for an interval
        ([1.0, 1.2] * 3, False),
        ([1.0] * 11 + [9.0], True),  # one disturbed run says nothing of the median
    ],
)
def test_times_have_settled_once_the_interval_of_their_median_is_narrow(seconds: list[float], *, settled: bool) -> None:
    assert timed(*seconds).settled is settled


def test_a_run_beside_others_begins_within_one_run_of_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    waited, running = list[float](), threading.Event()

    class Forever:
        def __iter__(self) -> Forever:
            return self

        def __next__(self) -> float:
            running.set()
            return 0.25

    neighbour = Passes(cast("Any", Known(iter(Forever()))))
    neighbour.run()
    running.clear()

    def sleep(seconds: float) -> None:
        running.wait()
        waited.append(seconds)

    monkeypatch.setattr(passes.time, "sleep", sleep)
    mine = Passes(cast("Any", Known(iter([0.1]))))
    mine.run_beside([neighbour], phase=0.5)
    assert waited == [0.125]


@pytest.mark.parametrize(
    ("first", "left", "runs"),
    [
        (0.7, 60.0, 2),  # a GPU that loads its kernels
        (0.7, 2.0, 1),  # there is no time for more
    ],
)
def test_a_first_run_counts_only_if_there_is_no_time_for_another(first: float, left: float, runs: int) -> None:
    executor = Known(iter([first, 0.003]))
    made = Passes(cast("Any", executor))
    made.run_warm(clock.now() + left)
    assert executor.runs == runs
    assert made.interval == ((first, first) if runs == 1 else (0.003, 0.003))
