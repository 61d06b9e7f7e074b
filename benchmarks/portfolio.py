"""Learned placers in the default search: ``placeit optimize`` alone, with the shipped policies, and with a surrogate.

The surrogate also learns from runs. All searches have equal budgets.

Three models run on two clusters of two cores, of which one is slowed 2 and 3 times, so that placements differ. All searches
begin with the same profiled costs, and their answers are raced against each other, interleaved. A search that finds nothing new
ends before its budget is over; the rows have the seconds of each. ``--quick`` is one case with 40 s.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, model_file, progress, two_cores
from placeit.backends import load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.learning.exploring import EXPLORING
from placeit.measuring.measure import Race
from placeit.measuring.statistics import Ratio, faster
from placeit.optimizer.options import Candidates
from placeit.optimizer.portfolio import DEFAULT_PLACERS
from placeit.optimizer.result import Optimized
from placeit.profiler.cache import Cache
from placeit.session import Session, optimize

_SLOWDOWNS = (2.0, 3.0)
_BUDGET_S, _QUICK_BUDGET_S = 300.0, 40.0
_ROUNDS = 40
_PLAIN = "nothing learned"
_SHIPPED = ("guided", "giph")
_SEARCHES: Mapping[str, Sequence[str]] = {
    _PLAIN: DEFAULT_PLACERS,
    "shipped policies": (*DEFAULT_PLACERS, *_SHIPPED),
    "surrogate": (*DEFAULT_PLACERS, *_SHIPPED, EXPLORING),
}


def run(args: Args, report: Report) -> None:
    models = args.models or (("resnet50",) if args.quick else MODELS)
    cases = [(name, slowdown) for name in models for slowdown in (_SLOWDOWNS[:1] if args.quick else _SLOWDOWNS)]
    ratios: dict[str, list[Ratio]] = {search: [] for search in _SEARCHES if search != _PLAIN}
    for name, slowdown in cases:
        found = _case(name, slowdown, args, report)
        for search, ratio in found.items():
            ratios[search].append(ratio)
            label = f"{name}, {slowdown:g} times slower core, {search}: time of the answer over that with {_PLAIN}"
            report.claim(f"{label}, upper end of its interval", ratio.ci_high, "")
    for search, those in ratios.items():
        mean = math.exp(np.log([ratio.ratio for ratio in those]).mean()) if those else None
        report.claim(f"{search}: time of the answer over that with {_PLAIN}, geometric mean of all cases", mean, "")
        # conditions for making these placers default placers
        faster_in = sum(ratio.faster for ratio in those)
        report.claim(f"{search}: cases in which the answer is faster beyond the interval", faster_in, "", at_least=1)
        report.claim(f"{search}: cases in which it is slower", sum(ratio.ci_low > 1 for ratio in those), "", at_most=0)


def _cluster(slowdown: float) -> Cluster:
    fast, slow = (Address("CPU", (core,)) for core in two_cores())
    return Cluster((Device("fast", address=fast), Device("slow", address=slow, slowdown=slowdown)))


def _case(name: str, slowdown: float, args: Args, report: Report) -> dict[str, Ratio]:
    """Search in all ways and race the answers: the time of each over the time of the answer found without learning."""
    model, cluster = load(model_file(name)), _cluster(slowdown)
    budget = _QUICK_BUDGET_S if args.quick else _BUDGET_S
    with tempfile.TemporaryDirectory() as folder:
        cache = Cache(Path(folder), runs=False)
        with Session(model, cluster, cache=cache) as session:
            session.profile(budget_s=30, progress=progress)
        found: dict[str, Optimized] = {}
        for search, placers in _SEARCHES.items():
            progress(f"{name}, a core slowed {slowdown:g} times, {search}")
            found[search] = optimize(
                model, cluster, candidates=Candidates(placers=placers, plain=False), budget=budget, seed=args.seed, cache=cache
            )
        with Session(model, cluster, cache=cache) as session:
            session.profile()
            ratios = _raced(session, found, args.seed)
    for search, one in found.items():
        single, ratio = one.speedup, ratios.get(search)
        learned = next((row for row in one.spending if row.what == EXPLORING), None)
        report.row(
            model=name,
            slowdown=slowdown,
            search=search,
            spent_s=one.spent_s,
            answer=one.chosen.name,
            speedup_over_single=None if single is None else single.ratio,
            learned_s=None if learned is None else learned.seconds,
            learned=None if learned is None else learned.note,
            over_nothing_learned=None if ratio is None else ratio.ratio,
            low=None if ratio is None else ratio.ci_low,
            high=None if ratio is None else ratio.ci_high,
        )
    return ratios


def _raced(session: Session, found: Mapping[str, Optimized], seed: int) -> dict[str, Ratio]:
    """Time of each answer over :data:`_PLAIN`'s in the same rounds; 1 if they are the same; without answers that fail."""
    placements = {search: tuple(one.placement.as_dict().items()) for search, one in found.items()}
    distinct = {placement: search for search, placement in reversed(placements.items())}  # the first search that found it
    if len(distinct) == 1:
        return {search: Ratio(1.0, 1.0, 1.0) for search in found if search != _PLAIN}
    executors = {search: session.executor(session.plan_of(found[search].placement)) for search in distinct.values()}
    try:
        timers = {search: executor.time for search, executor in executors.items()}
        results = Race(timers, seed=seed).run(rounds=_ROUNDS, drop_losers=False)
    finally:
        for executor in executors.values():
            executor.close()
    ratios = {}
    for search, placement in placements.items():
        same = distinct[placement]
        if search != _PLAIN and _PLAIN in results and same in results:
            ratios[search] = Ratio(1.0, 1.0, 1.0) if same == _PLAIN else faster(results[same], results[_PLAIN])
    return ratios


if __name__ == "__main__":
    main("portfolio", run, models=MODELS)
