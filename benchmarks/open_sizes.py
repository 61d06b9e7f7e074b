"""Random splits of real models with open sizes: whether they compute at every size what the plain runtime does.

Models come with packages, or are published architectures with random weights (``_architectures``). Each is opened for a range
of sizes, on two devices of each kind: core sets of OpenVINO and of ONNX Runtime, one of each, and two Intel GPUs, real or
emulated ones (``tests/emulated_gpu``). PyTorch takes one size only, and has to say so. Random placements run at the typical,
least and largest sizes. Outputs are compared with the outputs of the plain runtime for just these sizes: of OpenVINO on the
CPU, or of ONNX Runtime where that drives a device. Where they differ, the other plain runtime counts as well, since one of the
two may be wrong, and so does how far a rounding of the inputs moves the outputs of the plain runtime.

A split is *refused* if placeit raises one of its errors, which says why, and *broken* if another exception is raised.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

import placeit
from benchmarks._architectures import Sample, make
from benchmarks._architectures.language import PAST, LlamaDecoder, WhisperDecoder
from benchmarks._child import Child, Ended
from benchmarks._gpus import gpus, restart_with_gpus
from benchmarks._harness import Args, Report, main
from benchmarks._models import progress, random_splits, two_cores
from placeit.core.errors import PlaceitError
from placeit.core.sizes import SizeRange
from placeit.core.telemetry import import_onnxruntime, import_openvino
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference, rounded_inputs
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.support import supported
from tests.emulated_gpu.build import MISSING

Shapes: TypeAlias = Mapping[str, tuple[int | str, ...]]
Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]

SPLITS, QUICK_SPLITS = 6, 2
QUICK = ("file_type", "gru")
TOLERANCE = 1e-3
_CASE_S, _RUN_S = 600.0, 60.0
_VOICE: Shapes = {"input": ("1..3@2", 576), "state": (2, "1..3@2", 128)}
_SPOKEN = (WhisperDecoder.DEPTH, 1, WhisperDecoder.HEADS, "1..32@8", WhisperDecoder.WIDTH // WhisperDecoder.HEADS)
OPEN: Mapping[str, Shapes] = {
    "file_type": {"bytes": ("1..4@2", 2048)},
    "text_detector": {"x": (1, 3, "64..128@96", "64..128@96")},
    "text_recognizer": {"x": (1, 3, 48, "64..320@96")},
    "text_direction": {"x": ("1..4@2", 3, 48, 192)},
    "voice_if": _VOICE | {"sr": ()},
    "voice_rate": _VOICE | {"sr": ()},
    "voice_half": _VOICE,
    "voice_sequence": {"input": ("1..12@4", 576), "h": (1, 1, 128), "c": (1, 1, 128)},
    "mobilenet_batch": {"image": ("1..4@2", 3, 96, 96)},
    "encoder_dynamic": {"ids": (1, "4..48@16")},
    "gru": {"frames": (1, 40, "4..32@16")},
    "llama_decoder": dict[str, tuple[int | str, ...]].fromkeys(PAST, (1, LlamaDecoder.CACHED, "1..64@32", LlamaDecoder.EACH))
    | {"attention_mask": (1, "2..65@33")},
    "whisper_decoder": {"keys": _SPOKEN, "values": _SPOKEN},
    "pt2_cnn": {"image": ("1..4@2", 3, 96, 96)},
}
"""Ranges of sizes, by input, for each kind of model of :data:`benchmarks._architectures.KINDS`."""


@dataclass
class Outcome:
    """The splits of a model on the devices of one kind.

    Attributes:
        right: number of runs with the outputs of the plain runtime, of all splits at all sizes.
        worst: largest ``OutputDifference.max_rel``.
        wrong, refused, broken: a sentence for each run or split that was none of these.
    """

    right: int = 0
    worst: float = 0.0
    wrong: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def run(args: Args, report: Report) -> None:
    if why := os.environ.get(MISSING):
        report.note(f"Intel GPUs are left out. {why}")
    names = args.models or (QUICK if args.quick else tuple(OPEN))
    splits = QUICK_SPLITS if args.quick else SPLITS
    found: dict[tuple[str, str], Outcome] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, name in enumerate(names):
            progress(f"{number + 1} of {len(names)} models: {name}")
            trying = Path(folder, name)
            trying.mkdir()
            with Child(trying, serve, (two_cores(), splits, args.seed), case_s=_CASE_S) as child:
                for kind in kinds(name, two_cores()):
                    try:
                        found[name, kind] = child.ask((name, kind))
                    except Ended as end:
                        found[name, kind] = Outcome(broken=[f"{end.status}: {end.doing}: {end.words}"])
    for (name, kind), one in found.items():
        report.row(
            model=name,
            devices=kind,
            right=one.right,
            wrong=len(one.wrong),
            refused=len(one.refused),
            broken=len(one.broken),
            largest_error=one.worst,
        )
    for (name, kind), one in found.items():
        for what, reasons in (("wrong", one.wrong), ("refused", one.refused), ("broken", one.broken)):
            for reason in dict.fromkeys(reasons):
                report.row(model=name, devices=kind, what=what, reason=reason)
    report.claim("runs of splits with the plain runtime's outputs", sum(one.right for one in found.values()), "runs")
    for what, title in (("wrong", "runs with other outputs"), ("broken", "splits refused without a reason")):
        report.claim(title, sum(len(getattr(one, what)) for one in found.values()), "", at_most=0)


def kinds(model: str, cores: tuple[int, int]) -> dict[str, tuple[str, str]]:
    """Return the devices that a model is split over, two of each kind or of two kinds."""
    first, second = cores
    if model.startswith("pt2"):
        return {"PyTorch": (f"CPU@{first}", f"CPU@{second}")}
    found = {
        "OpenVINO": (f"CPU@{first}", f"CPU@{second}"),
        "ONNX Runtime": (f"ort:CPU@{first}", f"ort:CPU@{second}"),
        "both": (f"ort:CPU@{first}", f"CPU@{second}"),
    }
    return found | ({"Intel GPUs": (names[0], names[1])} if len(names := gpus()) > 1 else {})


def serve(connection: Connection, log: str, cores: tuple[int, int], splits: int, seed: int) -> None:
    """Answer requests, a model and a kind of devices by name, with an :class:`Outcome`; libraries print to ``log``."""
    with Path(log).open("w", encoding="utf-8") as stream:
        for number in (1, 2):
            os.dup2(stream.fileno(), number)
        faulthandler.enable(stream)
        warnings.simplefilter("ignore")
        made: dict[str, Sample] = {}
        connection.send("ready")
        while (request := connection.recv()) is not None:
            name, kind = request
            if name not in made:
                connection.send(f"making {name}")
                made[name] = make(name, Path(log).parent / name)
            connection.send(f"splitting {name} over {kind}")
            connection.send(tried(made[name], OPEN[name], kind, kinds(name, cores)[kind], splits, seed))


def tried(sample: Sample, shapes: Shapes, kind: str, devices: Sequence[str], splits: int, seed: int) -> Outcome:
    """Run random splits of a model over devices at several sizes."""
    found = Outcome()
    with _noting(found, "opening the model"):
        runtime = "ONNX Runtime" if kind in ("ONNX Runtime", "both") else "OpenVINO"
        with placeit.Session(sample.path, devices, inputs=placeit.Inputs(shapes=shapes), cache=None) as session:
            points = [_at(shapes, which) for which in ("typical", "least", "most")]
            requests = [_inputs(sample, point, seed) for point in points]
            plain = functools.partial(_plain, sample.path, session=session)
            wanted = [plain(inputs, runtime) for inputs in requests]
            able, groups = supported(session.model, session.grouping, session.cluster), len(session.grouping.groups)
            segmenter = Segmenter(session.grouping, Costs.zero(groups, session.cluster).where(able))
            for number, drawn in enumerate(random_splits(np.random.default_rng(seed), groups, splits) if groups > 1 else []):
                row = np.where(able[np.arange(groups), drawn], drawn, np.argmax(able, axis=1)).astype(np.int32)
                with _noting(found, f"split {number}"), session.executor(segmenter.plan(row)) as executor:
                    for inputs, outputs in zip(requests, wanted, strict=True):
                        difference = _difference(executor.run(inputs, timeout=_RUN_S), outputs, inputs, plain, runtime)
                        found.worst = max(found.worst, difference.max_rel)
                        if (why := difference.wrong(TOLERANCE)) is None:
                            found.right += 1
                        else:
                            sizes = {name: value.shape for name, value in inputs.items()}
                            found.wrong.append(f"split {number} at {sizes}: {why}")
    return found


@contextlib.contextmanager
def _noting(found: Outcome, what: str) -> Iterator[None]:
    try:
        yield
    except PlaceitError as error:
        found.refused.append(f"{what}: {error}")
    except Exception as error:  # noqa: BLE001 (tests which errors occur)
        found.broken.append(f"{what}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")


def _at(shapes: Shapes, which: str) -> dict[str, tuple[int, ...]]:
    """Return the typical, least or largest sizes in ranges."""

    def size(given: int | str) -> int:
        if isinstance(given, int):
            return given
        sizes = SizeRange.parse(given)
        return {"typical": sizes.typical[0], "least": sizes.least, "most": sizes.most}[which]

    return {name: tuple(map(size, shape)) for name, shape in shapes.items()}


def _inputs(sample: Sample, point: Mapping[str, tuple[int, ...]], seed: int) -> dict[str, NDArray[np.generic]]:
    """Draw inputs of given sizes; inputs of the sample are kept where they have these sizes."""
    model = placeit.load(sample.path, input_shapes=point, state="none")
    given = sample.inputs or {}
    return {
        name: np.asarray(given[name]) if name in given and np.shape(given[name]) == value.shape else value
        for name, value in model.random_inputs(seed).items()
    }


def _difference(
    outputs: Arrays, wanted: Arrays, inputs: Arrays, plain: Callable[[Arrays, str], Arrays], runtime: str
) -> OutputDifference:
    """Compare outputs with a plain runtime's or, if they differ, with the other one's, and with the effect of rounding."""
    found = OutputDifference.between(outputs, wanted)
    if found.wrong(TOLERANCE) is None:
        return found
    other = OutputDifference.between(outputs, plain(inputs, "OpenVINO" if runtime == "ONNX Runtime" else "ONNX Runtime"))
    if other.wrong(TOLERANCE) is None:
        return other
    return replace(found, rounding=OutputDifference.between(plain(rounded_inputs(inputs), runtime), wanted).max_rel)


def _plain(path: Path, inputs: Arrays, runtime: str, session: placeit.Session) -> Arrays:
    """Return what a runtime computes without placeit, for these sizes only."""
    names = [spec.name for spec in session.model.outputs]
    if runtime == "ONNX Runtime":
        plain = import_onnxruntime().InferenceSession(path, providers=["CPUExecutionProvider"])
        made = dict(zip([one.name for one in plain.get_outputs()], plain.run(None, dict(inputs)), strict=True))
        return {name: made[name] for name in names}
    sizes = [(name, list(value.shape)) for name, value in inputs.items()]
    model = import_openvino().convert_model(path, input=sizes)  # some models can be read only with known sizes
    compiled = openvino_core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    answer = compiled(dict(inputs))
    return {name: np.array(answer[i]) for i, name in enumerate(names)}


if __name__ == "__main__":
    restart_with_gpus("open_sizes")
    main("open_sizes", run, models=tuple(OPEN))
