"""Whatever is raised anywhere at any time: no hang, no lost thread, the error reaches who waits, and the next run works.

The tests go through runtimes and executors as anybody would, on every kind of device, and do not look inside.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import helper

from placeit.backends import load
from placeit.backends.base import Model
from placeit.backends.torch.model import load as load_torch
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import ExecutionError, UsageError
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.devices.accelerator import LoadedProgram, Streams
from placeit.runtime.devices.base import DoneCallback, Instance, Program, RuntimeDevice, SegmentSource
from placeit.runtime.devices.emulated import EmulatedLink
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.drivers import drive
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from tests.alarms import alarm
from tests.beside import beside
from tests.eager_streams import devices as streamed
from tests.eager_streams import run_late
from tests.fake_accelerator import FakeAccelerator
from tests.overdue import overdue
from tests.small_models import random_model

# interrupts are of the timer that pytest-timeout would use otherwise
pytestmark = pytest.mark.timeout(280, method="thread")

CORES = allowed_cores()
SETS = {"one core": Address("CPU", CORES[:1]), "a larger set": Address("CPU", CORES), "all cores": Address("CPU")}
KINDS = [(framework, cores) for framework in ("openvino", "ort", "torch") for cores in SETS]
"""Each framework on each size of core set; a set may be all that the machine has."""

Arrays = dict[str, NDArray[Any]]


class Mixing(torch.nn.Module):
    """Ops with several readers, and one that fails on indices that are out of range."""

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        picked = torch.gather(torch.tanh(x), 0, index)
        return torch.tanh(picked + x) + torch.relu(picked)


def save_mixing(path: Path) -> Path:
    """Write the same for ONNX."""
    node, value = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Tanh", ["x"], ["tanh"]),
        node("GatherElements", ["tanh", "index"], ["picked"]),
        node("Add", ["picked", "x"], ["sum"]),
        node("Tanh", ["sum"], ["again"]),
        node("Relu", ["picked"], ["positive"]),
        node("Add", ["again", "positive"], ["y"]),
    ]
    inputs = [value("x", onnx.TensorProto.FLOAT, [4]), value("index", onnx.TensorProto.INT64, [4])]
    graph = helper.make_graph(nodes, "mixing", inputs, [value("y", onnx.TensorProto.FLOAT, [4])])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """The same computation for each framework."""
    path = save_mixing(tmp_path_factory.mktemp("faults") / "mixing.onnx")
    of_torch = load_torch(Mixing(), (torch.zeros(4), torch.zeros(4, dtype=torch.int64)))
    return {"openvino": load(path), "ort": load(path), "torch": of_torch}


def inputs_of(model: Model, index: int) -> Arrays:
    x, places = (spec.name for spec in model.inputs)
    return {x: np.arange(-2, 2, dtype=np.float32), places: np.full(4, index)}


def expected(index: int) -> NDArray[Any]:
    x = np.arange(-2, 2, dtype=np.float32)
    picked = np.full(4, np.tanh(x[index]))
    return np.tanh(picked + x) + np.maximum(picked, 0)


class Troubled:
    """A device of any kind whose kernels first call a given function, or that refuses to start one."""

    def __init__(self, inner: RuntimeDevice) -> None:
        self._inner = inner
        self.name, self.space, self.program_key = inner.name, inner.space, inner.program_key
        self.worker = inner.worker  # type: ignore[attr-defined]
        self.trouble: Callable[[], object] = int
        self.refusal: BaseException | None = None

    def compile(self, segment: SegmentSource) -> Program:
        return self._inner.compile(segment)

    def instance(self, program: Program) -> Instance:
        instance: Any = self._inner.instance(program)
        compute = instance.run

        def run() -> None:
            self.trouble()
            compute()

        instance.run = run
        return instance

    def allocate(self, spec: Any) -> Any:
        return self._inner.allocate(spec)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        if self.refusal is not None:
            refusal, self.refusal = self.refusal, None
            raise refusal
        self._inner.start(instance, done)

    def close(self) -> None:
        self._inner.close()


class Started:
    """An emulated link that runs as any link does: it is asked to start, and reports."""

    def __init__(self, name: str) -> None:
        self._inner = EmulatedLink(name, 1e9, 1e-5)
        self.worker, self.start, self.close = self._inner.worker, self._inner.start, self._inner.close


def _move(broken: Iterator[Exception], move: Callable[..., None], *args: Any) -> None:
    for failure in broken:
        raise failure
    move(*args)


class Computed:
    """A segment for the fake accelerator."""

    def __init__(self, segment: SegmentSource) -> None:
        self._module: torch.nn.Module = segment.in_format("torch")

    def workspace_bytes(self, enough: float) -> int:
        return 0

    def weight_bytes(self, place: object) -> int:
        return 0

    def load(self, place: object) -> LoadedProgram:
        return self

    def launch(self, inputs: Any, outputs: Any) -> None:
        for output, value in zip(outputs, self._module(*map(torch.from_numpy, inputs)), strict=True):
            output[...] = value


LANES = ("native", "openvino", "ort", "torch", "streams", "paced by the host", "fake")
"""A compiled loop; Python lanes of each framework; streams of PyTorch, whose driver is late, beside a core set, launched ahead
and paced by the host; streams of the fake accelerator."""


class Bench:
    """A model on two devices, its ops in turns on one and the other.

    Args:
        model: what runs.
        lanes: a framework, whose devices are troubled; or another of LANES.
        cores: of core sets.
        emulated: whether links are.
    """

    def __init__(self, model: Model, lanes: str, cores: str = "one core", *, emulated: bool = False) -> None:
        kind = lanes if lanes == "ort" else "openvino"
        first, second = (Device(name, kind, SETS[cores], all_cores=CORES) for name in "ab")
        if lanes in ("streams", "paced by the host"):
            (first,) = streamed("cpu")
        if lanes == "paced by the host":
            second = replace(second, slowdown=1.01)
        ends = first.name, second.name
        links = {pair: Link(1e9, 1e-5, "emulated") for pair in (ends, ends[::-1])} if emulated else {}
        cluster = drive(Cluster((first, second), links), model)
        self.model = model.prepared(cluster)
        grouping = Grouping.singletons(self.model.graph)
        self.devices, options = [], {}
        if lanes in ("openvino", "ort", "torch"):
            self.devices = [Troubled(device_kind(device).open(device, "f32")) for device in cluster.devices]
            pairs = [(0, 1), (1, 0)] if emulated else []
            options = {"devices": self.devices, "transports": {pair: Started(f"placeit link {pair}") for pair in pairs}}
        elif lanes == "fake":
            options = {"streams": Streams(FakeAccelerator(2, on_host={0, 1}, patience=0.1), Computed)}
        self.runtime = Runtime(self.model, grouping, cluster, **options)  # type: ignore[arg-type]
        groups = len(grouping.groups)
        self.plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.arange(groups) % 2, merge=False)

    def break_a_transfer(self, error: Exception) -> None:
        """Have the next one fail, once."""
        streams = self.runtime.pool.streams
        movers = list(self.runtime.pool.transports.values()) if streams is None else [streams.accelerator]
        broken = iter([error])
        for mover in movers:
            name = "start" if streams is None else "copy"
            setattr(mover, name, functools.partial(_move, broken, getattr(mover, name)))

    def executor(self, in_flight: int = 1) -> PlanExecutor:
        executor = self.runtime.executor(self.plan, in_flight=in_flight)
        for request in range(in_flight):
            executor.set_inputs(inputs_of(self.model, 3), request=request)
        return executor

    def check(self, executor: PlanExecutor, **options: Any) -> None:
        """Run an executor on two inputs, and compare its outputs."""
        for index in (1, 2):
            (output,) = executor.run(inputs_of(self.model, index), **options).values()
            np.testing.assert_allclose(output, expected(index), rtol=1e-5)


@pytest.fixture
def bench(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Bench]]:
    with contextlib.ExitStack() as stack:

        def make(lanes: str = "openvino", cores: str = "one core", **options: Any) -> Bench:
            if lanes in ("streams", "paced by the host"):
                stack.callback(run_late(monkeypatch).close)
            framework = {"native": "openvino", "openvino": "openvino", "ort": "ort"}.get(lanes, "torch")
            made = Bench(models[framework], lanes, cores, **options)
            stack.callback(made.runtime.close)
            return made

        yield make


def workers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.is_alive() and thread.name.startswith("placeit")}


# ------------------------------------------------------------------------------------------------ on every kind of lane


@pytest.mark.parametrize("lanes", LANES)
def test_lanes_are_what_they_are_called(bench: Callable[..., Bench], lanes: str) -> None:
    made = bench(lanes)
    with made.executor() as executor:
        assert executor.native == (lanes == "native")
        assert executor.host_paced == (("cpu",) if lanes == "paced by the host" else ())
        assert (made.runtime.pool.streams is not None) == (lanes in ("streams", "fake"))
        made.check(executor)


@pytest.mark.parametrize("busy", [False, True], ids=["alone", "beside a Python thread"])
@pytest.mark.parametrize("lanes", LANES)
def test_failures_reach_who_waits_and_the_next_run_is_right(bench: Callable[..., Bench], lanes: str, busy: bool) -> None:
    """Of one request, and of several at once; other executors on the same devices do not notice."""
    made = bench(lanes)
    stop = threading.Event()

    def compute() -> None:
        while busy and not stop.is_set():  # and take the interpreter's lock
            pass

    with beside(compute):
        try:
            with made.executor(in_flight=3) as executor, made.executor() as other:
                for trial in range(4):
                    made.check(executor, timeout=60)
                    for request in range(3):
                        executor.set_inputs(inputs_of(made.model, 1000 if request <= trial else 1), request=request)
                    with pytest.raises(ExecutionError, match=r"segment that starts with '.*' failed on \S+: .*\w"):
                        executor.times(7, timeout=60)
                    made.check(other, timeout=60)
                made.check(executor, timeout=60)
        finally:
            stop.set()


@pytest.mark.parametrize("lanes", [lanes for lanes in LANES if lanes not in ("native", "fake")])  # which copy nothing
def test_a_transfer_that_fails_is_an_execution_error_and_the_next_run_is_right(bench: Callable[..., Bench], lanes: str) -> None:
    made = bench(lanes, emulated=lanes != "streams")
    with made.executor(in_flight=2) as executor:
        for _ in range(3):
            made.check(executor, timeout=60)
            made.break_a_transfer(RuntimeError("cable out"))
            with pytest.raises(ExecutionError, match=r"(Moving|Copying) .*cable out"):
                executor.times(5, timeout=60)
            made.check(executor, timeout=60)


@pytest.mark.parametrize("lanes", LANES)
def test_a_time_out_ends_the_run_and_the_next_one_is_right(bench: Callable[..., Bench], lanes: str) -> None:
    made = bench(lanes)
    with made.executor(in_flight=2) as executor:
        for _ in range(3):
            with pytest.raises(ExecutionError, match=r"time-out is over, and the run is not: (still running: .*|none of it)"):
                executor.times(10_000_000, timeout=0.05)
            made.check(executor, timeout=60)
        for timeout in (0, -1, float("nan")):
            with pytest.raises(UsageError, match="timeout"):
                executor.time(timeout=timeout)


@pytest.mark.parametrize("lanes", LANES)
def test_closing_an_executor_waits_for_the_run_of_another_thread(bench: Callable[..., Bench], lanes: str) -> None:
    made = bench(lanes)
    executor, began = made.executor(), threading.Event()

    def run() -> float:
        began.set()
        return executor.times(200)

    with beside(run) as seconds:
        assert began.wait(120)
        time.sleep(0.01)
        executor.close()
    assert isinstance(seconds[0], float) or "closed" in str(seconds[0])  # if it had not begun
    given = inputs_of(made.model, 1)
    for ask in (executor.time, executor.outputs, lambda: executor.run(given), lambda: executor.set_inputs(given)):
        with pytest.raises(ExecutionError, match="closed"):
            ask()
    executor.close()


@pytest.mark.parametrize("lanes", LANES)
def test_closing_the_runtime_ends_the_runs_of_other_threads(bench: Callable[..., Bench], lanes: str) -> None:
    made = bench(lanes)
    executor, idle, began = made.executor(in_flight=2), made.executor(), threading.Event()

    def run() -> None:
        executor.time()
        began.set()
        executor.times(10_000_000)

    with beside(run) as ended:
        assert began.wait(60)
        time.sleep(0.01)
        made.runtime.close()
    assert isinstance(ended[0], ExecutionError)
    assert "closed" in str(ended[0])
    for kept in (executor, idle):
        with pytest.raises(ExecutionError, match="closed"):
            kept.time(timeout=60)
        kept.close()


@pytest.mark.parametrize("lanes", LANES)
def test_threads_that_share_an_executor_take_turns_and_have_their_own_outputs_and_errors(
    bench: Callable[..., Bench], lanes: str
) -> None:
    made = bench(lanes)

    def repeat(index: int) -> int:
        for _ in range(6):
            if index > 3:
                with pytest.raises(ExecutionError, match="failed on"):
                    executor.run(inputs_of(made.model, index))
            else:
                (output,) = executor.run(inputs_of(made.model, index), timeout=60).values()
                np.testing.assert_allclose(output, expected(index), rtol=1e-5)
        return index

    with made.executor() as executor, contextlib.ExitStack() as stack:
        results = [stack.enter_context(beside(functools.partial(repeat, index))) for index in (0, 1, 2, 1000)]
        stack.close()
        assert results == [[0], [1], [2], [1000]]


# ---------------------------------------------------------------------------------------------------- what devices raise


@pytest.mark.parametrize(("framework", "cores"), KINDS)
def test_a_kernel_that_raises_is_an_execution_error_on_every_kind_of_device(
    bench: Callable[..., Bench], framework: str, cores: str
) -> None:
    """It is one each time, and the next good request has its right outputs, not the outputs of an earlier run."""
    made = bench(framework, cores)
    executor = made.executor()
    for _ in range(5):
        made.check(executor)
        with pytest.raises(ExecutionError, match=r"failed on [ab].*: .*\w"):
            executor.run(inputs_of(made.model, 1000))
        made.check(executor)


def of_node(op: str, inputs: list[tuple[str, int, list[int]]], output: list[int], **attributes: Any) -> onnx.ModelProto:
    node = helper.make_node(op, [name for name, _, _ in inputs], ["y"], **attributes)
    ends = [helper.make_tensor_value_info(*value) for value in inputs]
    graph = helper.make_graph([node], op, ends, [helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, output)])
    if op == "RoiAlign":
        graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("cores", SETS)
@pytest.mark.parametrize("framework", ["openvino", "ort"])
@pytest.mark.parametrize("op", ["CumSum", "RoiAlign"])
def test_values_that_an_onnx_kernel_refuses_are_an_execution_error(tmp_path: Path, op: str, framework: str, cores: str) -> None:
    """An axis and an image that are not there."""
    if op == "CumSum":
        proto = of_node(op, [("x", onnx.TensorProto.DOUBLE, [5]), ("axis", onnx.TensorProto.INT32, [])], [5], reverse=1)
        good: Arrays = {"x": np.arange(5.0), "axis": np.int32(0)}  # type: ignore[dict-item]
        bad = good | {"axis": np.int32(77)}
    else:
        floats, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
        proto = of_node(
            op, [("x", floats, [1, 1, 8, 8]), ("rois", floats, [2, 4]), ("batch", whole, [2])], [2, 1, 3, 3], mode="max",
            output_height=3, output_width=3,
        )  # fmt: skip
        x = np.arange(64, dtype=np.float32).reshape(1, 1, 8, 8)
        good = {"x": x, "rois": np.array([[0, 0, 4, 4], [1, 1, 7, 7]], np.float32), "batch": np.zeros(2, np.int64)}
        bad = good | {"batch": np.full(2, 123456)}
    onnx.save(proto, tmp_path / "model.onnx")
    model = load(tmp_path / "model.onnx")
    cluster = drive(Cluster((Device("a", framework, SETS[cores], all_cores=CORES),)), model)
    model = model.prepared(cluster)
    grouping = Grouping.singletons(model.graph)
    groups = len(grouping.groups)
    plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.zeros(groups, int))
    with Runtime(model, grouping, cluster) as runtime, runtime.executor(plan) as executor:
        first = executor.run(good)
        for _ in range(3):
            with pytest.raises(ExecutionError, match=r"failed on a: .*\w"):
                executor.run(bad)
            for name, value in executor.run(good).items():
                np.testing.assert_array_equal(value, first[name])


@pytest.mark.parametrize(
    "failure",
    [
        SystemExit("library called exit"),
        KeyboardInterrupt(),
        GeneratorExit(),
        OSError(5, "io"),
        RuntimeError(""),
        MemoryError(),
        ValueError("io\nof several lines"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("framework", ["openvino", "ort", "torch"])
def test_whatever_a_kernel_raises_reaches_who_waits(
    bench: Callable[..., Bench], framework: str, failure: BaseException
) -> None:
    made = bench(framework)
    executor, before = made.executor(in_flight=2), workers()

    def fail() -> None:
        made.devices[1].trouble = int
        raise failure

    for _ in range(3):
        made.devices[1].trouble = fail
        with pytest.raises(ExecutionError, match=f"on b.*{'io' if 'io' in str(failure) else type(failure).__name__}"):
            executor.times(5)
        made.check(executor)
    assert workers() == before


@pytest.mark.parametrize("failure", [RuntimeError("cable out"), SystemExit("gone"), ExecutionError("cable out")], ids=repr)
@pytest.mark.parametrize("device", [0, 1])
def test_a_device_that_cannot_be_started_is_an_execution_error_and_the_next_run_works(
    bench: Callable[..., Bench], device: int, failure: BaseException
) -> None:
    made = bench()
    executor, before = made.executor(), workers()
    for _ in range(3):
        made.devices[device].refusal = failure
        with pytest.raises(ExecutionError, match=r"cable out|gone"):
            executor.time()
        made.check(executor)
    assert workers() == before


@pytest.mark.parametrize("device", [0, 1])
def test_who_waits_notices_that_the_thread_of_a_device_is_gone(bench: Callable[..., Bench], device: int) -> None:
    """Here by an exception that is put into the thread from outside, between two of the thread's steps."""
    made = bench()
    executor = made.executor()
    made.check(executor)
    dying = threading.Event()

    def doomed() -> None:
        dying.set()
        with contextlib.suppress(SystemExit):
            time.sleep(0.05)

    made.devices[device].trouble = doomed
    worker = made.devices[device].worker
    thread = next(thread for thread in workers() if thread.name == f"placeit {'ab'[device]}")

    def kill() -> None:
        dying.wait(120)
        worker.submit(sys.exit)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(ExecutionError, match=f"placeit {'ab'[device]} has died of SystemExit.*open a new session"):
        executor.times(100_000)
    killer.join()
    thread.join(120)
    assert not thread.is_alive()
    with pytest.raises(ExecutionError):
        executor.time()


