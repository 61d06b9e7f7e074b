"""Which placement to measure next: by a surrogate's expectation, by calibrated search, at random, or by DOPPLER.

Three models are placed, each on a core beside one that is slowed 2 and 3 times. Every way of choosing begins with the same
profiled costs and has the same seconds, compiling included. Before any measurement, its answer is the single device of least
simulated time. The best placements of each way after some seconds, and after some number of measured placements, are raced once
more in the end, interleaved, and only that race counts: a regret is by how many per cent a placement takes longer than the best
one.

``calibrated search`` is the search of ``placeit optimize`` before its decision; ``surrogate`` continues from there, as with
``--placer surrogate``. Both reserve the time that the decision would take. ``DOPPLER`` imitates a list scheduler, learns by
simulation, and for four fifths of the time by measured runs (stage III). Intervals are 95 % bootstrap intervals over models and
clusters. ``--quick`` is a small model for 6 s.
"""

from __future__ import annotations

import functools
import itertools
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks._anytime_problems import measured_model, unequal_cores
from benchmarks._anytime_regret import mean_interval
from benchmarks._harness import Args, Report, main
from benchmarks._models import progress, random_splits, two_cores
from placeit.backends.base import Model
from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.learning.agent import ProblemInstance
from placeit.learning.agents.doppler.agent import DopplerAgent
from placeit.learning.exploring import explore
from placeit.learning.registry import fresh
from placeit.learning.training.loop import train
from placeit.learning.training.sources import draw_from
from placeit.learning.training.stages import Stage
from placeit.learning.training.valuing import finite_or_nan
from placeit.optimizer.improving import refine
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.measuring import improve
from placeit.optimizer.portfolio import DEFAULT_PLACERS
from placeit.optimizer.proposing import ask_all
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.placers.registry import parse_placer
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.simulator.objectives.latency import Latency
from placeit.simulator.simulate import SimulatedCost

MODELS = ("light_inception_v1", "light_inception_v2", "light_densenet121")
_QUICK = ("light_squeezenet",)
_SLOWDOWNS = (2.0, 3.0)
_SECONDS, _QUICK_SECONDS, _MEASURED = (10.0, 20.0), (3.0, 6.0), (5, 10, 20)
_ROUNDS = 15
_CALIBRATED = "calibrated search"


class Moment(NamedTuple):
    """The best placement that a way of choosing knew, for each second and each number of measured placements."""

    seconds: float
    measured: int
    best: tuple[int, ...]


Way = Callable[[Session, float, int], list[Moment]]


def _searching(*, on: bool) -> Way:
    def choose(session: Session, seconds: float, seed: int) -> list[Moment]:
        begin, moments = clock.now(), list[Moment]()
        search = Search(RunOptions(session, Latency(), begin + seconds, seed))
        raced = search.raced

        def watched(*args: Any, **options: Any) -> Any:
            found = raced(*args, **options)
            if ranked := [one for one in search.ranked if search.is_placed(one)]:
                moments.append(Moment(clock.now() - begin, len(ranked), tuple(ranked[0].groups.tolist())))
            return found

        search.raced = watched  # type: ignore[method-assign]
        search.singles(plain=False)
        ask_all(search, {name: parse_placer(name) for name in DEFAULT_PLACERS})
        refine(search)
        improve(search)
        if on:
            explore(search)
        return moments

    return choose


def _costing(learn: Callable[[Session, MeasuredCost, float, int], None]) -> Way:
    def choose(session: Session, seconds: float, seed: int) -> list[Moment]:
        begin, moments = clock.now(), list[Moment]()
        cost = MeasuredCost(session, deadline=begin + seconds, seed=seed)
        outcomes = cost.outcomes

        def watched(placements: Any) -> Any:
            found = outcomes(placements)
            if (best := cost.incumbent) is not None:
                measured = sum(one.source == "measured" for one in cost.tried)
                moments.append(Moment(clock.now() - begin, measured, tuple(best.devices.tolist())))
            return found

        cost.outcomes = watched  # type: ignore[method-assign]
        learn(session, cost, begin + seconds, seed)
        return moments

    return choose


