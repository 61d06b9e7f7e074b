"""The compiled part of :mod:`placeit.planning.segments`: costs of partitions of groups into segments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.simulator.one_request import makespan_of
from placeit.simulator.queues import EDGE, OP, Records, int64

_TOLERANCE = 1e-9


class Groups(NamedTuple):
    """Groups and costs in the layout of the kernels."""

    edges: NDArray[np.int32]  # [E, 3] producer group, consumer group, tensor; sorted by producer
    tensor_bytes: NDArray[np.float64]  # [T]
    core: NDArray[np.float64]  # [G, D] seconds
    cut_per_byte: NDArray[np.float64]  # [G, D] seconds per byte that crosses the group's border
    dispatch: NDArray[np.float64]  # [D] seconds
    load: NDArray[np.float64]  # [G, D] seconds more while all other devices work that can
    beside: NDArray[np.float64]  # [D, D] which share of those that can work beside a device another one is
    conflict: NDArray[np.bool_]  # [D * D] whether two devices never run at the same time; [0] if all may
    read: NDArray[np.float64]  # [D] seconds per byte that another device wrote
    link: Records  # LINK[D, D]
    passthrough: NDArray[np.bool_]  # [G] whether a group runs nothing
    clique: NDArray[np.bool_]  # [C, D] sets of several devices of which only one runs at a time
    steady: bool  # whether as many requests are in flight as keep the busiest device or link busy all the time
    outside: NDArray[np.float64]  # [D] share of the time for which something else keeps a device busy meanwhile; if steady


@jit
def compact(labels: NDArray[np.int32]) -> tuple[NDArray[np.int32], int]:
    """Number the labels 0, 1, ... in the order in which they first appear; return the numbers and how many there are."""
    number = np.full(len(labels), -1, np.int32)
    of = np.empty(len(labels), np.int32)
    count = 0
    for g in range(len(labels)):
        if number[labels[g]] < 0:
            number[labels[g]] = count
            count += 1
        of[g] = number[labels[g]]
    return of, count


@jit
def crossings(groups: Groups, of: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """List the tensors that cross between segments.

    Returns:
        ``int32[M, 3]``, each tensor once for every segment it enters: producer segment, consumer segment, tensor, in the
        order of the producer groups; ``float64[G]``, bytes that cross a segment's border at each group.
    """
    edges, tensors = groups.edges, len(groups.tensor_bytes)
    entered = np.zeros((len(of), tensors), np.bool_)  # by consumer segment
    left = np.zeros(tensors, np.bool_)
    moves = np.empty((len(edges), 3), np.int32)
    cut_bytes = np.zeros(len(of))
    count = 0
    for e in range(len(edges)):
        u, v, t = edges[e]
        if of[u] == of[v]:
            continue
        if not left[t]:
            left[t] = True
            cut_bytes[u] += groups.tensor_bytes[t]
        cut_bytes[v] += groups.tensor_bytes[t]
        if not entered[of[v], t]:
            entered[of[v], t] = True
            moves[count, 0], moves[count, 1], moves[count, 2] = of[u], of[v], t
            count += 1
    return moves[:count], cut_bytes


@jit
def seconds_of_segments(
    groups: Groups,
    of: NDArray[np.int32],
    count: int,
    devices: NDArray[np.int32],
    moves: NDArray[np.int32],
    cut_bytes: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Return ``float64[S]``, the seconds of segments as sums of their parts; zero for segments that run nothing.

    What a group takes more while other devices work counts by the share of the segment's time in which they do, in the
    schedule that there would be without it; of several others that can work at once, by the mean of their shares. With many
    requests in flight that is the share of all time for which they are busy.

    Args:
        groups: groups and costs.
        of: segment of each group, in topological order.
        count: segments.
        devices: device of each group.
        moves: from :func:`ordered`.
        cut_bytes: likewise.
    """
    seconds, load = np.zeros(count), np.zeros(count)
    place = np.empty(count, np.int32)
    runs = np.zeros(count, np.bool_)
    for g in range(len(of)):
        d = devices[g]
        place[of[g]] = d
        seconds[of[g]] += groups.core[g, d] + groups.cut_per_byte[g, d] * cut_bytes[g]
        load[of[g]] += groups.load[g, d]
        if not groups.passthrough[g] and not runs[of[g]]:
            runs[of[g]] = True
            seconds[of[g]] += groups.dispatch[d]
    for m in range(len(moves)):
        if place[moves[m, 0]] != place[moves[m, 1]]:
            seconds[moves[m, 1]] += groups.read[place[moves[m, 1]]] * groups.tensor_bytes[moves[m, 2]]
    seconds = np.where(runs, seconds, 0.0)
    if groups.steady:
        busy = _busy(groups, moves, place, seconds)
        most = max(busy.max(), 1e-300)
        for s in range(count):
            if runs[s] and seconds[s] > 0:
                beside = 0.0
                for d in range(len(groups.dispatch)):
                    beside += groups.beside[place[s], d] * (busy[d] / most + groups.outside[d])
                seconds[s] = max(0.0, seconds[s] + load[s] * beside)
    elif (place != place[0]).any() and load.any():
        start = _simulate(groups, moves, place, seconds)[1]
        end = start + seconds
        for s in range(count):
            beside = 0.0
            for o in range(count):
                if place[o] != place[s]:
                    beside += groups.beside[place[s], place[o]] * max(0.0, min(end[s], end[o]) - max(start[s], start[o]))
            if runs[s] and seconds[s] > 0:
                load[s] *= beside / seconds[s]
        for s in range(count):
            if runs[s] and seconds[s] > 0:
                seconds[s] = max(0.0, seconds[s] + load[s])
    return seconds


