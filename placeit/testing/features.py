"""Tests of the features that every kind of device should support, on two devices.

Example::

    from placeit.testing.features import FEATURES, Subject

    @pytest.mark.parametrize("feature", FEATURES)
    def test_mine(feature, tmp_path):
        with Subject(["mine:0", "mine:1"], tmp_path) as subject:
            FEATURES[feature](subject)

If the devices lack a feature, its test raises the error that users see. Importing this module requires pytest. The default
models require the package onnx.
"""

# ruff: noqa: S101 (tests use assertions)
from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
import pytest
from numpy.typing import NDArray

import placeit
from placeit.backends.base import Arrays, Model
from placeit.core.cluster import Cluster, Power
from placeit.core.errors import DeviceError, PlacementError
from placeit.core.placement import Placement
from placeit.measuring.check import OutputDifference
from placeit.optimizer.explain import explain as explanation_of
from placeit.optimizer.options import Candidates
from placeit.profiler.passes import Calm
from placeit.profiler.recording import read_recording, write_recording
from placeit.profiler.trace import write_chrome_trace
from placeit.runtime.devices.base import DoneCallback
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench.options import Constraints, Inputs, Policy, Traffic

__all__ = ["FEATURES", "SIZE", "Given", "Layers", "Models", "Subject", "onnx_models"]

SIZE = 8  # features of each row of the model
_SEED, _TIMEOUT_S = 0, 240.0

Given: TypeAlias = tuple[str | Path | Model, Inputs | None]
"""A model or its path, and the inputs of the session for it."""


@dataclass(frozen=True)
class Models:
    """The test model in three variants. :class:`Layers` is its reference in NumPy.

    Attributes:
        fixed: variant with inputs ``x``, ``past_0`` and ``past_1``, ``float32[1, 8]``.
        sized: variant with 1 to 8 rows in each input.
        stateful: variant with an input ``x``, and two totals as state.
    """

    fixed: Given
    sized: Given
    stateful: Given


class Layers:
    """Reference of the test model: two layers, each of which adds its input to a total, and maps the total to its output.

    Attributes:
        weights: weights of both layers, ``float32[8, 8]``.
        totals: totals of both layers, ``float32[R, 8]``.
    """

    def __init__(self, *totals: NDArray[Any]) -> None:
        rng = np.random.default_rng(_SEED)
        self.weights = [rng.standard_normal((SIZE, SIZE)).astype(np.float32) / 3 for _ in range(2)]
        self.totals = list(totals or [np.zeros((1, SIZE), np.float32)] * 2)

    def run(self, x: NDArray[Any]) -> NDArray[Any]:
        """Update the totals with an input, ``float32[R, 8]``, and return the output of the second layer."""
        value = x
        for k, weights in enumerate(self.weights):
            self.totals[k] = self.totals[k] + value
            value = np.tanh(self.totals[k] @ weights)
        return value

    def fork(self) -> Layers:
        """Return a copy with the same totals."""
        return Layers(*self.totals)


