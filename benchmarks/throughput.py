"""Throughput: simulated against measured, replicas against one core and OpenVINO's throughput mode, and unequal devices.

Compared candidates take turns, round by round; ratios of seconds per request are paired by round, with their intervals.

- Two equal cores: seconds per request of single cores, replicas, random splits and the best split that a search finds, as they
  were simulated before any of them ran, and as they are measured with many requests in flight; replicas against one core, and
  against OpenVINO's throughput mode on as many cores (of the process: run it with ``taskset`` where it has more).
- ``slowed``: a core, and one slowed three times; ``memory``: a core, and one that can hold 60 % of the weights. The best split
  found against the best replicas (or the only device that serves whole requests), and the simulated values of both.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import load_model, progress, random_splits, settled_race, two_cores
from placeit.backends.base import Model
from placeit.backends.openvino.model import OpenVinoModel
from placeit.backends.openvino.own_mode import OwnModeRunner
from placeit.core.cluster import Cluster
from placeit.devices.clusterfile import discover
from placeit.devices.openvino import target_name
from placeit.devices.own_modes import OwnMode
from placeit.measuring.statistics import Measurement, faster
from placeit.optimizer.candidates import Candidate
from placeit.optimizer.deployed import Deployed
from placeit.optimizer.options import Candidates
from placeit.optimizer.replicas import replicated
from placeit.optimizer.result import Optimized
from placeit.planning.in_flight import in_flight
from placeit.planning.segments import Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.profiler.prediction_error import mape
from placeit.session import Session, optimize
from placeit.simulator.objectives.throughput import Throughput

_MODELS = ("inception_v3", "resnet50")
_ONE, _REPLICAS, _OPENVINO, _SEARCHED = "one core", "replicas", "OpenVINO, throughput mode", "searched split"
_SLOWDOWN, _HELD = 3.0, 0.6
_BUDGET_S, _QUICK_S = 180.0, 30.0
_SAYS = 0.98  # share of the best replicas' time below which the simulator predicts that a split wins


def run(args: Args, report: Report) -> None:
    for name in args.models or (_MODELS[:1] if args.quick else _MODELS):
        model = load_model(name)
        with tempfile.TemporaryDirectory() as folder:
            cache = Cache(Path(folder), runs=False)
            _equal(name, model, cache, args, report)
            one, other = discover([f"CPU@{core}" for core in two_cores()]).devices
            weights = float(model.graph.param_bytes.sum())
            slow = replace(other, name="slowed", slowdown=_SLOWDOWN)
            small = replace(other, name="small", memory_bytes=_HELD * weights)
            for case, device in (("slowed", slow), ("memory", small)):
                _unequal(f"{name}, {case}", model, Cluster((one, device), {}), cache, args, report)


def value_of(plans: list[Plan]) -> float:
    """Return the simulated seconds per request of replicas, or of one plan."""
    return 1 / sum(1 / each for each in map(Throughput().of_plan, plans))


def deployed(session: Session, plans: list[Plan]) -> Deployed:
    """Open plans that serve whole requests, as `placeit optimize` measures them."""
    opened = [partial(session.executor, plan, in_flight=in_flight(plan)) for plan in plans]
    return Deployed(opened, plans)


def _equal(name: str, model: Model, cache: Cache, args: Args, report: Report) -> None:
    """Compare on two cores: simulated with measured times, and replicas with one core and OpenVINO."""
    with Session(model, [f"CPU@{core}" for core in two_cores()], cache=cache) as session, ExitStack() as stack:
        progress(f"{name}: profiling")
        segmenter = Segmenter(session.grouping, session.profile(budget_s=10 if args.quick else 60), steady=True)
        random, groups = np.random.default_rng(args.seed), len(session.grouping.groups)
        wholes = [segmenter.plan(np.full(groups, d)) for d in range(2)]
        plans = {f"{_ONE}, {d}": [whole] for d, whole in enumerate(wholes)} | {_REPLICAS: replicated(segmenter, wholes)}
        for number, split in enumerate(random_splits(random, groups, 2 if args.quick else 6)):
            plans[f"random split {number}"] = [segmenter.plan(split)]
        problem = segmenter.problem()
        half = (np.arange(groups) >= groups // 2).astype(np.int32)
        steps = 100 if args.quick else 2000
        plans[_SEARCHED] = [segmenter.plan(segmenter.search(half, problem, steps=steps, seed=args.seed))]
        timers: dict[str, Callable[[], float]] = {}
        for who, some in plans.items():
            progress(f"{name}: compiling {who}")
            timers[who] = stack.enter_context(deployed(session, some)).time
        (both,) = discover("CPU@" + "+".join(map(str, two_cores()))).devices
        mode = OwnMode(_OPENVINO, target_name(both), (both,), steady=True)
        theirs = stack.enter_context(contextlib.closing(OwnModeRunner(cast("OpenVinoModel", model), mode, session.precision)))
        timers[_OPENVINO] = theirs.time
        found = settled_race(timers, rounds=6 if args.quick else 25, seed=args.seed)
    simulated = {who: value_of(some) for who, some in plans.items()}
    _rows(name, "fidelity", found, simulated, report)
    error = mape(list(simulated.values()), [found[who].median for who in simulated])
    report.claim(f"{name}: mean error of simulated seconds per request", error, "", at_most=0.1)
    singles = [found[f"{_ONE}, {d}"] for d in range(2)]
    best = min(singles, key=lambda one: one.median)
    gain = faster(best, found[_REPLICAS])
    report.row(model=name, ratio=f"{_ONE} over {_REPLICAS}", value=gain.ratio, low=gain.ci_low, high=gain.ci_high)
    report.claim(f"{name}: throughput of two cores, relative to the better one", gain.ratio, "", at_least=1.8)
    beside = faster(found[_REPLICAS], found[_OPENVINO])
    report.row(model=name, ratio=f"{_REPLICAS} over {_OPENVINO}", value=beside.ratio, low=beside.ci_low, high=beside.ci_high)
    report.claim(f"{name}: seconds per request, relative to {_OPENVINO}", beside.ratio, "", at_most=1.1)


def _unequal(case: str, model: Model, cluster: Cluster, cache: Cache, args: Args, report: Report) -> None:
    """Race the best split found against the best replicas."""
    progress(f"{case}: optimizing")
    budget = _QUICK_S if args.quick else _BUDGET_S
    found = optimize(
        model, cluster, objective="throughput", budget=budget, seed=args.seed, candidates=Candidates(plain=False), cache=cache
    )
    _found(case, found, report)
    whole = _best(found, splits=False)
    split = _best(found, splits=True)
    if whole is None or split is None or whole.simulated_value is None or split.simulated_value is None:
        report.note(f"{case}: there is nothing to compare")
        report.claim(f"{case}: seconds per request of the best split over the best replicas", None, "")
        return
    with Session(model, cluster, cache=cache) as session, ExitStack() as stack:
        timers = {one.name: stack.enter_context(deployed(session, list(one.plans))).time for one in (split, whole)}
        raced = settled_race(timers, rounds=6 if args.quick else 25, seed=args.seed)
    ratio, says = faster(raced[split.name], raced[whole.name]), split.simulated_value / whole.simulated_value
    report.row(
        case=case,
        split=split.name,
        replicas=whole.name,
        simulated=says,
        ratio=ratio.ratio,
        low=ratio.ci_low,
        high=ratio.ci_high,
    )
    wins = says < _SAYS
    report.claim(
        f"{case}: seconds per request of the best split over the best replicas"
        f" (simulated {says:.3f}: a split {'wins' if wins else 'does not win'})",
        ratio.ci_high if wins else ratio.ratio,
        "",
        at_most=1 if wins else None,
    )


def _found(case: str, found: Optimized, report: Report) -> None:
    for one in found.candidates:
        measured = one.measured
        report.row(
            case=case,
            candidate=one.name,
            placer=one.placer,
            chosen=one is found.chosen,
            segments=one.segments,
            simulated_ms=None if one.simulated_s is None else one.simulated_s * 1e3,
            measured_ms=None if measured is None else measured.median * 1e3,
        )
    report.row(case=case, answer=found.chosen.name, reason=found.reason)


def _best(found: Optimized, *, splits: bool) -> Candidate | None:
    """Return the best candidate, as measured or else as simulated, among splits or among candidates for whole requests."""
    some = [one for one in found.candidates if (one.placer not in ("single", "replicas")) == splits and one.failed is None]
    some = [one for one in some if not splits or len(np.unique(one.groups)) > 1]
    return min(
        some,
        key=lambda one: one.simulated_value or math.inf if one.value is None else one.value.median,
        default=None,
    )


def _rows(name: str, what: str, found: Mapping[str, Measurement], simulated: Mapping[str, float], report: Report) -> None:
    for who, measured in found.items():
        said = simulated.get(who)
        report.row(
            model=name,
            what=what,
            plan=who,
            simulated_ms=None if said is None else said * 1e3,
            measured_ms=measured.median * 1e3,
            low_ms=measured.ci_low * 1e3,
            high_ms=measured.ci_high * 1e3,
            error=None if said is None else said / measured.median - 1,
            requests_per_s=1 / measured.median,
        )


if __name__ == "__main__":
    main("throughput", run, models=_MODELS)
