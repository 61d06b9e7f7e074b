"""Candidates that fail, or compute something else: they are out, with the reason, and the others go on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from benchmarks.decision import Case, Drawn, Machine, search_of
from placeit.backends.openvino.model import describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError, ExecutionError, FileError, InfeasibleError, UsageError
from placeit.devices.host import allowed_cores
from placeit.optimizer.deciding import confirm
from placeit.optimizer.measuring import measure
from placeit.optimizer.options import Candidates
from placeit.optimizer.search import Search
from placeit.placers.heft import Heft
from placeit.planning.segments import Costs
from placeit.profiler.cache import Cache
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.broken_executors import NO_ROOM, broken, devices_of
from tests.small_models import inception_like
from tests.steady import optimize

ops = ov.opset13
CORE = allowed_cores()[0]
BUDGET_S = 30.0  # far more than a search takes that must not run out of time
NAMES = ("fast", "slow")
PAIR = Cluster(
    tuple(
        Device(name, address=Address("CPU", (core,)), slowdown=slow)
        for name, core, slow in zip(NAMES, (CORE, allowed_cores()[-1]), (1.0, 1.5), strict=True)  # on one core they take turns
    ),
    {pair: Link(1e9, 1e-5, "emulated") for pair in (NAMES, NAMES[::-1])},
)
REASONS = {
    "opening": NO_ROOM,
    "checking": "The device fell silent.",
    "first run": "A run of '{}' failed: The device fell silent.",
    "race": "A run of '{}' failed: The device fell silent.",
    "wrong": "Its outputs are wrong: they are off by",
}


@pytest.fixture
def worth_splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give groups costs for which splits are worth a run; measured costs of so small a model depend on other work here."""

    def profile(_: Any, grouping: Any, cluster: Cluster, *__: Any, **___: Any) -> Costs:
        free = Costs.zero(len(grouping.groups), cluster)
        return replace(free, core=np.full_like(free.core, 1e-4) * [device.slowdown for device in cluster.devices])

    monkeypatch.setattr("placeit.profiler.costs.profile", profile)


@pytest.mark.usefixtures("worth_splitting")
@pytest.mark.parametrize("stage", REASONS)
def test_splits_that_fail_leave_the_single_devices(stage: str, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, stage, lambda plan: len(devices_of(plan)) > 1)
    found = optimize(inception_like(), PAIR, candidates=Candidates(placers="heft"), budget=BUDGET_S, cache=cache)
    assert found.chosen.placer == "single"
    out = [candidate for candidate in found.candidates if candidate.failed is not None]
    assert out
    assert all(len(devices_of(candidate.plan)) > 1 for candidate in out)
    for candidate in out:
        assert candidate.failed is not None
        assert REASONS[stage].format(candidate.name) in candidate.failed
        assert candidate.measured is None
    singles = [candidate for candidate in found.candidates if candidate.placer == "single"]
    assert all(single.failed is None and single.measured is not None for single in singles)
    rows = {row["name"]: row for row in json.loads(json.dumps(found.to_dict(), allow_nan=False))["candidates"]}
    assert all(rows[candidate.name]["failed"] == candidate.failed for candidate in found.candidates)


