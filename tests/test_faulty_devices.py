"""Devices that are wrong: whatever they do, the output check sees it, on every kind of device, and it sees nothing else.

Devices, models and executors are real. A fault is put between a device and one random segment of a random placement, or between
an accelerator and one of its copies.
"""

from __future__ import annotations

import functools
import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from placeit.backends import load
from placeit.backends.base import Model
from placeit.backends.torch.model import load as load_module
from placeit.cli import app
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.threads import Worker
from placeit.devices import parse_device
from placeit.devices.host import allowed_cores
from placeit.measuring import check as check_module
from placeit.measuring.check import OutputCheck, OutputDifference, other_inputs
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime.accelerators.module_program import ModuleProgram
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.runtime.devices.ort import OrtDevice
from placeit.runtime.devices.pytorch import TorchDevice
from placeit.runtime.drivers import drive
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.session import Session
from tests.eager_streams import devices as streamed
from tests.eager_streams import run_at_once
from tests.steady import optimize

CORE = allowed_cores()[0]
FAULTS = ("skipped", "stale", "swapped", "swallowed", "late", "overwritten")
SEEN = 1e-3  # more than rounding
SHAPE = (1, 8)


# -- random models: everything that is made reaches an output, and no two inputs of an op are alike to it -------------------


def steps(seed: int, count: int = 5) -> Iterator[tuple[str, int, int, NDArray[np.float32], NDArray[np.float32]]]:
    """Yield ops, the values that they read by number, and weights."""
    rng = np.random.default_rng(seed)
    for number in range(count):
        a, b = rng.choice(number + 2, 2, replace=False)
        weights = [np.linalg.qr(rng.standard_normal((8, 8)))[0].astype(np.float32) for _ in "ab"]
        yield str(rng.choice(["add", "where", "cast"])), int(a), int(b), weights[0], weights[1]


@functools.cache
def onnx_model(seed: int, folder: Path) -> Model:
    """Write the model of a seed, with borders of truth values and whole numbers, and load it."""
    names, nodes, weights = ["x", "y"], [], []
    for n, (kind, a, b, left, right) in enumerate(steps(seed)):
        weights += [numpy_helper.from_array(left, f"l{n}"), numpy_helper.from_array(right, f"r{n}")]
        nodes += [helper.make_node("MatMul", [names[a], f"l{n}"], [f"a{n}"], f"a{n}")]
        nodes += [helper.make_node("MatMul", [names[b], f"r{n}"], [f"b{n}"], f"b{n}")]
        if kind == "where":
            nodes += [helper.make_node("Greater", [f"a{n}", f"b{n}"], [f"c{n}"], f"c{n}")]
            nodes += [helper.make_node("Neg", [f"b{n}"], [f"n{n}"], f"n{n}")]
            nodes += [helper.make_node("Where", [f"c{n}", f"a{n}", f"n{n}"], [f"v{n}"], f"v{n}")]
        elif kind == "cast":
            nodes += [helper.make_node("Sub", [f"a{n}", f"b{n}"], [f"d{n}"], f"d{n}")]
            nodes += [helper.make_node("Mul", [f"d{n}", "hundred"], [f"h{n}"], f"h{n}")]
            nodes += [helper.make_node("Cast", [f"h{n}"], [f"i{n}"], f"i{n}", to=TensorProto.INT32)]
            nodes += [helper.make_node("Cast", [f"i{n}"], [f"f{n}"], f"f{n}", to=TensorProto.FLOAT)]
            nodes += [helper.make_node("Mul", [f"f{n}", "hundredth"], [f"v{n}"], f"v{n}")]
        else:
            nodes += [helper.make_node("Sub", [f"a{n}", f"b{n}"], [f"v{n}"], f"v{n}")]
        names.append(f"v{n}")
    read = {name for node in nodes for name in node.input}
    ends = [name for name in names if name not in read]
    weights += [numpy_helper.from_array(np.float32([value]), name) for value, name in ((100, "hundred"), (0.01, "hundredth"))]
    value = functools.partial(helper.make_tensor_value_info, elem_type=TensorProto.FLOAT, shape=SHAPE)
    graph = helper.make_graph(nodes, "random", [value("x"), value("y")], [value(name) for name in ends], weights)
    path = folder / f"random{seed}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return load(path)


