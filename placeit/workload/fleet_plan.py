"""Plan a fleet: which node serves which model, which requests find no room, and which rates or limits would help."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import WorkloadError
from placeit.core.jsonable import jsonable_dict
from placeit.core.units import about_bytes, milliseconds
from placeit.workload.assigning import MAX_PARTS, Assignment, Planner
from placeit.workload.entries import MAX_FACTOR, Workload, search_factor
from placeit.workload.fleet import total
from placeit.workload.fleet_file import read_fleet

__all__ = ["FleetPlan", "plan_fleet"]

_MAX_SHOWN = 3  # sources that a sentence names


@dataclass(frozen=True, eq=False)
class FleetPlan:
    """The result of :func:`plan_fleet`.

    Attributes:
        planner: the planner, which has the nodes and the models.
        rates: ``float64[Q]``, requests per second of each source.
        assigned: the assignment of models to nodes.
        factor: the largest factor on all rates at which every request is placed, 8 at most; 0 if there is no such factor.
        longer: the least factor on all limits with which every request is placed, 1000 at most; None if longer limits do not
            help, or are not needed.
    """

    planner: Planner
    rates: NDArray[np.float64]
    assigned: Assignment
    factor: float
    longer: float | None

    @property
    def placed(self) -> bool:
        """True if every request is placed."""
        return not self.assigned.unplaced.any()

    @cached_property
    def unplaced(self) -> list[tuple[str, str, float, str]]:
        """Sources with requests that are not placed: model, site, these requests per second, and the reason."""
        demand, sites, found = self.planner.demand, self.planner.fleet.sites.names, []
        for source in np.flatnonzero(self.assigned.unplaced).tolist():
            least, entry = float(self.planner.min_seconds[source]), demand.workload.entries[demand.model[source]]
            why = "the nodes in reach have no room"
            if np.isinf(least):
                why = "no node in reach can run it"
            elif least >= entry.limited.seconds:
                why = f"a request takes {milliseconds(least)} at least, and has {milliseconds(entry.limited.seconds)}"
            found.append((entry.name, sites[demand.site[source]], float(self.assigned.unplaced[source]), why))
        return found

    @property
    def reason(self) -> str:
        """How many requests are placed, and which rates or limits would place the rest, in a sentence."""
        total, lacking = float(self.rates.sum()), float(self.assigned.unplaced.sum())
        used = len(np.unique(self.assigned.nodes[self.assigned.nodes >= 0]))
        if self.placed:
            return f"all {total:.4g} requests/s are placed, on {used} of {len(self.planner.fleet.names)} nodes"
        some = [f"{model} from {site} ({why})" for model, site, _, why in self.unplaced[:_MAX_SHOWN]]
        more = f", and {len(self.unplaced) - _MAX_SHOWN} more" if len(self.unplaced) > _MAX_SHOWN else ""
        nearest = [f"at {self.factor:.3g} times the rates"] if self.factor > 0 else []
        nearest += [f"with limits {math.ceil(100 * self.longer) / 100:.4g} times as long"] if self.longer is not None else []
        remedy = f"all would be placed {', or '.join(nearest)}" if nearest else "neither lower rates nor longer limits help"
        return f"{lacking:.4g} of {total:.4g} requests/s are not placed: {', '.join(some)}{more}; {remedy}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict for JSON."""
        return jsonable_dict(
            {
                "placed": self.placed,
                "reason": self.reason,
                "largest_factor": self.factor,
                "limits_factor": self.longer,
                "nodes": self.nodes(),
                "models": self.models(),
                "unplaced": [
                    {"model": model, "site": site, "rate_per_s": rate, "why": why} for model, site, rate, why in self.unplaced
                ],
            }
        )

    def nodes(self) -> list[dict[str, Any]]:
        """Return each node with the models that it serves; ``placeit schema plan`` describes the fields."""
        fleet, now, entries = self.planner.fleet, self.assigned, self.planner.demand.workload.entries
        busy, held = now.load(len(fleet.names)), now.weight_bytes(self.planner.demand, len(fleet.names))
        serves: dict[int, list[dict[str, Any]]] = {}
        rates = total(now.instance, now.rate, len(now.model))
        for instance, nodes in enumerate(now.nodes.tolist()):
            used = [node for node in nodes if node >= 0]
            for part, node in enumerate(used, 1):
                model = {"name": entries[now.model[instance]].name, "rate_per_s": float(rates[instance])}
                serves.setdefault(node, []).append(model | {"part": part, "parts": len(used)})
        return [
            {
                "name": name,
                "site": fleet.sites.names[fleet.site[node]],
                "class": fleet.classes[fleet.node_class[node]],
                "busy": float(busy[node]),
                "memory_bytes": float(held[node]),
                "models": serves.get(node, []),
            }
            for node, name in enumerate(fleet.names)
        ]

    def models(self) -> list[dict[str, Any]]:
        """Return each model with its placed requests, and the predicted share of all its requests that is in time."""
        demand, now, count = self.planner.demand, self.assigned, len(self.planner.demand.seconds)
        rate, lacking = (total(demand.model, each, count) for each in (self.rates, now.unplaced))
        model = demand.model[now.source]
        in_time = total(model, self.planner.in_time(now, now.rate), count)
        instances = np.bincount(now.model, minlength=count)
        return [
            {
                "name": entry.name,
                "limit": None if entry.limit is None else str(entry.limit),
                "rate_per_s": float(rate[k]),
                "placed_per_s": float(rate[k] - lacking[k]),
                "in_time": float(in_time[k] / rate[k]),
                "instances": int(instances[k]),
            }
            for k, entry in enumerate(demand.workload)
        ]


