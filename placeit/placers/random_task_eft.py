"""Random task selection with earliest finish times: the relocation search that GiPH uses as a baseline."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import Incumbent, is_over, option
from placeit.placers.feasibility import random_placements
from placeit.simulator.tables import compiled

__all__ = ["RandomTaskEft", "earliest_finish_devices"]

_CHUNK = 256  # placements that are valued in one call


@dataclass(frozen=True)
class RandomTaskEft:
    """From a random placement, repeatedly move a random op to the device where it would finish first.

    This is the baseline of GiPH (section 5, "Random task selection + EFT device selection"), which uses HEFT as a search
    policy. The finish time on a device is the end of the op in the earliest idle gap after its inputs have arrived, in the
    simulated schedule of the current placement without the op. An episode has 2|V| steps, as in GiPH.

    Differs from the paper, which does not define finish times: idle gaps are used, and effects on later ops are ignored.
    """

    episodes: int = option(1, "searches from a random placement", least=1, most=10**6)
    steps_per_op: float = option(2.0, "steps of an episode, per op", least=0, most=1000)

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the visited placement with the lowest cost. Raises InfeasibleError if no feasible placement is found."""
        found = Incumbent(cost, evaluations, deadline)
        rng = np.random.default_rng(seed)
        steps = round(self.steps_per_op * len(problem))
        for _ in range(self.episodes):
            placement = random_placements(problem, 1, rng)[0]
            path = [placement]
            for op in rng.integers(len(problem), size=steps).tolist():
                if len(path) >= min(_CHUNK, found.left) or is_over(deadline):
                    found.offer(np.stack(path))
                    path = []
                    if found.over:
                        return found.placement
                placement = placement.copy()
                placement[op] = earliest_finish_devices(problem, placement, np.array([op]))[0]
                path.append(placement)
            found.offer(np.stack(path))
            if found.over:
                break
        return found.placement


def earliest_finish_devices(problem: Problem, placement: NDArray[np.int32], ops: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return the device on which each op, if only this op moved, would finish first; only devices with room are considered.

    Args:
        problem: the problem.
        placement: ``int32[V]``, feasible.
        ops: ``int[K]``.

    Returns:
        ``int32[K]``; the op's current device if it would finish earlier on no other device.
    """
    devices = np.empty(len(ops), np.int32)
    place = np.ascontiguousarray(placement, np.int32)
    _core.earliest_finish_devices(compiled(problem), place, np.ascontiguousarray(ops, np.int64), devices)
    return devices
