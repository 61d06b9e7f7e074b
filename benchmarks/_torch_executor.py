"""Latency of tensor graphs on two one-core devices that PyTorch drives, for ``python -m benchmarks.executor --backend torch``.

All candidates of a graph run in one race, interleaved, and every ratio is paired by round. Plain PyTorch runs the uncut
program; for all other candidates the graph is cut into shards. Plain PyTorch with the same shards separates the cost of cutting
from placeit's effect. All candidates run in one process, which keeps the memory that they free: otherwise most of the time of
FFNN would be page faults, whose number varies by chance. The remaining number of page faults is in the rows. Plain PyTorch on
one core gets the core of the one device.

Level by level is the order of bulk-synchronous systems: the same placement and the same segments, one for each group of ops,
but no device starts a level of the graph before all have ended the one before. placeit's gain over that order is also
simulated, for both orders from the same measured costs and the measured time of a level without work. Equal devices that share
every level evenly gain little, so the same race is run with the second device slowed to half its speed, where levels can leave
one of them idle. In both cases, ``placeit.optimize`` finds the placement.

The host overhead of an op is the time of an op in a chain of ops that compute next to nothing, each launched separately: all of
it is spent on the host. In the graph it is the time between two ops on a device where the second was ready when the first
ended, with each group of ops launched separately. It is given between segments, which is the time that the executor adds, and
from the last kernel of the first op to the first kernel of the second, by clocks beside the kernels, which is all the host's
work. The machine influences that time, too. So it is shown together with the slowdown of an ordinary piece of Python after as
much work as an op.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from benchmarks._dispatch import gaps, microseconds, slower_after
from benchmarks._harness import Args, Report, timed
from benchmarks._levels import EMPTY_LEVELS, LevelByLevel, empty_levels, simulated
from benchmarks._models import fastest_split, progress, settled_race, two_cores
from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.memory import keep_freed_memory
from placeit.devices import discover
from placeit.learning.workloads.tensor_graphs import TENSOR_GRAPHS
from placeit.learning.workloads.tensor_program import TensorProgram, tensor_model
from placeit.learning.workloads.tensors import BlockProgram, ProgramOp, ProgramSegment
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import faster
from placeit.optimizer.options import Candidates
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime.devices.pytorch import use_threads
from placeit.runtime.drivers import drive
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import Runtime
from placeit.session import Session, optimize

ONE, OURS, FINE, LEVELS = "placeit, one device", "placeit", "placeit, each group a segment", "level by level, the same segments"
ONE_CORE, BOTH_CORES, SHARDS = "PyTorch, one core", "PyTorch, both cores", "PyTorch, the same shards, one core"
_EMPTY = "levels that compute nothing"
EQUAL, UNEQUAL = "two cores", "two cores, one at half speed"

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
_SLOWDOWN = 2.0
_HOPS, _REPEATS = 256, 41


def run(args: Args, report: Report) -> None:
    """Fill the report."""
    strangers = [name for name in args.models if name not in TENSOR_GRAPHS]
    if strangers:
        raise UsageError(f"'{strangers[0]}' is no tensor graph; --backend torch runs {', '.join(TENSOR_GRAPHS)}.")
    keep_freed_memory()
    cores = two_cores()
    equal = discover([f"CPU@{core}" for core in cores])
    first, second = equal.devices
    unequal = replace(equal, devices=(first, replace(second, slowdown=_SLOWDOWN)))
    for name in args.models or ("chain-mm", "ffnn"):
        model = tensor_model(name, shards=_SHARDS, seed=args.seed, **(QUICK[name] if args.quick else {}))
        with tempfile.TemporaryDirectory() as folder:
            cache = Cache(Path(folder))
            plan = _compare(model, equal, EQUAL, cache, args, report)
            _overhead(model, equal, plan, cache, report)
            _compare(model, unequal, UNEQUAL, cache, args, report)


def _compare(model: TensorProgram, cluster: Cluster, where: str, cache: Cache, args: Args, report: Report) -> Plan:
    """Race placeit's placement of a graph against others, and return its plan that has each group as a segment."""
    what = f"{model.name}, {where}"
    budget = 20 if args.quick else 60
    # the cores stand for two devices; PyTorch on both cores is a separate row
    found = optimize(
        model, cluster, budget=budget, seed=args.seed, candidates=Candidates(plain=False), cache=cache, progress=progress
    )
    report.note(f"  {what}: {found.chosen.name}; {found.reason}")
    split = fastest_split(found) or found.chosen
    single = found.best_single
    assert single is not None  # PyTorch's CPU devices run every op
    every = tuple(core for device in cluster.devices for core in device.cores)
    one = next(device.cores for device in cluster.devices if single.placement.counts()[device.name])
    with Session(model, cluster, cache=cache) as session, empty_levels(session.cluster) as empty:
        session.profile(progress=progress)
        finest = session.segmenter.plan(session.placing.groups_of(split.placement), merge=False)
        ours: dict[str, PlanExecutor | LevelByLevel] = {
            OURS: session.executor(split.plan),
            FINE: session.executor(finest),
            ONE: session.executor(single.plan),
            LEVELS: LevelByLevel(session.runtime, finest),
        }
        timers = {who: executor.time for who, executor in ours.items()} | {_EMPTY: empty.time}
        timers |= {ONE_CORE: _on(one, model.whole, model), SHARDS: _on(one, model.program, model)}
        if where == EQUAL:  # nothing slows PyTorch's threads down
            timers |= {BOTH_CORES: _on(every, model.whole, model)}
        candidates = {who: _Counted(timer) for who, timer in timers.items()}
        results = settled_race(candidates, rounds=10 if args.quick else 24, seed=args.seed)
        reference = session.reference({})
        errors = {who: OutputDifference.between(executor.outputs(), reference).max_rel for who, executor in ours.items()}
        dispatch = float(session.costs.dispatch.max())
    level = results.pop(_EMPTY).median / EMPTY_LEVELS
    predicted = {
        OURS: split.simulated_s,
        FINE: finest.schedule.makespan,
        ONE: single.simulated_s,
        LEVELS: simulated(finest, dispatch, level),
    }
    for who, measured in results.items():
        ratio = faster(measured, results[ONE])
        report.row(
            graph=model.name,
            devices=where,
            candidate=who,
            median_ms=measured.median * 1e3,
            ratio_to_one_device=ratio.ratio,
            ratio_low=ratio.ci_low,
            ratio_high=ratio.ci_high,
            simulated_ms=predicted[who] * 1e3 if who in predicted else None,
            page_faults=median(candidates[who].faults),
            output_error=errors.get(who),
        )
    for other in (who for who in (ONE, ONE_CORE, BOTH_CORES) if who in results):
        report.claim(f"{what}: placeit over {other}", faster(results[OURS], results[other]).ratio, "")
    margin, expected = faster(results[LEVELS], results[FINE]), predicted[LEVELS] / predicted[FINE]
    report.row(
        graph=model.name,
        devices=where,
        levels_over_placeit=margin.ratio,
        margin_low=margin.ci_low,
        margin_high=margin.ci_high,
        simulated_margin=expected,
        empty_level_us=level * 1e6,
        dispatch_us=dispatch * 1e6,
    )
    report.claim(f"{what}: {LEVELS}, over placeit", margin.ratio, "")
    report.claim(f"{what}: the same, simulated: error", abs(expected / margin.ratio - 1) * 100, "%", at_most=10)
    return finest


