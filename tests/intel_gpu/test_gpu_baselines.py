"""Beside an Intel GPU: what OpenVINO does by itself on the same devices, replicas, and placements written for HETERO."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

import placeit
from placeit.backends.openvino import own_mode
from placeit.backends.openvino.hetero import HOW_TO_RUN, export_hetero
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster, Device
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference
from placeit.optimizer.candidates import Candidate
from placeit.optimizer.options import Candidates
from placeit.planning.segments import Costs
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.steady import STEADY

ops = ov.opset13
CORES = allowed_cores()


@functools.cache
def two_branches() -> OpenVinoModel:
    """A layer, then two layers beside each other, and their sum."""
    rng = np.random.default_rng(0)

    def layer(value: Any, inputs: int, outputs: int) -> Any:
        weights = rng.standard_normal((outputs, inputs)).astype(np.float32) / np.float32(inputs**0.5)
        return ops.matmul(value, ops.constant(weights), False, True)

    x = ops.parameter([1, 32], ov.Type.f32, name="x")
    stem = ops.relu(layer(x, 32, 48))
    both = ops.add(ops.relu(layer(stem, 48, 16)), ops.tanh(layer(stem, 48, 16)))
    return describe(ov.Model([ops.result(both, name="y")], [x], "two branches"), Path("two branches"))


@pytest.fixture(autouse=True)
def _known_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs that need no program: a GPU is twice as fast as a CPU device."""

    def profile(_: Any, grouping: Any, cluster: Cluster, *__: Any, **___: Any) -> Costs:
        free = Costs.zero(len(grouping.groups), cluster)
        return replace(
            free, core=np.full_like(free.core, 1e-3) * [1.0 if device.core_set else 0.5 for device in cluster.devices]
        )

    monkeypatch.setattr("placeit.profiler.costs.profile", profile)


@pytest.fixture
def beside_cpu(gpus: list[str]) -> Iterator[Session]:
    with Session(two_branches(), ["CPU", gpus[0]], cache=None, constraints=Constraints(max_groups=3), policy=STEADY) as session:
        session.profile()
        yield session


def right(one: Candidate) -> bool:
    return one.failed is None and one.output_error is not None and one.output_error.max_rel < 1e-4


def test_auto_and_hetero_race_beside_the_single_devices(beside_cpu: Session, gpus: list[str]) -> None:
    found = placeit.compare(beside_cpu, {}, runs=6)
    assert {one.name for one in found.candidates} == {"CPU", gpus[0]}
    auto, hetero = sorted(found.references, key=lambda one: one.name)
    assert (auto.failed, auto.not_run) == (None, None)
    assert (auto.name, auto.used) == (f"AUTO:{gpus[0]},CPU", (gpus[0],))
    assert auto.measured is not None
    assert len(auto.measured.samples) == 6
    assert all(map(right, [*found.candidates, auto]))
    assert (hetero.name, hetero.failed) == (f"HETERO:{gpus[0]},CPU", None)
    assert hetero.not_run == f"{gpus[0]} can run every op, so this is {gpus[0]} alone"


def test_a_gpu_whose_memory_limit_the_model_exceeds_is_in_no_reference(gpus: list[str]) -> None:
    with Session(
        two_branches(),
        ["CPU", gpus[0]],
        cache=None,
        constraints=Constraints(max_groups=3, memory={gpus[0]: 100.0}),
        policy=STEADY,
    ) as session:
        session.profile()
        assert placeit.compare(session, {}, runs=6).references == ()


@pytest.fixture
def one_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests on a GPU go through one queue: where two are busy, the runtime of the emulated GPU may wait for ever."""
    properties = own_mode._properties

    def with_one_stream(device: Device, precision: str) -> dict[str, Any]:
        return properties(device, precision) | ({} if device.core_set else {"NUM_STREAMS": "1"})

    monkeypatch.setattr(own_mode, "_properties", with_one_stream)


@pytest.mark.usefixtures("one_queue")
@pytest.mark.two_cores
def test_for_throughput_a_gpu_serves_whole_requests_beside_core_sets(gpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    cores = [f"CPU@{core}" for core in CORES[:2]]
    devices = [*cores, gpus[0]]
    found = placeit.optimize(
        two_branches(),
        devices,
        candidates=Candidates(placers=["heft"]),
        objective="throughput",
        budget=120.0,
        constraints=Constraints(max_groups=3),
        cache=None,
        policy=STEADY,
    )
    replicas = {one.name: one for one in found.candidates if one.replicas}
    everywhere = replicas[f"replicas on {', '.join(devices)}"]
    assert [[devices[d] for d in np.unique(plan.placement)] for plan in everywhere.plans] == [[name] for name in devices]
    assert all(map(right, (one for one in found.candidates if one.measured is not None)))
    assert everywhere.measured is not None
    references = {one.row.name: one.row for one in found.references}
    multi = references[f"MULTI:{gpus[0]},CPU"]
    assert f"BATCH:{gpus[0]}" in references
    assert "CPU in throughput mode" in {one.name for one in found.candidates}
    assert all(one.failed is None for one in references.values())
    assert right(multi)
    assert set(multi.used) == {gpus[0], "CPU"}
    model = two_branches()
    with Session(model, devices, cache=None, constraints=Constraints(max_groups=3), policy=STEADY) as session:
        inputs = [model.random_inputs(seed) for seed in range(20)]
        with session.serve(everywhere.placement) as server:
            futures = [server.submit(one) for one in inputs]
            answers = [future.result(60) for future in futures]
        expected = map(session.reference, inputs)
    for answer, reference in zip(answers, expected, strict=True):
        assert OutputDifference.between(answer, reference).max_rel < 1e-4


def test_a_placement_written_for_hetero_runs_on_its_devices(beside_cpu: Session, gpus: list[str], tmp_path: Path) -> None:
    model = two_branches()
    placement = beside_cpu.placement(np.arange(len(beside_cpu.grouping.groups)) % 2)
    device = export_hetero(model, placement.as_dict(), tmp_path / "placed.xml")
    assert sorted(device.removeprefix("HETERO:").split(",")) == sorted(["CPU", gpus[0]])

    class Openvino:
        Core = staticmethod(openvino_core)

    scope: dict[str, Any] = {"openvino": Openvino}
    exec(HOW_TO_RUN.format(path=tmp_path / "placed.xml", device=device), scope)
    compiled = scope["compiled"]
    assert set(compiled.get_property("EXECUTION_DEVICES")) == {"CPU", gpus[0]}
    inputs = model.random_inputs(1)
    outputs = {spec.name: value for spec, value in zip(model.outputs, compiled(inputs).values(), strict=True)}
    # without a precision, a GPU computes in float16
    assert OutputDifference.between(outputs, beside_cpu.reference(inputs)).max_rel < 2e-2
