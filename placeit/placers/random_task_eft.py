"""Random task, earliest finish: the relocation search that GiPH compares with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.placers.base import CostFunction, Incumbent, option
from placeit.placers.feasibility import random_placements
from placeit.placers.list_scheduling import earliest_start
from placeit.problem import Problem

__all__ = ["RandomTaskEft", "earliest_finish_device"]

_CHUNK = 256


@dataclass(frozen=True)
class RandomTaskEft:
    """From a random placement, move a random op to the device where it would finish first, again and again; best of all.

    The baseline of GiPH (its section 5, "Random task selection + EFT device selection"): HEFT as a policy of search. The
    finish time on a device is that of the earliest idle gap, after the op's inputs have arrived, in the simulated schedule
    of the current placement without the op. An episode has 2|V| steps, as in GiPH.

    Differs from the paper, which leaves open what a step knows: gaps count, and effects on later ops do not.
    """

    episodes: int = option(1, "searches from a random placement")
    steps_per_op: float = option(2.0, "steps of an episode, per op")

    def place(self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None) -> NDArray[np.int32]:
        """Return the best placement met, by cost, among as many as may be valued.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        found = Incumbent(cost, evaluations)
        rng = np.random.default_rng(seed)
        steps = round(self.steps_per_op * len(problem))
        for _ in range(self.episodes):
            placement = random_placements(problem, 1, rng)[0]
            path = [placement]
            for op in rng.integers(len(problem), size=steps).tolist():
                if len(path) >= min(_CHUNK, found.left):
                    found.offer(np.stack(path))
                    path = []
                    if found.left <= 0:
                        return found.placement
                device = earliest_finish_device(problem, placement, op)
                placement = placement.copy()
                placement[op] = device
                path.append(placement)
            found.offer(np.stack(path))
        return found.placement


def earliest_finish_device(problem: Problem, placement: NDArray[np.int32], op: int) -> int:
    """Device, with room for an op, where it would finish first in the schedule of a placement; its own if none is earlier.

    Args:
        problem: the problem.
        placement: ``int32[V]``, feasible.
        op: the op.
    """
    from placeit.runtime.simulator import schedule

    plan = schedule(problem, placement)
    start, finish = plan.start, plan.finish
    others = np.flatnonzero(np.arange(len(problem)) != op)
    others = others[np.lexsort((finish[others], start[others]))]
    used = np.bincount(placement[others], weights=problem.param_bytes[others], minlength=problem.devices)
    able = problem.feasible[op] & (used + problem.param_bytes[op] <= problem.memory)
    predecessors = problem.predecessors
    into = predecessors.edge[predecessors.ptr[op] : predecessors.ptr[op + 1]]
    sources = problem.edges[into, 0]
    least, answer = np.inf, int(placement[op])
    for device in [answer, *np.flatnonzero(able).tolist()]:
        src = placement[sources]
        comm = problem.latency[src, device] + problem.edge_bytes[into] / problem.bandwidth[src, device]
        comm = np.where(src == device, 0.0, comm + problem.cut[into, src] + problem.cut[into, device])
        ready = float((finish[sources] + comm).max(initial=0.0))
        here = others[placement[others] == device]
        seconds = problem.compute[op, device]
        at, _ = earliest_start(start[here], finish[here], len(here), ready, seconds)
        if at + seconds < least:
            least, answer = at + seconds, device
    return answer
