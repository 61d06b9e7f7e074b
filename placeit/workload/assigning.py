"""Assign the models of a workload to the nodes of a fleet, and change the assignment as rates and nodes change."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.simulator.waiting import late_share, most_busy
from placeit.workload.fleet import Demand, Fleet, total
from placeit.workload.fleet_bound import capacity

__all__ = ["MAX_LATE", "MAX_PARTS", "Assignment", "Planner"]

MAX_LATE = 0.5
"""Largest factor on the share of late requests that the strictest limit allows, up to which nodes are filled."""
MAX_PARTS = 4
"""Most nodes that a model is split over."""

_FIRST_LATE, _KEPT_LATE = 0.05, 0.2  # as MAX_LATE: for the first pass over all requests, and for flows that are kept
_MAX_NEAR_SITES = 4  # sites with others below them that a site may send requests to
_MAX_LINK_LOAD = 0.7  # share of a link's bandwidth that requests may take, so that they do not wait for each other
_MAX_COST = 3.0  # largest cost of a request, relative to its cost on the best class; the last pass has no such bound
_TOLERANCE = 1e-6  # share of a source's requests that may be left out


@dataclass(frozen=True, eq=False)
class Assignment:
    """Which nodes hold which models, and how many requests go there.

    An *instance* is a model on a node, or split over several. A *flow* is the requests of a source that go to an instance.

    Attributes:
        model: ``int32[I]``, the model of each instance.
        nodes: ``int32[I, 4]``, its nodes; -1 for fewer parts.
        part: ``float64[I]``, seconds that a request takes on each of its nodes.
        source: ``int32[F]``, the source of each flow.
        instance: ``int32[F]``, the instance of each flow.
        rate: ``float64[F]``, requests per second of each flow.
        wait: ``float64[F]``, seconds that a request may wait at each node without being late.
        unplaced: ``float64[Q]``, requests per second of each source that are refused, since no node has room for them.
        moves: number of instances that are loaded for this assignment.
        moved_bytes: bytes of their weights.
    """

    model: NDArray[np.int32]
    nodes: NDArray[np.int32]
    part: NDArray[np.float64]
    source: NDArray[np.int32]
    instance: NDArray[np.int32]
    rate: NDArray[np.float64]
    wait: NDArray[np.float64]
    unplaced: NDArray[np.float64]
    moves: int = 0
    moved_bytes: float = 0.0

    def by_node(
        self, instances: NDArray[np.int32], values: NDArray[np.float64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the nodes of instances, one after the other, and for each of these nodes the value of its instance."""
        nodes = self.nodes[instances]
        return nodes[nodes >= 0], np.repeat(values, (nodes >= 0).sum(axis=1))

    def weight_bytes(self, demand: Demand, count: int) -> NDArray[np.float64]:
        """Return the bytes of weights on each of ``count`` nodes."""
        each = demand.weights[self.model] / np.maximum((self.nodes >= 0).sum(axis=1), 1)
        return total(*self.by_node(np.arange(len(self.model), dtype=np.int32), each), count)

    def load(self, count: int) -> NDArray[np.float64]:
        """Return the share of its time that each of ``count`` nodes works."""
        return total(*self.by_node(self.instance, self.rate * self.part[self.instance]), count)

    def running(self, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return which instances run, ``bool[I]``: all of their nodes are ``alive``, ``bool[N]``."""
        running: NDArray[np.bool_] = np.all((self.nodes < 0) | alive[self.nodes], axis=1)
        return running


class _Near(NamedTuple):
    """The ``K`` nodes that requests from a site may go to, and the links on the way to them."""

    nodes: NDArray[np.intp]
    latency: NDArray[np.float64]  # [K], seconds on the way to each node
    seconds_per_byte: NDArray[np.float64]  # [K], seconds on the way for each byte of a request
    row: NDArray[np.intp]  # [K], row of `links` for each node
    links: NDArray[np.int32]  # [R, L], links to each near site; -1 where there are fewer


class _Needs(NamedTuple):
    """What requests of a source need on each of ``K`` near nodes."""

    parts: NDArray[np.int32]  # nodes that the model is split over
    part: NDArray[np.float64]  # seconds of a request on each of them
    wait: NDArray[np.float64]  # seconds that a request may wait at each of them; negative if it cannot be in time
    weights: NDArray[np.float64]  # bytes of weights on each of them


class Planner:
    """Assigns models to nodes so that each model keeps its limit, weights fit in memory, and few models are loaded anew.

    Requests go where they cost least of what is scarce: the time of nodes, valued by the prices of `capacity`; the time for
    which a node has to be left idle, because a model with a shorter limit or with longer requests comes to it; and memory, as a
    share of the node's. A node is filled up to the load at which `late_share` is a twentieth of what the strictest limit of the
    workload allows; if requests are left then, up to a half. Models with larger weights in the workload come first, then the
    ones with fewer choices. When rates change, flows change first, up to a fifth of what the limit allows; instances are added
    only for the rest.

    Assignments keep to the memory of nodes, and to 70 % of the bandwidth of links.

    Args:
        fleet: the nodes.
        demand: the models, and where requests arrive.
        rates: ``float64[Q]``, typical requests per second of each source, for which prices are found.

    Attributes:
        factor: the factor on all rates that no assignment can exceed (`capacity`).
        price: ``float64[C]``, of a second of each class of nodes, from the same bound.
        able: ``bool[M, C]``, classes whose nodes can run each model: on one node, or split over four at most.
        min_seconds: ``float64[Q]``, seconds of a request of each source, alone, on the best node in reach; inf without one.
    """

    _stages: ClassVar = ((_FIRST_LATE, _MAX_COST), (MAX_LATE, _MAX_COST), (MAX_LATE, np.inf))

    def __init__(self, fleet: Fleet, demand: Demand, rates: NDArray[np.float64]) -> None:
        self.fleet, self.demand = fleet, demand
        memory = np.array([fleet.memory[fleet.node_class == c].min(initial=np.inf) for c in range(len(fleet.classes))])
        parts = np.maximum(np.ceil(demand.weights[:, None] / np.maximum(memory, 1e-9)), 1.0)
        self.able = np.isfinite(demand.seconds) & (parts <= MAX_PARTS)
        self._parts = np.where(self.able, parts, 1).astype(np.int32)
        between = demand.hop[0] + demand.between[:, None] / demand.hop[1]
        self._seconds = np.where(self.able, demand.seconds + (self._parts - 1) * between, 1e9)
        self.factor, self.price = capacity(fleet, demand, rates)
        self._limits, self._late = demand.limits, demand.late
        self._weights = np.array([entry.weight for entry in demand.workload])
        self._near: dict[int, _Near] = {}
        self._current: Assignment | None = None
        self.min_seconds, self._choices, self._savings, self._min_cost = (np.zeros(len(demand.model)) for _ in range(4))
        for source in range(len(demand.model)):
            near = self._near_nodes(int(demand.site[source]))
            needs = self._needs(source, near)
            able, home = needs.wait > 0, near.latency == 0
            cost = np.where(able, self.price[fleet.node_class[near.nodes]] * needs.part * needs.parts, np.inf)
            self._choices[source], self._min_cost[source] = able.sum(), cost.min(initial=np.inf)
            if able.any():
                self._savings[source] = cost[home].min(initial=np.inf) - cost[~home].min(initial=np.inf)

    def max_load(self, wait: NDArray[np.float64], part: NDArray[np.float64], late: float = MAX_LATE) -> NDArray[np.float64]:
        """Return the share of its time that a node may work, for the shortest wait and the longest request of its models."""
        return most_busy(2.0 * wait / np.maximum(part, 1e-12), late * self._late)

    def links(self, now: Assignment) -> NDArray[np.int32]:
        """Return the links that the requests of each flow take, ``int32[F, L]`` with -1 where there are fewer."""
        return self.fleet.sites.links(self.demand.site[now.source], self.fleet.site[now.nodes[now.instance, 0]])

    def traffic(self, now: Assignment, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the bytes per second on each site's link, ``float64[S]``, for requests per second of each flow."""
        links, size = self.links(now), rate * self.demand.sent[self.demand.model[now.source]]
        return total(links[links >= 0], np.repeat(size, (links >= 0).sum(axis=1)), len(self.fleet.sites.names))

    def in_time(self, now: Assignment, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the requests per second of each flow that are answered within their limit, ``float64[F]``.

        Each node serves the requests of all its models in the order of their arrival, one at a time, and refuses the ones that
        would be late (`late_share`). A request of a split model has to be in time at each part. Of requests that a link has no
        bandwidth for, a share is lost. Requests do not wait for links, which planners keep below 70 % of their bandwidth.

        Args:
            now: the assignment.
            rate: ``float64[F]``, requests per second of each flow.
        """
        count = len(self.fleet.names)
        part, nodes = now.part[now.instance], now.nodes[now.instance]
        busy = total(*now.by_node(now.instance, rate * part), count)
        squares = total(*now.by_node(now.instance, rate * part**2), count)
        remaining = squares / np.maximum(2 * busy, 1e-300)  # mean remaining time of the request in service
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            late = late_share(busy[nodes], np.where(remaining[nodes] > 0, now.wait[:, None] / remaining[nodes], np.inf))
        links = self.links(now)
        through = np.minimum(1.0, self.fleet.sites.bandwidth / np.maximum(self.traffic(now, rate), 1e-9))
        through_all = np.where(links >= 0, through[links], 1.0).min(axis=1, initial=1.0)
        served: NDArray[np.float64] = rate * through_all * np.where(nodes >= 0, 1.0 - late, 1.0).prod(axis=1)
        return served

    def plan(self, rates: NDArray[np.float64], alive: NDArray[np.bool_]) -> Assignment:
        """Return an assignment for new rates, changed from the previous one.

        Instances that are removed keep their memory until the next call, since they serve until the new ones are loaded.

        Args:
            rates: ``float64[Q]``, requests per second of each source.
            alive: ``bool[N]``, nodes that can be used.
        """
        draft = _Draft(self, self._current, rates, alive)
        remaining, tolerance = rates - draft.served, _TOLERANCE * rates
        work = remaining * self._seconds[self.demand.model].min(axis=1)
        order = np.lexsort((-work, self._choices, -self._weights[self.demand.model]))
        self._link_price = self._price_links(rates)
        for late, max_cost in self._stages:
            for source in order[remaining[order] > tolerance[order]].tolist():
                amounts = float(remaining[source]), float(tolerance[source])
                remaining[source] = self._place(draft, source, *amounts, late, max_cost)
        self._current = draft.assignment(np.where(remaining > tolerance, remaining, 0.0))
        return self._current

    def _price_links(self, rates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the price of a byte on each site's link, ``float64[S]``, in the unit of `price`.

        If all requests that save cost by leaving their site would overload the link, the price is the saving per byte of the
        last requests that it has bandwidth for. Requests that save most for each byte are sent first.
        """
        size = self.demand.sent[self.demand.model]
        saving = np.maximum(self._savings, 0.0) / size
        price = np.zeros(len(self.fleet.sites.names))
        order = np.lexsort((-saving, self.demand.site))
        site = self.demand.site[order]
        sent = np.cumsum((rates * size)[order])
        first = np.flatnonzero(np.diff(site, prepend=-1))
        sent -= np.repeat(np.append(0.0, sent)[first], np.diff(first, append=len(site)))
        over = sent > _MAX_LINK_LOAD * self.fleet.sites.bandwidth[site]
        np.maximum.at(price, site[over], np.where(np.isfinite(saving), saving, 0.0)[order][over])
        return price

    def _near_nodes(self, site: int) -> _Near:
        """Return the nodes of a site, and of the nearest sites that have others below them."""
        if site not in self._near:
            sites = self.fleet.sites
            every = np.arange(len(sites.names), dtype=np.int32)
            links = sites.links(np.full(len(every), site, np.int32), every)
            latency = np.where(links >= 0, sites.latency[links], 0.0).sum(axis=1)
            inner = [one for one in sites.inner()[np.argsort(latency[sites.inner()], kind="stable")] if one != site]
            near = np.array([site, *inner[:_MAX_NEAR_SITES]])
            nodes = [np.flatnonzero(self.fleet.site == one) for one in near]
            row = np.repeat(np.arange(len(near)), [len(each) for each in nodes])
            per_byte = np.where(links >= 0, 1 / sites.bandwidth[links], 0.0).max(axis=1)
            self._near[site] = _Near(np.concatenate(nodes), latency[near][row], per_byte[near][row], row, links[near])
        return self._near[site]

    def _needs(self, source: int, near: _Near) -> _Needs:
        """Return what requests of a source need on each near node, and record the least seconds of a request."""
        model = int(self.demand.model[source])
        of = self.fleet.node_class[near.nodes]
        parts = self._parts[model, of]
        seconds = self._seconds[model, of] + 2 * near.latency + self.demand.sent[model] * near.seconds_per_byte
        self.min_seconds[source] = seconds[self.able[model, of]].min(initial=np.inf)
        wait = np.where(self.able[model, of], (self._limits[model] - seconds) / parts, -1.0)
        return _Needs(parts, self.demand.seconds[model, of] / parts, wait, self.demand.weights[model] / parts)

    def _place(self, draft: _Draft, source: int, remaining: float, tolerance: float, late: float, max_cost: float) -> float:
        """Assign the remaining requests of a source to nodes; return the requests per second that found no room."""
        near = self._near_nodes(int(self.demand.site[source]))
        needs, model, nodes = self._needs(source, near), int(self.demand.model[source]), near.nodes
        candidates = draft.alive[nodes] & (needs.wait > 0)
        price = self.price[self.fleet.node_class[nodes]] * needs.parts
        link_price = np.where(near.links >= 0, self._link_price[near.links], 0.0).sum(axis=1)[near.row]
        while remaining > tolerance:
            has = draft.instance_rates(model, nodes) >= 0
            max_load = self.max_load(
                np.minimum(draft.min_wait[nodes], needs.wait), np.maximum(draft.max_part[nodes], needs.part), late
            )
            room = self._within_links(draft, near, model, (max_load - draft.load[nodes]) / needs.part)
            able = candidates & (room > tolerance) & (has | (draft.free_memory[nodes] >= needs.weights))
            each = np.flatnonzero(able)
            take = np.minimum(room[each], remaining)
            now = self.max_load(draft.min_wait[nodes[each]], draft.max_part[nodes[each]], late)
            idle = np.maximum(now - max_load[each], 0.0)
            cost = price[each] * (needs.part[each] + idle / take)
            each, cost, take = (of[cost <= max_cost * self._min_cost[source]] for of in (each, cost, take))
            if not len(each):
                return remaining
            memory = np.where(has[each], 0.0, needs.weights[each] / np.maximum(self.fleet.memory[nodes[each]], 1e-9))
            cost += price[each] * memory / take + self.demand.sent[model] * link_price[each]
            best = int(each[np.argmin(cost)])
            rate = np.where(room > tolerance, np.minimum(room, remaining), 0.0)
            taken = self._assign(draft, source, near, needs, best, able & ~has, rate)
            candidates[best] &= taken > 0
            remaining -= taken
        return 0.0

    def _within_links(self, draft: _Draft, near: _Near, model: int, room: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the requests per second that near nodes have room for, and that the links to them have bandwidth for."""
        bandwidth = np.where(near.links >= 0, draft.bandwidth[near.links], np.inf).min(axis=1)
        within: NDArray[np.float64] = np.minimum(room, (bandwidth / self.demand.sent[model])[near.row])
        return within

    def _assign(
        self,
        draft: _Draft,
        source: int,
        near: _Near,
        needs: _Needs,
        best: int,
        new: NDArray[np.bool_],
        rate: NDArray[np.float64],
    ) -> float:
        """Assign requests to near node ``best``, at most ``rate``, ``float64[K]``; load the model where ``new`` is true.

        Returns the requests per second that are assigned; 0 if there is no room.
        """
        model, node = int(self.demand.model[source]), int(near.nodes[best])
        nodes = self._new_instance(near, needs, new, best) if new[best] else draft.nodes_of(model, node)
        taken = float(min(rate[np.isin(near.nodes, nodes) if len(nodes) > 1 else [best]])) if nodes else 0.0
        if taken > 0:
            draft.add(model, nodes, source, taken, *(float(of[best]) for of in needs[1:]))
            links = near.links[near.row[best]]
            draft.bandwidth[links[links >= 0]] -= taken * self.demand.sent[model]
        return taken

    def _kept_shares(self, kept: Assignment, wait: NDArray[np.float64], part: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of each flow that its nodes have room for, by the shortest wait and longest request of each node."""
        nodes = kept.nodes[kept.instance]
        share = np.minimum(1.0, self.max_load(wait, part, _KEPT_LATE) / np.maximum(kept.load(len(wait)), 1e-300))
        shares: NDArray[np.float64] = np.where(nodes >= 0, share[nodes], 1.0).min(axis=1, initial=1.0)
        return shares

    def _new_instance(self, near: _Near, needs: _Needs, able: NDArray[np.bool_], first: int) -> list[int]:
        """Return the nodes of a new instance, of one class and one site; empty if there are too few."""
        of = self.fleet.node_class[near.nodes]
        like = able & (near.row == near.row[first]) & (of == of[first])
        like[first] = False
        others = near.nodes[like][: needs.parts[first] - 1].tolist()
        return [int(near.nodes[first]), *others] if len(others) == needs.parts[first] - 1 else []


class _Draft:
    """An assignment under construction: the flows that were kept from the previous one, and the added ones.

    Attributes:
        alive: ``bool[N]``, nodes that can be used.
        served: ``float64[Q]``, requests per second of each source that are kept.
        load: ``float64[N]``, share of its time that each node works.
        min_wait: ``float64[N]``, the shortest time that a request of a node may wait.
        max_part: ``float64[N]``, the longest time of a request on a node.
        free_memory: ``float64[N]``, bytes of memory.
        bandwidth: ``float64[S]``, bytes per second that each site's link can take.
    """

    def __init__(
        self, planner: Planner, before: Assignment | None, rates: NDArray[np.float64], alive: NDArray[np.bool_]
    ) -> None:
        self.alive, self._demand, count = alive, planner.demand, len(planner.fleet.names)
        floats, ints = np.empty(0), np.empty(0, np.int32)
        before = before or Assignment(ints, np.empty((0, MAX_PARTS), np.int32), floats, ints, ints, floats, floats, floats)
        kept = _kept(before, rates, alive)
        self.min_wait, self.max_part = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(self.min_wait, *kept.by_node(kept.instance, kept.wait))
        np.maximum.at(self.max_part, *kept.by_node(kept.instance, kept.part[kept.instance]))
        rate = kept.rate * planner._kept_shares(kept, self.min_wait, self.max_part)  # less where a node would be too busy
        max_traffic = _MAX_LINK_LOAD * planner.fleet.sites.bandwidth
        links = planner.links(kept)
        fits = np.minimum(1.0, max_traffic / np.maximum(planner.traffic(kept, rate), 1e-9))
        rate = rate * np.where(links >= 0, fits[links], 1.0).min(axis=1, initial=1.0)
        self._kept = kept = replace(kept, rate=rate)
        self.served = total(kept.source, rate, len(rates))
        self.bandwidth = max_traffic - planner.traffic(kept, rate)
        self.load = kept.load(count)
        self.free_memory = planner.fleet.memory - before.weight_bytes(planner.demand, count)
        self._models: list[int] = kept.model.tolist()
        self._nodes = [[node for node in nodes if node >= 0] for nodes in kept.nodes.tolist()]
        self._part: list[float] = kept.part.tolist()
        self._rate: list[float] = total(kept.instance, rate, len(kept.model)).tolist()
        self._instances: dict[int, dict[int, int]] = {}  # model -> first node -> instance
        for number, (model, nodes) in enumerate(zip(self._models, self._nodes, strict=True)):
            self._instances.setdefault(model, {})[nodes[0]] = number
        self._flows: list[tuple[int, int, float, float]] = []
        self._buffer = np.full(count, -1.0)  # for `instance_rates`

    def instance_rates(self, model: int, nodes: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the requests per second of a model at each node that is the first one of an instance; -1 at the others."""
        instances = self._instances.get(model, {})
        self._buffer[list(instances)] = [self._rate[number] for number in instances.values()]
        rates = self._buffer[nodes]
        self._buffer[list(instances)] = -1.0
        return rates

    def nodes_of(self, model: int, node: int) -> list[int]:
        """Return the nodes of the instance of a model whose first node is given."""
        return self._nodes[self._instances[model][node]]

    def add(self, model: int, nodes: list[int], source: int, rate: float, part: float, wait: float, weights: float) -> None:
        """Assign requests of a source to the instance on some nodes; load it if it is not there yet."""
        number = self._instances.setdefault(model, {}).get(nodes[0])
        if number is None:
            number = self._instances[model][nodes[0]] = len(self._models)
            self._models.append(model)
            self._nodes.append(nodes)
            self._part.append(part)
            self._rate.append(0.0)
            self.free_memory[nodes] -= weights
        self._flows.append((source, number, rate, wait))
        self._rate[number] += rate
        self.load[nodes] += rate * part
        self.min_wait[nodes] = np.minimum(self.min_wait[nodes], wait)
        self.max_part[nodes] = np.maximum(self.max_part[nodes], part)

    def assignment(self, unplaced: NDArray[np.float64]) -> Assignment:
        """Return the assignment, with the flows from one source to one instance joined."""
        kept, new = self._kept, np.array(self._flows).reshape(-1, 4)
        source = np.concatenate((kept.source, new[:, 0].astype(np.int32)))
        instance = np.concatenate((kept.instance, new[:, 1].astype(np.int32)))
        rate, wait = np.concatenate((kept.rate, new[:, 2])), np.concatenate((kept.wait, new[:, 3]))
        _, first, flow = np.unique(source.astype(np.int64) << 32 | instance, return_index=True, return_inverse=True)
        padded = np.full((len(self._models), MAX_PARTS), -1, np.int32)
        for number, nodes in enumerate(self._nodes):
            padded[number, : len(nodes)] = nodes
        model = np.array(self._models, np.int32)
        loaded = model[len(kept.model) :]
        return Assignment(
            model,
            padded,
            np.array(self._part),
            source[first],
            instance[first],
            total(flow, rate, len(first)),
            wait[first],
            unplaced,
            len(loaded),
            float(self._demand.weights[loaded].sum()),
        )


def _kept(before: Assignment, rates: NDArray[np.float64], alive: NDArray[np.bool_]) -> Assignment:
    """Return the flows of an assignment to keep: for each source, the largest that are enough, scaled to its new rate."""
    order = np.lexsort((-before.rate, before.source))
    order = order[before.running(alive)[before.instance[order]]]
    source, rate = before.source[order], before.rate[order]
    preceding = np.cumsum(rate) - rate
    first = np.flatnonzero(np.diff(source, prepend=-1))
    preceding -= np.repeat(preceding[first], np.diff(first, append=len(source)))
    order = order[preceding < rates[source]]
    source, instance = before.source[order], before.instance[order]
    rate = before.rate[order]
    rate = rate * (rates / np.maximum(total(source, rate, len(rates)), 1e-300))[source]
    used, number = np.unique(instance, return_inverse=True)
    return Assignment(
        before.model[used],
        before.nodes[used],
        before.part[used],
        source,
        number.astype(np.int32),
        rate,
        before.wait[order],
        before.unplaced,
    )
