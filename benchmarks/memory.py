"""The memory that placeit takes to run, build and optimize a model, beside the memory of the runtime alone.

Each way runs in a separate process. A row has the growth of the process's memory, mapped files included, from before the model
is read: at its peak, and after the first answer. A tiny model is handled in the same way first, so that libraries do not count.
The runtime alone means one compiled model or session and one request on one core.
"""

from __future__ import annotations

import functools
import multiprocessing
import re
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks._child import peak_memory
from benchmarks._harness import Args, Report, main
from benchmarks._loading_models import write_model
from benchmarks._models import two_cores
from benchmarks._plain import openvino_options
from placeit.core.memory import trim_memory
from placeit.core.placement import Placement
from placeit.core.telemetry import import_onnxruntime
from placeit.devices.openvino import openvino_core
from placeit.session import Session

OPENVINO, ONNXRUNTIME = "OpenVINO alone", "ONNX Runtime alone"
WIDTHS = {"transformer": 1024, "shared": 2048, "tied": 1024, "branches": 2048}
QUICK_WIDTH = 256
SEGMENTS, BUDGET_S, QUICK_BUDGET_S = 4, 40.0, 3.0


def run(args: Args, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in args.models or WIDTHS:
            tiny = write_model(kind, Path(folder), 32).rename(Path(folder) / "tiny.onnx")
            path = write_model(kind, Path(folder), QUICK_WIDTH if args.quick else WIDTHS[kind])
            _measure(kind, path, tiny, args, report)
            path.unlink()


def _measure(kind: str, path: Path, tiny: Path, args: Args, report: Report) -> None:
    size, found = path.stat().st_size * 1e-6, dict[str, float]()
    for name, way in ways(QUICK_BUDGET_S if args.quick else BUDGET_S).items():
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as process:
            found[name], after = process.submit(_taken, way, path, tiny).result()
        report.row(model=kind, way=name, file_mb=size, peak_mb=found[name], after_mb=after)
    for name, peak in found.items():
        if name.startswith("placeit"):
            plain = found[ONNXRUNTIME if " ort" in name else OPENVINO]
            report.claim(f"{kind}: peak of {name} over the runtime alone", peak / plain, "", at_most=1.3)
    for name in ("build", "optimize"):
        rest = (found[name] - size) / found[OPENVINO]
        report.claim(f"{kind}: peak of {name}, less one model, over OpenVINO alone", rest, "", at_most=1.3)


def ways(budget_s: float) -> dict[str, Callable[[Path], None]]:
    """Return functions that each load a model file and run, build or optimize it, by name."""
    first, second = (f"CPU@{core}" for core in two_cores())
    ways: dict[str, Callable[[Path], None]] = {OPENVINO: _openvino, ONNXRUNTIME: _onnxruntime}
    for device in (first, f"ort:{first}"):
        for segments in (1, SEGMENTS):
            name = f"placeit{' ort' if 'ort' in device else ''}, {segments} segment{'s' * (segments > 1)}"
            ways[name] = functools.partial(_placeit, device=device, segments=segments)
    ways["build"] = functools.partial(_build, device=first)
    ways["optimize"] = functools.partial(_optimize, devices=[first, second], budget_s=budget_s)
    return ways


def _taken(way: Callable[[Path], None], path: Path, tiny: Path) -> tuple[float, float]:
    """Return by how many MB this process grows at the peak, and to the end."""
    way(tiny)
    trim_memory()
    before = _resident()
    peak_memory(reset=True)
    way(path)
    return (peak_memory() - before) * 1e-6, (_resident() - before) * 1e-6


def _resident() -> int:
    match = re.search(r"VmRSS:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def _openvino(path: Path) -> None:
    model = openvino_core().read_model(path)
    request = openvino_core().compile_model(model, "CPU", openvino_options(1)).create_infer_request()
    del model
    request.infer()


def _onnxruntime(path: Path) -> None:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    values = {
        value.name: np.zeros(value.shape, np.float32 if "float" in value.type else np.bool_) for value in session.get_inputs()
    }
    session.run(None, values)


def _placeit(path: Path, *, device: str, segments: int) -> None:
    with (
        Session(path, device, cache=None) as session,
        session.executor(session.plan_of(_placed(session, segments))) as executor,
    ):
        executor.time()


def _build(path: Path, *, device: str) -> None:
    with tempfile.TemporaryDirectory() as folder, Session(path, device, cache=None) as session:
        session.build(_placed(session, 1), Path(folder) / "model.placeit")


def _optimize(path: Path, *, devices: list[str], budget_s: float) -> None:
    with Session(path, devices, cache=None) as session:
        session.optimize(budget=budget_s)


def _placed(session: Session, segments: int) -> Placement:
    """Return a placement on the first device, in segments of about as many groups each."""
    graph, group = session.model.graph, session.grouping.group_of
    segment = (group * segments // len(session.grouping.groups)).astype(np.int32)
    return Placement(graph.names, np.zeros(len(graph), np.int32), session.cluster.names, graph.hash, segment)


if __name__ == "__main__":
    main("memory", run, models=tuple(WIDTHS))