def _overhead(model: TensorProgram, cluster: Cluster, plan: Plan, cache: Cache, report: Report) -> None:
    """Report the time for placeit to launch an op."""
    noted, times = noting(model)
    with Session(noted, cluster, cache=cache) as session:
        tiny = _launching(model, cluster) * 1e6
        report.row(graph=model.name, overhead="ops that compute nothing", overhead_us=tiny)
        report.claim(f"{model.name}: host overhead per op launched, ops that compute nothing", tiny, "us", at_most=15)
        work_s = plan.problem.compute[np.arange(len(plan.problem)), plan.placement]
        slower = slower_after(float(np.median(work_s[work_s > 0])))
        for what, ops in (("between segments", None), ("from kernel to kernel", times)):
            after, waits = gaps(session, plan, runs=20, ops=ops)
            median_us = microseconds(after, 50)
            report.row(
                graph=model.name,
                overhead=what,
                launches=len(after),
                overhead_us=median_us,
                overhead_p95_us=microseconds(after, 95),
                woken_by_other_device_us=microseconds(waits, 50),
                any_python_slower=slower,
            )
            report.claim(f"{model.name}: host overhead per op launched, {what}, median", median_us, "us")


def _launching(model: TensorProgram, cluster: Cluster) -> float:
    """Return the seconds of an op in a chain of ops that compute next to nothing, each a segment, on the first device."""
    chain, one = model.chain(1, _HOPS), Cluster(cluster.devices[:1])
    grouping = Grouping.singletons(chain.graph)
    groups = len(grouping.groups)
    with Runtime(chain, grouping, drive(one, chain)) as runtime:
        plan = Segmenter(grouping, Costs.zero(groups, runtime.cluster)).plan([0] * groups, merge=False)
        with runtime.executor(plan) as executor:
            return median([executor.time() for _ in range(_REPEATS)][1:]) / _HOPS


def noting(model: TensorProgram) -> tuple[TensorProgram, Mapping[str, tuple[float, float]]]:
    """Return the same model with ops that record when they begin and end, and where they do so, by name."""
    times: dict[str, tuple[float, float]] = {}

    def noted(op: ProgramOp) -> ProgramOp:
        def run(*blocks: torch.Tensor) -> torch.Tensor:
            begin = time.perf_counter()
            result = op.run(*blocks)
            times[op.name] = begin, time.perf_counter()
            return result

        return replace(op, run=run)

    program = model.program
    return replace(model, program=replace(program, ops=tuple(noted(op) for op in program.ops))), times


def _on(cores: tuple[int, ...], program: BlockProgram, model: TensorProgram) -> Callable[[], float]:
    """Time a program op after op on some cores, with as many threads, by the main thread.

    The main thread can keep freed tensors of any size, unlike other threads; see :mod:`placeit.core.memory`.
    """
    leave = [block.tensor for whole in program.outputs.values() for block in whole.blocks]
    once = timed(torch.inference_mode()(ProgramSegment(program.ops, (), leave, program.split(model.values)).forward))

    def run() -> float:
        allowed, threads = os.sched_getaffinity(0), torch.get_num_threads()
        os.sched_setaffinity(0, cores)
        use_threads(len(cores))
        try:
            return once()
        finally:
            use_threads(threads)
            os.sched_setaffinity(0, allowed)

    return run


class _Counted:
    """A candidate that counts its page faults."""

    def __init__(self, candidate: Callable[[], float]) -> None:
        self._candidate = candidate
        self.faults: list[int] = []

    def __call__(self) -> float:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        seconds = self._candidate()
        self.faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        return seconds
