"""Simulate a fleet over a time in which rates change, and nodes fail and come back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.simulator.waiting import late_share
from placeit.workload.assigning import Assignment, Planner
from placeit.workload.fleet import total
from placeit.workload.fleet_bound import least_late

__all__ = ["Day", "served_in_time", "simulate_day"]


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
        most_held: the largest share of a node's memory that was taken.
        most_sent: the largest share of the bandwidth of a link that requests took.
    """

    arrived: NDArray[np.float64]
    served: NDArray[np.float64]
    least_late: float
    moves: int
    moved_bytes: float
    plans: int
    planning_s: float
    first_s: float
    most_held: float
    most_sent: float


def served_in_time(planner: Planner, now: Assignment, sent: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the requests per second of each flow that are answered within their limit, ``float64[F]``.

    Each node serves the requests of all its models in the order of their arrival, one at a time, and refuses those that would
    be late (`late_share`). A request of a split model has to be in time at each part. Of requests that a link has no bandwidth
    for, a share is lost. Requests do not wait for links, which planners keep below 70 % of their bandwidth.

    Args:
        planner: the planner of the assignment.
        now: the assignment.
        sent: ``float64[F]``, requests per second of each flow.
    """
    count = len(planner.fleet.names)
    part, nodes = now.part[now.instance], now.nodes[now.instance]
    busy = total(*now.spread(now.instance, sent * part), count)
    squares = total(*now.spread(now.instance, sent * part**2), count)
    left = squares / np.maximum(2 * busy, 1e-300)  # mean remaining time of the request in service
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        late = late_share(busy[nodes], np.where(left[nodes] > 0, now.wait[:, None] / left[nodes], np.inf))
    links = planner.links(now)
    through = np.minimum(1.0, planner.fleet.sites.bandwidth / np.maximum(planner.sent(now, sent), 1e-9))
    through_all = np.where(links >= 0, through[links], 1.0).min(axis=1, initial=1.0)
    in_time: NDArray[np.float64] = sent * through_all * np.where(nodes >= 0, 1.0 - late, 1.0).prod(axis=1)
    return in_time


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
        lives = now.lives(alive[step])[now.instance]
        # shares of what was planned; the share of failed nodes goes to the others
        planned, left = (total(now.source, now.rate * which, len(arriving)) for which in (np.ones(len(lives)), lives))
        admitted = arriving * planned / np.maximum(planned + now.unplaced, 1e-300)
        sent = now.rate * lives * (admitted / np.maximum(left, 1e-300))[now.source]
        done = served_in_time(planner, now, sent)
        arrived += step_s * total(demand.model, arriving, models)
        served += step_s * total(demand.model[now.source], done, models)
        least += step_s * least_late(fleet, demand, arriving, planner.price, alive[step])
        held = max(held, float((now.held(demand, count) / fleet.memory).max()))
        sent_most = max(sent_most, float((planner.sent(now, sent) / fleet.sites.bandwidth).max()))
        failed = step > 0 and bool((alive[step - 1] & ~alive[step]).any())
        if (failed or (step + 1) % every == 0) and step + 1 < len(rates):
            until = (step + 1) // every * every + every + 1
            begin = clock.now()
            now = planner.plan(expected[step + 1 : until].max(axis=0).astype(float), alive[step])
            took += clock.now() - begin
            moves, moved, plans = moves + now.moves, moved + now.moved_bytes, plans + 1
    return Day(arrived, served, least, moves, moved, plans, took, first, held, sent_most)