@jit
def _busy(
    groups: Groups, moves: NDArray[np.int32], place: NDArray[np.int32], seconds: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return for how many seconds one request keeps each resource busy: devices, ``groups.clique``, ordered pairs of devices.

    What :func:`placeit.simulator.throughput.busy_kernel` says of the plan of a partition, without a problem to build first.
    """
    devices, sets = len(groups.dispatch), len(groups.clique)
    busy = np.zeros(devices + sets + devices * devices)
    for s in range(len(place)):
        busy[place[s]] += seconds[s]
    for k in range(sets):
        for d in range(devices):
            if groups.clique[k, d]:
                busy[devices + k] += busy[d]
    for m in range(len(moves)):
        src, dst = place[moves[m, 0]], place[moves[m, 1]]
        if src == dst:
            continue
        n, fresh = m - 1, True  # a tensor goes to a device once, however many segments read it there
        while n >= 0 and moves[n, 0] == moves[m, 0]:
            fresh &= moves[n, 2] != moves[m, 2] or place[moves[n, 1]] != dst
            n -= 1
        if fresh:
            link = groups.link[src, dst]
            busy[devices + sets + src * devices + dst] += link.latency + groups.tensor_bytes[moves[m, 2]] / link.bandwidth
    return busy


@jit
def ordered(
    groups: Groups, of: NDArray[np.int32], count: int
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64], bool]:
    """Number segments in topological order.

    Returns:
        ``int32[G]``, the segment of each group; ``int32[M, 3]`` and ``float64[G]`` as from :func:`crossings`, the former
        sorted; whether there is such an order at all.
    """
    moves, cut_bytes = crossings(groups, of)
    waiting = np.zeros(count, np.int32)
    for m in range(len(moves)):
        waiting[moves[m, 1]] += 1
    number = np.full(count, -1, np.int32)
    order = np.empty(count, np.int32)
    done = 0
    for s in range(count):
        if waiting[s] == 0:
            order[done] = s
            done += 1
    read = 0
    while read < done:
        number[order[read]] = read
        for m in range(len(moves)):
            if moves[m, 0] == order[read]:
                waiting[moves[m, 1]] -= 1
                if waiting[moves[m, 1]] == 0:
                    order[done] = moves[m, 1]
                    done += 1
        read += 1
    if done < count:
        return of, moves, cut_bytes, False
    tensors = len(groups.tensor_bytes)
    key = np.empty(len(moves), np.int64)
    for m in range(len(moves)):
        moves[m, 0], moves[m, 1] = number[moves[m, 0]], number[moves[m, 1]]
        key[m] = (np.int64(moves[m, 0]) * count + moves[m, 1]) * tensors + moves[m, 2]
    return number[of], moves[np.argsort(key)], cut_bytes, True


@jit
def simulate_segments(
    groups: Groups, of: NDArray[np.int32], count: int, devices: NDArray[np.int32]
) -> tuple[float, NDArray[np.float64]]:
    """Simulate a partition: priority queues by b-level, one transfer at a time per link.

    What :mod:`placeit.simulator.simulate` does with the plan of the partition, but without a problem to build first.

    Returns:
        Makespan, or with many requests in flight the seconds per request, for which the busiest resource is busy; NaN if
        segments would wait in a circle. ``float64[G]``, when the segment of each group starts.
    """
    of, moves, cut_bytes, sorted_ = ordered(groups, of, count)
    if not sorted_:
        return np.nan, np.zeros(len(of))
    seconds = seconds_of_segments(groups, of, count, devices, moves, cut_bytes)
    place = np.empty(count, np.int32)
    for g in range(len(of)):
        place[of[g]] = devices[g]
    makespan, start = _simulate(groups, moves, place, seconds)
    return _busy(groups, moves, place, seconds).max() if groups.steady else makespan, start[of]


@jit
def _simulate(
    groups: Groups, moves: NDArray[np.int32], place: NDArray[np.int32], seconds: NDArray[np.float64]
) -> tuple[float, NDArray[np.float64]]:
    """Simulate segments that are numbered in topological order; return the makespan, and when each starts."""
    count, total = len(place), len(moves)
    op, edge, start = np.zeros(count + 1, OP), np.empty(total, EDGE), np.empty(count)
    for m in range(total):
        op[moves[m, 0] + 1].first = m + 1
        op[moves[m, 1]].indegree += 1
        edge[m].tail, edge[m].head, edge[m].tensor = moves[m, 0], moves[m, 1], moves[m, 2]
        edge[m].size = groups.tensor_bytes[moves[m, 2]]
        edge[m].following = edge[m].shared = -1
    for s in range(count):
        op[s].order = s
        op[s + 1].first = max(op[s].first, op[s + 1].first)
        shared = 0
        for m in range(op[s].first, op[s + 1].first):
            n = m + 1
            while n < op[s + 1].first and moves[n, 2] != moves[m, 2]:
                n += 1
            if n < op[s + 1].first:
                if edge[m].shared < 0:
                    edge[m].shared = shared
                    shared += 1
                edge[m].following, edge[n].shared = n, edge[m].shared
    return makespan_of(op, edge, groups.link, place, groups.conflict, seconds, start), start


@jit
def merge_groups(groups: Groups, devices: NDArray[np.int32]) -> tuple[NDArray[np.int32], float]:
    """Merge consecutive segments on a device while the makespan does not grow; see ``Segmenter.plan``.

    With many requests in flight it is the seconds per request that may not grow.

    Returns:
        ``int32[G]``, the segment of each group, and these seconds: ``inf`` if a group cannot run where it is.
    """
    labels = np.arange(len(devices)).astype(np.int32)
    for g in range(len(devices)):
        if groups.core[g, devices[g]] == np.inf:
            return labels, np.inf
    if (devices == devices[0]).all():
        whole = np.zeros(len(devices), np.int32)
        return whole, simulate_segments(groups, whole, int64(1), devices)[0]
    of, count = compact(labels)
    best, start = simulate_segments(groups, of, count, devices)
    while True:
        # groups of each device in the order in which their segments start
        rank = np.argsort(start, kind="mergesort")
        merged = False
        for d in range(len(groups.dispatch)):
            previous = -1
            for i in range(len(rank)):
                g = rank[i]
                if devices[g] != d or groups.passthrough[g]:
                    continue
                if previous >= 0 and labels[previous] != labels[g]:
                    trial = np.where(labels == labels[g], labels[previous], labels).astype(np.int32)
                    trial_of, trial_count = compact(trial)
                    makespan, trial_start = simulate_segments(groups, trial_of, trial_count, devices)
                    if makespan <= best * (1 + _TOLERANCE):  # False for NaN
                        labels, of, best, start = trial, trial_of, makespan, trial_start
                        merged = True
                previous = g
        if not merged:
            return of, best


@jit
def merge_into(of: NDArray[np.int32], groups: Groups, devices: NDArray[np.int32]) -> float:
    """Write the first result of :func:`merge_groups` and return the second."""
    merged, makespan = merge_groups(groups, devices)
    of[:] = merged
    return makespan


@jit
def partition(
    of: NDArray[np.int32],
    moves: NDArray[np.int32],
    seconds: NDArray[np.float64],
    groups: Groups,
    devices: NDArray[np.int32],
) -> int:
    """Number segments in topological order, and return the tensors between them and their seconds.

    Args:
        of: ``int32[G]``, the segment of each group; renumbered.
        moves: ``int32[E, 3]``, whose first rows become those of :func:`ordered`.
        seconds: ``float64[S]``, becomes that of :func:`seconds_of_segments`.
        groups: groups and costs.
        devices: device of each group.

    Returns:
        How many moves there are.
    """
    numbers, found, cut_bytes, _ = ordered(groups, of, len(seconds))
    of[:], moves[: len(found)] = numbers, found
    seconds[:] = seconds_of_segments(groups, of, len(seconds), devices, found, cut_bytes)
    return len(found)


@jit
def search(
    best: NDArray[np.int32],
    current: NDArray[np.int32],
    seconds: NDArray[np.float64],
    groups: Groups,
    feasible: NDArray[np.bool_],
    param_bytes: NDArray[np.float64],
    memory: NDArray[np.float64],
    first: int,
    last: int,
    steps: int,
    heat: float,
    rng: np.random.Generator,
) -> None:
    """Anneal a placement by the makespan of its plan, or the seconds per request; see ``Segmenter.search``.

    Does steps ``first`` to ``last`` of ``steps``; updates the current and the best placement, and their seconds.
    """
    width = len(groups.dispatch)
    if first == 0:
        seconds[:] = merge_groups(groups, current)[1]
    now, best_at = seconds[0], seconds[1]
    used = np.zeros(width)
    for g in range(len(current)):
        used[current[g]] += param_bytes[g]
    for step in range(first, last):
        g = int(rng.random() * len(current))
        # half of the moves take a group to where a neighbour is, the others anywhere
        to = int(rng.random() * width)
        if len(groups.edges) and rng.random() < 0.5:
            e = int(rng.random() * len(groups.edges))
            u, v = groups.edges[e, 0], groups.edges[e, 1]
            g, to = (u, current[v]) if rng.random() < 0.5 else (v, current[u])
        old = current[g]
        if to == old or not feasible[g, to] or used[to] + param_bytes[g] > memory[to]:
            continue
        current[g] = to
        makespan = merge_groups(groups, current)[1]
        temperature = heat * best_at * (1 - step / steps)
        if makespan <= now or rng.random() < np.exp((now - makespan) / max(temperature, 1e-300)):
            now = makespan
            used[old] -= param_bytes[g]
            used[to] += param_bytes[g]
            if now < best_at:
                best[:], best_at = current, now
        else:
            current[g] = old
    seconds[0], seconds[1] = now, best_at
