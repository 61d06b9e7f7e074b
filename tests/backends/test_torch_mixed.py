"""PyTorch programs whose segments run in several runtimes: PyTorch's own, and OpenVINO for what is converted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from placeit.core.cluster import Cluster
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.host import allowed_cores
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
def test_openvino_runs_segments_beside_pytorch_on_core_sets() -> None:
    with Session(NET, MIXED, example=(X,), policy=STEADY, cache=None) as session:
        assert [device.kind for device in session.cluster.devices] == ["torch", "openvino"]
        made = session.run(alternating(session), runs=2)
        found = session.optimize(budget=20, candidates=Candidates("heft", plain=False))
    assert made.output_error.max_rel < 1e-5
    assert len({segment.device for segment in made.plan.programs}) == 2
    assert {one.name: one.failed for one in found.candidates} == {one.name: None for one in found.candidates}
    assert {one.name for one in found.candidates} >= set(MIXED)


@pytest.mark.two_cores
def test_a_slowed_core_set_of_openvino_runs_segments_beside_pytorch() -> None:
    """PyTorch's outputs have other memory after each run, which OpenVINO cannot read, also behind an emulated device."""
    fast, slow = discover(MIXED).devices
    cluster = Cluster((fast, replace(slow, slowdown=2.0)))
    with Session(NET, cluster, example=(X,), policy=STEADY, cache=None) as session:
        made = session.run(alternating(session), runs=2)
    assert made.output_error.max_rel < 1e-5
    assert len({segment.device for segment in made.plan.programs}) == 2


def test_a_search_on_core_sets_of_pytorch_races_the_whole_model_in_openvino_as_well() -> None:
    core = f"CPU@{FIRST}"
    with Session(NET, core, example=(X,), policy=STEADY, cache=None) as session:
        found = session.optimize(budget=20, candidates=Candidates("heft"))
        converted = next(one for one in found.candidates if one.name == f"openvino:{core}")
        assert converted.may_be_chosen
        assert converted.output_error is not None
        assert converted.output_error.max_rel < 1e-5
        again = session.run(converted.placement, runs=2)
    assert again.output_error.max_rel < 1e-5


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
