"""The cost of recording: latency while meters are read and runs are kept, over latency without, and the size of the files.

Blocks of runs with and without recording take turns, and the ratio is the ratio of their medians, paired by turn. On a busy
machine it is uncertain, as its interval shows; the CPU time of reading meters while nothing else runs is not. Short requests
are requests of 40 segments that keep two devices busy for 100 us each; long ones are requests of Inception-V3, half of it on
each core. The largest recording has as many made-up spans as a recording keeps.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time, sleep

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._lanes import timed_lanes, two_chains
from benchmarks._models import load_model, progress, two_cores
from placeit.devices.meters import Sampler
from placeit.measuring.measure import Race
from placeit.measuring.run_log import RunLog
from placeit.measuring.statistics import faster
from placeit.profiler import recorded as r
from placeit.profiler.recording import MAX_SPANS, Recording, read_recording, write_recording
from placeit.profiler.trace import write_recording_trace
from placeit.runtime.plan_executor import PlanExecutor
from placeit.session import Session

ROUNDS, QUICK_ROUNDS = 30, 8  # blocks of either kind
BLOCK_S = 0.3  # length of a block: meters are read a few times
METERS_S = 5.0  # for which meters are read while nothing runs
REQUESTS = 100  # requests in the recordings whose size is shown
OPS = 5000  # ops in the largest recording


def run(args: Args, report: Report) -> None:
    rounds = QUICK_ROUNDS if args.quick else ROUNDS
    report.claim("share of a core that reading meters takes", _meters(), "", at_most=0.02)
    with timed_lanes(two_cores(), 100e-6, two_chains(), apart=True) as executors:
        _overhead("40 segments of 100 us", executors["native"], rounds, args.seed, report)
    with tempfile.TemporaryDirectory() as folder:
        for name in args.models or ("inception_v3",):
            _model(name, rounds, args.seed, Path(folder), report)
        _largest(Path(folder), report)


def _meters() -> float:
    """Return the CPU time of reading meters while nothing else is done, over the time it takes."""
    with Sampler():
        begin, cpu = perf_counter(), process_time()
        sleep(METERS_S)
        return (process_time() - cpu) / (perf_counter() - begin)


def _overhead(what: str, executor: PlanExecutor, rounds: int, seed: int, report: Report) -> None:
    progress(f"timing {what}")
    runs = max(2, round(BLOCK_S / executor.time()))

    def block(once: Callable[[], float]) -> float:
        return median(once() for _ in range(runs))

    def recorded() -> float:
        with Sampler():
            return block(RunLog(executor, MAX_SPANS).time)

    race = Race({"recorded": recorded, "plain": lambda: block(executor.time)}, seed=seed)
    race.run(rounds=rounds, drop_losers=False)
    found = race.results()
    ratio = faster(found["recorded"], found["plain"])
    latency = {f"{who}_us": one.median * 1e6 for who, one in found.items()}
    report.row(what=what, runs_per_block=runs, **latency, ratio=ratio.ratio, ci_low=ratio.ci_low, ci_high=ratio.ci_high)
    report.claim(f"{what}: latency while recorded over latency without", ratio.ratio, "", at_most=1.02)


def _model(name: str, rounds: int, seed: int, folder: Path, report: Report) -> None:
    with Session(load_model(name), [f"CPU@{core}" for core in two_cores()]) as session:
        session.profile(progress=progress)
        groups = len(session.grouping.groups)
        placement = session.placement(np.arange(groups) * 2 // groups)
        with session.executor(session.plan_of(placement)) as executor:
            _overhead(name, executor, rounds, seed, report)
        progress(f"recording {name}")
        recording = session.recording(session.run(placement, runs=REQUESTS))
        _sizes(name, recording, folder, report)
        path = recording.critical_path
        if path is not None:
            explained = path.computing_s + (path.cuts_s or 0.0) + path.transfers_s + path.waiting_s
            off = abs(explained / path.latency_s - 1)
            report.claim(f"{name}: share of the latency that the critical path leaves open", off, "", at_most=0.02)


def _sizes(what: str, recording: Recording, folder: Path, report: Report) -> int:
    """Write and read a recording, and return the size of its file in bytes."""
    file, trace, begin = folder / "run.json", folder / "trace.json", perf_counter()
    write_recording(file, recording)
    written = perf_counter()
    read_recording(file)
    read = perf_counter()
    write_recording_trace(trace, recording)
    size = file.stat().st_size
    report.row(
        what=what,
        ops=len(recording.graph.ops),
        requests=len(recording.requests),
        spans=len(recording.spans),
        recording_MB=size / 1e6,
        trace_MB=trace.stat().st_size / 1e6,
        write_s=written - begin,
        read_s=read - written,
    )
    return size


def _largest(folder: Path, report: Report) -> None:
    """Make up the largest recording, of many ops in a chain of segments on two devices."""
    requests = MAX_SPANS // OPS
    devices = tuple(r.RecordedDevice(f"CPU@{d}", "openvino", "", "", "", (d,), (), None, 1.0, None, None) for d in range(2))
    names = [f"/layers.{v}/attention/self/query/MatMul" for v in range(OPS)]
    spans = tuple(
        r.RecordedSpan("compute", (f"CPU@{v % 2}",), n, v, None, n + v / OPS, n + (v + 0.5) / OPS)
        for n in range(requests)
        for v in range(OPS)
    )
    recording = Recording(
        made="2026-01-01T00:00:00+00:00",
        versions={},
        environment={},
        model=r.RecordedModel("made up", "made up", "", "f32"),
        devices=devices,
        links=(),
        graph=r.RecordedGraph(
            ops=tuple(r.RecordedOp(name, "MatMul", v, 1e9, 1e6, 1e6, ((1, 128, 768),)) for v, name in enumerate(names)),
            edges=tuple((v, v + 1, 1e6) for v in range(OPS - 1)),
            groups=tuple(names),
        ),
        plan=r.RecordedPlan(
            segments=tuple(r.RecordedSegment(f"CPU@{v % 2}", 0, (v,), True, 1e-4, 1e-4, 0.1) for v in range(OPS)),
            tensors=tuple(r.RecordedTensor(names[v], v, (v + 1,), 1e6) for v in range(OPS - 1)),
        ),
        wall_s=float(requests),
        requests=tuple(r.RecordedRequest(0, float(n), float(n), n + 1.0) for n in range(requests)),
        spans=spans,
        ops=tuple(r.OpTime(v, "MatMul", v, f"CPU@{v % 2}", name, 1e-4, 1e-4, 1e11, 1e10) for v, name in enumerate(names)),
        groups=tuple(r.GroupTime(v, f"CPU@{v % 2}", 1e-4, 1e-4) for v in range(OPS)),
        predicted=r.Prediction(1.0, spans[:OPS]),
    )
    size = _sizes("largest", recording, folder, report)
    report.claim("size of the largest recording", size / 1e6, "MB", at_most=20)


if __name__ == "__main__":
    main("recording", run)
