"""A process that tries a model in placeit and in the plain runtimes.

It is a separate process because a trial may crash or hang, and so that its peak of memory is the model's.
:mod:`benchmarks.models` starts one process for each model.
"""

from __future__ import annotations

import faulthandler
import math
import os
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import placeit
from benchmarks._architectures import Sample
from benchmarks._blocks import each, interleaved, reported
from benchmarks._child import peak_memory
from benchmarks._models import random_splits
from placeit.backends.base import Model
from placeit.core.errors import PlaceitError
from placeit.core.telemetry import import_onnxruntime
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import Measurement, Ratio, faster
from placeit.profiler.cache import Cache

__all__ = ["MOST", "ONNX_RUNTIME", "OPENVINO", "OWN", "PLACEIT", "PYTORCH", "Trial", "Wrong", "serve", "tried"]

OPENVINO, ONNX_RUNTIME, PYTORCH = "OpenVINO", "ONNX Runtime", "PyTorch"
PLACEIT, OWN = "placeit", "placeit, own clock"

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]

MOST = 1.05
"""Largest accepted ratio of the answer's time to the time of the fastest plain runtime."""
_MORE_SHARE, _MORE_BYTES = 0.01, 10_000  # excess of constants over OpenVINO's that is allowed: shapes, for example
_PROFILE_S = 2.0  # seconds of profiling for random splits, which need not be fast
_BLOCK_S, _MAX_CALLS = 0.02, 200  # seconds and calls of a block


@dataclass(frozen=True)
class Plain:
    """A model in a plain runtime.

    Attributes:
        call: the function that a program calls for one request, with its inputs.
        named: returns the outputs by placeit's names, from the return value of ``call``.
    """

    call: Callable[[], Any]
    named: Callable[[Any], Arrays]

    def outputs(self) -> Arrays:
        """Run once."""
        return self.named(self.call())


@dataclass(frozen=True)
class Wrong:
    """A check that does not hold.

    Attributes:
        what: ``made``, ``reads``, ``answers``, ``in time``, ``right``, ``crashed`` or ``hung``.
        where: devices, or the step.
        reason: in a sentence.
    """

    what: str
    where: str
    reason: str


@dataclass
class Trial:
    """The outcome of a model; values that could not be measured are None.

    Attributes:
        ops: number of ops of the task graph.
        groups: number of groups of a session; with one group there are no splits.
        reads_s: seconds for placeit to read it.
        constants: bytes of all constants after that, each counted once.
        plain_constants: bytes of all constants when OpenVINO reads it without placeit.
        plain: why each plain runtime does not run it, or an empty string.
        times: seconds per call in interleaved blocks, by runtime, by the clock of the caller; :data:`OWN` by placeit's clock.
        answer: devices that placeit chose.
        ratio: ratio of the time of a call of placeit's answer to the time of a call of the fastest plain runtime, by the clock
            of the caller.
        optimize_s: seconds from the file to the answer.
        memory: most bytes that the process had from the file to the answer, beyond the bytes before.
        splits: random placements that were run.
        error: largest ``OutputDifference.max_rel`` of them and of the answer.
        tolerance: the largest error that counts as right.
        wrong: checks that do not hold.
    """

    ops: int | None = None
    groups: int | None = None
    reads_s: float | None = None
    constants: int | None = None
    plain_constants: int | None = None
    plain: dict[str, str] = field(default_factory=dict)
    times: dict[str, Measurement] = field(default_factory=dict)
    answer: str | None = None
    ratio: Ratio | None = None
    optimize_s: float | None = None
    memory: int | None = None
    splits: int = 0
    error: float | None = None
    tolerance: float | None = None
    wrong: list[Wrong] = field(default_factory=list)


def serve(connection: Connection, log: str, cores: tuple[int, int], budget: float, splits: int, rounds: int, seed: int) -> None:
    """Answer a request, a :class:`Sample`, with its :class:`Trial`, after messages about the step being done.

    Args:
        connection: to the parent.
        log: file for all printed output; measured costs are in the same folder.
        cores: cores of the devices that splits run on.
        budget: seconds of a search.
        splits: number of random splits for each runtime.
        rounds: rounds of the race.
        seed: seed of everything random.
    """
    with Path(log).open("w", encoding="utf-8") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
        faulthandler.enable(stream)
        warnings.simplefilter("ignore")
        openvino_core().get_versions("CPU")  # start-up memory that every process has does not count for the model
        connection.send("ready")
        while (sample := connection.recv()) is not None:
            cache = Cache(Path(log).parent / "costs")
            connection.send(
                tried(sample, cores, cache, budget=budget, splits=splits, rounds=rounds, seed=seed, tell=connection.send)
            )


def tried(
    sample: Sample,
    cores: tuple[int, int],
    cache: Cache,
    *,
    budget: float,
    splits: int,
    rounds: int,
    seed: int,
    tell: Callable[[str], object] = lambda _: None,
) -> Trial:
    """Try a model; see :func:`serve`."""
    return _Trying(sample, cores, cache, budget, splits, rounds, seed, tell).trial()


