"""PyTorch programs whose segments run in several runtimes: PyTorch's own, and OpenVINO and ONNX Runtime, converted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from placeit.core.cluster import Cluster
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.optimizer.compare import compare
from placeit.optimizer.options import Candidates
from placeit.planning.segments import Costs, Segmenter
from placeit.session import Session
from tests.gpu_plans import intel_gpus
from tests.steady import STEADY

FIRST, SECOND = allowed_cores()[0], allowed_cores()[-1]
MIXED = [f"torch:CPU@{FIRST}", f"openvino:CPU@{SECOND}"]
NET = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8), nn.Tanh()).eval()
X = torch.linspace(-1, 1, 32).reshape(4, 8)


def alternating(session: Session) -> Placement:
    """The ops in as many runs of neighbours as there are devices and one more, so that each hand-over happens."""
    groups, devices = len(session.grouping.groups), len(session.cluster)
    where = (np.arange(groups) * (devices + 1) // groups % devices).astype(np.int32)
    return session.placement(where, Segmenter(session.grouping, Costs.zero(groups, session.cluster)).plan(where, merge=False))


@pytest.mark.two_cores
@pytest.mark.parametrize("runtime", ["openvino", "ort"])
def test_another_runtime_runs_segments_beside_pytorch_on_core_sets(runtime: str) -> None:
    devices = [f"torch:CPU@{FIRST}", f"{runtime}:CPU@{SECOND}"]
    with Session(NET, devices, example=(X,), policy=STEADY, cache=None) as session:
        assert [device.kind for device in session.cluster.devices] == ["torch", runtime]
        made = session.run(alternating(session), runs=2)
        found = session.optimize(budget=20, candidates=Candidates("heft", plain=False))
    assert made.output_error.max_rel < 1e-5
    assert len({segment.device for segment in made.plan.programs}) == 2
    assert {one.name: one.failed for one in found.candidates} == {one.name: None for one in found.candidates}
    assert {one.name for one in found.candidates} >= set(devices)


@pytest.mark.two_cores
def test_a_slowed_core_set_of_openvino_runs_segments_beside_pytorch() -> None:
    """PyTorch's outputs have other memory after each run, which OpenVINO cannot read, also behind an emulated device."""
    fast, slow = discover(MIXED).devices
    cluster = Cluster((fast, replace(slow, slowdown=2.0)))
    with Session(NET, cluster, example=(X,), policy=STEADY, cache=None) as session:
        made = session.run(alternating(session), runs=2)
    assert made.output_error.max_rel < 1e-5
    assert len({segment.device for segment in made.plan.programs}) == 2


def test_a_search_on_core_sets_of_pytorch_races_the_whole_model_in_other_runtimes_as_well() -> None:
    core = f"CPU@{FIRST}"
    with Session(NET, core, example=(X,), policy=STEADY, cache=None) as session:
        found = session.optimize(budget=20, candidates=Candidates("heft"))
        for runtime in ("openvino", "ort"):
            converted = next(one for one in found.candidates if one.name == f"{runtime}:{core}")
            assert converted.may_be_chosen
            assert converted.output_error is not None
            assert converted.output_error.max_rel < 1e-5
            again = session.run(converted.placement, runs=2)
            assert again.output_error.max_rel < 1e-5


@pytest.mark.two_cores
def test_the_best_split_races_in_other_runtimes_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "/nowhere/g++")
    monkeypatch.setattr("placeit.optimizer.whole_models._BEHIND", math.inf)
    pair = [f"CPU@{FIRST}", f"CPU@{SECOND}"]
    with Session(NET, pair, example=(X,), policy=STEADY, cache=None) as session:
        found = session.optimize(budget=30, candidates=Candidates("heft", start=alternating(session)))
        twins = {one.name.removeprefix(f"{one.twin} in "): one for one in found.candidates if one.twin is not None}
        assert twins.keys() == {"OpenVINO", "ONNX Runtime"}
        for runtime, label in (("openvino", "OpenVINO"), ("ort", "ONNX Runtime")):
            assert twins[label].failed is None
            assert twins[label].placement.counts().keys() == {f"{runtime}:{core}" for core in pair}
            assert session.run(twins[label].placement, runs=1).output_error.max_rel < 1e-5
        given = compare(session, {"given": twins["OpenVINO"].placement}, runs=2)
    (same,) = (one for one in given.candidates if one.name == "given")
    assert same.placement.as_dict() == twins["OpenVINO"].placement.as_dict()


class Passing(nn.Module):
    """Has an input without readers, an input that is an output, equal outputs, and an output that depends on no input."""

    def forward(self, x: torch.Tensor, unused: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made = x + 1
        return made, x, made, torch.ones(2)


@pytest.mark.parametrize("runtime", ["openvino", "ort"])
def test_inputs_and_outputs_without_ops_are_converted(runtime: str) -> None:
    with Session(Passing(), f"{runtime}:CPU@{FIRST}", example=(X, X), policy=STEADY, cache=None) as session:
        assert session.run(alternating(session), runs=2).output_error.max_rel < 1e-5


@pytest.mark.parametrize("module", [nn.Sequential(nn.Linear(8, 8)).bfloat16(), "Sorted"])
def test_a_model_that_cannot_be_converted_whole_does_not_race_in_openvino(module: nn.Module | str) -> None:
    given = Sorted() if isinstance(module, str) else module
    example = X.to(next((weight.dtype for weight in given.parameters()), torch.float32))
    with Session(given.eval(), f"CPU@{FIRST}", example=(example,), policy=STEADY, cache=None) as session:
        found = session.optimize(budget=20, candidates=Candidates("heft"))
    assert not [one.name for one in found.candidates if "openvino" in one.name]


class Sorted(nn.Module):
    """Has an op that OpenVINO's converter does not know."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(torch.linalg.qr(x + 1)[1])


@pytest.mark.two_cores
def test_ops_that_are_not_converted_are_placed_on_pytorch() -> None:
    with Session(Sorted(), MIXED, example=(torch.eye(4),), policy=STEADY, cache=None) as session:
        costs = session.profile(budget_s=5)
        able = np.isfinite(costs.core)
        names, group_of = session.grouping.graph.names, session.grouping.group_of
    assert able[:, 0].all()
    assert {group_of[v] for v, name in enumerate(names) if "qr" in name} == set(np.flatnonzero(~able[:, 1]))


@pytest.mark.intel_gpu
@pytest.mark.timeout(600)
def test_a_gpu_runs_segments_beside_pytorch() -> None:
    with Session(NET, [MIXED[0], intel_gpus()[0]], example=(X,), policy=STEADY, cache=None) as session:
        made = session.run(alternating(session), runs=2)
    assert made.output_error.max_rel < 1e-3
    assert len({segment.device for segment in made.plan.programs}) == 2
