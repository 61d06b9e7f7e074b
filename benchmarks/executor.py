"""Latency of whole models on two one-core devices: placeit, OpenVINO alone and with HETERO, ONNX Runtime; all in f32.

All candidates of a model run in one race, interleaved. Every ratio is to plain OpenVINO on one core, paired by round. If
placeit chooses a single device, the fastest measured placement on both devices is in the race as well, and HETERO gets that
placement.

"Dispatch per segment" is measured for each segment that was ready when its device finished the one before. It is the time
between the two ``infer()`` calls, which is all that the engine adds: the scheduler, its lock, starting other segments. The
claim is about the median in the plan as it runs, or, if that is a single segment, in a plan with every group as a separate
segment. Three more figures are given: the time for a waiting device to start a segment that another device made ready; the time
of a segment that computes nothing, from end to end, including the engine's part; and the slowdown of any Python code after as
much work as a segment.

The control shows whether the two cores were free: whole passes side by side, one on each core, over passes alone, before and
after the race. If it is far above 1, other work used the cores, and the ratios of splits say little.

HETERO runs its sub-graphs one after the other, and does not pass a limit on threads on to its devices (2026.4: with two CPU
plugins set to one thread each it takes twice its wall-clock time in CPU time). So it runs in a separate process that is bound
to one core: at any moment one of its two one-core devices would be working.

With ``--backend torch``, PyTorch runs tensor graphs, by default ChainMM and FFNN: placeit on two one-core devices against one
of them, against plain PyTorch, and against running the same placement level by level.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import _lanes
from benchmarks._dispatch import gaps, microseconds, slower_after
from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, fastest_split, model_file, progress, settled_race, side_by_side, two_cores
from benchmarks._plain import Infer, Plain, bound_thread, by_name, onnxruntime_alone, openvino_alone, openvino_options
from placeit.backends.openvino.hetero import HOW_TO_RUN, export_hetero
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.errors import UsageError
from placeit.core.placement import Placement
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.learning.workloads.tensor_graphs import TENSOR_GRAPHS
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import Measurement, faster
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Candidate, Optimized
from placeit.profiler.cache import Cache
from placeit.runtime.plan_executor import PlanExecutor
from placeit.session import Session, optimize

ONE, BOTH, OURS, SPLIT = "OpenVINO, one core", "OpenVINO, both cores", "placeit", "placeit, fastest on both"


def run(args: Args, report: Report) -> None:
    if args.backend == "torch":
        from benchmarks import _torch_executor

        _torch_executor.run(args, report)
        return
    strangers = [name for name in args.models if name not in MODELS]
    if strangers:
        raise UsageError(f"'{strangers[0]}' is a tensor graph, which PyTorch runs: add `--backend torch`.")
    names = args.models or (("inception_v3",) if args.quick else MODELS)
    cores = two_cores()
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            _model(name, cores, Path(folder), args, report)
    _lanes.run(cores, report, rounds=20 if args.quick else 100)


def _model(name: str, cores: tuple[int, int], folder: Path, args: Args, report: Report) -> None:
    path, cache = model_file(name), Cache(folder / "costs", runs=False)
    devices = [f"CPU@{core}" for core in cores]
    budget = 25 if args.quick else 90
    # the cores stand for two devices; OpenVINO on both cores is a separate row
    found = optimize(
        path, devices, budget=budget, seed=args.seed, candidates=Candidates(plain=False), cache=cache, progress=progress
    )
    report.note(f"  {name}: {found.chosen.name}; {found.reason}")
    split = found.chosen if found.chosen.placer != "single" else fastest_split(found) or found.chosen
    with (
        Session(path, devices, cache=cache) as session,
        # single-threaded candidates run on the first core, on a thread that is bound to it like placeit's thread
        bound_thread(cores[0]) as pinned,
        ProcessPoolExecutor(
            1, multiprocessing.get_context("spawn"), initializer=os.sched_setaffinity, initargs=(0, {cores[0]})
        ) as bound,
    ):
        session.profile(progress=progress)
        progress(f"compiling the candidates for {name}")
        inputs = session.model.random_inputs()
        ours: dict[str, PlanExecutor] = {OURS: session.executor(found.chosen.plan)}
        if split is not found.chosen:
            ours[SPLIT] = session.executor(split.plan)
        others = _others(session.model, path, split.placement, folder, inputs, pinned, bound)
        outputs = {who: by_name(session.model, other.run()) for who, other in others.items()}
        outputs |= {who: executor.run(inputs) for who, executor in ours.items()}
        errors = {who: OutputDifference.between(values, outputs[ONE]) for who, values in outputs.items()}
        timers = {who: runs.time for who, runs in (others | ours).items()}
        control = [side_by_side(session)]
        results = settled_race(timers, rounds=10 if args.quick else 40, seed=args.seed)
        control.append(side_by_side(session))
        _rows(name, found, results, errors, report)
        report.claim(f"{name}: control, passes side by side over alone", max(control), "", at_most=1.05)
        beside = ours[SPLIT if SPLIT in ours else OURS]
        _lanes.beside_others(name, beside, report, rounds=10 if args.quick else 40)
        _dispatch(name, session, split, report)


def _rows(
    name: str, found: Optimized, results: Mapping[str, Measurement], errors: Mapping[str, OutputDifference], report: Report
) -> None:
    single = found.best_single
    assert single is not None
    for who, measured in results.items():
        ratio = faster(measured, results[ONE])
        _row(
            report,
            name,
            who,
            [measured.median, measured.ci_low, measured.ci_high],
            [ratio.ratio, ratio.ci_low, ratio.ci_high],
            errors[who].max_rel,
        )
    simulated = found.chosen.simulated_s
    assert simulated is not None
    assert single.simulated_s is not None
    none = [None, None]
    _row(report, name, "placeit, as simulated before", [simulated, *none], [simulated / single.simulated_s, *none], None)
    _row(
        report,
        name,
        "lower bound, ignoring cut costs",
        [found.bound_s, *none],
        [found.bound_s / single.simulated_s, *none],
        None,
    )
    over_one = faster(results[OURS], results[ONE]).ratio
    report.claim(f"{name}: placeit over one core", over_one, "", at_most=0.78 if name == "inception_v3" else None)
    ours = results[OURS].median
    report.claim(f"{name}: simulated against measured, error", abs(simulated - ours) / ours * 100, "%", at_most=10)


def _row(
    report: Report,
    model: str,
    candidate: str,
    seconds: list[float | None],
    ratios: list[float | None],
    output_error: float | None,
) -> None:
    median, low, high = (None if value is None else value * 1e3 for value in seconds)
    ratio, ratio_low, ratio_high = ratios
    report.row(
        model=model,
        candidate=candidate,
        median_ms=median,
        ci_low_ms=low,
        ci_high_ms=high,
        ratio_to_one_core=ratio,
        ratio_low=ratio_low,
        ratio_high=ratio_high,
        output_error=output_error,
    )


def _others(
    model: OpenVinoModel,
    path: Path,
    placement: Placement,
    folder: Path,
    inputs: Mapping[str, NDArray[np.generic]],
    pinned: ThreadPoolExecutor,
    bound: ProcessPoolExecutor,
) -> dict[str, Plain]:
    """Return all candidates other than placeit, compiled, with inputs in place."""
    values = list(inputs.values())
    names = dict(zip(placement.device_names, ("CPU", "CPUB"), strict=True))
    xml = folder / f"{path.stem}.xml"
    hetero = export_hetero(model, placement.as_dict(), xml, devices=names)
    bound.submit(_open_hetero, xml, hetero, values).result()
    return {
        ONE: Plain(openvino_alone(openvino_core().compile_model(model.ov_model, "CPU", openvino_options(1)), values), pinned),
        BOTH: Plain(openvino_alone(openvino_core().compile_model(model.ov_model, "CPU", openvino_options(2)), values)),
        "OpenVINO HETERO, on both": Plain(_hetero_infer, bound),
        "ONNX Runtime, one thread": Plain(onnxruntime_alone(path, inputs, intra=1), pinned),
        "ONNX Runtime, two threads": Plain(onnxruntime_alone(path, inputs, intra=2)),
        "ONNX Runtime, parallel": Plain(onnxruntime_alone(path, inputs, intra=1, inter=2)),
    }


_hetero: Infer | None = None
"""The model that :func:`_open_hetero` compiled, in the process that runs it."""


def _open_hetero(xml: Path, device: str, values: list[NDArray[np.generic]]) -> None:
    """Compile the file that ``placeit export`` writes, as its text says, with a CPU plugin for each of the two devices."""
    global _hetero
    core = import_openvino().Core()  # with plugins and properties that the shared one must not have
    core.register_plugin("openvino_intel_cpu_plugin", "CPUB")
    for plugin in ("CPU", "CPUB"):
        core.set_property(plugin, openvino_options(1))
    scope: dict[str, Any] = {"core": core}
    exec(HOW_TO_RUN.replace("core = openvino.Core()\n", "").format(path=xml, device=device), scope)
    wanted, got = set(device.partition(":")[2].split(",")), scope["compiled"].get_property("EXECUTION_DEVICES")
    assert set(got) == wanted, f"HETERO runs on {got}, not on {wanted}"
    _hetero = openvino_alone(scope["compiled"], values)


def _hetero_infer() -> list[NDArray[np.generic]]:
    assert _hetero is not None
    return [np.array(value) for value in _hetero()]


def _dispatch(name: str, session: Session, split: Candidate, report: Report) -> None:
    """Measure the time that the engine adds to each segment: in the plan as it runs, and with a segment for every group."""
    finest = session.segmenter.plan(session.placing.groups_of(split.placement), merge=False)
    claimed = None
    for what, plan in (("as it runs", split.plan), ("each group a segment", finest)):
        gaps_s, waits_s = gaps(session, plan)
        report.row(
            model=name,
            plan=what,
            segments=len(plan.programs),
            dispatch_us=microseconds(gaps_s, 50),
            dispatch_p95_us=microseconds(gaps_s, 95),
            woken_by_other_device_us=microseconds(waits_s, 50),
            tiny_segment_us=float(session.costs.dispatch[0]) * 1e6,
            any_python_slower=slower_after(plan.schedule.makespan / max(1, len(plan.programs))),
        )
        claimed = microseconds(gaps_s, 50) if claimed is None else claimed
    report.claim(f"{name}: dispatch per segment, median", claimed, "us", at_most=30)


if __name__ == "__main__":
    main("executor", run, models=(*MODELS, *TENSOR_GRAPHS), backends=("openvino", "torch"))
