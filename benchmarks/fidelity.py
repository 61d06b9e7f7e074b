"""How well the simulator predicts real runs: random placements, simulated before and measured after.

Half of the placements are dense (each group on a random device), half are a few random runs of consecutive groups. The
simulator is used as ``placeit optimize`` uses it: profiled costs, corrected by what the segments of a handful of other
placements took. What the profile alone says of the same segments is given beside it.

On two equal cores any placement takes about the same time, so noise of a few per cent decides the correlation; with one core
slowed 1.5 times behind an emulated link placements differ more.

Placements are measured in blocks, the whole model on one device interleaved with them in every block. The claims are about
the times as measured; "at one speed" scales the times of each block by what that device did there, which shows how much of
the error is the machine's drift.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, model_file, progress, two_cores
from placeit.cluster import Cluster, Link
from placeit.devices import discover
from placeit.profiler.calibration import calibrated
from placeit.profiler.statistics import mape, pearson, spearman
from placeit.runtime.executor import PlanExecutor
from placeit.runtime.measure import Measurement, race
from placeit.runtime.segments import Costs, Plan, Segmenter
from placeit.session import Session

_ALONE = "alone"
_BLOCK = 10  # placements that are measured at a time: each has compiled segments of its own, which take memory
_OTHERS = 6  # placements that the simulator is calibrated on


def run(args: Args, report: Report) -> None:
    cores = [f"CPU@{core}" for core in two_cores()]
    for name in args.models or (("inception_v3",) if args.quick else ("inception_v3", "resnet50")):
        _model(name, "equal cores", discover(cores), args, report)
    if not args.quick:
        _model((args.models or ("inception_v3",))[0], "unequal cores", _unequal(cores), args, report)


def _unequal(cores: list[str]) -> Cluster:
    """A core, and one slowed 1.5 times behind a link of 10 Gbit/s and 50 us."""
    fast, slow = discover(cores).devices
    link = Link(10e9 / 8, 50e-6, "emulated")
    devices = (replace(fast, name="fast"), replace(slow, name="slow", slowdown=1.5))
    return Cluster(devices, {("fast", "slow"): link, ("slow", "fast"): link})


def _model(model: str, where: str, cluster: Cluster, args: Args, report: Report) -> None:
    random = np.random.default_rng(args.seed)
    name = f"{model}, {where}"
    with Session(model_file(model), cluster, progress=progress) as session:
        groups, rounds = len(session.grouping.groups), 8 if args.quick else 12
        others = _placements(random, groups, _OTHERS)
        asked = _placements(random, groups, 12 if args.quick else 50)
        progress(f"calibrating on {_OTHERS} placements of {name}")
        costs = _calibrated(session, others, rounds)
        segmenter = Segmenter(session.grouping, costs)
        plans = [segmenter.plan(placement) for placement in asked]
        simulated = np.array([plan.schedule.makespan for plan in plans])
        profiled = np.array([session.segmenter.priced(plan).schedule.makespan for plan in plans])
        measured, speed = _measure(session, plans, rounds, name)
    kinds = ["dense" if i % 2 == 0 else "runs" for i in range(len(plans))]
    for i, plan in enumerate(plans):
        report.row(
            model=name,
            kind=kinds[i],
            segments=sum(not segment.free for segment in plan.segments),
            profiled_ms=profiled[i] * 1e3,
            simulated_ms=simulated[i] * 1e3,
            measured_ms=measured[i] * 1e3,
            error_percent=(simulated[i] / measured[i] - 1) * 100,
        )
    steady = measured / speed
    for what, predicted, actual in (
        ("profile alone", profiled, measured),
        ("calibrated", simulated, measured),
        ("calibrated, at one speed", simulated, steady),
    ):
        report.row(
            model=name,
            simulator=what,
            placements=len(plans),
            pearson=pearson(predicted, actual),
            spearman=spearman(predicted, actual),
            mape_percent=_percent(mape(predicted, actual)),
            drift_percent=float(np.ptp(speed)) * 100,
        )
    report.claim(f"{name}: Pearson, simulated and measured", pearson(simulated, measured), "", at_least=0.95)
    report.claim(f"{name}: mean error of the simulator", _percent(mape(simulated, measured)), "%", at_most=10)


def _placements(random: np.random.Generator, groups: int, count: int) -> list[NDArray[np.int32]]:
    """Random placements on two devices, both used: dense ones and ones of a few runs, in turn."""
    placements: list[NDArray[np.int32]] = []
    while len(placements) < count:
        if len(placements) % 2 == 0:
            # a share of its own for each, so that not all of them are half and half
            devices = (random.random(groups) < random.uniform(0.1, 0.9)).astype(np.int64)
        else:
            ends = np.sort(random.choice(np.arange(1, groups), size=int(random.integers(1, 7)), replace=False))
            devices = (np.searchsorted(ends, np.arange(groups), side="right") + int(random.integers(2))) % 2
        if 0 < np.count_nonzero(devices) < groups:
            placements.append(devices.astype(np.int32))
    return placements


def _calibrated(session: Session, placements: Sequence[NDArray[np.int32]], rounds: int) -> Costs:
    plans = [session.segmenter.plan(placement) for placement in placements]
    executors = [session.executor(plan) for plan in plans]
    race({str(i): executor.time for i, executor in enumerate(executors)}, rounds=rounds, drop_losers=False)
    costs = calibrated(session.costs, [(plan, e.segment_seconds()) for plan, e in zip(plans, executors, strict=True)])
    del executors
    session.close()  # and with it the compiled segments; it opens again when it is used
    return costs


def _measure(
    session: Session, plans: Sequence[Plan], rounds: int, name: str
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the median seconds of each plan, and how slow the machine was then, 1 on average."""
    alone = session.segmenter.plan(np.zeros(len(session.grouping.groups), np.int32))
    measured, speed = np.zeros(len(plans)), np.zeros(len(plans))
    for first in range(0, len(plans), _BLOCK):
        numbers = range(first, min(first + _BLOCK, len(plans)))
        progress(f"measuring placements {first + 1} to {numbers[-1] + 1} of {len(plans)} of {name}")
        results = _block(session, {_ALONE: alone} | {str(i): plans[i] for i in numbers}, rounds)
        for i in numbers:
            measured[i], speed[i] = results[str(i)].median, results[_ALONE].median
        session.close()
    return measured, speed / speed.mean()


def _block(session: Session, plans: dict[str, Plan], rounds: int) -> dict[str, Measurement]:
    executors: dict[str, PlanExecutor] = {name: session.executor(plan) for name, plan in plans.items()}
    return race({name: executor.time for name, executor in executors.items()}, rounds=rounds, drop_losers=False)


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


if __name__ == "__main__":
    main("fidelity", run, models=MODELS)