class Steps(torch.nn.Module):
    """The same as a module."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.steps = [(kind, a, b) for kind, a, b, _, _ in steps(seed)]
        for n, (_, _, _, left, right) in enumerate(steps(seed)):
            self.register_buffer(f"l{n}", torch.from_numpy(left))
            self.register_buffer(f"r{n}", torch.from_numpy(right))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values, read = [x, y], set()
        for n, (kind, i, j) in enumerate(self.steps):
            a, b = values[i] @ getattr(self, f"l{n}"), values[j] @ getattr(self, f"r{n}")
            if kind == "where":
                values.append(torch.where(a > b, a, -b))
            elif kind == "cast":
                values.append(((a - b) * 100).to(torch.int32).float() * 0.01)
            else:
                values.append((a - b).bfloat16().float())
            read |= {i, j}
        return tuple(value for n, value in enumerate(values) if n not in read)


@functools.cache
def torch_model(seed: int) -> Model:
    return load_module(Steps(seed), (torch.randn(SHAPE), torch.randn(SHAPE)))


# -- kinds of devices --------------------------------------------------------------------------------------------------------


def pair(prefix: str = "", links: float = np.inf, **slow: float) -> Cluster:
    """Two devices on one core."""
    both = {ends: Link(links, 0.0 if links == np.inf else 1e-5, "emulated") for ends in (("a", "b"), ("b", "a"))}
    kind = {"kind": "ort"} if prefix else {}
    on = {"address": parse_device(f"{prefix}CPU@{CORE}"), **kind}
    return Cluster((Device("a", **on), Device("b", **on, **slow)), both)


ON_CORE = Device("b", kind="torch", address=Address("CPU", (CORE,)))
KINDS: dict[str, Callable[[], Cluster]] = {
    "openvino": pair,
    "emulated": lambda: pair(links=1e9, slowdown=2.0),
    "ort": lambda: pair("ort:"),
    "torch": pair,
    "streams": lambda: Cluster((*streamed("cpu"), ON_CORE)),
    "paced by the host": lambda: Cluster((*streamed("cpu"), replace(ON_CORE, slowdown=1.5))),
}


@pytest.fixture
def open_session(cache: Cache, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Open a session of a random model on devices of a kind."""

    def opened(kind: str, seed: int) -> Session:
        on_streams = kind in ("streams", "paced by the host")
        if on_streams:
            run_at_once(monkeypatch)
        cluster = KINDS[kind]()
        model = torch_model(seed) if on_streams or kind == "torch" else onnx_model(seed, tmp_path_factory.getbasetemp())
        session = Session(model, drive(cluster, model) if kind == "torch" else cluster, cache=cache)
        session.profile()
        return session

    return opened


# -- faults ------------------------------------------------------------------------------------------------------------------


def put(place: Any, value: NDArray[Any]) -> None:
    """Write an output, as its device does."""
    if isinstance(place, torch.Tensor):
        place.copy_(torch.tensor(value))
    elif isinstance(place.tensor, torch.Tensor):
        place.tensor = torch.from_numpy(value).to(place.tensor.dtype)
    else:
        place.array()[...] = value


def get(place: Any) -> NDArray[Any]:
    if isinstance(place, torch.Tensor):
        # a copy: a tensor that NumPy has seen cannot be freed any more
        return (place.float() if place.dtype is torch.bfloat16 else place.clone()).numpy()
    return np.array(place.array())


