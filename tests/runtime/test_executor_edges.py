"""The executor on unusual models, when devices misbehave, and when it is misused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray
from openvino.op.util import Variable, VariableInfo

from placeit.backends.openvino.graph import name_nodes
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError, ExecutionError, GraphError, ModelError, UsageError
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputCheck, other_inputs
from placeit.planning.coarsen import Grouping, coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, Instance, RuntimeDevice, Transport
from placeit.runtime.devices.openvino import OpenVinoDevice, OpenVinoProgram
from placeit.runtime.executor import Executor
from placeit.runtime.runtime import Runtime
from tests.null_devices import NullDevice, NullLink, VirtualClock
from tests.small_models import random_model

ops = ov.opset13
CORE = allowed_cores()[0]
F32 = {"INFERENCE_PRECISION_HINT": "f32"}
LINKS = {pair: Link(np.inf, 0.0) for pair in (("a", "b"), ("b", "a"))}
DEVICES = tuple(Device(name, address=Address("CPU", (CORE,))) for name in ("a", "b"))
CLUSTER = Cluster(DEVICES, LINKS)


def model_of(values: list[ov.Output], inputs: list[ov.Node], sinks: tuple[ov.Node, ...] = ()) -> OpenVinoModel:
    model = ov.Model([ops.result(value) for value in values], list(sinks), inputs, "edge")
    name_nodes(model, keep=lambda _: True)
    return describe(model, Path("edge"))


def inputs_and_references(
    model: OpenVinoModel,
) -> Iterator[tuple[dict[str, NDArray[np.generic]], dict[str, NDArray[np.generic]]]]:
    whole = openvino_core().compile_model(model.ov_model, "CPU", F32)
    for seed in range(3):
        inputs = model.random_inputs(seed)
        values = whole.create_infer_request().infer([inputs[spec.name] for spec in model.inputs])
        yield inputs, {spec.name: np.array(values[i]) for i, spec in enumerate(model.outputs)}


def check_everywhere(model: OpenVinoModel, grouping: Grouping, rtol: float = 1e-3) -> None:
    """Run on one device, cut into groups, and merged; every time with several inputs in the same buffers."""
    groups = np.arange(len(grouping.groups))
    with Runtime(model, grouping, CLUSTER) as runtime:
        segmenter = Segmenter(grouping, Costs.zero(len(groups), CLUSTER))
        plans = [segmenter.plan(groups * 0), segmenter.plan(groups % 2, merge=False), segmenter.plan(groups // 2 % 2)]
        executors = [runtime.executor(plan) for plan in plans]
        for inputs, expected in inputs_and_references(model):
            for executor in executors:
                outputs = executor.run(inputs)
                assert outputs.keys() == expected.keys()
                for name, value in expected.items():
                    assert outputs[name].dtype == value.dtype
                    np.testing.assert_allclose(outputs[name], value, rtol=rtol, atol=1e-5)
        check = OutputCheck(inputs, other_inputs(model, inputs, given=False), model.reference(None, "f32"))
        for executor in executors:
            error = check(executor).worse(check(executor, after=True))
            assert error.max_rel <= rtol
            assert error.fault is None


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *((kind, [2, 3]) for kind in ("f16", "f32", "f64", "i8", "u8", "i32", "i64")),
        *(("f32", shape) for shape in ([], [1], [1, 0])),
        ("i64", []),
    ],
)
def test_any_element_type_and_shape_crosses_borders(kind: str, shape: list[int]) -> None:
    x = ops.parameter(shape, getattr(ov.Type, kind), name="x")
    y = ops.add(ops.relu(x), ops.maximum(x, x))
    model = model_of([y.output(0), ops.minimum(y, x).output(0)], [x])
    check_everywhere(model, Grouping.singletons(model.graph))


def _booleans() -> OpenVinoModel:
    x = ops.parameter([2, 3], ov.Type.boolean, name="x")
    return model_of([ops.logical_not(ops.logical_and(ops.logical_not(x), x)).output(0)], [x])


def _types_that_numpy_lacks() -> OpenVinoModel:
    x = ops.parameter([2, 4], ov.Type.f32, name="x")
    half, nibble = ops.convert(ops.tanh(x), "bf16"), ops.convert(ops.relu(x), "u4")
    return model_of([ops.tanh(ops.convert(ops.relu(half), "f32")).output(0), ops.convert(nibble, "f32").output(0)], [x])


def _inputs_that_are_outputs() -> OpenVinoModel:
    x, y, unused = (ops.parameter([2, 3], ov.Type.f32, name=name) for name in ("x", "y", "unused"))
    return model_of([x.output(0), ops.tanh(y).output(0), y.output(0)], [x, y, unused])


def _nothing_to_compute() -> OpenVinoModel:
    x = ops.parameter([2, 3], ov.Type.f32, name="x")
    return model_of([x.output(0)], [x])


def _a_tensor_that_is_several_outputs() -> OpenVinoModel:
    y = ops.tanh(ops.relu(ops.parameter([2, 3], ov.Type.f32, name="x")))
    return model_of([y.output(0), y.output(0), ops.relu(y).output(0)], [y.input_value(0).get_node().input_value(0).get_node()])


def _reshapes() -> OpenVinoModel:
    x = ops.parameter([2, 6], ov.Type.f32, name="x")
    flat = ops.reshape(x, ops.constant([12]), False)
    again = ops.reshape(ops.tanh(x), ops.constant([3, 4]), False)
    return model_of([flat.output(0), again.output(0), ops.reshape(again, ops.constant([12]), False).output(0)], [x])


def _several_ports() -> OpenVinoModel:
    x = ops.parameter([2, 6], ov.Type.f32, name="x")
    split = ops.split(ops.tanh(x), ops.constant(1), 3)
    return model_of([ops.add(split.output(0), split.output(2)).output(0), split.output(1)], [x])


def _loop() -> OpenVinoModel:
    x, inside = ops.parameter([1, 4], ov.Type.f32, name="x"), ops.parameter([1, 4], ov.Type.f32, name="inside")
    body = ov.Model([ops.result(ops.constant(np.array([True]))), ops.result(ops.tanh(ops.add(inside, inside)))], [inside])
    condition, value = body.get_results()
    loop = ops.loop(ops.constant(np.int64(3)), ops.constant(np.array([True])))
    loop.set_function(body)
    loop.set_special_body_ports([-1, body.get_result_index(condition)])
    loop.set_merged_input(inside, ops.relu(x).output(0), value.output(0))
    last = loop.get_iter_value(value.output(0), -1)
    loop.validate_and_infer_types()
    return model_of([ops.relu(last).output(0)], [x])


def _if() -> OpenVinoModel:
    x, condition = ops.parameter([1, 4], ov.Type.f32, name="x"), ops.parameter([1, 1], ov.Type.f32, name="c")
    then, other = (ops.parameter([1, 4], ov.Type.f32, name=name) for name in ("then", "other"))
    bodies = ov.Model([ops.result(ops.tanh(then))], [then]), ov.Model([ops.result(ops.relu(other))], [other])
    choice = ops.if_op(ops.squeeze(ops.greater(condition, ops.constant(np.float32(0))), ops.constant([0, 1])).output(0))
    choice.set_then_body(bodies[0])
    choice.set_else_body(bodies[1])
    choice.set_input(ops.negative(x).output(0), then, other)
    value = choice.set_output(bodies[0].get_results()[0], bodies[1].get_results()[0])
    return model_of([ops.negative(value).output(0)], [x, condition])


@pytest.mark.parametrize(
    "build",
    [
        _booleans,
        _types_that_numpy_lacks,
        _inputs_that_are_outputs,
        _nothing_to_compute,
        _a_tensor_that_is_several_outputs,
        _reshapes,
        _several_ports,
        _loop,
        _if,
    ],
)
def test_unusual_models_give_the_outputs_of_the_uncut_model(build: Callable[[], OpenVinoModel]) -> None:
    model = build()
    # where a core computes in bf16, the uncut model need not round to it in between, and a border does
    rtol = 2**-7 if build is _types_that_numpy_lacks else 1e-3
    check_everywhere(model, Grouping.singletons(model.graph), rtol)
    check_everywhere(model, coarsen(model.graph, keep_together=model.together), rtol)


def test_an_output_of_a_type_that_numpy_lacks_is_refused_by_name() -> None:
    x = ops.parameter([2, 4], ov.Type.f32, name="x")
    y = ops.convert(x, "bf16")
    y.output(0).set_names({"y"})
    with pytest.raises(ModelError, match="output 'y' has type bfloat16"):
        model_of([y.output(0)], [x])


def _data_dependent(depth: int) -> OpenVinoModel:
    """The sizes of some tensors depend on the input; they end in two outputs, one of which has a fixed size."""
    x = ops.parameter([3, 4], ov.Type.f32, name="x")
    found = ops.convert(ops.non_zero(ops.relu(x)), "f32")
    for _ in range(depth):
        found = ops.tanh(ops.add(found, ops.sqrt(found)))
    total = ops.reduce_sum(found, ops.constant([0, 1]))
    return model_of([found.output(0), ops.multiply(ops.relu(x), total).output(0)], [x])


@pytest.mark.parametrize("depth", [0, 2])
def test_tensors_whose_size_depends_on_the_data_stay_inside_a_segment(depth: int) -> None:
    model = _data_dependent(depth)
    sizes = {expected[model.outputs[0].name].shape for _, expected in inputs_and_references(model)}
    assert len(sizes) > 1
    check_everywhere(model, coarsen(model.graph, keep_together=model.together))


def test_cutting_a_tensor_whose_size_depends_on_the_data_is_refused_by_name() -> None:
    model = _data_dependent(0)
    name = next(name for name, kind in zip(model.graph.names, model.graph.kinds, strict=True) if kind == "NonZero")
    with pytest.raises(GraphError, match=name):
        Runtime(model, Grouping.singletons(model.graph), CLUSTER)


def _with_state() -> OpenVinoModel:
    """Adds up the inputs that it has seen."""
    info = VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([1, 4]), ov.Type.f32, "total"
    total = Variable(info)
    x = ops.parameter([1, 4], ov.Type.f32, name="x")
    seen = ops.add(ops.tanh(x), ops.read_value(ops.constant(np.zeros((1, 4), np.float32)), total))
    return model_of([ops.relu(seen).output(0)], [x], (ops.assign(seen, total),))


def test_every_request_starts_from_the_initial_state() -> None:
    model = _with_state()
    check_everywhere(model, coarsen(model.graph, keep_together=model.together))


def test_tearing_ops_apart_that_share_state_is_refused_by_name() -> None:
    model = _with_state()
    with pytest.raises(GraphError, match="ReadValue"):
        Runtime(model, Grouping.singletons(model.graph), CLUSTER)


@pytest.fixture
def opened() -> Iterator[Callable[..., tuple[OpenVinoModel, Executor]]]:
    """Open a random model on two devices that share a core, every group a segment."""
    runtimes: list[Runtime] = []

    def make(in_flight: int = 1, devices: tuple[RuntimeDevice, ...] | None = None) -> tuple[OpenVinoModel, Executor]:
        model = random_model(4, 12)
        grouping = Grouping.singletons(model.graph)
        runtimes.append(Runtime(model, grouping, CLUSTER, devices=devices))
        groups = len(grouping.groups)
        plan = Segmenter(grouping, Costs.zero(groups, CLUSTER)).plan(np.arange(groups) % 2, merge=False)
        return model, runtimes[-1].executor(plan, in_flight=in_flight)

    yield make
    for runtime in runtimes:
        runtime.close()


def test_outputs_are_not_overwritten_by_the_next_run(opened: Callable[..., tuple[OpenVinoModel, Executor]]) -> None:
    model, executor = opened()
    first = executor.run(model.random_inputs(0))
    kept = {name: value.copy() for name, value in first.items()}
    executor.run(model.random_inputs(1))
    for name, value in first.items():
        np.testing.assert_array_equal(value, kept[name])
        assert value.flags.writeable
        assert value.flags.c_contiguous


def test_inputs_are_copied_whatever_their_order_in_memory(opened: Callable[..., tuple[OpenVinoModel, Executor]]) -> None:
    model, executor = opened()
    inputs = model.random_inputs()
    expected = executor.run(inputs)
    strided = {name: np.repeat(value, 2, axis=1)[:, ::2] for name, value in inputs.items()}
    backwards = {name: np.asfortranarray(value[:, ::-1])[:, ::-1] for name, value in inputs.items()}
    wider = {name: value.astype(np.float64) for name, value in inputs.items()}
    for given in (strided, backwards, wider):
        outputs = executor.run(given)
        for name, value in expected.items():
            np.testing.assert_array_equal(outputs[name], value)
    for value in inputs.values():
        value[...] = 0
    for name, value in executor.outputs().items():
        np.testing.assert_array_equal(value, expected[name])


class _Reporting(NullDevice):
    """Reports what it is told to for its third segment."""

    def __init__(self, name: str, clock: VirtualClock, report: Callable[[DoneCallback, float, float], None]) -> None:
        super().__init__(name, clock, lambda _: 1.0)
        self.report, self.started = report, 0

    def start(self, instance: Instance, done: DoneCallback) -> None:
        self.started += 1
        strange = self.started == 3

        def ended(start: float, finish: float, error: BaseException | None) -> None:
            if strange:
                self.report(done, start, finish)
            else:
                done(start, finish, error)

        super().start(instance, ended)


def on_null_devices(
    report: Callable[[DoneCallback, float, float], None], in_flight: int = 1
) -> tuple[Executor, tuple[_Reporting, NullDevice]]:
    model = random_model(2, 20)
    grouping = Grouping.singletons(model.graph)
    groups = len(grouping.groups)
    plan = Segmenter(grouping, Costs.zero(groups, CLUSTER)).plan(np.arange(groups) % 2, merge=False)
    clock = VirtualClock()
    devices = _Reporting("a", clock, report), NullDevice("b", clock, lambda _: 1.0)
    links: dict[tuple[int, int], Transport] = {(0, 1): NullLink(clock, 1e9, 0.1), (1, 0): NullLink(clock, 1e9, 0.1)}
    runtime = Runtime(model, grouping, CLUSTER, devices=devices, transports=links, wait=lambda _: clock.run())
    return runtime.executor(plan, in_flight=in_flight), devices


def test_an_error_of_another_package_is_wrapped_and_names_segment_and_device() -> None:
    failure = OSError("the cable is out")
    executor, _ = on_null_devices(lambda done, start, finish: done(start, finish, failure))
    with pytest.raises(ExecutionError, match=r"on a.*the cable is out") as raised:
        executor.time()
    assert raised.value.__cause__ is failure
    executor.time()
    assert len([span for span in executor.spans() if span.kind == "compute"]) == len(executor.plan.programs)


def test_what_waits_for_a_failed_segment_does_not_start() -> None:
    executor, _ = on_null_devices(lambda done, start, finish: done(start, finish, ExecutionError("no")))
    with pytest.raises(ExecutionError):
        executor.time()
    spans = [span for span in executor.spans() if span.kind == "compute"]
    # the device took nothing after its third segment, whose end is the first anybody hears of the error
    assert max(span.start for span in spans if span.track == "a") == [s.start for s in spans if s.track == "a"][2]


def test_after_an_error_no_further_requests_begin_and_those_in_flight_end() -> None:
    executor, (device, _) = on_null_devices(lambda done, start, finish: done(start, finish, ExecutionError("no")), in_flight=3)
    with pytest.raises(ExecutionError, match="no"):
        executor.times(1000)
    segments = len(executor.plan.programs)
    assert device.started < 3 * segments
    executor.times(7)


def test_the_second_report_of_a_segment_changes_nothing() -> None:
    def twice(done: DoneCallback, start: float, finish: float) -> None:
        done(start, finish, None)
        done(start, finish + 1, RuntimeError("late"))

    executor, _ = on_null_devices(twice, in_flight=2)
    once, _ = on_null_devices(lambda done, start, finish: done(start, finish, None), in_flight=2)
    assert executor.times(2) > 0
    spans = [[(span.segment, span.start, span.finish) for span in each.spans()] for each in (executor, once) if each.times(3)]
    assert len(spans[0]) == len(spans[1]) > 0


def test_an_interrupted_run_stops_and_the_next_one_works(opened: Callable[..., tuple[OpenVinoModel, Executor]]) -> None:
    model, executor = opened(in_flight=2)
    for request in range(2):
        executor.set_inputs(model.random_inputs(), request=request)
    waits = iter([KeyboardInterrupt])

    def wait(event: threading.Event) -> object:
        for interrupt in waits:
            raise interrupt
        return event.wait()

    executor.pool.wait = wait
    with pytest.raises(KeyboardInterrupt):
        executor.times(1_000_000)
    assert executor.times(4) > 0


def test_no_request_at_all_is_a_usage_error(opened: Callable[..., tuple[OpenVinoModel, Executor]]) -> None:
    for in_flight in (0, 1025):
        with pytest.raises(UsageError, match=f"at least one request in flight, and at most 1024; got {in_flight}"):
            opened(in_flight=in_flight)
    with pytest.raises(UsageError, match="at least one request"):
        opened()[1].times(0)


def test_a_thread_that_cannot_be_bound_is_an_error_and_leaves_no_other_thread_behind() -> None:
    model = random_model(0, 3)
    nowhere = Device("b", address=Address("CPU", (4000,)))
    with pytest.raises(DeviceError, match=r"b.*4000"):
        Runtime(model, Grouping.singletons(model.graph), Cluster((DEVICES[0], nowhere), LINKS))


def test_memories_without_a_link_between_them_are_refused() -> None:
    model = random_model(0, 3)
    grouping, clock = Grouping.singletons(model.graph), VirtualClock()
    devices = tuple(NullDevice(name, clock, lambda _: 1.0) for name in CLUSTER.names)
    runtime = Runtime(model, grouping, CLUSTER, devices=devices, transports={})
    groups = len(grouping.groups)
    with pytest.raises(DeviceError, match=r"'a' to 'b'|'b' to 'a'"):
        runtime.executor(Segmenter(grouping, Costs.zero(groups, CLUSTER)).plan(np.arange(groups) % 2, merge=False))


def test_a_program_that_gets_no_request_is_a_device_error() -> None:
    class NoRoom(OpenVinoProgram):
        inputs = outputs = ()
        states: ClassVar[dict[str, object]] = {}

        def __init__(self) -> None:
            pass

        class compiled:  # noqa: N801
            @staticmethod
            def create_infer_request() -> object:
                raise RuntimeError("Check failed\nout of device memory")

    device = OpenVinoDevice(DEVICES[0])
    try:
        with pytest.raises(DeviceError, match=r"for a: Check failed out of device memory"):
            device.instance(NoRoom())
    finally:
        device.close()


def test_a_buffer_that_does_not_fit_is_a_device_error(opened: Callable[..., tuple[OpenVinoModel, Executor]]) -> None:
    _, executor = opened()
    device: RuntimeDevice = executor.pool.devices[0]
    program = next(program for program in executor.programs if program is not None and program.inputs)
    instance = device.instance(program)
    wrong: Buffer = device.allocate(BufferSpec((3, 5), "float32"))
    with pytest.raises(DeviceError, match="input 0"):
        instance.bind(0, wrong)


def test_numbers_that_overflow_when_inputs_are_varied_are_no_warning() -> None:
    inputs = {"x": np.array([60_000, 1], np.float16)}
    model = SimpleNamespace(has_open_sizes=False, random_inputs=lambda _: inputs)
    varied = [value["x"] for value in other_inputs(model, inputs, given=True)]
    assert any(np.isinf(value[0]) and value[1] == 10 for value in varied)
