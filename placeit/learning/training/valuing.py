"""Value the placements that agents visit: in batches, without duplicates, by the cost function of a stage."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.graph import distinct_rows
from placeit.core.problem import CostFunction
from placeit.learning.agent import ProblemInstance
from placeit.learning.training.cost_journal import CostJournal
from placeit.learning.training.stages import MEASURED, SIMULATED, CostFactory, Stage

__all__ = ["check_costs", "factory_of", "finite_or_nan", "lowest", "value", "with_cost_of"]

_MAX_CACHED = 4096  # instances whose cost functions are cached


def value(instances: Sequence[ProblemInstance], visited: Sequence[NDArray[np.int32]]) -> list[NDArray[np.float64]]:
    """Value placements in one call for each instance; several episodes of an instance share the call.

    Args:
        instances: ``B`` instances; an instance may occur several times.
        visited: ``int32[S, V]`` placements for each instance.

    Returns:
        ``float64[S]`` costs for each instance, as its cost function returns them.
    """
    costs: list[NDArray[np.float64]] = [np.empty(0)] * len(instances)
    episodes: dict[ProblemInstance, list[int]] = {}
    for b, instance in enumerate(instances):
        episodes.setdefault(instance, []).append(b)
    for instance, rows in episodes.items():
        placements = np.concatenate([visited[b] for b in rows])
        distinct, number = distinct_rows(placements)
        found = np.asarray(instance.cost(distinct), np.float64)[number]
        ends = np.cumsum([len(visited[b]) for b in rows])[:-1]
        for b, part in zip(rows, np.split(found, ends), strict=True):
            costs[b] = part
    return costs


def lowest(costs: NDArray[np.float64]) -> int | None:
    """Return the index of the lowest of ``float64[S]`` costs, the first in a tie; None if all are NaN."""
    return None if np.isnan(costs).all() else int(np.nanargmin(costs))


def finite_or_nan(cost: CostFunction) -> CostFunction:
    """Return a cost function with NaN for costs that are not finite, so that training leaves them out."""

    def finite_cost(placements: NDArray[np.int32]) -> NDArray[np.float64]:
        costs = cost(placements)
        return np.where(np.isfinite(costs), costs, np.nan)

    return finite_cost


def check_costs(stages: Sequence[Stage], costs: Mapping[str, CostFactory]) -> None:
    """Raise UsageError if a stage names a cost that does not exist."""
    for number, stage in enumerate(stages, 1):
        if isinstance(stage.cost, str) and stage.cost != SIMULATED and stage.cost not in costs:
            known = ", ".join(dict.fromkeys([SIMULATED, *costs]))
            hint = " Placements are measured where there is one model and devices to run it on." * (stage.cost == MEASURED)
            raise UsageError(f"Stage {number} is to learn from the cost '{stage.cost}', and there is only: {known}.{hint}")


def factory_of(stage: Stage, costs: Mapping[str, CostFactory]) -> CostFactory | None:
    """Return the factory of a stage's cost functions; None for the instances' own cost functions."""
    if stage.cost == SIMULATED:
        return None
    return costs[stage.cost] if isinstance(stage.cost, str) else stage.cost


def with_cost_of(
    stage: Stage, costs: Mapping[str, CostFactory], journal: CostJournal
) -> Callable[[ProblemInstance], ProblemInstance]:
    """Return a function that replaces an instance's cost function by the stage's; costs that are not simulated are recorded."""
    factory = factory_of(stage, costs)
    if factory is None:
        return lambda instance: instance

    @functools.lru_cache(_MAX_CACHED)
    def replaced(instance: ProblemInstance) -> ProblemInstance:
        cost = journal.cached(stage.cost_name, instance.problem, factory(instance))
        return dataclasses.replace(instance, cost=cost)

    return replaced
