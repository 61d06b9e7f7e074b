"""Replicas: disjoint groups of devices that each serve whole requests, as candidates of a search for throughput."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.conflicts import together
from placeit.core.errors import InfeasibleError
from placeit.core.problem import Problem
from placeit.measuring.statistics import FEWEST
from placeit.optimizer.candidates import Candidate
from placeit.optimizer.ledger import Item
from placeit.optimizer.search import Proposal, Search
from placeit.placers.base import is_over
from placeit.placers.dp import Dp
from placeit.placers.feasibility import fits
from placeit.planning.in_flight import share_of
from placeit.planning.segments import Plan, Segmenter
from placeit.simulator.throughput_bound import ThroughputCost, bottleneck

__all__ = ["REPLICAS", "enter_given", "enter_replicas", "replicated"]

REPLICAS = "replicas"
"""Placer name of candidates with replicas."""
_MAX_DEVICES, _MAX_ENTERED = 6, 3  # devices that are divided into groups (203 ways); divisions that become candidates
_ORDERS, _SHARE = 8, 0.1  # orders of which the split of a group is the best; share of the time left for all groups


def enter_replicas(search: Search) -> None:
    """Enter replicas: divisions of the devices into groups that each serve whole requests, the best ones in simulation.

    A group of one device runs the model whole; a larger one splits it contiguously. Of devices that share cores,
    only a set that can run at the same time takes part. Devices that cannot serve whole requests alone or in any group are left
    out. Replicas that an earlier search has measured are entered as well.
    """
    problem = search.problem
    devices = together(problem.conflicts)[:_MAX_DEVICES]
    if len(devices) < 2 or search.session.pins:
        return
    search.say("dividing devices into replicas", 0.0)
    with search.ledger.on(Item(REPLICAS, placer=True)):
        deadline = clock.now() + max(0.0, search.left()) * _SHARE
        plans: dict[tuple[int, ...], Plan | None] = {}
        found: dict[frozenset[tuple[int, ...]], Candidate] = {}
        for groups in sorted(_divisions(devices), key=len, reverse=True):  # replicas on single devices first
            if found and is_over(deadline):
                break
            for group in groups:
                if group not in plans:
                    plans[group] = _split(search, group, deadline)
            plans_by_group = {group: plan for group in groups if (plan := plans[group]) is not None}
            key = frozenset(plans_by_group)
            if 1 < len(plans_by_group) <= (search.objective.in_flight or len(plans_by_group)) and key not in found:
                found[key] = _candidate(search, [*plans_by_group.values()])
        best = sorted(found.values(), key=lambda one: one.simulated_value or 0.0)[:_MAX_ENTERED]
        earlier = _recall(search)
        for candidate in best:
            name = earlier.get(_key(candidate.plans))
            if name is None:
                name = search.free_name(candidate.name)
                search.enter(replace(candidate, name=name))
            search.proposals.append(Proposal(REPLICAS, name, True, False))


def enter_given(search: Search, name: str, placements: Sequence[NDArray[np.int32]]) -> None:
    """Enter replicas as a starting placement of a search, by the device of each group in each replica, ``int32[G]``."""
    candidate = _candidate(search, [search.segmenter.plan(placement) for placement in placements])
    search.enter(replace(candidate, name=search.free_name(name), given=True))


def _recall(search: Search) -> dict[frozenset[bytes], str]:
    """Enter replicas that an earlier search measured and that are feasible now; return the names of all replicas by key."""
    names = {_key(one.plans): one.name for one in search.candidates if one.replicas}
    for known in () if search.journal is None else search.journal.known:
        if not known.replicas or not all(fits(search.problem, one.devices) for one in known.every):
            continue
        candidate = _candidate(search, [search.segmenter.merged(one.segment_of, one.devices) for one in known.every])
        key = _key(candidate.plans)
        if key not in names:
            names[key] = search.enter(replace(candidate, name=search.free_name(known.name))).name
        if len(known.samples) >= FEWEST:
            search.recall(names[key], known, *candidate.plans)
    return names


def _key(plans: Sequence[Plan]) -> frozenset[bytes]:
    """Return a key that equal sets of replicas share: the devices of the groups in each."""
    return frozenset(plan.group_devices.tobytes() for plan in plans)


def replicated(segmenter: Segmenter, plans: Sequence[Plan]) -> list[Plan]:
    """Return plans on disjoint groups of devices, priced for all of them serving requests at once and slowing each other down.

    Args:
        segmenter: a ``steady`` segmenter.
        plans: plans by this segmenter, each priced as if its own devices were alone.
    """
    shares = []
    for plan in plans:
        limit = bottleneck(plan.problem, plan.placement)
        each = [limit.busy[name] / limit.seconds if limit.seconds > 0 else 0.0 for name in plan.problem.device_names]
        shares.append(np.array(each))
    priced = []
    for number, plan in enumerate(plans):
        outside = sum((share for other, share in enumerate(shares) if other != number), np.zeros(len(shares[0])))
        priced.append(Segmenter(segmenter.grouping, segmenter.costs, steady=True, outside=outside).priced(plan))
    return priced


def _divisions(devices: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
    """Yield all ways to divide devices into two or more groups."""

    def ways(rest: Sequence[int]) -> Iterator[list[tuple[int, ...]]]:
        if not rest:
            yield []
            return
        for groups in ways(rest[1:]):
            yield [(rest[0],), *groups]
            for i, group in enumerate(groups):
                yield [*groups[:i], (rest[0], *group), *groups[i + 1 :]]

    yield from (groups for groups in ways(devices) if len(groups) > 1)


def _split(search: Search, group: tuple[int, ...], deadline: float) -> Plan | None:
    """Return a plan of the whole model on a group of devices, split contiguously; None if it does not fit."""
    problem = search.problem
    if len(group) == 1:
        whole = np.full(len(problem), group[0], np.int32)
        return search.segmenter.plan(whole) if group[0] in problem.single_devices else None
    inside = _restricted(problem, group)
    if inside is None or search.session.costs.shared or search.indivisible or is_over(deadline):
        return None
    try:
        split = Dp(_ORDERS).place(inside, ThroughputCost(inside), seed=search.seed, evaluations=None, deadline=deadline)
    except InfeasibleError:
        return None
    return search.segmenter.plan(split)


def _restricted(problem: Problem, group: tuple[int, ...]) -> Problem | None:
    """Return the problem restricted to a group of devices; None if an op can run on none of them."""
    allowed = np.isin(np.arange(problem.devices), group)
    compute = np.where(allowed, problem.compute, np.inf)
    return replace(problem, compute=compute) if np.isfinite(compute).any(axis=1).all() else None


def _candidate(search: Search, plans: Sequence[Plan]) -> Candidate:
    plans = replicated(search.segmenter, plans)
    depth, by = share_of(search.objective.in_flight, plans), search.objective
    by = by if depth is None else by.at_depth(depth)
    rates = [1 / each if each > 0 else math.inf for each in map(by.of_plan, plans)]
    value = 1 / sum(rates)
    names = search.problem.device_names
    where = (" with ".join(names[d] for d in np.unique(plan.placement)) for plan in plans)
    first, *others = plans
    name = f"{REPLICAS} on {', '.join(where)}"
    return Candidate(name, REPLICAS, first, search.session.placing, value, value, replicas=tuple(others))
