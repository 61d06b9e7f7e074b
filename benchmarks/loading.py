"""Models in placeit on the whole CPU, against OpenVINO alone: latency, weights and memory.

OpenVINO alone means ``Core.read_model``, ``compile_model`` and one request. Both run in one race, interleaved; the ratio is
paired by round. The cost of loading a model is measured in separate processes, one for each way: the bytes of its constants,
each counted once; how much larger the process is after the first request than before it read the model; and the seconds until
the model is read, in placeit with its task graph.

In addition to the whole model there is a plan that cuts it into four segments on one device.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._loading_models import KINDS, write_model
from benchmarks._models import settled_race
from benchmarks._plain import Plain, openvino_alone
from placeit.backends.openvino.graph import nodes_of
from placeit.backends.openvino.model import OpenVinoModel
from placeit.backends.openvino.reader import load
from placeit.core.memory import own_use, trim_memory
from placeit.core.placement import Placement
from placeit.devices.openvino import openvino_core
from placeit.measuring.statistics import faster
from placeit.runtime.plan_executor import PlanExecutor
from placeit.session import Session

ALONE, PLACEIT, IN_SEGMENTS = "OpenVINO alone", "placeit", "placeit, four segments"
SEGMENTS = 4
WIDTH, QUICK_WIDTH = 512, 256
OPTIONS = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}


def run(args: Args, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = write_model("transformer", Path(folder), 32).rename(Path(folder) / "tiny.onnx")
        for kind in args.models or KINDS:
            path = write_model(kind, Path(folder), QUICK_WIDTH if args.quick else WIDTH)
            _latency(kind, path, args, report)
            _memory(kind, path, tiny, report)


def _latency(kind: str, path: Path, args: Args, report: Report) -> None:
    model = load(path)
    with _whole_cpu(model, 1) as executor:
        compiled = openvino_core().compile_model(openvino_core().read_model(path), "CPU", OPTIONS)
        alone = Plain(openvino_alone(compiled, list(model.sample_inputs().values())))
        timers = {ALONE: alone.time, PLACEIT: executor.time}
        results = settled_race(timers, rounds=10 if args.quick else 60, seed=args.seed)
    ratio = faster(results[PLACEIT], results[ALONE])
    for who, measured in results.items():
        median, low, high = (seconds * 1e3 for seconds in (measured.median, measured.ci_low, measured.ci_high))
        report.row(model=kind, way=who, median_ms=median, ci_low_ms=low, ci_high_ms=high)
    report.claim(f"{kind}: latency over OpenVINO alone", ratio.ratio, "", at_most=1.05)


def _memory(kind: str, path: Path, tiny: Path, report: Report) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as process:
        found = {way: process.submit(_taken, way, path, tiny).result() for way in (ALONE, PLACEIT, IN_SEGMENTS)}
    for way, taken in found.items():
        report.row(model=kind, way=way, **taken)
    for what in ("constants_mb", "resident_mb"):
        ratio = found[PLACEIT][what] / found[ALONE][what]
        report.claim(f"{kind}: {what.removesuffix('_mb')} over OpenVINO alone", ratio, "", at_most=1.2)
    ratio = found[IN_SEGMENTS]["resident_mb"] / found[ALONE]["resident_mb"]
    report.claim(f"{kind}: resident in four segments over OpenVINO alone", ratio, "", at_most=1.2)


def _taken(way: str, path: Path, tiny: Path) -> dict[str, float]:
    """Return the memory and time of a model until its first request is answered, in this process.

    A tiny model is loaded in the same way first, so that libraries and kernels of the process do not count.
    """
    _go(way, tiny)
    trim_memory()
    return _go(way, path)


def _go(way: str, path: Path) -> dict[str, float]:
    core, before, begin = openvino_core(), own_use().bytes, time.perf_counter()
    if way == ALONE:
        plain = core.read_model(path)
        read_s = time.perf_counter() - begin
        constants_mb = _constants_mb(plain)
        request = core.compile_model(plain, "CPU", OPTIONS).create_infer_request()
        del plain
        request.infer()
        return _sizes(constants_mb, before, read_s)
    model = load(path)
    read_s = time.perf_counter() - begin
    with _whole_cpu(model, 1 if way == PLACEIT else SEGMENTS) as executor:
        executor.time()
        return _sizes(_constants_mb(model.ov_model), before, read_s)


def _constants_mb(model: Any) -> float:
    return sum({node.data.ctypes.data: node.get_byte_size() for node in nodes_of(model, "Constant")}.values()) * 1e-6


def _sizes(constants_mb: float, before: float, read_s: float) -> dict[str, float]:
    return {
        "constants_mb": constants_mb,
        "resident_mb": (own_use().bytes - before) * 1e-6,
        "read_s": read_s,
    }


@contextmanager
def _whole_cpu(model: OpenVinoModel, segments: int) -> Iterator[PlanExecutor]:
    """Run a model on the whole CPU, as one segment or as several of about as many groups each."""
    with Session(model, "CPU", cache=None) as session:
        graph, group = session.model.graph, session.grouping.group_of
        segment = (group * segments // len(session.grouping.groups)).astype(np.int32)
        placement = Placement(graph.names, np.zeros(len(graph), np.int32), session.cluster.names, graph.hash, segment)
        with session.executor(session.plan_of(placement)) as executor:
            yield executor


if __name__ == "__main__":
    main("loading", run, models=tuple(KINDS))
