"""The accuracy of the simulator: random and chosen placements, simulated before and measured after.

Half of the random placements are dense (each group on a random device), half are a few runs of consecutive groups. They are
simulated twice: with the costs as profiled, which use no placement of the model, and with costs corrected by the segment times
of a handful of other placements, as ``placeit optimize`` corrects them.

Chosen placements are the answers of HEFT and CPOP, and the results of a search among plans that starts from them. For these,
only the sign counts: whether they are faster than the whole model on the first device, as simulated and as measured. If the
interval of a measured ratio contains 1, the placement is left out.

Models that memory bounds (``benchmarks/_memory_bound.py``: 64 MB of weights and one row, an LSTM, a decoder's step, two
branches) are measured differently: each placement runs alone, in a separate process, as a user runs it, because its time
depends on the contents of the caches. No lower bound may be above a measured split.

Other models are three large ones built from their papers, and three small real ones that are part of the packages
``rapidocr-onnxruntime`` and ``magika``. On two equal cores, all placements of some models take about the same time, so noise of
a few per cent decides the correlation; with one core slowed 1.5 times behind an emulated link, placements differ more.

Placements are measured in blocks, the whole model on one device interleaved with them in every block; the variation of that
device's time between blocks is given as drift. The control is two passes side by side, one on each device, over passes alone:
both cores are free if it is near 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmarks import _memory_bound
from benchmarks._harness import Args, Report, main
from benchmarks._memory_bound import MEMORY_BOUND
from benchmarks._models import MODELS, PACKAGED, load_model, progress, random_splits, side_by_side, two_cores
from placeit.core.cluster import Cluster, Link
from placeit.devices import discover
from placeit.measuring.measure import Race
from placeit.measuring.statistics import Measurement, faster
from placeit.placers.registry import parse_placer
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.calibration import calibrated
from placeit.profiler.prediction_error import mape, pearson, spearman
from placeit.session import Session
from placeit.simulator.simulate import SimulatedCost

_ALONE = "alone"
_VARIED = "inception_v3"  # model that is also run on unequal devices and by other runtimes
_BLOCK = 10  # placements that are measured at a time: the compiled segments of each take memory
_OTHERS = 6  # placements that the simulator is calibrated on
_STEPS = 600  # steps of a search among plans


def run(args: Args, report: Report) -> None:
    first, second = (f"CPU@{core}" for core in two_cores())
    names = args.models or ((_VARIED, MEMORY_BOUND[-1]) if args.quick else (*MODELS, *PACKAGED, *MEMORY_BOUND))
    for name in names:
        if name in MEMORY_BOUND:
            _memory_bound.run(name, report, quick=args.quick, seed=args.seed)
            continue
        _model(name, discover([first, second]), args, report)
    if not args.quick and _VARIED in names:
        for cluster in (
            _unequal(first, second),
            discover([f"ort:{first}", f"ort:{second}"]),
            discover([first, f"ort:{second}"]),
        ):
            _model(_VARIED, cluster, args, report)


def _unequal(first: str, second: str) -> Cluster:
    """Return a core, and one slowed 1.5 times behind a link of 10 Gbit/s and 50 us."""
    fast, slow = discover([first, second]).devices
    link = Link(10e9 / 8, 50e-6, "emulated")
    devices = (replace(fast, name="fast"), replace(slow, name="slow, 1.5 x", slowdown=1.5))
    return Cluster(devices, {(a.name, b.name): link for a in devices for b in devices if a is not b})


def _model(model: str, cluster: Cluster, args: Args, report: Report) -> None:
    random = np.random.default_rng(args.seed)
    where = f"{model} on {' + '.join(cluster.names)}"
    with Session(load_model(model), cluster, cache=None) as session:
        session.profile(progress=progress)
        groups, rounds = len(session.grouping.groups), 8 if args.quick else 12
        asked = random_splits(random, groups, 12 if args.quick else 50)
        profiled = session.segmenter
        chosen = _chosen(session, args.seed)
        plans = [profiled.plan(placement) for placement in (*asked, *chosen.values())]
        control = side_by_side(session)
        progress(f"calibrating on {_OTHERS} placements of {where}")
        corrected = Segmenter(session.grouping, _calibrated(session, random_splits(random, groups, _OTHERS), rounds))
        measured, alone = _measure(session, plans, rounds, where)
    count = len(asked)
    before = np.array([plan.schedule.makespan for plan in plans])
    after = np.array([corrected.priced(plan).schedule.makespan for plan in plans])
    took = np.array([measurement.median for measurement in measured])
    for i, plan in enumerate(plans[:count]):
        report.row(
            model=where,
            kind="dense" if i % 2 == 0 else "runs",
            segments=len(plan.programs),
            profiled_ms=before[i] * 1e3,
            calibrated_ms=after[i] * 1e3,
            measured_ms=took[i] * 1e3,
            profiled_off_by_percent=(before[i] / took[i] - 1) * 100,
        )
    for what, predicted in (("as profiled", before[:count]), ("calibrated", after[:count])):
        report.row(
            model=where,
            simulator=what,
            placements=count,
            mean_error_percent=_percent(mape(predicted, took[:count])),
            bias_percent=float(np.mean(predicted / took[:count]) - 1) * 100,
            pearson=pearson(predicted, took[:count]),
            spearman=spearman(predicted, took[:count]),
            drift_percent=float(np.ptp([a.median for a in alone]) / np.mean([a.median for a in alone])) * 100,
            control=control,
        )
    whole = profiled.plan(np.zeros(groups, np.int32)).schedule.makespan
    right, decided = 0, 0
    for i, name in enumerate(chosen, count):
        ratio, simulated = faster(measured[i], alone[i]), before[i] / whole
        clear = ratio.ci_high < 1 or ratio.ci_low > 1
        decided += clear
        right += clear and (simulated < 1) == (ratio.ratio < 1)
        report.row(
            model=where,
            chosen_by=name,
            simulated_over_one=simulated,
            measured_over_one=ratio.ratio,
            ci_low=ratio.ci_low,
            ci_high=ratio.ci_high,
            sign=("right" if (simulated < 1) == (ratio.ratio < 1) else "wrong") if clear else "open",
        )
    report.claim(f"{where}: mean error as profiled", _percent(mape(before[:count], took[:count])), "%", at_most=10)
    report.claim(f"{where}: mean error calibrated", _percent(mape(after[:count], took[:count])), "%", at_most=10)
    report.claim(f"{where}: chosen placements with the sign right", right / decided if decided else None, "", at_least=1)


def _chosen(session: Session, seed: int) -> dict[str, NDArray[np.int32]]:
    """Return the answers of placers that use both devices, by the names of the placers."""
    problem = session.segmenter.problem()
    cost = SimulatedCost(problem)
    found = {}
    for name in ("heft", "cpop"):
        groups = problem.check(parse_placer(name).place(problem, cost, seed=seed, evaluations=None))
        found[name] = groups
        found[f"{name}, then a search among plans"] = session.segmenter.search(groups, problem, steps=_STEPS, seed=seed)
    return {name: groups for name, groups in found.items() if len(np.unique(groups)) > 1}


def _calibrated(session: Session, placements: Sequence[NDArray[np.int32]], rounds: int) -> Costs:
    plans = [session.segmenter.plan(placement) for placement in placements]
    executors = [session.executor(plan) for plan in plans]
    Race({str(i): executor.time for i, executor in enumerate(executors)}).run(rounds=rounds, drop_losers=False)
    costs = calibrated(session.costs, [(plan, e.segment_seconds()) for plan, e in zip(plans, executors, strict=True)])
    for executor in executors:
        executor.close()
    return costs


def _measure(session: Session, plans: Sequence[Plan], rounds: int, where: str) -> tuple[list[Measurement], list[Measurement]]:
    """Measure each plan, and the whole model on the first device in the same rounds."""
    whole = session.segmenter.plan(np.zeros(len(session.grouping.groups), np.int32))
    measured: list[Measurement] = []
    alone: list[Measurement] = []
    for first in range(0, len(plans), _BLOCK):
        block = plans[first : first + _BLOCK]
        progress(f"measuring placements {first + 1} to {first + len(block)} of {len(plans)} of {where}")
        executors = {_ALONE: session.executor(whole)} | {str(i): session.executor(plan) for i, plan in enumerate(block)}
        results = Race({name: executor.time for name, executor in executors.items()}).run(rounds=rounds, drop_losers=False)
        measured += [results[str(i)] for i in range(len(block))]
        alone += [results[_ALONE]] * len(block)
        for executor in executors.values():
            executor.close()
    return measured, alone


def _percent(share: float | None) -> float | None:
    return None if share is None else share * 100


if __name__ == "__main__":
    main("fidelity", run, models=(*MODELS, *PACKAGED, *MEMORY_BOUND))
