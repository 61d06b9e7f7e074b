"""Assign the models of a workload to the nodes of a fleet, and change the assignment as rates and nodes change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.simulator.waiting import late_share, most_busy
from placeit.workload.fleet import Demand, Fleet, total
from placeit.workload.fleet_bound import capacity

__all__ = ["MAX_LATE", "PARTS", "Assignment", "Planner"]

MAX_LATE = 0.5
"""Share of the requests that may be late for which nodes are filled at most."""
PARTS = 4
"""Most nodes that a model is split over."""

_FIRST, _KEPT = 0.05, 0.2  # share of the requests that may be late for which nodes are filled: see `Planner`
_NEAR = 4  # sites with others below them that a site may send requests to
_SENT = 0.7  # share of a link's bandwidth that requests may take, so that they do not wait for each other
_WASTE = 3.0  # times of what a request costs on the best class of nodes; dearer choices are for what is left at the end
_SMALL = 1e-6  # share of a source's requests that may be left out


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
        moves: instances that are loaded for this assignment.
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

    def spread(
        self, instances: NDArray[np.int32], values: NDArray[np.float64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Return the nodes of some instances, and the value of its instance for each node."""
        nodes = self.nodes[instances]
        return nodes[nodes >= 0], np.repeat(values, (nodes >= 0).sum(axis=1))

    def held(self, demand: Demand, count: int) -> NDArray[np.float64]:
        """Return the bytes of weights on each of ``count`` nodes."""
        each = demand.weights[self.model] / np.maximum((self.nodes >= 0).sum(axis=1), 1)
        return total(*self.spread(np.arange(len(self.model), dtype=np.int32), each), count)

    def load(self, count: int) -> NDArray[np.float64]:
        """Return the share of its time that each of ``count`` nodes works."""
        return total(*self.spread(self.instance, self.rate * self.part[self.instance]), count)

    def lives(self, alive: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the instances all of whose nodes are alive, ``bool[I]``, of ``alive``, ``bool[N]``."""
        every: NDArray[np.bool_] = np.all((self.nodes < 0) | alive[self.nodes], axis=1)
        return every


class _Near(NamedTuple):
    """The nodes that requests of a site may go to: the time on the way, and which site of ``links`` each is at."""

    nodes: NDArray[np.intp]
    latency: NDArray[np.float64]
    per_byte: NDArray[np.float64]
    at: NDArray[np.intp]
    links: NDArray[np.int32]


class _Uses(NamedTuple):
    """What a model needs of each near node: parts, seconds of a part, seconds to wait at a part, bytes of a part."""

    parts: NDArray[np.int32]
    part: NDArray[np.float64]
    wait: NDArray[np.float64]
    held: NDArray[np.float64]


class Planner:
    """Assigns models to nodes so that each model keeps its limit, weights fit in memory, and little is moved.

    Requests go where they cost least of what is scarce: the time of nodes, valued by the prices of `capacity`; the time for
    which a node has to be left idle, because a model with a shorter limit or with longer requests comes to it; and memory, as a
    share of the node's. A node is filled up to the load at which `late_share` is a twentieth of what the strictest limit of the
    workload allows; if requests are left then, up to a half. Models with larger weights come first, then those with fewer
    choices. When rates change, flows change first, up to a fifth of what the limit allows; instances are added only for the
    rest.

    Assignments keep to the memory of nodes, and to 70 % of the bandwidth of links.

    Args:
        fleet: the nodes.
        demand: the models, and where requests arrive.
        rates: ``float64[Q]``, typical requests per second of each source, for which prices are found.

    Attributes:
        factor: the factor on all rates that no assignment can exceed (`capacity`).
        price: ``float64[C]``, of a second of each class of nodes, from the same bound.
        able: ``bool[M, C]``, classes whose nodes can run each model: on one node, or split over four at most.
        least: ``float64[Q]``, seconds of a request of each source, alone, on the best node in reach; infinite without one.
    """

    _stages: ClassVar = ((_FIRST, _WASTE), (MAX_LATE, _WASTE), (MAX_LATE, np.inf))

    def __init__(self, fleet: Fleet, demand: Demand, rates: NDArray[np.float64]) -> None:
        self.fleet, self.demand = fleet, demand
        memory = np.array([fleet.memory[fleet.node_class == c].min(initial=np.inf) for c in range(len(fleet.classes))])
        parts = np.maximum(np.ceil(demand.weights[:, None] / np.maximum(memory, 1e-9)), 1.0)
        self.able = np.isfinite(demand.seconds) & (parts <= PARTS)
        self._parts = np.where(self.able, parts, 1).astype(np.int32)
        between = demand.hop[0] + demand.between[:, None] / demand.hop[1]
        self._whole = np.where(self.able, demand.seconds + (self._parts - 1) * between, 1e9)
        self.factor, self.price = capacity(fleet, demand, rates)
        self._limits, self._late = demand.limits, demand.late
        self._weights = np.array([entry.weight for entry in demand.workload])
        self._near: dict[int, _Near] = {}
        self._now: Assignment | None = None
        self.least, self._choices, self._saved, self._cheapest = (np.zeros(len(demand.model)) for _ in range(4))
        for source in range(len(demand.model)):
            near = self._nearby(int(demand.site[source]))
            uses = self._uses(source, near)
            able, home = uses.wait > 0, near.latency == 0
            cost = np.where(able, self.price[fleet.node_class[near.nodes]] * uses.part * uses.parts, np.inf)
            self._choices[source], self._cheapest[source] = able.sum(), cost.min(initial=np.inf)
            if able.any():
                self._saved[source] = cost[home].min(initial=np.inf) - cost[~home].min(initial=np.inf)

    def most(self, wait: NDArray[np.float64], longest: NDArray[np.float64], late: float = MAX_LATE) -> NDArray[np.float64]:
        """Return the share of its time that a node may work, for the shortest wait and the longest request of its models."""
        return most_busy(2.0 * wait / np.maximum(longest, 1e-12), late * self._late)

    def links(self, now: Assignment) -> NDArray[np.int32]:
        """Return the links that the requests of each flow take, ``int32[F, L]`` with -1 where there are fewer."""
        return self.fleet.sites.links(self.demand.site[now.source], self.fleet.site[now.nodes[now.instance, 0]])

    def sent(self, now: Assignment, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the bytes per second on each site's link, ``float64[S]``, for requests per second of each flow."""
        links, size = self.links(now), rate * self.demand.sent[self.demand.model[now.source]]
        return total(links[links >= 0], np.repeat(size, (links >= 0).sum(axis=1)), len(self.fleet.sites.names))

    def in_time(self, now: Assignment, sent: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the requests per second of each flow that are answered within their limit, ``float64[F]``.

        Each node serves the requests of all its models in the order of their arrival, one at a time, and refuses the ones that
        would be late (`late_share`). A request of a split model has to be in time at each part. Of requests that a link has no
        bandwidth for, a share is lost. Requests do not wait for links, which planners keep below 70 % of their bandwidth.

        Args:
            now: the assignment.
            sent: ``float64[F]``, requests per second of each flow.
        """
        count = len(self.fleet.names)
        part, nodes = now.part[now.instance], now.nodes[now.instance]
        busy = total(*now.spread(now.instance, sent * part), count)
        squares = total(*now.spread(now.instance, sent * part**2), count)
        left = squares / np.maximum(2 * busy, 1e-300)  # mean remaining time of the request in service
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            late = late_share(busy[nodes], np.where(left[nodes] > 0, now.wait[:, None] / left[nodes], np.inf))
        links = self.links(now)
        through = np.minimum(1.0, self.fleet.sites.bandwidth / np.maximum(self.sent(now, sent), 1e-9))
        through_all = np.where(links >= 0, through[links], 1.0).min(axis=1, initial=1.0)
        served: NDArray[np.float64] = sent * through_all * np.where(nodes >= 0, 1.0 - late, 1.0).prod(axis=1)
        return served

    def plan(self, rates: NDArray[np.float64], alive: NDArray[np.bool_]) -> Assignment:
        """Return an assignment for new rates, changed from the one before.

        Memory of instances that go is free from the next call on, since they serve until the new ones are loaded.

        Args:
            rates: ``float64[Q]``, requests per second of each source.
            alive: ``bool[N]``, nodes that can be used.
        """
        draft = _Draft(self, self._now, rates, alive)
        left = rates - draft.served
        work = left * self._whole[self.demand.model].min(axis=1)
        order = np.lexsort((-work, self._choices, -self._weights[self.demand.model]))
        self._toll = self._tolls(rates)
        for late, waste in self._stages:
            for source in order[left[order] > _SMALL * rates[order]].tolist():
                small = _SMALL * float(rates[source])
                left[source] = self._place(draft, source, float(left[source]), small, late, waste)
        self._now = draft.done(np.where(left > _SMALL * rates, left, 0.0))
        return self._now

    def _tolls(self, rates: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the price of a byte on each site's link, ``float64[S]``, in the unit of `price`.

        It is what the last byte saves that a link has room for, if the requests are sent that save most for each byte.
        """
        size = self.demand.sent[self.demand.model]
        saved = np.maximum(self._saved, 0.0) / size
        toll = np.zeros(len(self.fleet.sites.names))
        order = np.lexsort((-saved, self.demand.site))
        site = self.demand.site[order]
        sent = np.cumsum((rates * size)[order])
        first = np.flatnonzero(np.diff(site, prepend=-1))
        sent -= np.repeat(np.append(0.0, sent)[first], np.diff(first, append=len(site)))
        over = sent > _SENT * self.fleet.sites.bandwidth[site]
        np.maximum.at(toll, site[over], np.where(np.isfinite(saved), saved, 0.0)[order][over])
        return toll

    def _nearby(self, site: int) -> _Near:
        if site not in self._near:
            sites = self.fleet.sites
            every = np.arange(len(sites.names), dtype=np.int32)
            links = sites.links(np.full(len(every), site, np.int32), every)
            latency = np.where(links >= 0, sites.latency[links], 0.0).sum(axis=1)
            inner = [one for one in sites.inner()[np.argsort(latency[sites.inner()], kind="stable")] if one != site]
            near = np.array([site, *inner[:_NEAR]])
            nodes = [np.flatnonzero(self.fleet.site == one) for one in near]
            at = np.repeat(np.arange(len(near)), [len(each) for each in nodes])
            per_byte = np.where(links >= 0, 1 / sites.bandwidth[links], 0.0).max(axis=1)
            self._near[site] = _Near(np.concatenate(nodes), latency[near][at], per_byte[near][at], at, links[near])
        return self._near[site]

    def _uses(self, source: int, near: _Near) -> _Uses:
        model = int(self.demand.model[source])
        of = self.fleet.node_class[near.nodes]
        parts = self._parts[model, of]
        whole = self._whole[model, of] + 2 * near.latency + self.demand.sent[model] * near.per_byte
        self.least[source] = whole[self.able[model, of]].min(initial=np.inf)
        wait = np.where(self.able[model, of], (self._limits[model] - whole) / parts, -1.0)
        return _Uses(parts, self.demand.seconds[model, of] / parts, wait, self.demand.weights[model] / parts)

    def _place(self, draft: _Draft, source: int, left: float, small: float, late: float, waste: float) -> float:
        """Give the requests of a source to nodes; return what is left."""
        near = self._nearby(int(self.demand.site[source]))
        uses, model = self._uses(source, near), int(self.demand.model[source])
        tried = draft.alive[near.nodes] & (uses.wait > 0)
        price = self.price[self.fleet.node_class[near.nodes]] * uses.parts
        toll = self.demand.sent[model] * np.where(near.links >= 0, self._toll[near.links], 0.0).sum(axis=1)[near.at]
        while left > small:
            nodes = near.nodes
            has = draft.own(model, nodes) >= 0
            most = self.most(np.minimum(draft.wait[nodes], uses.wait), np.maximum(draft.longest[nodes], uses.part), late)
            room = self._sendable(draft, near, model, (most - draft.load[nodes]) / uses.part)
            able = tried & (room > small) & (has | (draft.free[nodes] >= uses.held))
            each = np.flatnonzero(able)
            take = np.minimum(room[each], left)
            idle = np.maximum(self.most(draft.wait[nodes[each]], draft.longest[nodes[each]], late) - most[each], 0.0)
            cost = price[each] * (uses.part[each] + idle / take)
            each, cost, take = (of[cost <= waste * self._cheapest[source]] for of in (each, cost, take))
            if not len(each):
                return left
            memory = np.where(has[each], 0.0, uses.held[each] / np.maximum(self.fleet.memory[nodes[each]], 1e-9))
            best = int(each[np.argmin(cost + price[each] * memory / take + toll[each])])
            taken = self._take(
                draft, source, near, uses, best, able & ~has, np.where(room > small, np.minimum(room, left), 0.0)
            )
            tried[best] &= taken > 0
            left -= taken
        return 0.0

    def _sendable(self, draft: _Draft, near: _Near, model: int, room: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the requests per second that near nodes have room for, as far as links can take them."""
        sendable = np.where(near.links >= 0, draft.sendable[near.links], np.inf).min(axis=1)
        able: NDArray[np.float64] = np.minimum(room, (sendable / self.demand.sent[model])[near.at])
        return able

    def _take(
        self, draft: _Draft, source: int, near: _Near, uses: _Uses, best: int, new: NDArray[np.bool_], room: NDArray[np.float64]
    ) -> float:
        """Give requests of a source to a near node, or to a new instance on it; return how many, 0 if it has no room."""
        model, node = int(self.demand.model[source]), int(near.nodes[best])
        chosen = self._parts_of(near, uses, new, best) if new[best] else draft.place(model, node)
        taken = float(min(room[np.isin(near.nodes, chosen) if len(chosen) > 1 else [best]])) if chosen else 0.0
        if taken > 0:
            draft.add(model, chosen, source, taken, *(float(of[best]) for of in uses[1:]))
            links = near.links[near.at[best]]
            draft.sendable[links[links >= 0]] -= taken * self.demand.sent[model]
        return taken

    def _fits(self, kept: Assignment, wait: NDArray[np.float64], longest: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the share of each kept flow that its nodes still have room for, ``float64[F]``."""
        nodes = kept.nodes[kept.instance]
        fits = np.minimum(1.0, self.most(wait, longest, _KEPT) / np.maximum(kept.load(len(wait)), 1e-300))
        least: NDArray[np.float64] = np.where(nodes >= 0, fits[nodes], 1.0).min(axis=1, initial=1.0)
        return least

    def _parts_of(self, near: _Near, uses: _Uses, able: NDArray[np.bool_], first: int) -> list[int]:
        """Return the nodes of a new instance, of one class and one site; none if there are too few."""
        of = self.fleet.node_class[near.nodes]
        like = able & (near.at == near.at[first]) & (of == of[first])
        like[first] = False
        others = near.nodes[like][: uses.parts[first] - 1].tolist()
        return [int(near.nodes[first]), *others] if len(others) == uses.parts[first] - 1 else []


class _Draft:
    """An assignment in the making: what was kept of the one before, and what has been added.

    Attributes:
        served: ``float64[Q]``, requests per second of each source that are kept.
        load: ``float64[N]``, share of its time that each node works.
        wait: ``float64[N]``, the shortest time that a request of a node may wait.
        longest: ``float64[N]``, the longest time of a request on a node.
        free: ``float64[N]``, bytes of memory.
        sendable: ``float64[S]``, bytes per second that each site's link can take.
    """

    def __init__(self, planner: Planner, now: Assignment | None, rates: NDArray[np.float64], alive: NDArray[np.bool_]) -> None:
        self.alive, self._demand, count = alive, planner.demand, len(planner.fleet.names)
        none, no = np.empty(0), np.empty(0, np.int32)
        now = now or Assignment(no, np.empty((0, PARTS), np.int32), none, no, no, none, none, none)
        kept = _still(now, rates, alive)
        lowest, highest = np.full(count, np.inf), np.zeros(count)
        np.minimum.at(lowest, *kept.spread(kept.instance, kept.wait))
        np.maximum.at(highest, *kept.spread(kept.instance, kept.part[kept.instance]))
        rate = kept.rate * planner._fits(kept, lowest, highest)  # flows shrink where a node would be too busy
        max_sent = _SENT * planner.fleet.sites.bandwidth
        links = planner.links(kept)
        fits = np.minimum(1.0, max_sent / np.maximum(planner.sent(kept, rate), 1e-9))
        rate = rate * np.where(links >= 0, fits[links], 1.0).min(axis=1, initial=1.0)
        self._kept = kept = Assignment(kept.model, kept.nodes, kept.part, kept.source, kept.instance, rate, kept.wait, none)
        self.served = total(kept.source, rate, len(rates))
        self.sendable = max_sent - planner.sent(kept, rate)
        self.load, self.wait, self.longest = kept.load(count), lowest, highest
        self.free = planner.fleet.memory - now.held(planner.demand, count)
        self._models: list[int] = kept.model.tolist()
        self._places = [[node for node in nodes if node >= 0] for nodes in kept.nodes.tolist()]
        self._part: list[float] = kept.part.tolist()
        self._rate: list[float] = total(kept.instance, rate, len(kept.model)).tolist()
        self._at: dict[int, dict[int, int]] = {}
        for number, (model, place) in enumerate(zip(self._models, self._places, strict=True)):
            self._at.setdefault(model, {})[place[0]] = number
        self._flows: list[tuple[int, int, float, float]] = []
        self._own = np.full(count, -1.0)

    def own(self, model: int, nodes: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the requests per second of a model at each node that is the first one of an instance; -1 at the others."""
        at = self._at.get(model, {})
        self._own[list(at)] = [self._rate[number] for number in at.values()]
        found = self._own[nodes]
        self._own[list(at)] = -1.0
        return found

    def place(self, model: int, node: int) -> list[int]:
        """Return the nodes of the instance of a model whose first node is given."""
        return self._places[self._at[model][node]]

    def add(self, model: int, place: list[int], source: int, rate: float, part: float, wait: float, held: float) -> None:
        """Give requests of a source to the instance at a place; load it if the place holds no such instance."""
        number = self._at.setdefault(model, {}).get(place[0])
        if number is None:
            number = self._at[model][place[0]] = len(self._models)
            self._models.append(model)
            self._places.append(place)
            self._part.append(part)
            self._rate.append(0.0)
            self.free[place] -= held
        self._flows.append((source, number, rate, wait))
        self._rate[number] += rate
        self.load[place] += rate * part
        self.wait[place] = np.minimum(self.wait[place], wait)
        self.longest[place] = np.maximum(self.longest[place], part)

    def done(self, unplaced: NDArray[np.float64]) -> Assignment:
        """Return the assignment; flows of a source to an instance are one flow."""
        kept, new = self._kept, np.array(self._flows).reshape(-1, 4)
        source = np.concatenate((kept.source, new[:, 0].astype(np.int32)))
        instance = np.concatenate((kept.instance, new[:, 1].astype(np.int32)))
        rate, wait = np.concatenate((kept.rate, new[:, 2])), np.concatenate((kept.wait, new[:, 3]))
        _, first, same = np.unique(source.astype(np.int64) << 32 | instance, return_index=True, return_inverse=True)
        nodes = np.full((len(self._models), PARTS), -1, np.int32)
        for number, place in enumerate(self._places):
            nodes[number, : len(place)] = place
        model = np.array(self._models, np.int32)
        loaded = model[len(kept.model) :]
        return Assignment(
            model,
            nodes,
            np.array(self._part),
            source[first],
            instance[first],
            total(same, rate, len(first)),
            wait[first],
            unplaced,
            len(loaded),
            float(self._demand.weights[loaded].sum()),
        )


def _still(now: Assignment, rates: NDArray[np.float64], alive: NDArray[np.bool_]) -> Assignment:
    """Return what is left of an assignment: of each source, the largest flows that are enough, scaled to its new rate."""
    order = np.lexsort((-now.rate, now.source))
    order = order[now.lives(alive)[now.instance[order]]]
    source, rate = now.source[order], now.rate[order]
    before = np.cumsum(rate) - rate
    first = np.flatnonzero(np.diff(source, prepend=-1))
    before -= np.repeat(before[first], np.diff(first, append=len(source)))
    order = order[before < rates[source]]
    source, instance = now.source[order], now.instance[order]
    kept = total(source, now.rate[order], len(rates))
    rate = now.rate[order] * (rates / np.maximum(kept, 1e-300))[source]
    used, number = np.unique(instance, return_inverse=True)
    return Assignment(
        now.model[used], now.nodes[used], now.part[used], source, number.astype(np.int32), rate, now.wait[order], now.unplaced
    )