def _at_random(session: Session, cost: MeasuredCost, deadline: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    while clock.now() < deadline:
        cost(np.stack(random_splits(rng, len(session.grouping.groups), 4)))


def _doppler(session: Session, cost: MeasuredCost, deadline: float, seed: int) -> None:
    problem, room = session.segmenter.problem(), deadline - clock.now()
    instance = ProblemInstance(problem, SimulatedCost(problem), problem.critical_path)
    of = functools.partial(Stage, draw_from([instance]), problems=1, learning_rate=3e-3, gamma=1.0, entropy=0.01)
    stages = [
        of(updates=50, kind="imitation", seconds=0.05 * room, episodes=16),
        of(updates=250, seconds=0.15 * room, episodes=16),
        of(updates=10**6, seconds=0.8 * room, episodes=7, explore=0.05, cost=lambda _: finite_or_nan(cost)),
    ]
    train(fresh(DopplerAgent, seed), stages, evaluate_on=(), seed=seed)


_WAYS: Mapping[str, Way] = {
    _CALIBRATED: _searching(on=False),
    "surrogate": _searching(on=True),
    "DOPPLER": _costing(_doppler),
    "random": _costing(_at_random),
}


def run(args: Args, report: Report) -> None:
    logging.getLogger("placeit").setLevel(logging.ERROR)  # time limits are expected
    seconds = _QUICK_SECONDS if args.quick else _SECONDS
    models = args.models or (_QUICK if args.quick else MODELS)
    cases = itertools.product(models, _SLOWDOWNS[-1:] if args.quick else _SLOWDOWNS)
    regrets: dict[str, dict[str, list[float]]] = {way: {} for way in _WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for name, slowdown in cases:
            found = _case(measured_model(name), unequal_cores(two_cores(), slowdown), Cache(Path(folder)), seconds, args.seed)
            for way, columns in found.items():
                report.row(model=name, slowdown=slowdown, way=way, **columns)
                report.note(f"  {way}: {columns}")
                for when, regret in columns.items():
                    if when.startswith("after"):
                        regrets[way].setdefault(when, []).append(regret)
    for way, columns in regrets.items():
        for when, values in columns.items():
            base = regrets[_CALIBRATED][when]
            mean, less = mean_interval(values), mean_interval([a - b for a, b in zip(values, base, strict=True)])
            report.row(
                way=way,
                when=when.replace("_", " "),
                cases=mean.count,
                mean_regret_percent=mean.mean,
                low=mean.low,
                high=mean.high,
                less_calibrated=less.mean,
                less_low=less.low,
                less_high=less.high,
            )
    for when, values in regrets["surrogate"].items():
        less = mean_interval([a - b for a, b in zip(values, regrets[_CALIBRATED][when], strict=True)])
        what = f"surrogate less {_CALIBRATED}, {when.replace('_', ' ')}: upper end of the interval, which pays below zero"
        report.claim(what, less.mean if less.high is None else less.high, "points")


def _case(model: Model, cluster: Cluster, cache: Cache, seconds: Sequence[float], seed: int) -> dict[str, dict[str, Any]]:
    """Let each way choose, and return the outcome: counts, and regrets in per cent."""
    opened = functools.partial(Session, model, cluster, cache=cache)
    with opened() as session:
        progress(f"profiling {model.path}")
        session.profile()
        singles = [np.full(len(session.grouping.groups), d, np.int32) for d in range(len(cluster))]
        first = Moment(0.0, 0, tuple(min(singles, key=lambda row: session.segmenter.seconds(row)[0]).tolist()))
    moments: dict[str, list[Moment]] = {}
    for way, choose in _WAYS.items():
        progress(f"{model.path}, slowed {cluster.devices[1].slowdown:g} times, seed {seed}: {way}")
        with opened() as session:
            session.profile()
            moments[way] = [first, *choose(session, seconds[-1], seed)]
    best: dict[str, dict[str, tuple[int, ...]]] = {way: {} for way in _WAYS}
    for way, known in moments.items():
        for limit in seconds:
            best[way][f"after_{limit:g}_s"] = [one for one in known if one.seconds <= limit * 1.1][-1].best
        for count in _MEASURED:
            best[way][f"after_{count}_measured"] = [one for one in known if one.measured <= count][-1].best
    rows = sorted({row for columns in best.values() for row in columns.values()} | {tuple(row.tolist()) for row in singles})
    with opened() as session:
        session.profile()
        progress(f"racing {len(rows)} placements")
        cost = MeasuredCost(session, rounds=_ROUNDS, hopeless=None, seed=seed)
        values = dict(zip(rows, cost(np.array(rows, np.int32)).tolist(), strict=True))
    least, alone = np.nanmin(list(values.values())), [values[tuple(row.tolist())] for row in singles]
    return {
        way: {
            "measured": moments[way][-1].measured,
            "spread": max(alone) / min(alone),
            "best_ms": least * 1e3,
            **{when: 100 * (values[row] / least - 1) for when, row in columns.items()},
        }
        for way, columns in best.items()
    }


if __name__ == "__main__":
    main("exploring", run, models=(*MODELS, *_QUICK))
