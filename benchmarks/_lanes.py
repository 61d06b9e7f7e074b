"""Lanes that run without Python compared with Python lanes, on devices that are busy for a given time and compute nothing."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks._harness import Report
from benchmarks._timed import TimedDevice
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.telemetry import import_openvino
from placeit.measuring.measure import Race
from placeit.measuring.statistics import faster
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.executor import Executor
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime

__all__ = ["beside_others", "python_computing", "run", "timed_lanes", "two_chains"]

_SEGMENTS = 40


def run(cores: tuple[int, int], report: Report, *, rounds: int) -> None:
    """Print rows and claims.

    Args:
        cores: one core for each of two devices.
        report: receives rows and claims.
        rounds: rounds of each race.
    """
    with timed_lanes(cores, 100e-6, two_chains(), apart=True) as executors:
        ratio = _raced(executors, rounds)
        report.row(plan=f"{_SEGMENTS} segments of 100 us on two devices", native_over_python=ratio)
        report.claim("40 segments of 100 us: C functions over Python functions", ratio, "", at_most=0.8)
        beside_others("40 segments of 100 us", executors["native"], report, rounds=rounds)
        beside_others(
            "40 segments of 100 us, Python functions", executors["python"], report, rounds=max(3, rounds // 4), claim=False
        )
    with timed_lanes(cores, 0.0, _chain(), apart=False) as executors:
        _raced(executors, rounds)
        for who, executor in executors.items():
            rate = _SEGMENTS / float(np.median([executor.time() for _ in range(4 * rounds)]))
            wanted = 200_000 if who == "native" else 10_000
            report.claim(f"segments that compute nothing a second, {who} entries", rate, "1/s", at_least=wanted)
        native = executors["native"]
        gaps = np.concatenate([_gaps(native) for _ in range(rounds)])
        report.claim("end of a segment to the start of the next on its device", float(np.median(gaps)) * 1e6, "us", at_most=5)
    with timed_lanes(cores, 200e-6, _chain(), apart=True) as executors:
        gaps = np.concatenate([_gaps(executors["native"]) for _ in range(rounds)])
        wake = _wake_up(cores, 200e-6)
        report.row(hand_over_us=float(np.median(gaps)) * 1e6, thread_wake_up_us=wake * 1e6)
        report.claim(
            "hand-over to another device, beyond a thread's wake-up", float(np.median(gaps) - wake) * 1e6, "us", at_most=10
        )


def _chain() -> OpenVinoModel:
    """Make a model of consecutive ops."""
    ops = import_openvino().opset13
    first = ops.parameter([1], np.float32, name="in")
    value = first.output(0)
    for _ in range(_SEGMENTS):
        value = ops.relu(value).output(0)
    return describe(import_openvino().Model([ops.result(value)], [first], "chain"), Path("chain"))


def two_chains() -> OpenVinoModel:
    """Make ops in two chains that read from each other now and then; every other op belongs to the second chain."""
    ops = import_openvino().opset13
    first = ops.parameter([1], np.float32, name="in")
    ends = [first.output(0), first.output(0)]
    for i in range(_SEGMENTS // 2 - 1):
        ends = (
            [ops.add(*ends).output(0), ops.multiply(*ends).output(0)] if i % 5 == 4 else [ops.relu(v).output(0) for v in ends]
        )
    last = [ops.relu(v).output(0) for v in ends]
    return describe(import_openvino().Model([ops.result(v) for v in last], [first], "chains"), Path("chains"))


@contextlib.contextmanager
def timed_lanes(cores: tuple[int, int], seconds: float, model: OpenVinoModel, *, apart: bool) -> Iterator[dict[str, Executor]]:
    """Open a plan with a segment for each op, by entries of both kinds, its ops in turns on two devices or all on one."""
    grouping = Grouping.singletons(model.graph)
    groups = len(grouping.groups)
    pairs = {(a, b): Link(1e9, 1e-6) for a, b in (("a", "b"), ("b", "a"))}
    cluster = Cluster((Device("a"), Device("b")), pairs)
    segmenter = Segmenter(grouping, Costs.zero(groups, cluster))
    place = np.zeros(groups, np.int32)
    computing = [g for g, name in enumerate(grouping.groups.kinds) if name not in ("Parameter", "Result")]
    if apart:
        place[computing] = np.arange(len(computing)) % 2
    plan: Plan = segmenter.plan(place, merge=False)
    with contextlib.ExitStack() as stack:
        executors = {}
        for who in ("native", "python"):
            devices = [
                TimedDevice(name, lambda _: seconds, cores=(core,), native=who == "native")
                for name, core in zip("ab", cores, strict=True)
            ]
            runtime = stack.enter_context(Runtime(model, grouping, cluster, devices=devices, transports={}))
            executors[who] = stack.enter_context(runtime.executor(plan))
        yield executors


def _raced(executors: dict[str, Executor], rounds: int) -> float:
    race = Race({who: executor.time for who, executor in executors.items()})
    race.run(rounds=rounds)
    results = race.results()
    return float(faster(results["native"], results["python"]).ratio)


def _gaps(executor: Executor) -> np.ndarray:
    """Return the seconds between the end of each segment and the start of the next one, in one run."""
    executor.time()
    spans = executor.spans()
    return np.array([after.start - before.finish for before, after in pairwise(spans)])


def beside_others(what: str, executor: PlanExecutor, report: Report, *, rounds: int, claim: bool = True) -> None:
    """Time a plan beside a thread that computes in Python, and beside a process that is not Python, in turns.

    Args:
        what: name of the plan.
        executor: runs the plan.
        report: receives medians, and how long the caller waited for the interpreter's lock after the last segment had ended.
        rounds: runs beside each of the two, and alone.
        claim: whether to claim that these times differ by no more than a tenth.
    """
    others = {"nothing": contextlib.nullcontext, "a Python thread": python_computing, "a busy process": _process_computing}
    inside: dict[str, list[float]] = {who: [] for who in others}
    waits: dict[str, list[float]] = {who: [] for who in others}
    turns = max(1, rounds // 5)
    for _ in range(turns):
        for who, other in others.items():
            with other():
                executor.time()
                for _ in range(5):
                    begin = time.perf_counter()
                    seconds = executor.time()
                    inside[who].append(seconds)
                    waits[who].append(time.perf_counter() - begin - seconds)
    for who, times in inside.items():
        report.row(
            plan=what, beside=who, median_ms=float(np.median(times)) * 1e3, caller_waits_ms=float(np.median(waits[who])) * 1e3
        )
    if claim:
        ratio = float(np.median(inside["a Python thread"]) / np.median(inside["a busy process"]))
        report.claim(f"{what}: beside a Python thread over beside a busy process", ratio, "", at_most=1.1)


@contextlib.contextmanager
def _process_computing() -> Iterator[None]:
    """Keep a process that is not Python busy."""
    with subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGKILL)


@contextlib.contextmanager
def python_computing() -> Iterator[None]:
    """Keep another thread busy with Python."""
    over = threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _wake_up(cores: tuple[int, int], busy_s: float, turns: int = 200) -> float:
    """Return the median seconds until a thread on one core continues after a wake-up from the other, by a separate program.

    Between two turns it computes for as long as a segment takes. Any hand-over between these cores takes that long on this
    machine.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "wake_up"
        source = Path(__file__).parent / "wake_up.cpp"
        subprocess.run(["c++", "-std=c++17", "-O2", "-pthread", source, "-o", program], check=True)
        arguments = [str(cores[0]), str(cores[1]), str(busy_s), str(turns)]
        return float(subprocess.run([program, *arguments], check=True, capture_output=True, text=True).stdout)
