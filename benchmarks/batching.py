"""Batching: the throughput of joined requests over single ones, and what a request takes in a batch of each size.

A perceptron of eight layers, 1024 wide, and ResNet-50, whose batch sizes are open, are served on one core: without joining,
with batches of up to 2, 4 ... 32 rows, and with the size that the server measures itself (``auto``). As many requests are under
way as two of the largest batches have rows. OpenVINO without placeit runs the model with a batch size of 1 beside it, and by
its own batches (``BATCH:CPU``). All ways take turns, round by round, so that ratios are of the same rounds.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import model_file, progress, two_cores
from benchmarks._serve_child import save_layers
from placeit.backends import load
from placeit.backends.openvino.model import OpenVinoModel
from placeit.backends.openvino.own_mode import OwnModeRunner
from placeit.core.narrowing import narrowed
from placeit.core.placement import Placement
from placeit.devices.clusterfile import discover
from placeit.devices.own_modes import OwnMode
from placeit.measuring.check import OutputDifference
from placeit.serving.load_run import keep_busy
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench.options import Inputs

LAYERS, WIDTH, MOST = 8, 1024, 32
ROUNDS, QUICK_ROUNDS = 10, 3
ROUND_S, QUICK_ROUND_S = 1.0, 0.2  # of each way
_SINGLE, _AUTO = "single requests", "auto"
_RIVALS = {"OpenVINO, batch size 1": "CPU", f"OpenVINO, BATCH:CPU({MOST // 4})": f"BATCH:CPU({MOST // 4})"}


def run(args: Args, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        layers = save_layers(Path(folder, "layers.onnx"), LAYERS, width=WIDTH)
        for name, path, gain in (("perceptron", layers, 5.0), ("resnet50", model_file("resnet50"), 1.3)):
            _compare(name, path, gain, args, report)


def _compare(model: str, path: Path, gain: float, args: Args, report: Report) -> None:
    """Compare the ways of serving a model; ``gain`` is the least throughput of auto over single requests."""
    device = f"CPU@{two_cores()[0]}"
    rounds, seconds = (QUICK_ROUNDS, QUICK_ROUND_S) if args.quick else (ROUNDS, ROUND_S)
    with contextlib.ExitStack() as stack:
        one = narrowed(OpenVinoModel, load(path))
        shapes = {spec.name: (f"1..{MOST}@1", *spec.shape[1:]) for spec in one.inputs}
        session = stack.enter_context(Session(path, [device], inputs=Inputs(shapes=shapes), cache=None))
        graph, whole = session.model.graph, np.zeros(len(session.model.graph), np.int32)
        placement = Placement(graph.names, whole, session.cluster.names, graph.hash, whole)
        sizes = [2**k for k in range(1, MOST.bit_length())]
        servers: dict[str, Server] = {}
        for name, most in ((_SINGLE, 1), *((f"up to {size} rows", size) for size in sizes), (_AUTO, "auto")):
            progress(f"starting the server of {model} for {name}")
            server = session.serve(placement, queue=4 * MOST, max_batch=most)  # type: ignore[arg-type]
            servers[name] = stack.enter_context(server)
        given = session.model.sample_inputs()
        ways: dict[str, Callable[[float], tuple[float, float]]] = {
            name: partial(_served, server, given) for name, server in servers.items()
        }
        cpu = discover([device]).devices[0]
        for name, target in _RIVALS.items():
            runner = OwnModeRunner(one, OwnMode(name, target, (cpu,), steady=True), "f32")
            ways[name] = partial(_alone, stack.enter_context(contextlib.closing(runner)))
        rates = {name: np.zeros(rounds) for name in ways}
        cpus = {name: np.zeros(rounds) for name in ways}
        for turn in range(-1, rounds):  # the first round is warm-up
            for name, way in ways.items():
                progress(f"{model}, round {turn}: {name}")
                begin = time.process_time()
                requests, spent = way(seconds)
                if turn >= 0:
                    rates[name][turn], cpus[name][turn] = requests / spent, (time.process_time() - begin) / requests
        for name in ways:
            batches = servers[name].stats().batches if name in servers else {}
            report.row(
                model=model,
                what=name,
                requests_per_second=np.median(rates[name]),
                cpu_ms=1e3 * np.median(cpus[name]),
                p99_ms=1e3 * servers[name].stats().percentiles(0.99)[0] if name in servers else None,
                mean_rows=sum(rows * runs for rows, runs in batches.items()) / sum(batches.values()) if batches else None,
            )
        expected = servers[_SINGLE].submit(given).result()
        wrong = sum(
            OutputDifference.between(server.submit(given).result(), expected).wrong(session.tolerance) is not None
            for server in servers.values()
        )
    best = np.max([rates[f"up to {size} rows"] for size in sizes], axis=0)
    auto, over = rates[_AUTO], f"{model}: throughput of auto over"
    report.claim(f"{over} single requests", np.median(auto / rates[_SINGLE]), "", at_least=gain)
    report.claim(f"{over} the best size in each round", np.median(auto / best), "", at_least=0.9)
    for name in _RIVALS:
        report.claim(f"{over} {name}", np.median(auto / rates[name]), "", at_least=1)
    report.claim(f"{model}: servers with wrong outputs", wrong, "", at_most=0)


def _served(server: Server, given: dict[str, np.ndarray], seconds: float) -> tuple[float, float]:
    """Keep a server busy; return how many requests have ended, and in how many seconds."""
    served = keep_busy(server, given, 2 * MOST, seconds=seconds)
    return served.arrived, served.seconds


def _alone(runner: OwnModeRunner, seconds: float) -> tuple[float, float]:
    """Run requests by OpenVINO alone; return how many have ended, and in how many seconds."""
    requests, begin = 0.0, time.perf_counter()
    while (spent := time.perf_counter() - begin) < seconds:
        each = runner.time()
        requests += (time.perf_counter() - begin - spent) / each
    return requests, spent


if __name__ == "__main__":
    main("batching", run)
