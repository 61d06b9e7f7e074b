"""Compiling is part of the budget of a search: what does not fit is not raced, and what costs much has to be worth it."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, Self, cast

import numpy as np
import pytest

from placeit.core import clock
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import summed_up
from placeit.optimizer import measuring
from placeit.optimizer.candidate_state import Ran
from placeit.optimizer.candidates import Candidate, OtherDevices
from placeit.optimizer.deciding import confirm
from placeit.optimizer.measuring import measure
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.planning.placing import Placing
from placeit.planning.segments import Plan
from placeit.runtime.compiling import Compiling
from placeit.session import Session
from placeit.simulator.objectives.latency import Latency
from placeit.workbench import Workbench

PLENTY = 1e6  # seconds, for tests whose outcome the clock must not decide


class Opened:
    """Stands in for an executor whose runs take no time."""

    inner, uncounted, refused = 1e-3, 1.0, dict[int, str]()

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def segment_seconds(self) -> None: ...

    def time(self) -> float:
        return float(self.plan.seconds)


class Compiler:
    """Stands in for a session that knows what compiling plans takes, and has compiled some."""

    def __init__(self) -> None:
        self.opened: list[Any] = []
        self.session = SimpleNamespace(
            cluster=SimpleNamespace(executable=True, devices=()),
            tolerance=1e-3,
            grouping=SimpleNamespace(groups=SimpleNamespace(bytes_once=np.zeros(1))),
            segmenter=SimpleNamespace(problem=lambda: SimpleNamespace(compute=np.zeros((2, 2)))),
            executor=self.open,
            reference=SimpleNamespace(check=lambda _, **__: OutputDifference(0.0, 0.0)),
            compiling=Compiling(),
            runtime=SimpleNamespace(compiler=self),
            model=None,
            pins={"op": "device"},  # with pins, nothing compiles segments
        )

    def open(self, plan: Any, **_: object) -> Opened:
        self.opened.append(plan)
        return Opened(plan)

    def expected_s(self, plans: Any) -> float:
        return sum(plan.compiling for plan in plans if plan not in self.opened)


def searching(left_s: float, **splits: tuple[float, float]) -> tuple[Search, Compiler]:
    """Make a search with a compiled single device of 1 ms, and splits with given milliseconds and seconds of compiling."""
    compiler = Compiler()
    search = Search(RunOptions(cast("Session", compiler.session), Latency(), clock.now() + left_s))
    for name, (ms, compiling) in {"single": (1.0, 0.0), **splits}.items():
        plan = cast("Plan", SimpleNamespace(seconds=ms * 1e-3, compiling=compiling))
        placer = "single" if name == "single" else "drawn"
        search.enter(Candidate(name, placer, plan, cast("Placing", None), ms * 1e-3, ms * 1e-3))
    return search, compiler


def promising(search: Search) -> set[str]:
    return {one.name for one in measuring.promising(search)}


def test_what_takes_longer_to_compile_than_is_left_is_not_raced_and_says_so() -> None:
    search, _ = searching(PLENTY, slow=(0.5, 2 * PLENTY), quick=(0.6, 0.1))
    assert promising(search) == {"single", "quick"}
    slow = search.known["slow"]
    assert slow.late
    assert slow.not_run is not None
    assert slow.not_run.startswith("compiling it takes about 2e+06 s, and ")
    assert slow.not_run.endswith(" s are left for it")
    assert search.known["quick"].not_run is None


def test_candidates_share_what_time_there_is() -> None:
    some = {f"split {i}": (0.5 + i / 100, 0.3 * PLENTY) for i in range(5)}
    search, _ = searching(PLENTY, **some)
    assert promising(search) == {"single", "split 0", "split 1", "split 2"}
    assert search.known["split 4"].late


def test_what_is_compiled_is_raced_however_little_time_there_is() -> None:
    search, compiler = searching(1.0, there=(0.9, PLENTY), missing=(0.5, PLENTY))
    compiler.opened.append(search.known["there"].plan)
    assert promising(search) == {"single", "there"}


def test_what_costs_much_to_compile_is_left_out_unless_it_is_expected_to_be_better() -> None:
    search, _ = searching(PLENTY, equal=(0.995, 0.2 * PLENTY), better=(0.9, 0.2 * PLENTY))
    assert promising(search) == {"single", "better"}
    equal = search.known["equal"]
    assert not equal.late
    assert equal.not_run == "it is not simulated faster than the compiled ones, and compiling it takes about 2e+05 s"


def test_single_devices_are_compiled_and_raced_however_little_time_there_is() -> None:
    search, _ = searching(1.0, split=(0.5, 0.1))
    vars(search.known["single"].plan)["compiling"] = PLENTY
    assert promising(search) == {"single"}
    assert search.known["split"].late


def test_where_compiling_costs_little_all_take_part() -> None:
    search, _ = searching(PLENTY, **{f"split {i}": (1.0 + i / 10, 0.01 * PLENTY) for i in range(5)})
    assert promising(search) == {"single", *(f"split {i}" for i in range(5))}


def test_eager_splits_are_hopeless_by_eager_devices_only_where_their_segments_may_be_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    search, compiler = searching(PLENTY, near=(4.0, 0.0), far=(6.0, 0.0))
    plan = cast("Plan", SimpleNamespace(seconds=1e-4, compiling=0.0))
    whole = Candidate("compiled", "single", plan, cast("Placing", None), 1e-4, 1e-4)
    search.enter(whole, OtherDevices(cast("Workbench", compiler.session), np.ones(1)))
    assert not promising(search) & {"near", "far"}
    model = SimpleNamespace(stateful=(), inputs=(), called=print)
    vars(compiler.session).update(pins={}, model=model)
    monkeypatch.setattr("placeit.optimizer.whole_models.compiled_twins", lambda _: compiler.session.cluster)
    assert promising(search) & {"near", "far"} == {"near"}


def test_a_race_opens_nothing_more_when_compiling_took_longer_than_expected() -> None:
    search, compiler = searching(PLENTY, first=(0.5, 10.0), second=(0.6, 10.0))
    opened = compiler.session.executor

    def slow(plan: Any, **options: object) -> Opened:
        if plan.compiling:
            search.deadline = -math.inf
        return cast("Opened", opened(plan, **options))

    compiler.session.executor = slow
    measure(search)
    assert search.known["first"].measured is not None
    second = search.known["second"]
    assert second.measured is None
    assert second.late


def test_where_a_split_could_not_be_compiled_in_time_the_decision_says_that_time_was_short() -> None:
    search, _ = searching(PLENTY, slow=(0.5, 2 * PLENTY))
    measure(search)
    assert confirm(search).hurried


def test_a_decision_needs_time_to_compile_what_an_earlier_search_has_measured() -> None:
    search, compiler = searching(PLENTY, known=(0.5, 2 * PLENTY))
    for name in ("single", "known"):
        measured = summed_up(name, [search.known[name].simulated_s or 0.0] * 6, range(6))
        search.set_state(name, Ran(measured, measured, earlier=True), "measured")
    decision = confirm(search)
    assert decision.hurried
    assert decision.winner is search.known["single"]
    assert not compiler.opened


@pytest.mark.parametrize("left", [0.0, -1.0])
def test_nothing_is_compiled_when_no_time_is_left(left: float) -> None:
    search, compiler = searching(left, split=(0.5, 10.0))
    measure(search)
    assert all(plan.compiling == 0 for plan in compiler.opened)
