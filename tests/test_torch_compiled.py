"""PyTorch models that Inductor compiles whole: raced beside eager ones, chosen, run, bundled; and refused in a sentence."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from placeit.application import Application
from placeit.backends.torch.inductor import compile_segment, is_kept
from placeit.backends.torch.model import load
from placeit.core.errors import ExecutionError
from placeit.core.narrowing import narrowed
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.optimizer.compare import compare
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.devices.base import SegmentSource
from placeit.runtime.devices.inductor import InductorDevice
from placeit.runtime.devices.ort import OrtDevice, OrtProgram
from placeit.runtime.kinds import inductor
from placeit.session import Session
from tests.bundled import placed
from tests.steady import STEADY, optimize

CORE = allowed_cores()[0]
COMPILED, OTHER = f"inductor:CPU@{CORE}", f"inductor:CPU@{allowed_cores()[-1]}"
NET = nn.Sequential(
    nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(16, 4)
).eval()
X = torch.arange(16.0).reshape(2, 8) / 16


@torch.library.custom_op("placeit_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@doubled.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class Custom(nn.Module):
    """Has an op that a child process does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return doubled(x) + 1


class Half(nn.Module):
    """Has an op in its second half that a child process does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 64), nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(doubled(torch.relu(self.first(x))))


class Noisy(nn.Module):
    """Draws other numbers in each run."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x + torch.rand_like(x)