# ------------------------------------------------------------------------------------------------------------- time-outs


def test_a_run_that_takes_too_long_is_an_error_that_says_what_still_runs(bench: Callable[..., Bench]) -> None:
    made = bench()
    executor, other = made.executor(), made.executor()
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        made.devices[1].trouble = int
        stuck.set()
        go_on.wait(60)

    made.devices[1].trouble = hang
    overdue(lambda seconds: executor.time(timeout=seconds), "starts with '.*' on b")
    assert stuck.is_set()
    with pytest.raises(ExecutionError, match=r"still running: the segment that starts with '.*' on b"):
        executor.run(inputs_of(made.model, 1), timeout=0.1)
    with pytest.raises(ExecutionError, match="time-out is over"):
        other.times(3, timeout=0.1)
    go_on.set()
    made.check(executor, timeout=30)
    made.check(other)


def test_a_time_out_also_ends_the_wait_for_the_run_of_another_thread(bench: Callable[..., Bench]) -> None:
    made = bench()
    executor = made.executor()
    stuck, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        made.devices[0].trouble = int
        stuck.set()
        go_on.wait(60)

    made.devices[0].trouble = hang
    thread = threading.Thread(target=executor.time)
    thread.start()
    assert stuck.wait(120)
    with pytest.raises(ExecutionError, match=r"time-out is over.*on a"):
        executor.time(timeout=0.1)
    go_on.set()
    thread.join()
    made.check(executor, timeout=30)


