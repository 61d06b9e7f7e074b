"""From the start of a bundle to its first answer, against OpenVINO alone with the same model as IR.

OpenVINO alone means ``Core.read_model``, ``compile_model`` and one request, on the whole CPU. The bundle is the whole model on
the whole CPU, so that both compile the same; another row has it split in two over core sets. Each start is a separate process,
and the two ways take turns. A row has the median seconds from the call that reads the model to the first answer, and the median
seconds from the start of the process, imports included. In the rows *cached*, both find compiled models on disk, as a first
start has left them there.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, load_model, progress, two_cores
from placeit.backends.openvino.ir import write_ir
from placeit.backends.openvino.model import OpenVinoModel
from placeit.planning.segments import Costs, Segmenter
from placeit.session import Session

ROUNDS, QUICK_ROUNDS = 7, 2
CACHED = ("OpenVINO alone, cached", "bundle, cached")

_ALONE = """
import sys, time; begin = time.perf_counter()
import json, numpy
from placeit.core.telemetry import import_openvino
openvino = import_openvino()
imported = time.perf_counter()
inputs = dict(numpy.load(sys.argv[2]))
core, options = openvino.Core(), {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
if sys.argv[3]:
    core.set_property({"CACHE_DIR": sys.argv[3]})
compiled = core.compile_model(core.read_model(sys.argv[1]), "CPU", options)
compiled.create_infer_request().infer([inputs[str(i)] for i in range(len(compiled.inputs))])
print(json.dumps([time.perf_counter() - imported, time.perf_counter() - begin]), flush=True)
"""
_BUNDLE = """
import sys, time; begin = time.perf_counter()
import json, numpy
import placeit.application
imported = time.perf_counter()
inputs = dict(numpy.load(sys.argv[2]))
application = placeit.load(sys.argv[1])
application.run({spec.name: inputs[str(i)] for i, spec in enumerate(application.inputs)})
print(json.dumps([time.perf_counter() - imported, time.perf_counter() - begin]), flush=True)
application.close()
"""


def run(args: Args, report: Report) -> None:
    for name in args.models or ("inception_v3",):
        with tempfile.TemporaryDirectory() as folder:
            _one(name, Path(folder), args, report)


def _one(name: str, folder: Path, args: Args, report: Report) -> None:
    model = load_model(name)
    assert isinstance(model, OpenVinoModel)
    ir, inputs = folder / "model.xml", folder / "inputs.npz"
    write_ir(model.ov_model, ir)
    values = model.sample_inputs()
    np.savez(inputs, **{str(i): values[spec.name] for i, spec in enumerate(model.inputs)})
    _build(model, ["CPU"], folder / "whole.placeit")
    _build(model, [f"CPU@{core}" for core in two_cores()], folder / "split.placeit")
    ways = {
        "OpenVINO alone": (_ALONE, ir, ""),
        "bundle": (_BUNDLE, folder / "whole.placeit", ""),
        "bundle, split": (_BUNDLE, folder / "split.placeit", ""),
        CACHED[0]: (_ALONE, ir, str(folder / "openvino")),
        CACHED[1]: (_BUNDLE, folder / "whole.placeit", str(folder / "placeit")),
    }
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for way in CACHED:
        _start(*ways[way], inputs)  # compiled models are then on disk
    for done in range(rounds := QUICK_ROUNDS if args.quick else ROUNDS):
        progress(f"{name}: round {done + 1} of {rounds}")
        for way in ways:
            taken[way].append(_start(*ways[way], inputs))
    called = {way: statistics.median(call for call, _ in times) for way, times in taken.items()}
    for way, times in taken.items():
        report.row(model=name, way=way, called_s=called[way], process_s=statistics.median(whole for _, whole in times))
    ratio = called["bundle"] / called["OpenVINO alone"]
    report.claim(f"{name}: start to first answer over OpenVINO alone", ratio, "", at_most=1.5)
    ratio = called[CACHED[1]] / called[CACHED[0]]
    report.claim(f"{name}: the same with compiled models on disk", ratio, "", at_most=1.2)


def _build(model: OpenVinoModel, devices: list[str], path: Path) -> None:
    with Session(model, devices, cache=None) as session:
        groups = len(session.grouping.groups)
        placement = np.arange(groups) * len(devices) // groups
        segmenter = Segmenter(session.grouping, Costs.zero(groups, session.cluster))
        session.build(session.placement(placement, segmenter.plan(placement)), path)


def _start(script: str, path: Path, cache: str, inputs: Path) -> tuple[float, float]:
    """Return the seconds from the call, and from the start of the process, to the first answer."""
    environment: Mapping[str, str] = os.environ | {"PLACEIT_MODEL_CACHE": cache or "0"}
    command = [sys.executable, "-c", script, str(path), str(inputs), cache]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True)
    call, whole = json.loads(done.stdout)
    return float(call), float(whole)


if __name__ == "__main__":
    main("bundle", run, models=MODELS)
