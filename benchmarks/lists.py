"""List schedulers on all kinds of problems and sizes: makespans in multiples of the better of HEFT's and PEFT's, and seconds.

HEFT and PEFT are as in their papers, which plan as if transfers never waited. ``over channels`` are the same schedulers,
planning by the rules of the simulator that evaluates them. ``drawn`` is the baseline for the orders and the look-ahead of
``best-list``: the best of the same number of plans, with an order and a share of the look-ahead for every op that are drawn at
random.

Means are geometric, with intervals of 95%; problems are drawn from seeds that no option was tuned on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from benchmarks._anytime_problems import family
from benchmarks._harness import Args, Report, main
from benchmarks._list_problems import SHAPES, list_problem
from placeit.core.problem import Problem
from placeit.learning.workloads.registry import find_dataset
from placeit.placers.best_list import BestList
from placeit.placers.cpop import Cpop
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import list_schedule, optimistic_costs, priority_order
from placeit.placers.peft import Peft
from placeit.simulator.scheduler import EXECUTED_RULES, GIPH_RULES, Rules
from placeit.simulator.simulate import SimulatedCost

_FIRST_SEED = 7000
_LARGE = 10_000  # for this many ops and more, explanatory rows are left out


@dataclass(frozen=True)
class _Family:
    """Problems of one kind.

    Attributes:
        name: of the kind.
        rules: rules by which they are simulated.
        problems: draws them.
    """

    name: str
    rules: Rules
    problems: Callable[[], Iterator[Problem]]


def run(args: Args, report: Report) -> None:
    ratios: list[float] = []
    for one in _families(args):
        rows, seconds = [], []
        for problem in one.problems():
            found, took = _row(problem, SimulatedCost(problem, rules=one.rules), args.seed)
            rows.append(found)
            seconds.append(took)
        for name in rows[0]:
            logs = np.log([row[name] for row in rows])
            wide = 1.96 * logs.std(ddof=1) / np.sqrt(len(logs)) if len(logs) > 1 else None
            report.row(
                family=one.name,
                links=one.rules.links,
                placer=name,
                problems=len(logs),
                over_better=float(np.exp(logs.mean())),
                low=None if wide is None else float(np.exp(logs.mean() - wide)),
                high=None if wide is None else float(np.exp(logs.mean() + wide)),
                worst=float(np.exp(logs.max())),
                cpu_seconds_each=float(np.mean([took[name] for took in seconds])),
            )
        ratios += [row["best-list"] for row in rows]
    report.claim(
        "best-list over the better of HEFT and PEFT, mean of all", float(np.exp(np.mean(np.log(ratios)))), "", at_most=0.97
    )
    report.claim("best-list over the better of HEFT and PEFT, worst of all", max(ratios), "", at_most=1.02)


def _row(problem: Problem, cost: SimulatedCost, seed: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return makespans over the better of HEFT's and PEFT's, and seconds of one core, by placer."""
    links = cost.rules.links
    ways: dict[str, Callable[[], NDArray[np.int32]]] = {
        "heft": lambda: Heft().plan(problem).placement,
        "peft": lambda: Peft().plan(problem).placement,
        "cpop": lambda: Cpop().plan(problem).placement,
        "best-list": lambda: BestList().place(problem, cost, seed=seed, evaluations=None),
    }
    if links == "channel":
        ways["heft, over channels"] = lambda: Heft().plan(problem, links).placement
        ways["peft, over channels"] = lambda: Peft().plan(problem, links).placement
    if len(problem) < _LARGE:
        ways["best-list, 12 plans"] = lambda: BestList(12).place(problem, cost, seed=seed, evaluations=None)
        ways["drawn"] = lambda: _drawn(problem, cost, seed)
    makespans, seconds = {}, {}
    for name, way in ways.items():
        begin = time.process_time()
        placement = way()
        seconds[name] = time.process_time() - begin
        makespans[name] = float(cost(placement[None])[0])
    unit = min(makespans["heft"], makespans["peft"])
    return {name: makespan / unit for name, makespan in makespans.items()}, seconds


def _drawn(problem: Problem, cost: SimulatedCost, seed: int) -> NDArray[np.int32]:
    rng, onward = np.random.default_rng(seed), optimistic_costs(problem)
    made = []
    for _ in range(BestList().plans):
        order = priority_order(problem, rng.random(len(problem)))
        shares = rng.uniform(0, 1.2, (len(problem), 1))
        made.append(list_schedule(problem, order, None, shares * onward, cost.rules.links).placement)
    return made[int(np.argmin(cost(np.stack(made))))]


def _families(args: Args) -> Iterator[_Family]:
    count, seed = (3 if args.quick else 30), _FIRST_SEED + args.seed

    def dataset(name: str) -> Iterator[Problem]:
        found = find_dataset(name)
        cases = found.cases("test" if found.parts else None, seed)
        return (case.problem for case in islice(cases, count))

    for name in ("any", "multi", "recurrent", "sensor-fusion"):
        yield _Family(name, GIPH_RULES, lambda name=name: dataset(name))
    yield _Family("streams", EXECUTED_RULES, lambda: dataset("streams"))
    if not args.quick:
        for name in ("tensor", "model"):
            yield _Family(name, EXECUTED_RULES, lambda name=name: (case.problem for case in family(name, 20, args.seed)))

    def drawn(size: int, many: int, **how: bool) -> Iterator[Problem]:
        rng = np.random.default_rng([seed, size])
        return (list_problem(shape, size, rng, **how) for _ in range(many) for shape in SHAPES)

    yield _Family("weights take the memory", EXECUTED_RULES, lambda: drawn(60, count // 3, tight=True))
    yield _Family("cores that conflict", EXECUTED_RULES, lambda: drawn(60, count // 3, cores=True))
    sizes: Mapping[int, int] = {100: 1, 1000: 1} if args.quick else {100: 10, 1000: 8, 10_000: 3, 100_000: 1}
    for size, many in sizes.items():
        for rules in (GIPH_RULES, EXECUTED_RULES):
            yield _Family(f"{size} ops", rules, lambda size=size, many=many: drawn(size, many))


if __name__ == "__main__":
    main("lists", run)