def plan_fleet(path: str | Path) -> FleetPlan:
    """Assign the models of a fleet file to its nodes (:class:`placeit.workload.assigning.Planner`).

    Raises:
        FileError: a file cannot be read.
        WorkloadError: the file has an error, or a model fits on no node.
    """
    fleet, demand, rates = read_fleet(path)
    planner, alive = Planner(fleet, demand, rates), np.ones(len(fleet.names), bool)
    _check_fits(Path(path), planner)
    now = planner.plan(rates, alive)

    def all_placed(factor: float = 1.0, longer: float = 1.0) -> bool:
        other = replace(demand, workload=_longer(demand.workload, longer))
        return not Planner(fleet, other, factor * rates).plan(factor * rates, alive).unplaced.any()

    reachable = (planner.min_seconds < demand.limits[demand.model]).all()
    factor = search_factor(all_placed, min(MAX_FACTOR, planner.factor)) if reachable else 0.0
    shorter = search_factor(lambda share: all_placed(longer=1 / share), 1.0) if now.unplaced.any() else 0.0
    return FleetPlan(planner, rates, now, factor, 1 / shorter if shorter else None)


def _check_fits(path: Path, planner: Planner) -> None:
    """Raise WorkloadError if a model fits on no node, nor on as many as it may be split over."""
    fleet, demand = planner.fleet, planner.demand
    there = np.isin(np.arange(len(fleet.classes)), fleet.node_class)
    for entry, able, seconds, weights in zip(demand.workload, planner.able, demand.seconds, demand.weights, strict=True):
        if (able & there).any():
            continue
        runs = np.flatnonzero(np.isfinite(seconds) & there)
        memory = max((float(fleet.memory[fleet.node_class == of].max()) for of in runs), default=0.0)
        why = (
            f"it takes {about_bytes(weights)}, and {MAX_PARTS} nodes, over which it can be split, hold "
            f"{about_bytes(MAX_PARTS * memory)}"
        )
        raise WorkloadError(
            f"{path}: the model '{entry.name}' fits nowhere: {why if len(runs) else 'no node is of a class in its seconds'}."
        )


def _longer(workload: Workload, factor: float) -> Workload:
    """Return a workload with all limits multiplied by a factor."""
    limits = (entry.limit and replace(entry.limit, seconds=factor * entry.limit.seconds) for entry in workload)
    return replace(workload, entries=tuple(replace(entry, limit=limit) for entry, limit in zip(workload, limits, strict=True)))
