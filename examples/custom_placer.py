"""A placer of one's own: try every single cut of the graph, and let the cost function say which is best.

python -m examples.custom_placer

To give it a name for ``--placer``, declare it as an entry point: see docs/plugins.md.
"""

from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from placeit import Problem, place, simulate
from placeit.core.problem import CostFunction
from placeit.errors import InfeasibleError
from placeit.placers.base import best, option


@dataclass(frozen=True)
class OneCut:
    """Ops before a point of the topological order run on one device, those after it on another."""

    step: int = option(1, "ops between two cuts that are tried")

    def place(
        self,
        problem: Problem,
        cost: CostFunction,
        *,
        seed: int,  # noqa: ARG002
        evaluations: int | None,
        deadline: float | None = None,
    ) -> NDArray[np.int32]:
        position = np.argsort(problem.order)
        pairs, cuts = product(range(problem.devices), repeat=2), range(0, len(problem), self.step)
        candidates = np.array([np.where(position < cut, a, b) for a, b in pairs for cut in cuts], np.int32)
        feasible = problem.feasible[np.arange(len(problem)), candidates].all(axis=1)
        if not feasible.any():
            raise InfeasibleError("No single cut of the graph puts every op where it can run.")
        return best(cost, candidates[feasible], evaluations, deadline)


def main() -> None:
    # four stages of three ops, each op of which reads what the whole stage before it made; three devices of unequal speed
    rng = np.random.default_rng(0)
    stages = np.arange(12).reshape(4, 3)
    problem = Problem.from_arrays(
        compute=rng.uniform(2e-3, 8e-3, (12, 1)) * [1.0, 1.4, 2.0],
        edges=[(u, v) for before, after in pairwise(stages) for u in before for v in after],
        edge_bytes=np.full(27, 1e6),
        bandwidth=np.full((3, 3), 1e9),
        latency=np.full((3, 3), 1e-4),
        device_names=["big", "middle", "small"],
    )
    for placer in ("single", OneCut(), "heft", "annealing"):
        placement = place(problem, placer)
        seconds = simulate(problem, placement.devices[None])[0]
        print(f"{placer!s:16} {seconds * 1e3:6.2f} ms  {placement.counts()}")


if __name__ == "__main__":
    main()
