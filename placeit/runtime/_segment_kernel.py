"""The compiled part of :mod:`placeit.runtime.segments`: what a partition of groups into segments would take."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.runtime._kernel import jit

_TOLERANCE = 1e-9


class Groups(NamedTuple):
    """Groups and costs as the kernels read them."""

    edges: NDArray[np.int32]  # [E, 3] producer group, consumer group, tensor; sorted by producer
    tensor_bytes: NDArray[np.float64]  # [T]
    core: NDArray[np.float64]  # [G, D] seconds
    cut_per_byte: NDArray[np.float64]  # [G, D] seconds per byte that crosses the group's border
    dispatch: NDArray[np.float64]  # [D] seconds
    bandwidth: NDArray[np.float64]  # [D, D]
    latency: NDArray[np.float64]  # [D, D]
    free: NDArray[np.bool_]  # [G] whether a group runs nothing


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
    """List what crosses between segments.

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
    groups: Groups, of: NDArray[np.int32], count: int, devices: NDArray[np.int32], cut_bytes: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return ``float64[S]``, what segments take by the sum of their parts; zero for those that run nothing."""
    seconds = np.zeros(count)
    runs = np.zeros(count, np.bool_)
    for g in range(len(of)):
        d = devices[g]
        seconds[of[g]] += groups.core[g, d] + groups.cut_per_byte[g, d] * cut_bytes[g]
        if not groups.free[g] and not runs[of[g]]:
            runs[of[g]] = True
            seconds[of[g]] += groups.dispatch[d]
    return np.where(runs, seconds, 0.0)


@jit
def topological(moves: NDArray[np.int32], count: int) -> tuple[NDArray[np.int32], int]:
    """Return ``int32[S]`` segments in topological order, and how many of them are not on or behind a cycle."""
    waiting = np.zeros(count, np.int32)
    for m in range(len(moves)):
        waiting[moves[m, 1]] += 1
    order = np.empty(count, np.int32)
    done = 0
    for s in range(count):
        if waiting[s] == 0:
            order[done] = s
            done += 1
    read = 0
    while read < done:
        for m in range(len(moves)):
            if moves[m, 0] == order[read]:
                waiting[moves[m, 1]] -= 1
                if waiting[moves[m, 1]] == 0:
                    order[done] = moves[m, 1]
                    done += 1
        read += 1
    return order, done


@jit
def simulate_segments(
    groups: Groups, of: NDArray[np.int32], count: int, devices: NDArray[np.int32]
) -> tuple[float, NDArray[np.float64]]:
    """Simulate a partition: priority queues by b-level, one transfer at a time per link.

    The rules are those of :mod:`placeit.runtime.simulator`, which would first want a problem built; there are few segments,
    so plain scans take the place of its heaps.

    Returns:
        Makespan, NaN if segments would wait in a circle; ``float64[S]``, when each segment starts.
    """
    moves, cut_bytes = crossings(groups, of)
    order, sorted_count = topological(moves, count)
    start = np.zeros(count)
    if sorted_count < count:
        return np.nan, start
    total, width = len(moves), len(groups.dispatch)
    seconds = seconds_of_segments(groups, of, count, devices, cut_bytes)
    place = np.empty(count, np.int32)
    for g in range(len(of)):
        place[of[g]] = devices[g]
    pending = np.zeros(count, np.int32)
    serves = np.full(total, -1, np.int32)  # the move whose transfer brings the tensor; -1 on the same device
    rank = np.zeros(count)
    hop = np.zeros(total)
    for m in range(total):
        u, v, t = moves[m]
        pending[v] += 1
        if place[u] != place[v]:
            hop[m] = groups.latency[place[u], place[v]] + groups.tensor_bytes[t] / groups.bandwidth[place[u], place[v]]
            serves[m] = m
            for n in range(m):
                if moves[n, 2] == t and place[moves[n, 1]] == place[v] and serves[n] == n:
                    serves[m] = n
                    break
    for i in range(count - 1, -1, -1):
        s = order[i]
        for m in range(total):
            if moves[m, 0] == s:
                rank[s] = max(rank[s], hop[m] + rank[moves[m, 1]])
        rank[s] += seconds[s]
    move_rank = np.full(total, -1.0)
    for m in range(total):
        if serves[m] >= 0:
            move_rank[serves[m]] = max(move_rank[serves[m]], rank[moves[m, 1]])
    # a device runs a segment, and a link moves a tensor, until `until`
    running, until = np.full(width, -1, np.int32), np.full(width, np.inf)
    moving, arrives = np.full((width, width), -1, np.int32), np.full((width, width), np.inf)
    ready = pending == 0
    asked = np.zeros(total, np.bool_)
    now, left = 0.0, count
    while True:
        for d in range(width):
            if running[d] < 0:
                best = -1
                for s in range(count):
                    if ready[s] and place[s] == d and (best < 0 or rank[s] > rank[best]):
                        best = s
                if best >= 0:
                    running[d], until[d], start[best], ready[best] = best, now + seconds[best], now, False
        for m in range(total):
            if asked[m]:
                src, dst = place[moves[m, 0]], place[moves[m, 1]]
                if moving[src, dst] < 0:
                    best = m
                    for n in range(m + 1, total):
                        same = place[moves[n, 0]] == src and place[moves[n, 1]] == dst
                        if asked[n] and same and move_rank[n] > move_rank[best]:
                            best = n
                    moving[src, dst], arrives[src, dst], asked[best] = best, now + hop[best], False
        if left == 0:
            return now, start
        now = min(until.min(), arrives.min())
        for d in range(width):
            if until[d] <= now:
                s = running[d]
                running[d], until[d] = -1, np.inf
                left -= 1
                for m in range(total):
                    if moves[m, 0] == s:
                        if serves[m] < 0:
                            pending[moves[m, 1]] -= 1
                            ready[moves[m, 1]] = pending[moves[m, 1]] == 0
                        elif serves[m] == m:
                            asked[m] = True
            for e in range(width):
                if arrives[d, e] <= now:
                    arrived = moving[d, e]
                    moving[d, e], arrives[d, e] = -1, np.inf
                    for m in range(total):
                        if serves[m] == arrived:
                            pending[moves[m, 1]] -= 1
                            ready[moves[m, 1]] = pending[moves[m, 1]] == 0


@jit
def merge_groups(groups: Groups, devices: NDArray[np.int32]) -> tuple[NDArray[np.int32], float]:
    """Merge segments that follow each other on a device while that does not delay the end; see ``Segmenter.plan``.

    Returns:
        ``int32[G]``, the segment of each group, and the makespan.
    """
    labels = np.arange(len(devices)).astype(np.int32)
    of, count = compact(labels)
    best, start = simulate_segments(groups, of, count, devices)
    while True:
        # groups of each device in the order in which their segments start
        began = start[of]
        rank = np.argsort(began, kind="mergesort")
        merged = False
        for d in range(len(groups.dispatch)):
            previous = -1
            for i in range(len(rank)):
                g = rank[i]
                if devices[g] != d or groups.free[g]:
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
def search(
    groups: Groups,
    devices: NDArray[np.int32],
    feasible: NDArray[np.bool_],
    param_bytes: NDArray[np.float64],
    memory: NDArray[np.float64],
    steps: int,
    heat: float,
    rng: np.random.Generator,
) -> NDArray[np.int32]:
    """Anneal a placement by the makespan of its plan; see ``Segmenter.search``."""
    width = len(groups.dispatch)
    current = devices.copy()
    now = merge_groups(groups, current)[1]
    best, best_at = current.copy(), now
    used = np.zeros(width)
    for g in range(len(current)):
        used[current[g]] += param_bytes[g]
    for step in range(steps):
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
                best, best_at = current.copy(), now
        else:
            current[g] = old
    return best