class Fault:
    """One thing that is wrong with one segment, from some run of it on."""

    def __init__(self, name: str, target: int, rng: np.random.Generator, begins: int = 0) -> None:
        self.name, self.target, self.rng, self.begins = name, target, rng, begins
        self.made = self.runs = 0
        self.previous: list[NDArray[Any]] | None = None
        self.late: Callable[[], None] | None = None

    def hits(self, specs: Sequence[Any]) -> bool:
        """Whether the segment is the one, among those that can have this fault; to be asked once of each."""
        if self.name == "not moved" or (self.name == "swapped" and alike(specs) is None):
            return False
        self.made += 1
        return self.made - 1 == self.target

    def run(self, run: Callable[[], object], outputs: Sequence[Any]) -> None:
        """Run the segment as the fault has it."""
        self.runs += 1
        before = [get(output) for output in outputs]
        if self.runs <= self.begins or self.name == "swapped":
            run()
            self.previous = [get(output) for output in outputs]
            return
        if self.name == "skipped":
            return
        run()
        right = [get(output) for output in outputs]
        if self.name == "stale":  # what it had computed in the run before
            for output, value in zip(outputs, self.previous or before, strict=True):
                put(output, value)
            self.previous = right
        elif self.name == "swallowed":  # an error before all outputs were written, which was not reported
            for output, then, now in zip(outputs, before, right, strict=True):
                missing = self.rng.random(now.shape) < 0.5
                missing.flat[self.rng.integers(now.size)] = True
                put(output, np.where(missing, then, now))
        elif self.name == "late":
            for output, value in zip(outputs, before, strict=True):
                put(output, value)
            self.late = lambda: [put(output, value) for output, value in zip(outputs, right, strict=True)] and None
        else:
            wrong = [self.rng.permutation(value.ravel()).reshape(value.shape) * 2 + 1 for value in right]
            wrong = [value.astype(now.dtype) if now.dtype != bool else ~now for value, now in zip(wrong, right, strict=True)]
            self.late = lambda: [put(output, value) for output, value in zip(outputs, wrong, strict=True)] and None

    def end(self) -> None:
        """Write what is late: called once the run has ended, while the check waits, so that no clock decides what is seen."""
        late, self.late = self.late, None
        if late is not None:
            late()


