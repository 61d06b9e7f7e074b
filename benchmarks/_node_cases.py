"""A process that tries ONNX's own test cases in placeit and in the plain runtime, one after the other.

It is a separate process because the cases may crash or hang. :mod:`benchmarks.onnx_nodes` sends the cases, and starts another
process when this one has ended.
"""

from __future__ import annotations

import faulthandler
import os
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import PlaceitError
from placeit.core.telemetry import import_onnxruntime
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference
from placeit.planning.coarsen import coarsen
from placeit.profiler.cache import Cache
from placeit.session import Session

__all__ = ["FORMS", "GIVEN", "PLAIN", "Outcome", "serve"]

GIVEN = ("uncut", "cut")
GENERATED = ("uncut, generated inputs", "cut, generated inputs")
FORMS = (*GIVEN, *GENERATED)
PLAIN = "plain"

Arrays = Mapping[str, NDArray[np.generic]]

_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}  # for models with values of such a type: a cut rounds where fused ops do not
_RUNS = 12  # runs of the plain runtime: a few random truth values can be equal in two runs
_EXACT = 1e-3


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case in one form.

    Attributes:
        status: ``passed``; ``refused``, with a clear error; ``unclear``, with another one; ``wrong``; ``crashed``; ``hung``.
        reason: the error, or the difference.
        plain: the error of the plain runtime if it refuses the case as well.
    """

    status: str
    reason: str = ""
    plain: str = ""


def serve(connection: Connection, log: str) -> None:
    """Answer requests ``(case, runtime)`` until None is received.

    First the names of all cases are sent, in ONNX's order. For each request, the names of the steps are sent while they are
    done, then a dictionary of outcomes by form.

    Args:
        connection: to the parent.
        log: file for all printed output; models and measured costs are in the same folder.
    """
    with Path(log).open("w", encoding="utf-8") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
        faulthandler.enable(stream)
        warnings.simplefilter("ignore")
        # another version of onnx may have other cases, so the names come from this one
        from onnx.backend.test.case.node import collect_testcases

        cases = {case.name: case for case in collect_testcases(None)}
        connection.send(list(cases))
        while (request := connection.recv()) is not None:
            name, devices = request
            connection.send(_Case(cases[name], Path(log).parent, devices, connection.send).outcomes())


@dataclass
class _Case:
    case: Any
    folder: Path
    devices: tuple[str, str]
    tell: Callable[[str], None]
    found: dict[str, Outcome] = field(default_factory=dict)

    def outcomes(self) -> dict[str, Outcome]:
        import onnx

        path = self.folder / "case.onnx"
        onnx.save(self.case.model, path)
        inputs = _given(self.case)
        plain = (_PlainOrt if self.devices[0].startswith("ort:") else _PlainOpenVino)(path)
        self.tell(PLAIN)
        reference, refused = plain.run(inputs)
        self.tell("loading")
        try:
            with Session(path, self.devices, inputs=inputs, cache=Cache(self.folder / "costs")) as session:
                # single ops, since most cases are one group by the usual rule
                finest = coarsen(session.model.graph, keep_together=session.model.together, co_locate=False)
                session.placing = replace(session.placing, grouping=finest)
                self._run(session, plain, inputs, reference, refused)
        except Exception as error:  # noqa: BLE001 (tests which errors occur)
            for form in FORMS:
                self.found.setdefault(form, _failed(error, refused))
        return self.found

    def _run(self, session: Session, plain: _Plain, inputs: Arrays, reference: Arrays | None, refused: str) -> None:
        groups = np.arange(len(session.grouping.groups), dtype=np.int32)
        feasible = np.isfinite(session.profile(budget_s=0.01).core)
        # each op on another device than the one before, where it can run there
        cut = np.where(feasible[groups, groups % 2], groups % 2, (groups + 1) % 2).astype(np.int32)
        whole = np.flatnonzero(feasible.all(axis=0))
        uncut = np.full(len(groups), whole[0] if len(whole) else 0, np.int32)
        generated: Arrays = session.model.random_inputs()
        for given, forms in ((inputs, GIVEN), (generated, GENERATED)):
            if given is generated:
                self.tell(PLAIN)
                reference, refused = plain.run(generated)
            for form, placement in zip(forms, (uncut, cut), strict=True):
                self.tell(form)
                if form in GIVEN[:1] and not len(whole):
                    self.found[form] = Outcome("refused", "No device can run the whole model.", refused)
                    continue
                try:
                    with session.executor(session.segmenter.plan(placement, merge=form.startswith("uncut"))) as executor:
                        outputs = executor.run(given)
                except Exception as error:  # noqa: BLE001
                    self.found[form] = _failed(error, refused)
                    continue
                self.found[form] = self._compared(outputs, reference, plain.random, refused, given is inputs)

    def _compared(self, outputs: Arrays, reference: Arrays | None, random: set[str], refused: str, expected: bool) -> Outcome:
        if reference is None and not expected:
            return Outcome("passed", plain=refused)
        names = [value.name for value in self.case.model.graph.output]
        own = dict(zip(names, map(_array, self.case.data_sets[0][1]), strict=True)) if expected else None
        if reference is None:  # the plain runtime refuses, so ONNX's own outputs are the reference
            assert own is not None
            return self._differs(outputs, own, random, refused)
        # OpenVINO's attention may make NaN of masked rows, depending on fusion: then ONNX's own outputs are the reference
        judged, why = dict(reference), refused
        for name, value in reference.items():
            ours = outputs.get(name)
            if ours is not None and ours.shape == value.shape and value.dtype.kind == ours.dtype.kind == "f":
                other = np.isnan(value) & ~np.isnan(ours)
                if other.any():
                    judged[name] = np.where(other, ours if own is None else own[name], value).astype(value.dtype)
                    why = "makes NaN where the cut model does not"
        return self._differs(outputs, judged, random, why)

    def _differs(self, outputs: Arrays, reference: Arrays, random: set[str], refused: str) -> Outcome:
        if missing := reference.keys() ^ outputs.keys():
            return Outcome("wrong", f"other outputs: {', '.join(sorted(missing))}", refused)
        for name, value in reference.items():
            ours = outputs[name]
            if (ours.shape, ours.dtype) != (value.shape, value.dtype):
                return Outcome("wrong", f"{name}: {ours.dtype} {ours.shape}, not {value.dtype} {value.shape}", refused)
        known = {name: value for name, value in reference.items() if name not in random and value.dtype.kind in "biuf"}
        error = OutputDifference.between(outputs, known)
        types = {str(value.dtype) for value in (*_given(self.case).values(), *known.values()) if hasattr(value, "dtype")}
        if error.max_rel > max(_TOLERANCE.get(kind, _EXACT) for kind in types):
            return Outcome("wrong", f"outputs differ by {error.max_rel:.2g} of the largest, {error.max_abs:.2g}", refused)
        return Outcome("passed", plain=refused)


class _Plain:
    """The model as the runtime runs it without placeit."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.infer: Callable[[Arrays], Arrays] | None = None
        self.random: set[str] = set()  # outputs that differ from run to run

    def load(self) -> Callable[[Arrays], Arrays]:
        raise NotImplementedError

    def run(self, inputs: Arrays) -> tuple[Arrays | None, str]:
        """Return the outputs by name, or None and the runtime's error."""
        try:
            self.infer = self.infer or self.load()
            first, *again = [self.infer(inputs) for _ in range(_RUNS)]
        except Exception as error:  # noqa: BLE001 (both runtimes raise any exception)
            return None, " ".join(str(error).split())[:300] or type(error).__name__
        self.random = {
            name for name, value in first.items() if any(value.tobytes() != other[name].tobytes() for other in again)
        }
        return first, ""


