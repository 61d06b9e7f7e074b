"""A simulated fleet: how many requests of many models on many nodes are answered within their limits, over a day.

Nodes, models, requests and failures come from ``benchmarks/_fleet_problems.py``, which says which figures are published and
which are assumed. A load of 1 is the most that the nodes could serve at the peak of the day by their computing time alone. The
joint planner (``placeit.workload.assigning``) is compared with baselines, and with a lower bound on requests that are late. A
model keeps its limit if 95 % of its requests of the day are answered within it. Nothing is run but the planner: requests are
simulated by a formula for waiting times (``placeit.simulator.waiting``), for each node and each five minutes.

``--part real`` runs three nodes in place of that (``benchmarks/_fleet_real.py``).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from benchmarks import _fleet_real
from benchmarks._fleet_baselines import WAYS, Way, planner
from benchmarks._fleet_day import Day, simulate_day
from benchmarks._fleet_problems import STEP_S, Problem, problem
from benchmarks._harness import Args, Report, main
from benchmarks._models import progress

_SIZES = {(100, 10): (0.1, 0.3, 0.5, 0.7, 0.9), (1000, 100): (0.03, 0.1, 0.3, 0.5, 0.7, 0.9), (10_000, 1000): (0.1, 0.7)}
QUICK = {(100, 10): (0.3,)}
STEPS, QUICK_STEPS = 288, 36
_KEPT, _MODELS = 0.95, 0.99  # shares of requests in time, and of models that keep their limits, at the largest load


def run(args: Args, report: Report) -> None:
    if args.part == "real":
        _fleet_real.run(args, report)
        return
    for (nodes, models), loads in (QUICK if args.quick else _SIZES).items():
        made = problem(nodes, models, args.seed, QUICK_STEPS if args.quick else STEPS)
        most = {what: defaultdict[str, float](float) for what in ("requests", "models")}
        for load in loads:
            for way in WAYS:
                progress(f"{nodes} nodes, {models} models, load {load:g}, {way}")
                day = _day(made, load, way)
                share = day.served / np.maximum(day.arrived, 1e-300)
                served, kept = float(day.served.sum() / day.arrived.sum()), float(np.mean(share >= _KEPT))
                report.row(
                    nodes=nodes,
                    models=models,
                    load=load,
                    way=way,
                    requests_per_s=day.arrived.sum() / (len(made.rates) * STEP_S),
                    served_in_time=served,
                    at_most=1 - day.least_late / float(day.arrived.sum()),
                    models_in_limits=kept,
                    moves=day.moves,
                    moved_gb=day.moved_bytes / 1e9,
                    plans=day.plans,
                    first_plan_s=day.first_s,
                    all_plans_s=day.planning_s,
                    memory=day.max_held,
                    links=day.max_sent,
                )
                for what, holds in (("requests", served >= _KEPT), ("models", kept >= _MODELS)):
                    most[what][way] = max(most[what][way], load if holds else 0.0)
        _claim(report, f"{nodes} nodes, {models} models", most)


def _day(made: Problem, load: float, way: Way) -> Day:
    expected, rates = made.expected * np.float32(load), made.rates * np.float32(load)
    plans = planner(made.fleet, made.demand, expected.mean(axis=0, dtype=float), way)
    return simulate_day(plans, rates, expected, made.alive, step_s=STEP_S)


def _claim(report: Report, size: str, most: dict[str, defaultdict[str, float]]) -> None:
    for what, words in (("requests", f"{_KEPT:.0%} of the requests in time"), ("models", f"{_MODELS:.0%} of the limits kept")):
        for way in WAYS:
            report.claim(f"{size}: largest load with {words}, {way}", most[what][way], "")
        ratio = most[what]["joint"] / most[what]["best fit"] if most[what]["best fit"] else None
        report.claim(f"{size}: the same, joint over best fit", ratio, "", at_least=1.3)


if __name__ == "__main__":
    main("fleet", run, seconds=_fleet_real.SECONDS, parts={"real": _fleet_real})
