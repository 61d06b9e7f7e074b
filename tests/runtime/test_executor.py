"""The executor on null devices, on real ones, and when something fails."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError, UsageError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.devices.base import BufferSpec, Instance, Program, SegmentSource
from placeit.runtime.devices.emulated import slowed
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.runtime.runtime import Runtime
from tests.null_devices import NullDevice, NullLink, VirtualClock
from tests.small_models import random_model

ops = ov.opset13


def random_costs(seed: int, groups: int, cluster: Cluster) -> Costs:
    rng = np.random.default_rng(seed)
    shape = (groups, len(cluster))
    return Costs(rng.uniform(1, 6, shape) * 1e-3, rng.uniform(0, 3, shape) * 1e-3, rng.uniform(0, 2, shape[1]) * 1e-3, cluster)


def described(devices: int, core_sets: Sequence[tuple[int, ...]] = ()) -> Cluster:
    """Devices that exist in simulation only; with core sets, devices that conflict where these overlap."""
    names = [f"d{i}" for i in range(devices)]
    where = [Address("CPU", cores) for cores in core_sets] or [None] * devices
    # no two alike: of things that happen at one moment, the executor does at once what the simulator does in turn
    links = {
        (a, b): Link(32e3, (1 + i / 7 + j / 31) * 1e-3, "described")
        for i, a in enumerate(names)
        for j, b in enumerate(names)
        if a != b
    }
    return Cluster(tuple(Device(name, "described", at) for name, at in zip(names, where, strict=True)), links)


def null_runtime(model: OpenVinoModel, grouping: Grouping, cluster: Cluster, plan: Plan) -> tuple[Runtime, VirtualClock]:
    clock = VirtualClock()
    seconds = {s.groups: float(plan.problem.compute[i, s.device]) for i, s in enumerate(plan.segments)}

    def lookup(source: SegmentSource) -> float:
        return seconds[source.segment.groups]  # type: ignore[attr-defined]

    def wait(_: threading.Event) -> None:
        clock.run()

    runtime = Runtime(
        model,
        grouping,
        cluster,
        devices=[NullDevice(name, clock, lookup) for name in cluster.names],
        transports={
            (i, j): NullLink(clock, cluster.bandwidth()[i, j], cluster.latency()[i, j])
            for i in range(len(cluster))
            for j in range(len(cluster))
            if i != j
        },
        wait=wait,
    )
    return runtime, clock


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 25), st.integers(1, 4), st.booleans(), st.booleans())
def test_a_run_on_null_devices_equals_the_simulated_schedule_event_for_event(
    seed: int, nodes: int, devices: int, merge: bool, shared: bool
) -> None:
    core_sets = [(0, 1), (0,), (1,), (1, 2)][:devices] if shared else []
    model, cluster = random_model(seed, nodes), described(devices, core_sets)
    grouping = Grouping.singletons(model.graph)
    costs = random_costs(seed, len(grouping.groups), cluster)
    placement = np.random.default_rng(seed).integers(devices, size=len(grouping.groups))
    plan = Segmenter(grouping, costs).plan(placement, merge=merge)
    runtime, clock = null_runtime(model, grouping, cluster, plan)
    executor = runtime.executor(plan)
    executor.time()

    simulated = plan.schedule
    label = {segment.groups: s for s, segment in enumerate(plan.segments)}
    ran = {}
    moved = {}
    for span in executor.spans():
        if span.kind == "copy":
            moved[span.where, span.name] = (span.start, span.finish)
        else:
            groups = sorted({int(grouping.group_of[model.graph.index[name]]) for name in span.ops})
            assert span.segment == label[tuple(groups)]
            ran[span.segment] = (span.start, span.finish)
    for s, segment in enumerate(plan.segments):
        if not segment.passthrough:
            assert ran[s] == pytest.approx((simulated.start[s], simulated.finish[s]), abs=1e-12)
    for s, o in itertools.combinations(ran, 2):
        if plan.problem.conflicts[plan.segments[s].device, plan.segments[o].device]:
            assert ran[s][1] <= ran[o][0] or ran[o][1] <= ran[s][0]
    assert clock.now == pytest.approx(simulated.makespan, abs=1e-12)
    assert len(moved) == len(simulated.transfers.tensor)


def test_segments_of_a_plan_cover_every_group_once_and_wait_in_no_circle() -> None:
    cluster = described(3)
    for seed in range(20):
        model = random_model(seed, 30)
        grouping = Grouping.singletons(model.graph)
        placement = np.random.default_rng(seed).integers(3, size=len(grouping.groups))
        plan = Segmenter(grouping, random_costs(seed, len(grouping.groups), cluster)).plan(placement)
        members = sorted(group for segment in plan.segments for group in segment.groups)
        assert members == list(range(len(grouping.groups)))
        assert all(placement[group] == segment.device for segment in plan.segments for group in segment.groups)
        assert (plan.problem.edges[:, 0] < plan.problem.edges[:, 1]).all()


def one_core_names(count: int) -> list[str]:
    cores = allowed_cores()
    if len(cores) < count:
        pytest.skip(f"needs {count} CPU cores, and this process may use {len(cores)}")
    return [f"CPU@{core}" for core in cores[:count]]


def whole_outputs(model: OpenVinoModel) -> dict[str, NDArray[np.generic]]:
    inputs = model.random_inputs()
    values = openvino_core().compile_model(model.ov_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
        [inputs[spec.name] for spec in model.inputs]
    )
    return {spec.name: np.array(values[i]) for i, spec in enumerate(model.outputs)}


@pytest.fixture
def real() -> Iterator[Callable[..., tuple[OpenVinoModel, Runtime, Segmenter]]]:
    """Open a random model on the first allowed core, renamed and emulated as asked for."""
    opened: list[Runtime] = []

    def make(
        seed: int, nodes: int, cluster: Cluster | None = None, model: OpenVinoModel | None = None
    ) -> tuple[OpenVinoModel, Runtime, Segmenter]:
        model = random_model(seed, nodes) if model is None else model
        if cluster is None:
            core = one_core_names(1)[0]
            device = discover(core).devices[0]
            names = ("a", "b")
            links = {pair: Link(np.inf, 0.0) for pair in (("a", "b"), ("b", "a"))}
            # two devices on one core: slower than one, and just as good for correctness
            cluster = Cluster(tuple(Device(n, address=Address("CPU", device.cores)) for n in names), links)
        grouping = Grouping.singletons(model.graph)
        runtime = Runtime(model, grouping, cluster)
        opened.append(runtime)
        return model, runtime, Segmenter(grouping, random_costs(seed, len(grouping.groups), cluster))

    yield make
    for runtime in opened:
        runtime.close()


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("merge", [True, False])
def test_any_placement_gives_the_outputs_of_the_uncut_model(
    real: Callable[..., tuple[OpenVinoModel, Runtime, Segmenter]], seed: int, merge: bool
) -> None:
    model, runtime, segmenter = real(seed, 12)
    placement = np.random.default_rng(seed).integers(2, size=len(runtime.grouping.groups))
    executor = runtime.executor(segmenter.plan(placement, merge=merge))
    outputs = executor.run(model.random_inputs())
    for name, expected in whole_outputs(model).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("merge", [True, False])
@pytest.mark.parametrize("device_of_constant", [0, 1])
def test_outputs_that_are_a_constant_or_an_input_are_there(
    real: Callable[..., tuple[OpenVinoModel, Runtime, Segmenter]], device_of_constant: int, merge: bool
) -> None:
    x = ops.parameter([1, 8], ov.Type.f32, name="x")
    anchors = ops.add(ops.constant(np.arange(4, dtype=np.float32)), ops.constant(np.float32(0.5)))
    results = [ops.result(anchors, name="anchors"), ops.result(x, name="same"), ops.result(ops.relu(x), name="relu")]
    model, runtime, segmenter = real(0, 0, model=describe(ov.Model(results, [x], "m"), Path("m")))
    placement = [device_of_constant if name == "anchors" else 0 for name in model.graph.names]
    outputs = runtime.executor(segmenter.plan(placement, merge=merge)).run(model.random_inputs())
    for name, expected in whole_outputs(model).items():
        np.testing.assert_array_equal(outputs[name], expected)
    assert len(outputs) == 3


def test_many_requests_in_flight_do_not_disturb_each_other(
    real: Callable[..., tuple[OpenVinoModel, Runtime, Segmenter]],
) -> None:
    model, runtime, segmenter = real(3, 12)
    placement = np.random.default_rng(3).integers(2, size=len(runtime.grouping.groups))
    executor = runtime.executor(segmenter.plan(placement), in_flight=3)
    inputs = [{name: value * factor for name, value in model.random_inputs().items()} for factor in (1, 2, 3)]
    for request, given_inputs in enumerate(inputs):
        executor.set_inputs(given_inputs, request=request)
    assert executor.times(20) > 0
    together = [executor.outputs(request=request) for request in range(3)]
    for given_inputs, outputs in zip(inputs, together, strict=True):
        for name, expected in executor.run(given_inputs).items():
            np.testing.assert_array_equal(outputs[name], expected)


@pytest.mark.parametrize("native", [True, False])
def test_a_closed_executor_lets_go_of_its_buffers_at_once(
    real: Callable[..., tuple[OpenVinoModel, Runtime, Segmenter]], native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Instance]] = []
    instance = OpenVinoDevice.instance

    def remembered(device: OpenVinoDevice, program: Program) -> Instance:
        new = instance(device, program)
        made.append(weakref.ref(new))
        return new

    if not native:
        monkeypatch.setattr("placeit.runtime.devices.openvino.native_openvino", lambda: None)
    monkeypatch.setattr(OpenVinoDevice, "instance", remembered)
    _, runtime, segmenter = real(3, 12)
    gc.disable()  # which would find them some time
    try:
        with runtime.executor(segmenter.plan(np.arange(len(runtime.grouping.groups)) % 2)) as executor:
            assert executor.native == native
            executor.time()
        assert made
        assert [ref for ref in made if ref() is not None] == []
    finally:
        gc.enable()


class SharingDevice(OpenVinoDevice):
    """A device that copies what is not in memory that it has allocated, as far as an executor can tell."""

    shares_memory = True  # type: ignore[assignment]

    def allocate(self, spec: BufferSpec) -> HostBuffer:
        made = super().allocate(spec)
        self.allocated = [*getattr(self, "allocated", []), made]
        return made


@pytest.mark.parametrize("slowdown", [1.0, 1.5])
@pytest.mark.parametrize("native", [True, False])
def test_what_a_device_reads_is_written_to_the_memory_that_it_shares(
    slowdown: float, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs of the model, also by way of segments that run nothing, and tensors of another device."""
    if not native:
        monkeypatch.setattr("placeit.runtime.devices.openvino.native_openvino", lambda: None)
    x, z = (ops.parameter([1, 8], ov.Type.f32, name=name) for name in ("x", "z"))
    stem = ops.add(x, x, name="stem")
    ends = [ops.result(ops.multiply(stem, z, name="far"), name="y"), ops.result(ops.add(stem, stem, name="near"), name="n")]
    model = describe(ov.Model(ends, [x, z], "m"), Path("m"))
    grouping, core = Grouping.singletons(model.graph), Address("CPU", allowed_cores()[:1])
    cluster = Cluster((Device("a", address=core), Device("b", address=core)))
    sharing = SharingDevice(cluster.devices[1])
    devices = [OpenVinoDevice(cluster.devices[0]), slowed(sharing, slowdown)]
    with Runtime(model, grouping, cluster, devices=devices) as runtime:
        placement = [int("far" in grouping.graph.names[members[0]]) for members in runtime.book.members]
        plan = Segmenter(grouping, Costs.zero(len(placement), cluster)).plan(placement, merge=False)
        with runtime.executor(plan) as executor:
            for scale in (1, 2):
                values = {name: np.full((1, 8), scale * value, np.float32) for name, value in (("x", 2), ("z", 3))}
                assert executor.blank(0) is None
                outputs = executor.run(values)
                assert (outputs["y"] == 12 * scale**2).all()
                assert (outputs["n"] == 8 * scale).all()
                assert sorted(float(buffer.array()[0, 0]) for buffer in sharing.allocated) == [3 * scale, 4 * scale]


