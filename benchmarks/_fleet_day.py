"""Simulate a fleet over a time in which rates change, and nodes fail and come back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.workload.assigning import Planner
from placeit.workload.fleet import Demand, Fleet, total

__all__ = ["Day", "least_late", "simulate_day"]


@dataclass(frozen=True, eq=False)
class Day:
    """What became of the requests of a fleet.

    Attributes:
        arrived: ``float64[M]``, requests of each model.
        served: ``float64[M]``, requests of each model that were answered within their limit.
        least_late: requests that are late or refused whatever the assignment; a lower bound.
        moves: instances that were loaded after the first assignment.
        moved_bytes: bytes of their weights.
        plans: number of assignments.
        planning_s: seconds that the planner took for all of them, and `first_s` for the first one.
        first_s: seconds of the first assignment.
        max_held: the largest share of a node's memory that was taken.
        max_sent: the largest share of the bandwidth of a link that requests took.
    """

    arrived: NDArray[np.float64]
    served: NDArray[np.float64]
    least_late: float
    moves: int
    moved_bytes: float
    plans: int
    planning_s: float
    first_s: float
    max_held: float
    max_sent: float


def least_late(
    fleet: Fleet, demand: Demand, rates: NDArray[np.float64], price: NDArray[np.float64], alive: NDArray[np.bool_]
) -> float:
    """Bound from below the requests per second that are late or refused, whatever the assignment.

    Args:
        fleet: the nodes.
        demand: the models.
        rates: ``float64[Q]``, requests per second of each source.
        price: ``float64[C]``, of a second of each class, as from `capacity`; any prices give a bound.
        alive: ``bool[N]``, nodes that can be used.
    """
    count = np.bincount(fleet.node_class[alive], minlength=len(fleet.classes))
    seconds = np.where((count > 0) & (demand.seconds <= demand.limits[:, None]), demand.seconds, np.inf)
    able = np.isfinite(seconds).any(axis=1)
    total, cost = np.bincount(demand.model, rates, len(seconds))[able], (price * seconds[able]).min(axis=1)
    order = np.argsort(cost)
    # the requests that cost least, as far as the price of the nodes pays for them
    paid, served = np.append(0.0, np.cumsum((cost * total)[order])), np.append(0.0, np.cumsum(total[order]))
    most = float(np.interp(price @ count, paid, served))
    return max(0.0, float(rates.sum()) - most)


def simulate_day(
    planner: Planner,
    rates: NDArray[np.float64],
    expected: NDArray[np.float64],
    alive: NDArray[np.bool_],
    *,
    step_s: float = 300.0,
    every: int = 12,
) -> Day:
    """Simulate a fleet step by step.

    The first assignment is there from the beginning. Later ones are made every ``every`` steps, and in each step in which a
    node has failed; they take effect in the next step. Until then, requests for a failed node go to the other instances of
    their source, and are lost if no other serves it.

    Args:
        planner: finds the assignments.
        rates: ``float[T, Q]``, requests per second of each source in each step.
        expected: ``float[T, Q]``, what the planner expects them to be. It plans for the largest until the next plan.
        alive: ``bool[T, N]``, nodes that work in each step.
        step_s: seconds of a step.
        every: steps between plans.
    """
    fleet, demand = planner.fleet, planner.demand
    models, count = len(demand.seconds), len(fleet.names)
    arrived, served = np.zeros(models), np.zeros(models)
    least, moves, moved, plans, took, held, sent_most = 0.0, 0, 0.0, 1, 0.0, 0.0, 0.0
    begin = clock.now()
    now = planner.plan(expected[: every + 1].max(axis=0).astype(float), alive[0])
    first = took = clock.now() - begin
    for step in range(len(rates)):
        arriving = rates[step].astype(float)
        lives = now.running(alive[step])[now.instance]
        # shares of what was planned; the share of failed nodes goes to the others
        planned, left = (total(now.source, now.rate * which, len(arriving)) for which in (np.ones(len(lives)), lives))
        admitted = arriving * planned / np.maximum(planned + now.unplaced, 1e-300)
        sent = now.rate * lives * (admitted / np.maximum(left, 1e-300))[now.source]
        done = planner.in_time(now, sent)
        arrived += step_s * total(demand.model, arriving, models)
        served += step_s * total(demand.model[now.source], done, models)
        least += step_s * least_late(fleet, demand, arriving, planner.price, alive[step])
        held = max(held, float((now.weight_bytes(demand, count) / fleet.memory).max()))
        sent_most = max(sent_most, float((planner.traffic(now, sent) / fleet.sites.bandwidth).max()))
        failed = step > 0 and bool((alive[step - 1] & ~alive[step]).any())
        if (failed or (step + 1) % every == 0) and step + 1 < len(rates):
            until = (step + 1) // every * every + every + 1
            begin = clock.now()
            now = planner.plan(expected[step + 1 : until].max(axis=0).astype(float), alive[step])
            took += clock.now() - begin
            moves, moved, plans = moves + now.moves, moved + now.moved_bytes, plans + 1
    return Day(arrived, served, least, moves, moved, plans, took, first, held, sent_most)
