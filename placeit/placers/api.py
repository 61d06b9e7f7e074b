"""A placer's answer to a problem, checked and compared with the best single device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from placeit.core.errors import UsageError
from placeit.core.placement import Placement
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Placer, best
from placeit.placers.registry import parse_placer

if TYPE_CHECKING:
    from placeit.simulator.scheduler import Rules

__all__ = ["place"]


def place(
    problem: Problem,
    placer: str | Placer = "heft",
    seed: int = 0,
    evaluations: int | None = None,
    cost: CostFunction | None = None,
    rules: Rules | None = None,
) -> Placement:
    """Place a problem's ops, by ``cost`` never worse than the best single device that can hold the graph.

    A single device wins a tie. ``get_placer(name).place(...)`` returns the placer's own answer.

    Args:
        problem: the problem.
        placer: a placer, its name, or its name with options, as in ``annealing:evaluations=100000``.
        seed: seed of all random draws. The same seed gives the same placement, in any process.
        evaluations: maximum number of placements that ``cost`` may value, including the comparison with single devices; None
            for the placer's default.
        cost: values placements, in seconds; None for the simulator.
        rules: execution rules of the simulator; None for the rules by which executors run.

    Raises:
        UsageError: the placer does not exist, ``rules`` are given with ``cost``, or ``evaluations`` is too small for the
            comparison with single devices.
        InfeasibleError: no feasible placement is found.
        PlacementError: the placer returned a placement that is not valid.
    """
    if cost is None:
        from placeit.simulator.simulate import SimulatedCost

        cost = SimulatedCost(problem) if rules is None else SimulatedCost(problem, rules=rules)
    elif rules is not None:
        raise UsageError("'rules' apply to the simulator, which 'cost' replaces: give one of them.")
    if isinstance(placer, str):
        placer = parse_placer(placer)
    singles = problem.single_devices
    reserved = len(singles) + 1 if singles else 0
    if evaluations is not None and evaluations < reserved:
        raise UsageError(
            f"{evaluations} evaluations are too few: comparing the answer with {len(singles)} single devices takes {reserved}."
        )
    left = None if evaluations is None else evaluations - reserved
    answer = problem.check(placer.place(problem, cost, seed=seed, evaluations=left))
    if singles:
        candidates = np.vstack([np.full(len(problem), device, np.int32) for device in singles] + [answer])
        answer = best(cost, candidates, None)
    return problem.placement(answer)