def test_an_emulated_link_and_a_slowed_device_change_times_and_no_outputs(
    real: Callable[..., tuple[OpenVinoModel, Runtime, Segmenter]],
) -> None:
    core = one_core_names(1)[0]
    cores = discover(core).devices[0].cores
    links = {pair: Link(1e6, 2e-3, "emulated") for pair in (("a", "b"), ("b", "a"))}
    devices = (Device("a", address=Address("CPU", cores)), Device("b", address=Address("CPU", cores), slowdown=3.0))
    model, runtime, segmenter = real(5, 10, Cluster(devices, links))
    placement = np.random.default_rng(5).integers(2, size=len(runtime.grouping.groups))
    executor = runtime.executor(segmenter.plan(placement, merge=False))
    outputs = executor.run(model.random_inputs())
    for name, expected in whole_outputs(model).items():
        np.testing.assert_allclose(outputs[name], expected, rtol=1e-5, atol=1e-6)
    transfers = [span for span in executor.spans() if span.kind == "copy"]
    assert transfers
    assert all(span.finish - span.start >= 2e-3 for span in transfers)


def test_spans_never_overlap_on_a_device_or_a_link(real: Callable[..., tuple[OpenVinoModel, Runtime, Segmenter]]) -> None:
    model, runtime, segmenter = real(7, 15)
    placement = np.random.default_rng(7).integers(2, size=len(runtime.grouping.groups))
    executor = runtime.executor(segmenter.plan(placement, merge=False))
    executor.run(model.random_inputs())
    spans = executor.spans()
    assert {span.track for span in spans} >= {"a", "b"}
    for track in {span.track for span in spans}:
        mine = [span for span in spans if span.track == track]
        assert all(first.finish <= second.start for first, second in itertools.pairwise(mine))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda inputs: inputs.pop("x"), "input 'x' is missing"),
        (lambda inputs: inputs.update(z=inputs["x"]), "no input 'z'"),
        (lambda inputs: inputs.update(x=inputs["x"][:, :4]), "the model expects float32 \\[1, 8\\]"),
        (lambda inputs: inputs.update(x=inputs["x"].astype(np.complex64)), "the model expects float32"),
    ],
)
def test_inputs_that_do_not_fit_the_model_are_refused(
    real: Callable[..., tuple[OpenVinoModel, Runtime, Segmenter]],
    change: Callable[[dict[str, NDArray[np.generic]]], object],
    says: str,
) -> None:
    model, runtime, segmenter = real(1, 4)
    executor = runtime.executor(segmenter.plan(np.zeros(len(runtime.grouping.groups), int)))
    inputs = dict(model.random_inputs())
    change(inputs)
    with pytest.raises(UsageError, match=says):
        executor.run(inputs)


def test_a_described_device_cannot_be_opened() -> None:
    model = random_model(0, 3)
    with pytest.raises(DeviceError, match="exists in simulation only"):
        Runtime(model, Grouping.singletons(model.graph), described(2))


def test_an_op_that_openvino_cannot_compile_is_a_device_error_that_names_the_device() -> None:
    class Broken:
        inputs = outputs = ()

        def in_format(self, form: str) -> object:
            assert form == "openvino"
            return ov.Model([ops.result(ops.parameter([1], ov.Type.f32))], [], "nothing feeds it")

    device = OpenVinoDevice(discover(one_core_names(1)[0]).devices[0])
    try:
        with pytest.raises(DeviceError, match=device.name):
            device.compile(Broken())
    finally:
        device.close()