class _PlainOpenVino(_Plain):
    def load(self) -> Callable[[Arrays], Arrays]:

        core = openvino_core()
        model = core.read_model(self.path)
        names = [min(port.get_names()) for port in model.outputs]
        compiled = core.compile_model(
            model, "CPU", {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 0}
        )

        def infer(inputs: Arrays) -> Arrays:
            answer = compiled.create_infer_request().infer(dict(inputs))
            return {name: np.array(answer[i]) for i, name in enumerate(names)}

        return infer


class _PlainOrt(_Plain):
    def load(self) -> Callable[[Arrays], Arrays]:
        onnxruntime = import_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 4
        session = onnxruntime.InferenceSession(self.path, options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_outputs()]
        return lambda inputs: {
            name: np.array(value) for name, value in zip(names, session.run(None, dict(inputs)), strict=True)
        }


def _given(case: Any) -> dict[str, Any]:
    """Return a case's own inputs, by name: arrays, or lists of arrays if the model has sequences as inputs."""
    names = [value.name for value in case.model.graph.input]
    return {name: _array(value) for name, value in zip(names, case.data_sets[0][0], strict=True)}


def _array(value: Any) -> Any:
    import onnx

    if isinstance(value, onnx.TensorProto):
        return onnx.numpy_helper.to_array(value)
    return np.asarray(value) if np.isscalar(value) else value


def _failed(error: Exception, plain: str) -> Outcome:
    message = str(error)
    clear = isinstance(error, PlaceitError) and message and "\n" not in message and not _NOISE.search(message)
    return Outcome("refused" if clear else "unclear", f"{type(error).__name__}: {message}", plain)


_NOISE = re.compile(r"Exception from |Check '.*' failed|Traceback|std::|\w\.cpp:\d+|0x[0-9a-f]{6,}")
"""Text that no error message for users should contain."""