@dataclass
class _Trying:
    sample: Sample
    cores: tuple[int, int]
    cache: Cache
    budget: float
    splits: int
    rounds: int
    seed: int
    tell: Callable[[str], object]
    found: Trial = field(default_factory=Trial)
    names: list[str] = field(default_factory=list)  # of the outputs

    def trial(self) -> Trial:
        model, answer = None, None
        with self._step("reads", "read"):
            model = self._read()
        if model is not None:
            before = peak_memory(reset=True)
            with self._step("answers", "optimize"):
                answer = self._optimize()
            self.found.memory = max(0, peak_memory() - before)
        inputs = self.sample.inputs
        if inputs is None and model is not None:
            inputs = model.random_inputs()
        plain: dict[str, Plain] = {}
        for name, make in self._plain().items():
            self.tell(f"running it by {name}")
            try:
                plain[name] = make(inputs)
                plain[name].outputs()
                self.found.plain[name] = ""
            except Exception as error:  # noqa: BLE001 (the runtimes raise any exception)
                plain.pop(name, None)
                self.found.plain[name] = " ".join(str(error).split())[:200] or type(error).__name__
        if model is not None:
            if answer is not None and inputs is not None:
                with answer, self._step("answers", "race"):
                    self._race(model, answer, plain, inputs)
            for runtime, devices in self._devices(plain).items():
                with self._step("right", ", ".join(devices)):
                    self._split(model, devices, plain[runtime])
        return self.found

    def _read(self) -> Model:
        begin = time.perf_counter()
        model = placeit.load(self.sample.path, input_shapes=self.sample.shapes)
        self.found.reads_s = time.perf_counter() - begin
        self.found.ops = len(model.graph)
        self.names = [spec.name for spec in model.outputs]
        if hasattr(model, "ov_model"):
            self.found.constants = _constants(model.ov_model)
            try:
                self.found.plain_constants = _constants(self._plain_model())
            except RuntimeError:
                return model  # OpenVINO's error is reported when it runs the model
            more = self.found.constants - self.found.plain_constants
            if more > max(_MORE_SHARE * self.found.plain_constants, _MORE_BYTES):
                self._fails("reads", "constants", f"They take {more / 1e6:.3g} MB more than by OpenVINO's own reading.")
        return model

    def _optimize(self) -> placeit.Optimized:
        begin = time.perf_counter()
        found = placeit.optimize(
            self.sample.path,
            budget=self.budget,
            seed=self.seed,
            inputs=placeit.Inputs(self.sample.inputs, self.sample.shapes),
            cache=self.cache,
            progress=lambda what, _: self.tell(f"optimize: {what}"),
        )
        self.found.optimize_s = time.perf_counter() - begin
        used = [name for name, count in found.placement.counts().items() if count]
        self.found.answer = ", ".join(used)
        return found

    def _race(self, model: Model, answer: placeit.Optimized, plain: Mapping[str, Plain], inputs: Arrays) -> None:
        self.tell("racing the answer")
        where = f"answer on {self.found.answer}"
        outputs = answer.run(inputs)
        with placeit.Session(model, answer.cluster, inputs=self.sample.inputs) as session:
            self.found.groups = len(session.grouping.groups)
            if plain:
                best = min(
                    (OutputDifference.between(outputs, one.outputs()) for one in plain.values()),
                    key=lambda error: error.max_rel,
                )
                self._compared(best, where, session.tolerance)
            home = session.home_of(answer.placement)
            with home.executor(home.plan_of(answer.placement)) as executor:
                executor.set_inputs(inputs)
                cases = {name: each(one.call) for name, one in plain.items()}
                cases |= {PLACEIT: each(lambda: answer.run(inputs)), OWN: reported(executor.time)}
                calls = math.ceil(min(_MAX_CALLS, _BLOCK_S / cases[PLACEIT](2)))
                blocks = interleaved(cases, calls=calls, rounds=self.rounds, seed=self.seed)
        self.found.times = times = {name: found.wall for name, found in blocks.items()}
        if plain:
            fastest = min(plain, key=lambda name: times[name].median)
            self.found.ratio = ratio = faster(times[PLACEIT], times[fastest])
            if ratio.ci_low > MOST:
                length = f"{ratio.ratio:.3g} ({ratio.ci_low:.3g} to {ratio.ci_high:.3g})"
                self._fails("in time", where, f"It takes {length} times as long as {fastest}.")

    def _split(self, model: Model, devices: tuple[str, str], plain: Plain) -> None:
        self.tell(f"profiling on {', '.join(devices)}")
        expected = plain.outputs()
        with placeit.Session(model, devices, inputs=self.sample.inputs, cache=self.cache) as session:
            costs = session.profile(budget_s=_PROFILE_S)
            able = np.isfinite(costs.core)
            groups = len(session.grouping.groups)
            random = np.random.default_rng(self.seed)
            placements = random_splits(random, groups, self.splits) if groups > 1 else []
            for number, drawn in enumerate(placements):
                self.tell(f"split {number} on {', '.join(devices)}")
                where = f"split {number} of seed {self.seed} on {', '.join(devices)}"
                with self._step("right", where):
                    devices_of = np.where(able[np.arange(groups), drawn], drawn, np.argmax(able, axis=1)).astype(np.int32)
                    report = session.run(session.placement(devices_of), runs=1, warmup=0)
                    self.found.splits += 1
                    if report.failed is not None:  # compared with placeit's own reference
                        self._fails("right", where, report.failed)
                    else:
                        self._compared(OutputDifference.between(report.outputs, expected), where, session.tolerance)

    def _compared(self, error: OutputDifference, where: str, tolerance: float) -> None:
        """Compare outputs with the outputs of the plain runtime."""
        self.found.error = max(self.found.error or 0.0, error.max_rel)
        self.found.tolerance = max(self.found.tolerance or 0.0, tolerance)
        if (why := error.wrong(tolerance)) is not None:
            self._fails("right", where, f"Beside the plain runtime: {why}")

    def _plain(self) -> dict[str, Callable[[Arrays | None], Plain]]:
        """Return functions that prepare each plain runtime that reads such files."""
        match self.sample.path.suffix:
            case ".onnx":
                return {OPENVINO: self._openvino, ONNX_RUNTIME: self._onnxruntime}
            case ".xml":
                return {OPENVINO: self._openvino}
            case _:
                return {PYTORCH: self._pytorch}

    def _devices(self, plain: Mapping[str, Plain]) -> dict[str, tuple[str, str]]:
        """Return the devices of each plain runtime that runs the model."""
        prefix = {OPENVINO: "", ONNX_RUNTIME: "ort:", PYTORCH: ""}
        first, second = self.cores
        return {name: (f"{prefix[name]}CPU@{first}", f"{prefix[name]}CPU@{second}") for name in plain}

    def _plain_model(self) -> Any:
        model = openvino_core().read_model(self.sample.path)
        if self.sample.shapes:
            model.reshape({name: list(shape) for name, shape in self.sample.shapes.items()})
        return model

    def _openvino(self, inputs: Arrays | None) -> Plain:
        compiled = openvino_core().compile_model(self._plain_model(), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        given = {i: _named(port, inputs or {}) for i, port in enumerate(compiled.inputs)}
        # an output may have several names, of which placeit and ONNX use one: it is identified by its position
        names = self.names or [port.get_any_name() for port in compiled.outputs]
        return Plain(lambda: compiled(given), lambda answer: {name: answer[i] for i, name in enumerate(names)})

    def _onnxruntime(self, inputs: Arrays | None) -> Plain:
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        # its threads may spin during a run, and not on into the run of the next candidate
        options.add_session_config_entry("session.force_spinning_stop", "1")
        session = onnxruntime.InferenceSession(self.sample.path, options, providers=["CPUExecutionProvider"])
        names, given = [output.name for output in session.get_outputs()], dict(inputs or {})
        return Plain(lambda: session.run(names, given), lambda values: dict(zip(names, values, strict=True)))

    def _pytorch(self, inputs: Arrays | None) -> Plain:
        import torch

        module = torch.export.load(self.sample.path).module()
        given = [torch.from_numpy(np.array(value)) for value in (inputs or {}).values()]

        def named(made: Any) -> Arrays:
            values = [made] if isinstance(made, torch.Tensor) else list(made)
            return {name: value.numpy() for name, value in zip(self.names, values, strict=True)}

        return Plain(torch.inference_mode()(lambda: module(*given)), named)

    def _fails(self, what: str, where: str, reason: str) -> None:
        self.found.wrong.append(Wrong(what, where, reason))

    @contextmanager
    def _step(self, what: str, where: str) -> Iterator[None]:
        """Continue after an error, and keep it."""
        self.tell(where)
        try:
            yield
        except PlaceitError as error:
            self._fails(what, where, str(error))
        except Exception as error:  # noqa: BLE001 (tests which errors occur)
            last = traceback.extract_tb(error.__traceback__)[-1]
            at = f"{Path(last.filename).name}:{last.lineno}"
            self._fails(what, where, f"A bug: {type(error).__name__} at {at}: {' '.join(str(error).split())[:300]}")


def _named(port: Any, inputs: Arrays) -> NDArray[np.generic]:
    """Return the value of an input, whichever of its names it has."""
    names = [*port.get_names(), port.get_node().get_friendly_name()]
    return next(inputs[name] for name in names if name in inputs)


def _constants(model: Any) -> int:
    """Return the bytes of a model's constants that differ in memory."""
    found = {}
    for op in model.get_ops():
        if op.get_type_name() == "Constant":
            found[op.data.__array_interface__["data"][0], op.get_byte_size()] = op.get_byte_size()
    return sum(found.values())