def onnx_models(folder: Path) -> Models:
    """Write the test model to an ONNX file."""
    from onnx import numpy_helper, parser, save

    model = parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]>
    layers (float[n, {SIZE}] x, float[n, {SIZE}] past_0, float[n, {SIZE}] past_1)
        => (float[n, {SIZE}] y, float[n, {SIZE}] present_0, float[n, {SIZE}] present_1)
    {{
        present_0 = Add (past_0, x)
        mixed_0 = MatMul (present_0, w_0)
        value_0 = Tanh (mixed_0)
        present_1 = Add (past_1, value_0)
        mixed_1 = MatMul (present_1, w_1)
        y = Tanh (mixed_1)
    }}""")
    for k, weights in enumerate(Layers().weights):
        model.graph.initializer.append(numpy_helper.from_array(weights, f"w_{k}"))
    path = folder / "layers.onnx"
    save(model, path)
    open_sizes = dict.fromkeys(("x", "past_0", "past_1"), (f"1..{SIZE}@4", SIZE))
    return Models(
        fixed=(path, Inputs(batch=1, state="none")),
        sized=(path, Inputs(shapes=open_sizes, state="none")),
        stateful=(path, Inputs(batch=1)),
    )


class Subject:
    """Two devices under test, and models for them. A context manager with a session that features share.

    Args:
        devices: names of the devices, or a cluster. Models are divided between the first two devices.
        folder: existing folder for files.
        models: writes the models to a folder.
        precisions: precisions that both devices support, of ``f32`` and ``f16``; sessions use the first one.
        lose: called with a session before it serves; returns a function that makes the session lose its first device.
    """

    def __init__(
        self,
        devices: Sequence[str] | Cluster,
        folder: Path,
        *,
        models: Callable[[Path], Models] = onnx_models,
        precisions: Sequence[str] = ("f32", "f16"),
        lose: Callable[[Session], Callable[[], object]] | None = None,
    ) -> None:
        self.devices, self.folder, self.models = devices, folder, models(folder)
        self.precisions, self.precision, self.lose = precisions, precisions[0], lose or breakable
        self._shared: Session | None = None

    def __enter__(self) -> Self:
        session = self.opened()
        try:
            _ = session.runtime  # creates its threads before a test begins
        except BaseException:
            session.close()
            raise
        self._shared = session
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        assert self._shared is not None
        self._shared.close()

    @property
    def session(self) -> Session:
        """The shared session of the model with fixed sizes."""
        assert self._shared is not None
        return self._shared

    @property
    def names(self) -> tuple[str, str]:
        """Names of the two devices."""
        first, second, *_ = self.session.cluster.names
        return first, second

    def opened(self, given: Given | None = None, **options: Any) -> Session:
        """Open a session.

        Args:
            given: a model with its inputs; None for the model with fixed sizes.
            options: other options of :class:`placeit.Session`.
        """
        model, inputs = given or self.models.fixed
        options = {"devices": self.devices, "precision": self.precision, "cache": None, "policy": Policy(Calm)} | options
        return Session(model, inputs=inputs, **options)

    def close(self, found: Mapping[str, NDArray[Any]], x: NDArray[Any], layers: Layers, precision: str = "") -> None:
        """Check outputs of the model for an input, and update the totals of the layers."""
        expected = layers.run(x)
        tolerance = 1e-4 if (precision or self.precision) == "f32" else 3e-2
        wanted = {"y": expected, "present_0": layers.totals[0], "present_1": layers.totals[1]}
        assert "y" in found
        for name, value in found.items():
            np.testing.assert_allclose(value, wanted[name], rtol=tolerance, atol=tolerance)

    def request(self, rows: int = 1, seed: int = 0) -> dict[str, NDArray[Any]]:
        """Return random inputs for the model without state."""
        rng = np.random.default_rng([rows, seed])
        return {name: rng.standard_normal((rows, SIZE)).astype(np.float32) for name in ("x", "past_0", "past_1")}

    def check(self, found: Mapping[str, NDArray[Any]], inputs: Arrays, precision: str = "") -> None:
        """Check outputs of the model without state."""
        self.close(found, inputs["x"], Layers(inputs["past_0"], inputs["past_1"]), precision)


def split(session: Session) -> Placement:
    """Place the first half of the groups on the first device, and the second half on the second, as one segment each."""
    if len(session.cluster) < 2:
        raise DeviceError(f"{session.model.path} runs on {session.cluster.names[0]} only. A warning has the reason.")
    groups = len(session.grouping.groups)
    halves = np.arange(groups) * 2 // groups
    return replace(session.placement(halves), segments=halves[session.grouping.group_of].astype(np.int32))


def whole(session: Session, device: int) -> Placement:
    """Place all groups on one device, as one segment."""
    made = session.placement(np.full(len(session.grouping.groups), device))
    return replace(made, segments=np.zeros(len(made.op_names), np.int32))


def run(subject: Subject) -> None:
    """A placement on both devices computes what the model does."""
    inputs = subject.request()
    report = subject.session.run(split(subject.session), runs=2, warmup=1, inputs=inputs)
    assert report.failed is None
    assert {span.where[0] for span in report.spans if span.kind == "compute"} == set(subject.names)
    subject.check(report.outputs, inputs)


def record(subject: Subject) -> None:
    """A run is traced and recorded, with the time of each op."""
    report = subject.session.run(split(subject.session), runs=2, warmup=1)
    recording = subject.session.recording(report)
    assert {span.where[0] for span in recording.spans if span.kind == "compute"} == set(subject.names)
    assert recording.ops or recording.groups
    write_recording(subject.folder / "run.json", recording)
    assert read_recording(subject.folder / "run.json") == recording
    write_chrome_trace(subject.folder / "trace.json", report.spans, devices=subject.session.cluster.names)


def answered(subject: Subject, server: Server, requests: int) -> None:
    """Submit several requests at the same time, and check each answer."""
    asked = [subject.request(seed=seed) for seed in range(requests)]
    answers = [server.submit(inputs) for inputs in asked]
    for answer, inputs in zip(answers, asked, strict=True):
        subject.check(answer.result(_TIMEOUT_S), inputs)


def serve(subject: Subject) -> None:
    """A server with several requests in flight answers each of them."""
    with subject.session.serve(split(subject.session), in_flight=2) as server:
        answered(subject, server, 12)


def sequences(subject: Subject) -> None:
    """Sequences keep their states apart on both devices, fork, and start again."""
    with subject.opened(subject.models.stateful) as session, session.serve(split(session), in_flight=2) as server:
        continued(subject, server)


def continued(subject: Subject, server: Server) -> None:
    """Run several sequences of the stateful model alternately, and check each answer."""
    rng = np.random.default_rng(1)
    with server.sequence() as one, server.sequence() as other:
        running = {one: Layers(), other: Layers()}

        def step() -> None:
            for sequence, layers in running.items():
                x = rng.standard_normal((1, SIZE)).astype(np.float32)
                subject.close(sequence.run({"x": x}, timeout=_TIMEOUT_S), x, layers)

        step()
        step()
        running[one.fork()] = running[one].fork()
        other.reset()
        running[other] = Layers()
        step()
        step()


def open_sizes(subject: Subject) -> None:
    """A placement runs at every size in range: the typical one, smaller and larger ones."""
    with subject.opened(subject.models.sized) as session, session.executor(session.plan_of(split(session))) as executor:
        for rows in (4, 1, 8, 4):
            subject.check(executor.run(subject.request(rows)), subject.request(rows))


def memory_caps(subject: Subject) -> None:
    """A limit on a device's memory refuses what does not fit, and nothing else."""
    name = subject.names[0]
    with subject.opened(constraints=Constraints(memory={name: 100})) as session:
        with pytest.raises(PlacementError, match=f"{name} has 100 B of memory"):
            session.run(split(session), runs=1)
        report = session.run(whole(session, 1), runs=1)
    assert report.failed is None