def test_what_runs_after_a_time_out_is_closed_with_its_runtime(bench: Callable[..., Bench]) -> None:
    """The buffers stay until what uses them has ended."""
    made = bench()
    go_on = threading.Event()
    made.devices[0].trouble = lambda: go_on.wait(60)
    with made.executor() as executor, pytest.raises(ExecutionError, match="time-out"):
        executor.time(timeout=0.1)
    timer = threading.Timer(0.2, go_on.set)
    timer.start()
    made.runtime.close()
    timer.join()


# ------------------------------------------------------------------------------------------------------------ interrupts


class Interrupted(BaseException):
    """Raised by a signal handler, and by nothing else."""


class Strikes:
    """Raises in the main thread some random time from now, and perhaps once more some random time after that."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.left, self.kind = 0, Interrupted

    def ahead(self, longest: float) -> None:
        self.left = self.random.choice([1, 1, 2])
        self.kind = self.random.choice([KeyboardInterrupt, Interrupted, TimeoutError, SystemExit])  # type: ignore[assignment]
        signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, longest))

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.left -= 1
        if self.left > 0:
            signal.setitimer(signal.ITIMER_REAL, 10 ** self.random.uniform(-5.5, -3))
        raise self.kind("request took too long")

    def stop(self) -> None:
        """Raise no more."""
        self.left = 0
        signal.setitimer(signal.ITIMER_REAL, 0)

    def during(self, action: Callable[[], object], longest: float) -> None:
        """Repeat an action until all has been raised."""
        try:
            try:
                self.ahead(longest)
                while self.left > 0:
                    action()
            except self.kind:
                while self.left > 0:
                    action()
        except self.kind:
            pass


@pytest.fixture
def strikes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], Strikes]]:
    report = sys.unraisablehook

    def ignore(unraisable: Any) -> None:
        """Of what is raised in a callback of a weak reference, pytest makes a failure if the next strike hits its own hook."""
        if "request took too long" not in str(unraisable.exc_value):
            report(unraisable)

    monkeypatch.setattr(sys, "unraisablehook", ignore)
    with contextlib.ExitStack() as stack:

        def make(seed: int) -> Strikes:
            made = Strikes(seed)
            stack.enter_context(alarm(made))
            return made

        yield make


@pytest.mark.parametrize("trials", [30, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("emulated", [False, True], ids=["links in memory", "emulated links"])
@pytest.mark.parametrize("lanes", LANES)
def test_runs_survive_interrupts_at_random_moments(
    bench: Callable[..., Bench], strikes: Callable[[int], Strikes], lanes: str, emulated: bool, trials: int
) -> None:
    if emulated and lanes in ("streams", "fake"):
        pytest.skip("nothing is emulated beside what is launched ahead")
    made, strike = bench(lanes, emulated=emulated), strikes(1)
    executor, other = made.executor(in_flight=2), made.executor()
    executor.time()
    other.time()
    before = workers()
    for trial in range(trials):
        strike.during(lambda: executor.times(strike.random.randrange(1, 6)), 0.004)
        executor.time(timeout=30)
        other.time(timeout=30)
        if trial % 10 == 0:
            made.check(executor, timeout=30)
            made.check(other, timeout=30)
    assert workers() == before
    executor.close()
    other.close()


def interrupt_sessions(path: str, seed: int, trials: int) -> None:
    """Open a runtime, run a plan, and close everything, with interrupts at any moment of it; called in a separate process."""
    model, strikes = load(path), Strikes(seed)
    signal.signal(signal.SIGALRM, strikes)
    sys.unraisablehook = lambda raised: None  # Python only reports what a signal handler raises inside a finalizer

    def whole() -> None:
        made = Bench(model, "openvino", "one core", emulated=True)
        with made.runtime, made.executor() as executor:
            made.check(executor)

    whole()
    for _ in range(trials):
        strikes.during(whole, 0.05)
    whole()
    deadline = time.monotonic() + 120
    while workers() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not workers(), workers()


@pytest.mark.slow
@pytest.mark.parametrize("trials", [10, pytest.param(400, marks=pytest.mark.nightly)])
def test_opening_and_closing_survive_interrupts_at_random_moments(tmp_path: Path, trials: int) -> None:
    """What was open when an interrupt came is closed as soon as nothing refers to it."""
    path = save_mixing(tmp_path / "mixing.onnx")
    code = f"from tests.runtime import test_faults; test_faults.interrupt_sessions({str(path)!r}, 3, {trials})"
    call = [sys.executable, "-X", "faulthandler", "-c", code]
    search = os.pathsep.join(filter(None, sys.path))
    env = os.environ | {"PYTHONPATH": search}
    ended = subprocess.run(call, env=env, capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert ended.returncode == 0, ended.stderr[-4000:]


@pytest.mark.parametrize("kind", [TimeoutError, SystemExit, KeyboardInterrupt])
def test_what_a_signal_handler_raises_ends_the_run_and_no_thread(
    bench: Callable[..., Bench], kind: type[BaseException]
) -> None:
    """The usual way to have a time-out without asking for one."""
    made = bench()
    executor, before = made.executor(), workers()

    def handler(number: int, frame: FrameType | None) -> None:
        raise kind("request took too long")

    with alarm(handler), made.executor() as first:
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        with pytest.raises(kind, match="request took too long"):
            first.times(1_000_000)
    assert workers() == before
    made.check(executor, timeout=30)


def test_a_kernel_that_never_ends_does_not_keep_an_interrupt_from_who_waits(bench: Callable[..., Bench]) -> None:
    made = bench()
    executor, go_on = made.executor(), threading.Event()
    made.devices[0].trouble = lambda: go_on.wait(60)

    def handler(number: int, frame: FrameType | None) -> None:
        raise TimeoutError

    with alarm(handler):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError):
            executor.time()
    go_on.set()
    made.check(executor, timeout=30)


@pytest.mark.parametrize("lanes", LANES)
def test_a_run_inside_a_run_is_refused(bench: Callable[..., Bench], lanes: str) -> None:
    """As a signal handler might ask for it."""
    executor = bench(lanes).executor()
    raised: list[BaseException] = []

    def handler(number: int, frame: FrameType | None) -> None:
        try:
            executor.time()
        except ExecutionError as error:
            raised.append(error)

    with alarm(handler):
        while not raised:
            signal.setitimer(signal.ITIMER_REAL, 0.002)
            executor.times(50)
    assert "inside another run" in str(raised[0])
    executor.time()
    executor.close()


# ------------------------------------------------------------------------------------------- growth, threads, processes


def test_spans_are_those_of_the_last_call(bench: Callable[..., Bench]) -> None:
    made = bench()
    executor = made.executor(in_flight=3)
    executor.times(3)
    three = executor.spans()
    begin = time.perf_counter()
    executor.times(1)
    one = executor.spans()
    assert 3 * len(one) == len(three)
    assert {span.request for span in three} == {0, 1, 2}
    assert min(span.start for span in one) >= begin
    executor.times(30)
    assert len(executor.spans()) == len(three)


def test_nothing_is_kept_of_each_run(bench: Callable[..., Bench]) -> None:
    executor = bench().executor(in_flight=2)
    executor.times(1100)  # as many samples as are ever kept
    gc.collect()
    before = sys.getallocatedblocks()
    executor.times(600)
    gc.collect()
    assert sys.getallocatedblocks() - before < 2000  # three for each segment of each request would be many more


def system_threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def test_placements_of_a_model_leave_no_threads_and_closing_gives_those_of_devices_back() -> None:
    """OpenVINO used to start two for each program of a one-core set."""
    model = random_model(1, 40)
    grouping = Grouping.singletons(model.graph)
    groups = len(grouping.groups)
    cluster = Cluster(tuple(Device(name, address=Address("CPU", CORES[:1])) for name in "ab"))
    segmenter = Segmenter(grouping, Costs.zero(groups, cluster))
    before, opened, kept = workers(), list[int](), []
    with Runtime(model, grouping, cluster) as runtime:
        for seed in range(6):
            placement = np.random.default_rng(seed).integers(2, size=groups)
            kept.append(runtime.executor(segmenter.plan(placement, merge=False)))
            kept[-1].time()
            deadline = time.monotonic() + 120  # those that compile end by themselves
            while len(workers() - before) > 2 and time.monotonic() < deadline:
                time.sleep(0.01)
            opened.append(system_threads())
        assert len(workers() - before) == 2
    assert max(opened) - opened[0] <= 2
    assert not workers() - before
    deadline = time.monotonic() + 120  # the system is told last
    while system_threads() > opened[-1] - 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert system_threads() <= opened[-1] - 2


def test_threads_of_a_runtime_that_nobody_closes_end_with_it(models: dict[str, Model]) -> None:
    before = workers()
    made: Bench | None = Bench(models["openvino"], "openvino", "one core", emulated=True)
    assert made is not None
    made.check(made.executor())
    assert len(workers() - before) >= 4
    made = None
    deadline = time.monotonic() + 120
    while workers() - before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert not workers() - before


def in_a_child(action: Callable[[], object]) -> str:
    """What an action says, or raises, in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        try:
            said = str(action())
        except BaseException as error:  # noqa: BLE001
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.mark.parametrize("lanes", LANES)
def test_a_forked_process_is_told_to_open_a_session_of_its_own(bench: Callable[..., Bench], lanes: str) -> None:
    made = bench(lanes)
    executor = made.executor()
    executor.time()
    for action in (executor.time, lambda: executor.run(inputs_of(made.model, 1)), made.executor):
        assert in_a_child(action).startswith("ExecutionError: This process was forked")
    assert in_a_child(executor.close) == "None"
    assert in_a_child(made.runtime.close) == "None"
    made.check(executor)
    executor.close()
