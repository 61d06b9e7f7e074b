"""Whether learning from runs belongs into the default search: ``placeit optimize`` with and without it, with equal budgets.

Three models on two clusters of two cores, of which one is slowed 2 and 3 times, so that placements differ. Both searches begin
with the same profiled costs, and their answers are raced against each other, interleaved. Where the search without learning
finds nothing new, it ends before its budget does; the rows have the seconds of both. ``--quick`` is one case with 40 s.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, model_file, progress, two_cores
from placeit.backends import load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.optimizer.optimize import optimize
from placeit.optimizer.portfolio import LEARNING, PORTFOLIO
from placeit.optimizer.result import Optimized
from placeit.profiler.cache import Cache
from placeit.runtime.measure import Ratio, faster, race
from placeit.session import Session

_SLOWDOWNS = (2.0, 3.0)
_BUDGET_S, _QUICK_BUDGET_S = 300.0, 40.0
_ROUNDS = 40
_WITHOUT, _WITH = "without learning", "with learning"


def run(args: Args, report: Report) -> None:
    models = args.models or (("resnet50",) if args.quick else MODELS)
    ratios: list[Ratio] = []
    for name in models:
        for slowdown in _SLOWDOWNS[:1] if args.quick else _SLOWDOWNS:
            ratio = _case(name, slowdown, args, report)
            if ratio is not None:
                ratios.append(ratio)
                label = f"{name}, {slowdown:g} times slower core: time of the answer with learning over that without"
                report.claim(f"{label}, upper end of its interval", ratio.ci_high, "")
    mean = math.exp(np.log([ratio.ratio for ratio in ratios]).mean()) if ratios else None
    report.claim("time of the answer with learning over that without, geometric mean of all cases", mean, "")
    # what would have to hold for learning to be part of PORTFOLIO
    report.claim(
        "cases in which the answer with learning is faster beyond the interval",
        sum(ratio.faster for ratio in ratios),
        "",
        at_least=1,
    )
    report.claim("cases in which it is slower", sum(ratio.ci_low > 1 for ratio in ratios), "", at_most=0)


def _cluster(slowdown: float) -> Cluster:
    fast, slow = (Address("CPU", (core,)) for core in two_cores())
    return Cluster((Device("fast", address=fast), Device("slow", address=slow, slowdown=slowdown)))


def _case(name: str, slowdown: float, args: Args, report: Report) -> Ratio | None:
    """Search twice and race the answers; the ratio is None where one of them does not run any more."""
    model, cluster = load(model_file(name)), _cluster(slowdown)
    budget = _QUICK_BUDGET_S if args.quick else _BUDGET_S
    placers = tuple(PORTFOLIO)
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder))
        with Session(model, cluster, cache=cache) as session:
            session.profile(budget_s=30, progress=progress)
        found: dict[str, Optimized] = {}
        for what, asked in ((_WITHOUT, placers), (_WITH, (*placers, LEARNING))):
            progress(f"{name}, a core slowed {slowdown:g} times, {what}")
            found[what] = optimize(model, cluster, placers=asked, budget=budget, seed=args.seed, cache=cache, plain=False)
        with Session(model, cluster, cache=cache) as session:
            session.profile()
            ratio = _raced(session, found, args.seed)
    learned = next(one for one in found[_WITH].spending if one.what == LEARNING)
    for what, one in found.items():
        single = one.speedup
        report.row(
            model=name,
            slowdown=slowdown,
            search=what,
            spent_s=one.spent_s,
            answer=one.chosen.name,
            speedup_over_single=None if single is None else single.ratio,
            learned_s=learned.seconds if what == _WITH else None,
            learned=learned.note if what == _WITH else None,
            over_without=ratio.ratio if what == _WITH and ratio is not None else None,
            low=ratio.ci_low if what == _WITH and ratio is not None else None,
            high=ratio.ci_high if what == _WITH and ratio is not None else None,
        )
    return ratio


def _raced(session: Session, found: dict[str, Optimized], seed: int) -> Ratio | None:
    """Time of the answer with learning over that without, of the same rounds; 1 if they are the same."""
    if found[_WITH].placement.as_dict() == found[_WITHOUT].placement.as_dict():
        return Ratio(1.0, 1.0, 1.0)
    plans = {what: session.plan_of(one.placement) for what, one in found.items()}
    executors = {what: session.executor(plan) for what, plan in plans.items()}
    try:
        results = race({what: one.time for what, one in executors.items()}, rounds=_ROUNDS, seed=seed, drop_losers=False)
    finally:
        for executor in executors.values():
            executor.close()
    return faster(results[_WITH], results[_WITHOUT]) if len(results) == len(plans) else None


if __name__ == "__main__":
    main("portfolio", run, models=MODELS)