def split_at(session: Session, op: str) -> Placement:
    """The ops before one on the first device, and the others on the second, with segments; nothing is measured for it."""
    names, group_of = session.grouping.graph.names, session.grouping.group_of
    groups = len(session.grouping.groups)
    where = np.zeros(groups, np.int32)
    where[group_of[next(v for v, name in enumerate(names) if op in name) :]] = 1
    return session.placement(where, Segmenter(session.grouping, Costs.zero(groups, session.cluster)).plan(where))


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of caches in which, after the first search, the package of the module is kept."""
    path = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PLACEIT_CACHE", str(path))
        yield path


@pytest.fixture(scope="module")
def found(folder: Path) -> Iterator[Optimized]:
    """A search that has time to compile, which takes about 20 s."""
    with optimize(NET, f"CPU@{CORE}", example=(X,), budget=1000, candidates=Candidates("heft")) as answer:
        answer(X)  # starts its threads, which end with it
        yield answer


@pytest.mark.timeout(900)  # the module is compiled first, on cores that other tests may use as well
def test_the_compiled_module_is_a_candidate_beside_the_plain_one(found: Optimized) -> None:
    one = next(one for one in found.candidates if one.name == COMPILED)
    assert one.may_be_chosen
    assert one.measured is not None
    assert one.output_error is not None
    assert one.output_error.max_rel < 1e-5
    assert found.compiling["inductor:CPU"].compiled == 1
    torch.testing.assert_close(found(X), NET(X))


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("found")
def test_an_equal_module_is_not_compiled_again_and_one_of_other_weights_would_be() -> None:
    other = copy.deepcopy(NET)
    with Session(other, COMPILED, example=(X,)) as session:
        made = session.run(placed(session), runs=1)
        assert session.compiling.kinds["inductor:CPU"].from_disk == 1
        (device,) = session.runtime.devices
        threads = narrowed(InductorDevice, device).threads
    assert made.output_error.max_rel < 1e-5
    assert made.native
    kept = []
    for _ in range(2):
        model = load(other, (X,))
        kept.append(is_kept(model.segment("torch", range(len(model.graph)), [], []), threads))
        other[2].running_mean += 1
    assert kept == [True, False]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_freezing_changes_is_compiled_without_it_which_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path))
    with Session(Noisy(), COMPILED, example=(X,)) as session:
        made = session.run(placed(session), runs=1, inputs={"x": X.numpy()}).outputs["output"]
    assert (abs(made - 2 * X.numpy()) < 1).all()
    said = [one.getMessage() for one in caplog.records if "freezing" in one.getMessage()]
    assert said == [
        "Inductor compiles a segment without freezing its weights, so that it may be slower: its outputs would differ."
    ]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_bundle_of_the_compiled_module_is_compiled_when_it_is_tried_and_kept_for_its_opening(tmp_path: Path) -> None:
    with Session(NET, COMPILED, example=(X,)) as session:
        session.build(placed(session), tmp_path / "net.placeit")
    with Application.load(tmp_path / "net.placeit") as application:
        made = application.run({"input": X.numpy()})
        assert application.session.compiling.kinds["inductor:CPU"].from_disk == 1
    np.testing.assert_allclose(made["output"], NET(X).detach().numpy(), rtol=1e-5)


def test_without_enough_time_the_compiled_module_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path))
    with optimize(NET, f"CPU@{CORE}", example=(X,), budget=5, candidates=Candidates("heft")) as found:
        one = next(one for one in found.candidates if one.name == COMPILED)
        assert one.not_run is not None
        assert one.not_run.startswith("compiling it takes about 15")
        assert found.chosen.name in (f"CPU@{CORE}", f"openvino:CPU@{CORE}", f"ort:CPU@{CORE}")
    with Session(NET, f"CPU@{CORE}", example=(X,)) as session:
        session.profile()
        beside = compare(session, {}, runs=1)
    assert [one.name for one in beside.candidates if one.not_run is not None] == [COMPILED]


def test_compiling_is_given_up_when_its_time_is_over() -> None:
    model = load(NET, (X,))
    with pytest.raises(ExecutionError, match=r"has not compiled it in the 0\.01 s that there was time for"):
        compile_segment(model.segment("torch", range(len(model.graph)), [], []), 3, seconds=0.01)


def test_without_a_compiler_the_module_runs_eagerly_which_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    inductor.warn_missing.cache_clear()
    caplog.set_level(logging.WARNING, "placeit")
    with optimize(NET, f"CPU@{CORE}", example=(X,), budget=1000, candidates=Candidates("heft")) as found:
        assert {one.name for one in found.candidates} == {f"{how}CPU@{CORE}" for how in ("", "openvino:", "ort:")}
    with Session(NET, COMPILED, example=(X,)) as session:
        assert session.run(placed(session), runs=1).output_error.max_rel == 0
    (said,) = (one.getMessage() for one in caplog.records)
    assert said.endswith("since Inductor finds no C++ compiler '/nowhere/g++': install one, or set CXX to its path.")


@pytest.mark.timeout(900)
def test_a_segment_that_inductor_refuses_runs_op_by_op_beside_a_compiled_one_which_is_said() -> None:
    with Session(Half(), [COMPILED, OTHER], example=(X,)) as session:
        made = session.run(split_at(session, "doubled"), runs=1)
        again = session.run(made.placement, runs=1)
        (event,) = session.recording(again, ops=False).events
        counts = session.compiling.kinds["inductor:CPU"]
    assert made.output_error.max_rel < 1e-6
    assert len(made.plan.programs) == 2
    (refused,) = made.to_dict()["refused"]
    assert made.plan.segments[refused["segment"]].device == 1
    assert re.match(r"Inductor does not compile a segment: .*Error: .*", refused["why"])
    assert again.refused == made.refused
    assert counts.compiled + counts.from_disk == 2
    assert event.why == f"segment {refused['segment']} on {OTHER} runs op by op: {refused['why']}"


@pytest.mark.timeout(900)
@pytest.mark.usefixtures("found")
def test_groups_are_profiled_op_by_op_and_compiled_whole_only() -> None:
    with Session(NET, [COMPILED, OTHER], example=(X,)) as session:
        costs = session.profile(budget_s=1000)
        estimated = session.estimate()
        counts = session.compiling.kinds
    assert counts["inductor:CPU"].compiled == 0  # the search has compiled the whole model
    assert counts["inductor:CPU"].from_disk == 2
    assert counts["torch:CPU"].compiled > 2
    assert [one.name for one in estimated.devices] == [COMPILED, OTHER]
    with Session(NET, [f"CPU@{CORE}", f"CPU@{allowed_cores()[-1]}"], example=(X,)) as session:
        session.recall()
        ratio = costs.core.sum(axis=0) / session.costs.core.sum(axis=0)
        np.testing.assert_allclose(costs.core, session.costs.core * ratio)


@pytest.mark.slow
@pytest.mark.two_cores
@pytest.mark.timeout(1800)
def test_a_search_races_compiled_splits_which_run_without_python_and_are_bundled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Tanh()).eval(), torch.randn(4, 64)
    with Session(net, [COMPILED, OTHER], example=(x,), policy=STEADY) as session:
        wanted = Candidates("heft", start=split_at(session, "2/linear"))
        found = session.optimize(budget=1000, candidates=wanted)
        halves = next(one for one in found.candidates if one.given)
        made = session.run(halves.placement, runs=1)
        session.build(halves.placement, tmp_path / "net.placeit")
    assert halves.measured is not None
    assert halves.refused == {}
    assert made.output_error.max_rel < 1e-5
    assert (made.native, made.refused, len(made.plan.programs)) == (True, {}, 2)
    with Application.load(tmp_path / "net.placeit") as application:
        np.testing.assert_allclose(application.run({"input": x.numpy()})["output"], net(x).detach().numpy(), atol=1e-5)
        assert application.session.compiling.kinds["inductor:CPU"].from_disk == 2


PAIR = [f"CPU@{CORE}", f"CPU@{allowed_cores()[-1]}"]


@pytest.mark.slow
@pytest.mark.two_cores
@pytest.mark.timeout(1800)
def test_the_best_split_of_plain_devices_races_with_compiled_segments_too() -> None:
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.Sigmoid()).eval(), torch.randn(4, 64)
    with Session(net, PAIR, example=(x,), policy=STEADY) as session:
        start = split_at(session, "2/linear")
        with session.optimize(budget=1000, candidates=Candidates("heft", start=start)) as found:
            (twin,) = (one for one in found.candidates if one.name == f"{one.twin}, compiled")
            assert any({twin.name, twin.twin} <= race.measured.keys() for race in found.races)
            torch.testing.assert_close(found(x), net(x))
        assert twin.measured is not None
        assert (twin.refused, twin.segments, twin.placement.counts().keys()) == ({}, 2, {COMPILED, OTHER})
        made = session.run(twin.placement, runs=1)
        again = session.optimize(budget=1000, candidates=Candidates("heft", start=twin.placement))
    assert made.native
    assert made.output_error.max_rel < 1e-5
    (given,) = (one for one in again.candidates if one.given)
    assert given.placement.counts().keys() == set(PAIR)


@pytest.mark.two_cores
def test_without_time_or_a_compiler_the_best_split_runs_eagerly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path))
    with Session(NET, PAIR, example=(X,), policy=STEADY) as session:
        wanted = Candidates("heft", start=split_at(session, "linear"))
        candidates = session.optimize(budget=5, candidates=wanted).candidates
        (twin,) = (one for one in candidates if one.name == f"{one.twin}, compiled")
        assert twin.not_run is not None
        assert twin.not_run.startswith("compiling it takes about 15")
        monkeypatch.setenv("CXX", "/nowhere/g++")
        found = session.optimize(budget=5, candidates=wanted)
    assert [one for one in found.candidates if "inductor:" in one.placement.ops_by_device] == []


def test_runtimes_that_are_stopped_while_they_compile_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setattr("placeit.runtime.compiling.Compiling.expected_s", lambda *_, **__: 0.0)
    within, limits = OrtDevice.compile_within, list[float]()

    def stopped(self: OrtDevice, segment: SegmentSource, seconds: float) -> OrtProgram:
        limits.append(seconds)
        return within(self, segment, 0.0)

    monkeypatch.setattr(OrtDevice, "compile_within", stopped)
    found = optimize(NET, f"CPU@{CORE}", example=(X,), budget=5, candidates=Candidates("heft"))
    (late,) = (one for one in found.candidates if one.name == f"ort:CPU@{CORE}")
    assert late.not_run == "ONNX Runtime has not compiled it in the 0 s that there was time for: set a larger budget."
    assert len(limits) == 1
    assert limits[0] < 5


@pytest.mark.slow
@pytest.mark.two_cores
@pytest.mark.timeout(900)
def test_a_split_of_which_no_segment_compiles_runs_eagerly_only() -> None:
    net = nn.Sequential(Custom(), nn.Linear(8, 8), Custom()).eval()
    with Session(net, PAIR, example=(X,), policy=STEADY) as session:
        found = session.optimize(budget=1000, candidates=Candidates("heft", start=split_at(session, "1/linear")))
    (twin,) = (one for one in found.candidates if one.twin is not None)
    assert twin.not_run == "no segment can be compiled"
