"""ONNX models on OpenVINO, on ONNX Runtime and on both: latency side by side, and whether the outputs are equal; all in f32.

For each model there is one race, interleaved: both runtimes without placeit, with one thread on the first core; the whole model
on one device of either runtime, by placeit; and the answers of ``placeit.optimize`` for two one-core devices of OpenVINO, two
of ONNX Runtime, and one of each. If an answer is a single device, the fastest measured split runs as well. Every ratio is to
plain OpenVINO on one core, paired by round; output errors are against the same.

The cost of a cut is in separate rows: the time of a segment that computes nothing, from end to end (``dispatch_us``), the whole
model in one segment (``whole_ms``), and the additional time if each group is a segment (``cut_ms``).

The costs of groups on a device are measured once, and kept in a separate cache of the run, where a later cluster with the same
groups finds them; dispatch and links are measured for each cluster. Both cores must be free: other work affects candidates on
two devices more than candidates on one.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, fastest_split, model_file, progress, settled_race, two_cores
from benchmarks._plain import Plain, bound_thread, by_name, onnxruntime_alone, openvino_alone, openvino_options
from placeit.backends import load
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.placement import Placement
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import Measurement, faster
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Candidate
from placeit.profiler.cache import Cache
from placeit.runtime.plan_executor import PlanExecutor
from placeit.session import Session, optimize

OPENVINO, ONNX_RUNTIME, BOTH = "OpenVINO", "ONNX Runtime", "one of each"
ALONE, ONE_DEVICE, TWO_DEVICES = "{} alone, one core", "placeit, {}, one device", "placeit, {}, two devices"
REFERENCE = ALONE.format(OPENVINO)


def run(args: Args, report: Report) -> None:
    first, second = two_cores()
    clusters = {
        OPENVINO: (f"CPU@{first}", f"CPU@{second}"),
        ONNX_RUNTIME: (f"ort:CPU@{first}", f"ort:CPU@{second}"),
        BOTH: (f"ort:CPU@{first}", f"CPU@{second}"),
    }
    report.note("  Both cores must be free: other work slows down what runs on two devices more than what runs on one.")
    for name in args.models or (("resnet50",) if args.quick else MODELS):
        with tempfile.TemporaryDirectory() as folder:
            _model(name, clusters, Cache(Path(folder), runs=False), args, report)


def _model(name: str, clusters: Mapping[str, tuple[str, str]], cache: Cache, args: Args, report: Report) -> None:
    path = model_file(name)
    model = load(path)
    with ExitStack() as stack:
        ours: dict[str, PlanExecutor] = {}
        where: dict[str, str] = {}
        for runtime, devices in clusters.items():
            placed = _placed(model, runtime, devices, cache, args, report)
            session = stack.enter_context(Session(model, devices, cache=cache))
            session.profile(progress=progress)
            _costs(name, runtime, session, report)
            if runtime != BOTH:
                who, whole = ONE_DEVICE.format(runtime), np.zeros(len(session.grouping.groups), np.int32)
                ours[who], where[who] = session.executor(session.segmenter.plan(whole)), _on(session.placement(whole))
            for who, candidate in placed.items():
                ours[who], where[who] = session.executor(candidate.plan), _on(candidate.placement)
        plain = _plain(model, path, stack.enter_context(bound_thread(two_cores()[0])))
        timers = {who: runs.time for who, runs in (plain | ours).items()}
        results = settled_race(timers, rounds=10 if args.quick else 40, seed=args.seed)
        inputs = model.random_inputs()
        outputs = {who: by_name(model, runs.run()) for who, runs in plain.items()}
        outputs |= {who: executor.run(inputs) for who, executor in ours.items()}
    errors = {who: OutputDifference.between(values, outputs[REFERENCE]).max_rel for who, values in outputs.items()}
    _rows(name, results, where, errors, report)


def _placed(
    model: OpenVinoModel, runtime: str, devices: Sequence[str], cache: Cache, args: Args, report: Report
) -> dict[str, Candidate]:
    """Return the plans for two devices: the answer and, if that is a single device, the fastest split."""
    found = optimize(
        model,
        devices,
        budget=15 if args.quick else 60,
        seed=args.seed,
        candidates=Candidates(plain=False),
        cache=cache,
        progress=progress,
    )
    report.note(f"  {model.name} on {', '.join(devices)}: {found.chosen.name}; {found.reason}")
    who, split = TWO_DEVICES.format(runtime), fastest_split(found)
    placed = {who: found.chosen}
    if split is not None and found.chosen.placer == "single":
        placed[f"{who}, fastest split"] = split
    return placed


def _plain(model: OpenVinoModel, path: Path, thread: ThreadPoolExecutor) -> dict[str, Plain]:
    """Return both runtimes without placeit, with inputs in place."""
    inputs = model.random_inputs()
    compiled = openvino_core().compile_model(model.ov_model, "CPU", openvino_options(1))
    return {
        REFERENCE: Plain(openvino_alone(compiled, list(inputs.values())), thread),
        ALONE.format(ONNX_RUNTIME): Plain(onnxruntime_alone(path, inputs, intra=1), thread),
    }


def _on(placement: Placement) -> str:
    """Return the number of ops on each device."""
    return ", ".join(f"{device} {ops}" for device, ops in placement.counts().items() if ops)


def _costs(name: str, runtime: str, session: Session, report: Report) -> None:
    for d, device in enumerate(session.cluster.names):
        report.row(
            model=name,
            cluster=runtime,
            device=device,
            groups=len(session.grouping.groups),
            dispatch_us=session.costs.dispatch[d] * 1e6,
            whole_ms=session.costs.core[:, d].sum() * 1e3,
            cut_ms=session.costs.cut[:, d].sum() * 1e3,
        )


def _rows(
    name: str, results: Mapping[str, Measurement], where: Mapping[str, str], errors: Mapping[str, float], report: Report
) -> None:
    for who, measured in results.items():
        ratio = faster(measured, results[REFERENCE])
        report.row(
            model=name,
            candidate=who,
            devices=where.get(who),
            median_ms=measured.median * 1e3,
            ci_low_ms=measured.ci_low * 1e3,
            ci_high_ms=measured.ci_high * 1e3,
            ratio_to_one_core=ratio.ratio,
            ratio_low=ratio.ci_low,
            ratio_high=ratio.ci_high,
            output_error=errors[who],
        )
    theirs, ours = (results[ONE_DEVICE.format(runtime)] for runtime in (ONNX_RUNTIME, OPENVINO))
    report.claim(f"{name}: {ONNX_RUNTIME} over {OPENVINO}, whole model by placeit", faster(theirs, ours).ratio, "")
    report.claim(f"{name}: largest output error over the largest value", max(errors.values()), "", at_most=1e-4)


if __name__ == "__main__":
    main("runtimes", run, models=MODELS)
