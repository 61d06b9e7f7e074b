"""Models over three nodes with different kinds of devices: whether the outputs are right, and the predicted latency.

The nodes are on this machine, joined by the loopback interface. One has an emulated Intel GPU (``tests/emulated_gpu``), one
ONNX Runtime, and one PyTorch. A device takes segments in the formats of its runtime only, so each model runs in two forms.
The ONNX file is split over the GPU of the first node, ONNX Runtime of the second and OpenVINO of the third; the PyTorch module
over PyTorch of the third node and of this process. The split is the one with the lowest simulated time of those that use all
these devices. Outputs are compared with the whole model's in the plain runtime on the CPU, OpenVINO or PyTorch.

The emulated GPU is the CPU, so that none of the times is a GPU's.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks._edge_models import MAX_PERCENT, best_split
from benchmarks._gpus import with_gpu
from benchmarks._harness import Args, Report, main
from benchmarks._models import model_file, progress, two_cores
from examples.models import build_model, example_inputs
from placeit.devices.nodes import connection, local
from placeit.session import Session
from tests.emulators import UnavailableError

MODELS = ("inception_v3", "bert_base")
NODES = ("head", "edge1", "edge2")
MAX_ERROR = 1e-4
TIMEOUT_S, PROFILE_S, QUICK_PROFILE_S = 60.0, 300.0, 30.0
RUNS, QUICK_RUNS = 30, 3


def run(args: Args, report: Report) -> None:
    first, second = two_cores()
    try:
        places = {"edge1": with_gpu(local.Place())}
    except UnavailableError as error:
        report.note(f"Nothing is measured. {error}")
        return
    forms: dict[str, tuple[Callable[[str, Sequence[str]], Session], list[str]]] = {
        "ONNX file": (_of_file, [f"head/CPU@{second}", f"edge2/ort:CPU@{first}", "edge1/GPU.0"]),
        "PyTorch module": (_of_module, [f"head/torch:CPU@{first}", f"torch:CPU@{second}"]),
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "cluster.json")
        ray = local.start(NODES, file, places=places)
        try:
            connection.connect(ray.address, token=ray.token, patience=TIMEOUT_S)
            for name in args.models or MODELS[: 1 if args.quick else None]:
                for form, (opened, devices) in forms.items():
                    _measure(f"{name}, {form}", functools.partial(opened, name, devices), args, report)
        finally:
            connection.disconnect()
            ray.stop(file)


def _of_file(name: str, devices: Sequence[str]) -> Session:
    return Session(model_file(name), devices, cache=None)


def _of_module(name: str, devices: Sequence[str]) -> Session:
    return Session(build_model(name), devices, kwargs=example_inputs(name), cache=None)


def _measure(what: str, opened: Callable[[], Session], args: Args, report: Report) -> None:
    """Run the best split of a model over all devices of a session."""
    progress(f"profiling {what}")
    with opened() as session:
        session.profile(budget_s=QUICK_PROFILE_S if args.quick else PROFILE_S)
        split = best_split(session, args.seed, len(session.cluster))
        progress(f"running {what}")
        ran = session.run(session.placement(split.group_devices, split), runs=QUICK_RUNS if args.quick else RUNS)
    predicted = split.schedule.makespan
    off = abs(predicted / ran.latency.median - 1) * 100
    report.row(
        model=what,
        devices=", ".join(f"{device} {ops}" for device, ops in ran.placement.counts().items()),
        segments=len(split.programs),
        predicted_ms=predicted * 1e3,
        median_ms=ran.latency.median * 1e3,
        low_ms=ran.latency.ci_low * 1e3,
        high_ms=ran.latency.ci_high * 1e3,
        prediction_off_by_percent=off,
        output_error=ran.output_error.max_rel,
    )
    report.claim(f"{what}: largest output error over the largest value", ran.output_error.max_rel, "", at_most=MAX_ERROR)
    report.claim(f"{what}: devices that run a part", sum(map(bool, ran.placement.counts().values())), "")
    report.claim(f"{what}: predicted latency off by", off, "%", at_most=MAX_PERCENT)


if __name__ == "__main__":
    main("nodes_of_kinds", run, models=MODELS)