@pytest.mark.usefixtures("worth_splitting")
def test_one_split_that_fails_leaves_the_other_splits(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    first: list[Any] = []

    def is_first(plan: Any) -> bool:
        if not first and len(devices_of(plan)) > 1:
            first.append(plan)
        return plan in first

    broken(monkeypatch, "opening", is_first)
    found = optimize(
        inception_like(), PAIR, candidates=Candidates(placers=("heft", "random:samples=1")), budget=BUDGET_S, cache=cache
    )
    assert [candidate.failed for candidate in found.candidates if candidate.failed is not None] == [NO_ROOM]
    assert any(c.placer != "single" and c.measured is not None for c in found.candidates)


def test_a_single_device_that_fails_leaves_the_others(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "opening", lambda plan: devices_of(plan) == {0})
    found = optimize(inception_like(), PAIR, candidates=Candidates(placers="heft"), budget=1.5, cache=cache)
    single = {candidate.name: candidate for candidate in found.candidates if candidate.placer == "single"}
    assert single["fast"].failed == NO_ROOM
    assert found.best_single is single["slow"]
    assert found.chosen.failed is None
    assert found.speedup is not None


@pytest.mark.usefixtures("worth_splitting")
def test_where_everything_fails_the_error_says_why_each_did(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, "opening", lambda plan: True)
    with pytest.raises(ExecutionError, match=r"^Every placement of inception-like on fast, slow failed. ") as caught:
        optimize(inception_like(), PAIR, candidates=Candidates(placers="heft"), budget=BUDGET_S, cache=cache)
    for name in ("fast", "slow"):
        assert f"{name}: {NO_ROOM}" in str(caught.value)
    assert str(caught.value).count(NO_ROOM) > 2  # splits, whichever placer found them


def test_a_placer_that_finds_nothing_is_listed_with_its_reason(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(*_: Any, **__: Any) -> Any:
        raise InfeasibleError("Nothing fits anywhere.")

    monkeypatch.setattr(Heft, "place", place)
    found = optimize(inception_like(), PAIR, candidates=Candidates(placers=("heft", "metis")), budget=1.5, cache=cache)
    (lost,) = found.unplanned
    assert vars(lost) == {"name": "heft", "placer": "heft", "failed": "Nothing fits anywhere."}
    assert found.to_dict()["unplanned"] == [{"name": lost.name, "placer": lost.placer, "failed": lost.failed}]
    assert {"fast", "slow"} <= {candidate.name for candidate in found.candidates}


# --- a device that answers fast and wrong


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the device 'fast' skip whatever is not the whole model."""
    original = OpenVinoDevice.instance

    def instance(self: Any, program: Any) -> Any:
        made = original(self, program)
        if self.name == "fast" and len(program.outputs) < 2 and program.inputs:
            made.run = lambda: None
        return made

    monkeypatch.setattr(OpenVinoDevice, "instance", instance)


def branches() -> Any:
    """Two branches of convolutions, and their sum; a segment of it has one output, the whole model has two."""
    rng = np.random.default_rng(0)
    x = ops.parameter([1, 16, 32, 32], ov.Type.f32, name="x")

    def branch(value: Any) -> Any:
        for _ in range(3):
            weights = ops.constant((rng.standard_normal((16, 16, 3, 3)) * 0.1).astype(np.float32))
            value = ops.relu(ops.convolution(value, weights, [1, 1], [1, 1], [1, 1], [1, 1]))
        return value

    left, right = branch(x), branch(x)
    return describe(ov.Model([ops.result(ops.add(left, right)), ops.result(left)], [x], "branches"), Path("branches"))


@pytest.mark.usefixtures("lazy", "worth_splitting")
def test_a_device_that_skips_its_work_is_never_chosen_however_fast(cache: Cache) -> None:
    found = optimize(branches(), PAIR, candidates=Candidates(placers=("heft", "metis")), budget=BUDGET_S, cache=cache)
    assert found.chosen.failed is None
    assert found.chosen.output_error is not None
    assert found.chosen.output_error.max_rel < 1e-3
    wrong = [candidate for candidate in found.candidates if candidate.failed is not None]
    assert wrong
    assert all(candidate.failed.startswith("Its outputs are wrong") for candidate in wrong if candidate.failed is not None)
    assert all(candidate.output_error is not None for candidate in wrong)
    assert found.chosen not in wrong


@pytest.mark.parametrize(("tolerance", "right"), [(None, False), (0.005, False), (0.1, True)])
def test_the_tolerance_is_an_option(
    tolerance: float | None, right: bool, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "wrong", lambda plan: True)
    with Session(inception_like(), PAIR, constraints=Constraints(tolerance=tolerance), cache=cache) as session:
        session.profile()
        report = session.run(session.placement(np.zeros(len(session.grouping.groups), np.int32)), runs=1)
    assert report.output_error.max_rel == pytest.approx(0.01, rel=0.05)
    assert (report.failed is None) == right


@pytest.mark.parametrize("tolerance", [-1.0, float("nan")])
def test_a_tolerance_that_makes_no_sense_is_refused(tolerance: float) -> None:
    with pytest.raises(UsageError, match="tolerance"):
        optimize("there is no such model.onnx", "CPU", constraints=Constraints(tolerance=tolerance))


@pytest.mark.parametrize(("precision", "kind", "tolerance"), [("f32", "f32", 1e-3), ("bf16", "f32", 0.1), ("f32", "f16", 0.02)])
def test_the_tolerance_goes_by_the_coarsest_type(precision: str, kind: str, tolerance: float, cache: Cache) -> None:
    x = ops.parameter([4], ov.Type.f32, name="x")
    half = ops.convert(ops.tanh(ops.convert(ops.relu(x), kind)), "f32")
    model = describe(ov.Model([ops.result(ops.tanh(half))], [x], "half"), Path("half"))
    with Session(model, f"CPU@{CORE}", precision=precision, cache=cache) as session:
        assert session.tolerance == tolerance


# --- room


class Room:
    """Stands in for devices that have room for ``places`` executors at the same time."""

    def __init__(self, search: Search, places: int) -> None:
        self.original, self.places, self.open, self.most = search.session.executor, places, 0, 0
        search.session.executor = self.executor  # type: ignore[method-assign, assignment]

    def executor(self, seconds: float, **_: Any) -> Any:
        if self.open == self.places:
            raise DeviceError("There is no room.")
        self.open += 1
        self.most = max(self.most, self.open)
        made, room = self.original(seconds), self

        class Taking(Drawn):
            closed = False

            def __exit__(self, *_: object) -> None:
                self.close()

            def close(self) -> None:
                room.open -= not self.closed
                self.closed = True

        return Taking(made.seconds, made.machine)


def machine() -> Machine:
    return Machine(0.001, correlated=False, random=np.random.default_rng(0))


@pytest.mark.parametrize("foreseen", [False, True])
def test_what_finds_no_room_beside_the_others_is_raced_after_them(foreseen: bool) -> None:
    search = search_of(Case((0.9, 0.8, 0.7, 0.6), 0.001, (1.0, 1.1)), machine(), seed=0)
    room = Room(search, 3)
    if foreseen:
        room.places = 99
        search.has_room = lambda: room.open < 3  # type: ignore[method-assign]
    measure(search)
    decision = confirm(search)
    assert room.most == 3
    assert room.open == 0
    assert [candidate.failed for candidate in search.candidates] == [None] * 6
    assert all(candidate.measured is not None for candidate in search.candidates)
    assert decision.winner is not None
    assert decision.winner.simulated_s == 0.6


def test_what_finds_no_room_alone_is_out() -> None:
    search = search_of(Case((0.9, 0.8), 0.001, (1.0,)), machine(), seed=0)
    room = Room(search, 0)
    measure(search)
    assert confirm(search).winner is None
    assert room.open == 0
    assert {candidate.failed for candidate in search.candidates} == {"There is no room."}


def test_two_that_find_no_room_together_cannot_be_compared_and_the_single_device_stays() -> None:
    search = search_of(Case((0.9, 0.8), 0.001, (1.0,)), machine(), seed=0)
    Room(search, 1)
    measure(search)
    winner = confirm(search).winner
    assert winner is not None
    assert winner.placer == "single"


def test_who_loses_early_is_closed_while_the_others_race_on() -> None:
    seen: dict[str, set[int]] = {}
    search = search_of(Case((0.9, 0.91, 0.92), 0.001, (1.0, 1.4)), machine(), seed=0)
    room = Room(search, 9)
    search.progress = lambda what, _: seen.setdefault(what, set()).add(room.open)
    measure(search)
    confirm(search)
    assert seen["measuring the finalists"] > {5}
    assert seen["deciding between the finalists"] == {2}


def test_a_split_that_fails_in_the_decision_gives_way_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    search = search_of(Case((0.7, 0.8), 0.001, (1.0,)), machine(), seed=0)
    original, deciding = Drawn.time, False

    def progress(what: str, _: float) -> None:
        nonlocal deciding
        deciding |= what.startswith("deciding")

    def run(self: Drawn) -> float:
        if deciding and self.seconds == 0.7:
            raise ExecutionError("The device fell silent.")
        return original(self)

    monkeypatch.setattr(Drawn, "time", run)
    search.progress = progress
    measure(search)
    decision = confirm(search)
    assert decision.winner is not None
    assert decision.winner.simulated_s == 0.8
    assert decision.ratio is not None
    failed = [candidate.failed for candidate in search.candidates if candidate.simulated_s == 0.7]
    assert failed == ["A run of 'drawn 0' failed: The device fell silent."]


@pytest.mark.parametrize("error", [KeyError("conv1"), ZeroDivisionError("by what?")])
def test_a_placer_that_fails_is_a_warning_and_a_row(
    error: Exception, cache: Cache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def place(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(Heft, "place", place)
    found = optimize(inception_like(), PAIR, candidates=Candidates(placers=("heft", "metis")), budget=1.5, cache=cache)
    (lost,) = found.unplanned
    assert str(error.args[0]) in lost.failed
    (warning,) = [record.getMessage() for record in caplog.records if "'heft'" in record.getMessage()]
    assert lost.failed in warning
    assert found.chosen.failed is None


def test_nobody_answers_for_placers_none_of_which_can_place_the_model(cache: Cache) -> None:
    with pytest.raises(
        UsageError, match=r"None of the placers that were asked for gave a placement. exact:nodes=10: "
    ) as caught:
        optimize(
            inception_like(), PAIR, candidates=Candidates(placers=("exact:nodes=10", "exact:nodes=11")), budget=2, cache=cache
        )
    assert "exact:nodes=11: " in str(caught.value)
    found = optimize(inception_like(), PAIR, candidates=Candidates(placers=("exact:nodes=10", "heft")), budget=2, cache=cache)
    assert {candidate.name for candidate in found.unplanned} == {"exact:nodes=10"}


@pytest.mark.parametrize(
    ("placer", "error", "says"),
    [
        ("hsdag", UsageError, "'hsdag' needs PyTorch Geometric, .*pip install 'placeit\\[learn\\]'"),
        ("giph:weights=MISSING", FileError, "'giph' cannot be asked: There is no file MISSING"),
        ("guided:weights=MISSING", FileError, "There is no file MISSING"),
        ("repeated:placer=giph:weights=MISSING", FileError, "There is no file MISSING"),
        ("placeto:steps_per_op=0", UsageError, "must be positive"),
        ("heft", UsageError, "Install the solver"),
    ],
)
def test_a_placer_that_lacks_something_is_an_error_before_a_model_is_read(
    placer: str, error: type[Exception], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(*_: Any, **__: Any) -> Any:
        raise UsageError("Install the solver.")

    monkeypatch.setattr(Heft, "place", place)
    for module in ("torch_geometric", "torch_geometric.nn"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(error, match=says):
        optimize("there is no such model.onnx", PAIR, candidates=Candidates(placers=("metis", placer)))