def bundle(subject: Subject) -> None:
    """A bundle of a placement runs without the model."""
    path = subject.folder / "bundle.placeit"
    subject.session.build(split(subject.session), path)
    with placeit.Application.load(path, devices=subject.session.cluster) as application:
        subject.check(application.run(subject.request()), subject.request())
        assert application.check().max_rel <= application.tolerance


def bundled_sequences(subject: Subject) -> None:
    """Sequences of a bundle keep their states."""
    path = subject.folder / "sequences.placeit"
    with subject.opened(subject.models.stateful) as session:
        session.build(split(session), path)
    with placeit.Application.load(path, devices=subject.session.cluster) as application, application.server() as server:
        continued(subject, server)


def replicas(subject: Subject) -> None:
    """Each of two devices serves whole requests."""
    placement = replace(whole(subject.session, 0), replicas=(whole(subject.session, 1),))
    report = subject.session.run(placement, traffic=Traffic(requests=6), warmup=1)
    assert report.served.load is not None
    assert report.failed is None
    with subject.session.serve(placement) as server:
        answered(subject, server, 8)


def precision(subject: Subject) -> None:
    """A session computes in the requested precision, within its tolerance; an unsupported precision is an error."""
    for asked in ("f32", "f16"):
        if asked not in subject.precisions:
            with pytest.raises(DeviceError) as caught, subject.opened(precision=asked) as session:
                _ = session.runtime
            assert asked in str(caught.value)
            assert len(str(caught.value).splitlines()) == 1
            continue
        with subject.opened(precision=asked) as session, session.executor(session.plan_of(split(session))) as executor:
            subject.check(executor.run(subject.request()), subject.request(), asked)


