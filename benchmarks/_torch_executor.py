"""Latency of tensor graphs on two one-core devices that PyTorch drives, for ``python -m benchmarks.executor --backend torch``.

All candidates of a graph run in one race, interleaved, and every ratio is paired by round. The graph is cut into shards for all
but plain PyTorch, which runs the uncut program. Level by level is what bulk-synchronous systems do: the same placement and the
same segments, one for each group of ops, but no device starts a level of the graph before all have ended the one before. What
placeit gains over that is also what the simulator says of both, from the same measured costs.

The host overhead of an op is the time between two ops on a device where the second was ready when the first ended, with each
group of ops launched by itself.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks._dispatch import gaps, microseconds
from benchmarks._harness import Args, Report
from benchmarks._levels import LevelByLevel, simulated
from benchmarks._models import fastest_split, progress, settled_race, two_cores
from placeit.backends.tensor_program import TensorProgram, load
from placeit.errors import UsageError
from placeit.optimize import optimize
from placeit.profiler.cache import Cache
from placeit.runtime.devices.torch_cpu import use_threads
from placeit.runtime.executor import Executor
from placeit.runtime.measure import Measurement, faster, timed
from placeit.session import OutputError, Session
from placeit.workloads.tensor_graphs import TENSOR_GRAPHS

ONE, OURS, FINE, LEVELS = "placeit, one device", "placeit", "placeit, each group a segment", "level by level, the same segments"
ONE_CORE, BOTH_CORES = "PyTorch, one core", "PyTorch, both cores"

QUICK: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "chain-mm": {"size": 768},
        "ffnn": {"batch": 2048, "hidden": 2048},
        "llama-block": {"tokens": 256, "width": 512, "hidden": 1376},
        "llama-layer": {"tokens": 256, "width": 512, "hidden": 1376},
    }
)
"""Sizes for ``--quick``; otherwise the graphs' own."""

_SHARDS = 4


def run(args: Args, report: Report) -> None:
    """Fill the report."""
    strangers = [name for name in args.models if name not in TENSOR_GRAPHS]
    if strangers:
        raise UsageError(f"'{strangers[0]}' is no tensor graph; --backend torch runs {', '.join(TENSOR_GRAPHS)}.")
    cores = two_cores()
    for name in args.models or ("chain-mm", "ffnn"):
        _graph(load(name, shards=_SHARDS, seed=args.seed, **(QUICK[name] if args.quick else {})), cores, args, report)


def _graph(model: TensorProgram, cores: tuple[int, int], args: Args, report: Report) -> None:
    name, devices = model.name, [f"CPU@{core}" for core in cores]
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        found = optimize(model, devices, budget=20 if args.quick else 60, seed=args.seed, cache=cache, progress=progress)
        report.note(f"  {name}: {found.chosen.name}; {found.reason}")
        split = fastest_split(found) or found.chosen
        single = found.best_single
        assert single is not None  # PyTorch's CPU devices run every op
        with (
            Session(model, devices, cache=cache, progress=progress) as session,
            _thread(cores[:1]) as first,
            _thread(cores) as every,
        ):
            finest = session.segmenter.plan(session.groups_of(split.placement), merge=False)
            ours: dict[str, Executor | LevelByLevel] = {
                OURS: session.executor(split.plan),
                FINE: session.executor(finest),
                ONE: session.executor(single.plan),
                LEVELS: LevelByLevel(session.runtime, finest),
            }
            timers = {who: executor.time for who, executor in ours.items()}
            timers |= {ONE_CORE: _on(first, model), BOTH_CORES: _on(every, model)}
            results = settled_race(timers, rounds=10 if args.quick else 24, seed=args.seed)
            reference = session.reference({})
            errors = {who: OutputError.between(executor.outputs(), reference).max_rel for who, executor in ours.items()}
            after, waits = gaps(session, finest, runs=10)
    predicted = {OURS: split.simulated_s, FINE: finest.schedule.makespan, ONE: single.simulated_s, LEVELS: simulated(finest)}
    _rows(name, results, errors, predicted, report)
    report.row(
        graph=name,
        groups=sum(not segment.free for segment in finest.segments),
        segments=sum(not segment.free for segment in split.plan.segments),
        overhead_us=microseconds(after, 50),
        overhead_p95_us=microseconds(after, 95),
        woken_by_other_device_us=microseconds(waits, 50),
    )
    report.claim(f"{name}: host overhead per op launched, median", microseconds(after, 50), "us", at_most=15)


def _rows(
    name: str,
    results: Mapping[str, Measurement],
    errors: Mapping[str, float],
    predicted: Mapping[str, float],
    report: Report,
) -> None:
    for who, measured in results.items():
        ratio = faster(measured, results[ONE])
        report.row(
            graph=name,
            candidate=who,
            median_ms=measured.median * 1e3,
            ci_low_ms=measured.ci_low * 1e3,
            ci_high_ms=measured.ci_high * 1e3,
            ratio_to_one_device=ratio.ratio,
            ratio_low=ratio.ci_low,
            ratio_high=ratio.ci_high,
            simulated_ms=predicted[who] * 1e3 if who in predicted else None,
            output_error=errors.get(who),
        )
    for other in (ONE, ONE_CORE, BOTH_CORES):
        report.claim(f"{name}: placeit on two devices over {other}", faster(results[OURS], results[other]).ratio, "")
    report.claim(f"{name}: {LEVELS}, over placeit: measured", faster(results[LEVELS], results[FINE]).ratio, "")
    report.claim(f"{name}: {LEVELS}, over placeit: simulated", predicted[LEVELS] / predicted[FINE], "")


def _thread(cores: tuple[int, ...]) -> ThreadPoolExecutor:
    """A thread that is bound to cores, on which PyTorch computes with as many threads, bound to them as well."""

    def bind() -> None:
        os.sched_setaffinity(0, cores)
        use_threads(len(cores))

    return ThreadPoolExecutor(1, initializer=bind)


def _on(thread: ThreadPoolExecutor, model: TensorProgram) -> Callable[[], float]:
    """Time the uncut program, by a clock on the thread that runs it."""
    once = timed(lambda: model.whole.run(model.values))
    return lambda: thread.submit(once).result()