@pytest.fixture
def while_waiting(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Have the output check wait for late writes until something has come about, however busy the machine is."""

    def wait(until: Callable[[], object]) -> None:
        monkeypatch.setattr(check_module, "time", SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: until()))

    return wait


@pytest.fixture
def inject(monkeypatch: pytest.MonkeyPatch, while_waiting: Any) -> Iterator[Callable[[Fault | None], None]]:
    """Have devices be at fault from now on."""
    now: list[Fault | None] = [None]

    def on_devices(kind: Any) -> None:
        make = kind.instance

        def instance(self: Any, program: Any) -> Any:
            made, fault = make(self, program), now[0]
            if fault is None or not fault.hits(program.inputs):
                return made
            run, bind = made.run, made.bind
            outputs = [made.output(i) for i in range(len(program.outputs))]
            made.run = lambda: fault.run(run, outputs)
            if fault.name == "swapped":
                first, second = alike(program.inputs) or (0, 0)
                others = {first: second, second: first}
                made.bind = lambda index, buffer: bind(others.get(index, index), buffer)
            return made

        monkeypatch.setattr(kind, "instance", instance)
        monkeypatch.setattr(kind, "call", None)

    for kind in (OpenVinoDevice, OrtDevice, TorchDevice):
        on_devices(kind)

    load_program, copy, close = ModuleProgram.load, StreamAccelerator.copy, PlanExecutor.close

    def loaded(self: Any, place: object) -> Any:
        program, fault = load_program(self, place), now[0]
        if fault is None:
            return program

        class Wrong:
            mine: bool | None = None

            def launch(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
                specs, given = [(tensor.dtype, tensor.shape) for tensor in inputs], list(inputs)
                if self.mine is None:
                    self.mine = fault.hits(specs)
                if not self.mine:
                    program.launch(inputs, outputs)
                    return
                if fault.name == "swapped":
                    first, second = alike(specs) or (0, 0)
                    given[first], given[second] = given[second], given[first]
                fault.run(lambda: program.launch(given, outputs), outputs)

        return Wrong()

    def closed(self: Any) -> None:
        if now[0] is not None:
            now[0].end()  # memory is freed
        close(self)

    def copied(self: Any, stream: Any, source: Any, destination: Any, destination_stream: Any = None) -> None:
        fault = now[0]
        if fault is not None and fault.name == "not moved":
            if fault.target == fault.made:
                fault.runs = destination.data_ptr()
            fault.made += 1
            if destination.data_ptr() == fault.runs:
                return
        copy(self, stream, source, destination, destination_stream)

    while_waiting(lambda: now[0] is not None and now[0].end())
    monkeypatch.setattr(ModuleProgram, "load", loaded)
    monkeypatch.setattr(PlanExecutor, "close", closed)
    monkeypatch.setattr(StreamAccelerator, "copy", copied)

    def put_in(fault: Fault | None) -> None:
        if now[0] is not None:
            now[0].end()
        now[0] = fault

    yield put_in
    put_in(None)


def alike(specs: Sequence[Any]) -> tuple[int, int] | None:
    """Two tensors that could be taken for each other."""
    return next(((i, j) for j in range(len(specs)) for i in range(j) if specs[i] == specs[j]), None)


def placements(session: Session, seed: int) -> list[NDArray[np.int32]]:
    """Place groups at random; not often, since every new segment has to be compiled."""
    rng = np.random.default_rng(seed)
    return [rng.integers(2, size=len(session.grouping.groups)).astype(np.int32) for _ in range(3)]


def seen(error: OutputDifference) -> bool:
    return error.not_checked is None and error.max_rel > SEEN


def injections(open_session: Any, inject: Any, kind: str, count: int) -> list[str]:
    """Inject each fault a number of times; return the faults that were not seen."""
    missed = []
    faults = (*FAULTS, "not moved") if kind == "streams" else FAULTS
    for seed in range(2):
        with open_session(kind, seed) as session:
            pool = placements(session, seed)
            for fault, number in itertools.product(faults, range(count // 2)):
                rng = np.random.default_rng([seed, number])
                groups = pool[rng.integers(len(pool))]
                ran = session.segmenter.plan(groups).programs
                able = [
                    fault != "swapped" or alike(session.runtime.compiler.source(segment).inputs) is not None for segment in ran
                ]
                begins = int(rng.choice([0, 0, 3, 4])) if fault in ("skipped", "stale", "swallowed") else 0
                inject(Fault(fault, int(rng.integers(sum(able))), rng, begins))
                report = session.run(session.placement(groups), runs=1)
                inject(None)
                if not seen(report.output_error):
                    missed.append(f"{fault}: model {seed}, number {number}, from run {begins} on: {report.output_error}")
    return missed


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_is_seen(open_session: Any, inject: Any, kind: str) -> None:
    assert injections(open_session, inject, kind, 4) == []


@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
def test_every_one_of_a_hundred_faults_is_seen(open_session: Any, inject: Any, kind: str) -> None:
    assert injections(open_session, inject, kind, 100) == []


def false_alarms(open_session: Any, inject: Any, kind: str, count: int) -> list[OutputDifference]:
    errors = []
    for seed in range(2):
        with open_session(kind, seed) as session:
            pool = placements(session, seed)
            errors += [session.run(session.placement(pool[n % 3]), runs=1).output_error for n in range(count // 2)]
    return [error for error in errors if error.max_rel > 1e-5 or error.fault is not None or error.not_checked is not None]


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_fault_none_is_seen(open_session: Any, inject: Any, kind: str) -> None:
    assert false_alarms(open_session, inject, kind, 8) == []


@pytest.mark.nightly
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", KINDS)
def test_without_a_fault_none_is_seen_in_as_many_runs(open_session: Any, inject: Any, kind: str) -> None:
    assert false_alarms(open_session, inject, kind, 100 * len(FAULTS)) == []


# -- through every way in ----------------------------------------------------------------------------------------------------


@pytest.fixture
def make_wrong(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], None]:
    """Let every segment on a device be at fault, from some run of it on."""

    def wrong(name: str, begins: int, device: str = "b") -> None:
        make = OpenVinoDevice.instance

        def instance(self: Any, program: Any) -> Any:
            made = make(self, program)
            if self.name == device:
                fault, run = Fault(name, 0, np.random.default_rng(0), begins), made.run
                outputs = [made.output(i) for i in range(len(program.outputs))]
                made.run = lambda: fault.run(run, outputs)
            return made

        monkeypatch.setattr(OpenVinoDevice, "instance", instance)

    return wrong


@pytest.mark.parametrize("begins", [0, 5], ids=["always", "once the race has begun"])
@pytest.mark.parametrize("fault", ["skipped", "stale"])
def test_optimize_sees_what_is_wrong_with_whatever_it_measures(
    make_wrong: Any, cache: Cache, tmp_path_factory: pytest.TempPathFactory, fault: str, begins: int
) -> None:
    model = onnx_model(0, tmp_path_factory.getbasetemp())
    with Session(model, pair(), cache=cache) as session:
        session.profile()
        assert np.isfinite(session.costs.core).all()  # measured, or in the cache: not what this is about
    make_wrong(fault, begins)
    found = optimize(model, pair(), budget=2.0, cache=cache)
    ran = [candidate for candidate in found.candidates if candidate.output_error is not None]
    assert {bool(candidate.placement.counts()["b"]) for candidate in ran} == {True, False}
    for candidate in ran:
        assert seen(candidate.output_error) == (candidate.placement.counts()["b"] > 0)


@pytest.mark.two_cores
def test_the_commands_report_what_is_wrong(
    make_wrong: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "costs"))
    model = onnx_model(0, tmp_path_factory.getbasetemp())
    cores = [f"CPU@{core}" for core in allowed_cores()[:2]]
    with Session(model, ",".join(cores)) as session:
        groups = np.arange(len(session.grouping.groups)) % 2
        session.placement(groups).save(tmp_path / "p.json")
    files = [str(model.path), "-p", str(tmp_path / "p.json"), "--runs", "2", "--json"]
    make_wrong("skipped", 0, cores[1])
    compared = json.loads(CliRunner().invoke(app, ["compare", *files]).stdout)
    errors = {candidate["name"]: candidate["output_error"] for candidate in compared["candidates"]}
    assert errors[cores[0]]["fault"] is None
    assert errors[cores[0]]["max_rel"] < 1e-5
    for name in (cores[1], str(tmp_path / "p.json")):
        assert "has nan where the uncut model's has" in errors[name]["fault"]
        assert errors[name]["max_rel"] is None
    ran = CliRunner().invoke(app, ["run", *files])
    assert "has nan where" in json.loads(ran.stdout)["output_error"]["fault"]
    told = CliRunner().invoke(app, ["run", *files[:-1]])
    assert "are wrong: the output" in " ".join(told.stdout.split())


class Elsewhere(OpenVinoDevice):
    """A device whose memory no other reads."""

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self.space = device.name

    def instance(self, program: Any) -> Any:
        made = super().instance(program)
        for buffer in made._outputs:
            buffer.space = self.space
        return made

    def allocate(self, spec: BufferSpec) -> HostBuffer:
        buffer = super().allocate(spec)
        buffer.space = self.space
        return buffer


class Mover:
    """Copies from one memory to another; but one of the tensors never, or too late."""

    def __init__(self) -> None:
        self.skips, self.late, self.places = -1, False, list[int]()
        self.worker = Worker("mover")

    def start(self, source: Any, destination: Any, done: Any) -> None:
        if id(destination) not in self.places:
            self.places.append(id(destination))
        wrong = self.skips == self.places.index(id(destination))

        def move() -> None:
            begin = time.perf_counter()
            if not wrong:
                put(destination, source.array())
            done(begin, time.perf_counter(), None)
            if wrong and self.late:
                put(destination, source.array())

        self.worker.submit(move)

    def finish(self) -> None:
        """Wait until all that was begun is over."""
        over = threading.Event()
        self.worker.submit(over.set)
        over.wait()

    def close(self) -> None:
        self.worker.close()


def test_a_tensor_that_does_not_arrive_or_arrives_late_is_seen(
    while_waiting: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model = onnx_model(1, tmp_path_factory.getbasetemp())
    cluster, grouping, mover = pair(), coarsen(model.graph), Mover()
    plan = Segmenter(grouping, Costs.zero(len(grouping.groups), cluster)).plan(np.arange(len(grouping.groups)) % 2)
    inputs = model.random_inputs()
    check = OutputCheck(inputs, other_inputs(model, inputs, given=False), model.reference(None, "f32"))
    both = dict.fromkeys([(0, 1), (1, 0)], mover)
    while_waiting(mover.finish)
    with (
        Runtime(model, grouping, cluster, devices=tuple(map(Elsewhere, cluster.devices)), transports=both) as runtime,
        runtime.executor(plan) as executor,
    ):
        assert check(executor).max_rel < 1e-5
        assert len(mover.places) > 4
        for late, skips in itertools.product((False, True), range(len(mover.places))):
            mover.late, mover.skips = late, skips
            assert seen(check(executor))
        mover.skips = -1
        assert check(executor, after=True).max_rel < 1e-5