def explain(subject: Subject) -> None:
    """Costs are measured, and an explanation has the costs and the decision for each op."""
    with subject.opened() as session:
        session.profile(budget_s=0.1)
        found = explanation_of(session, split(session))
    assert found.ops
    assert all(set(op.core_s) == set(subject.names) for op in found.ops)
    assert all(op.decided for op in found.ops)


def breakable(session: Session) -> Callable[[], None]:
    """Return a function that makes all segments on a session's first device fail until the device counts as lost.

    This has to be called before executors are created.
    """
    runtime, name, broken = session.runtime, session.cluster.names[0], list[bool]()

    def check() -> None:
        if frozenset({name}) in runtime.pool.lost():
            broken.clear()
        if broken:
            raise RuntimeError("it was told to fail")

    if runtime.pool.streams is not None:
        accelerator: Any = runtime.pool.streams.accelerator
        open_stream, prepare, own = accelerator.open_stream, accelerator.prepare, list[object]()

        def opened(device: int, priority: int = 0) -> object:
            stream = open_stream(device, priority)
            own.extend([stream] if device == 0 else [])
            return stream

        def prepared(stream: object, *rest: Any) -> Callable[..., None]:
            launch, mine = prepare(stream, *rest), any(one is stream for one in own)

            def launched(*to: Any) -> None:
                if mine:
                    check()
                launch(*to)

            return launched

        accelerator.open_stream, accelerator.prepare = opened, prepared
        return functools.partial(broken.append, True)
    device: Any = runtime.devices[0]
    instance, start = device.instance, device.start

    def made(program: object) -> object:
        found = instance(program)
        found.__class__ = type("InPython", (type(found),), {"native": None, "in_c": None})  # so that the device starts it
        return found

    def started(of: object, done: DoneCallback) -> None:
        try:
            check()
        except RuntimeError as error:
            threading.Timer(0, done, (perf_counter(), perf_counter(), error)).start()
        else:
            start(of, done)

    device.instance, device.call, device.start = made, None, started
    return functools.partial(broken.append, True)


def loss(subject: Subject) -> None:
    """A device is lost while a server runs; requests go on, and the device comes back."""
    first, second = subject.names
    with subject.opened() as session:
        session.profile(budget_s=0.1)
        lose, pool = subject.lose(session), session.runtime.pool
        with session.serve(split(session), on_loss="replace") as server:
            answered(subject, server, 1)
            lose()
            answered(subject, server, 4)
            assert server.replacements[0].devices == (second,)
            while frozenset({first}) in pool.lost():
                pool.reopen()
            assert pool.stats()[0].returns == 1
        report = session.run(split(session), runs=1)
        assert report.failed is None


def energy(subject: Subject) -> None:
    """A search for the least energy, by the powers of the devices."""
    cluster = subject.session.cluster
    powered = replace(cluster, devices=tuple(replace(device, power=Power(1.0, 10.0)) for device in cluster.devices))
    with subject.opened(devices=powered, constraints=Constraints(max_groups=4)) as session:
        found = session.optimize("energy", budget=0.3, candidates=Candidates(placers=["heft"], plain=False))
        assert found.chosen.value is not None
        assert found.chosen.value.median > 0
        inputs = session.model.random_inputs(3)
        assert OutputDifference.between(found.run(inputs), session.reference(inputs)).max_rel < session.tolerance
        found.close()


FEATURES: Mapping[str, Callable[[Subject], None]] = {
    "run": run,
    "trace and record": record,
    "serve": serve,
    "sequences": sequences,
    "open sizes": open_sizes,
    "memory caps": memory_caps,
    "bundle": bundle,
    "sequences of a bundle": bundled_sequences,
    "replicas": replicas,
    "precision": precision,
    "explain": explain,
    "loss and return": loss,
    "energy": energy,
}
"""The features, by name."""
