"""Problems for list schedulers: graphs of several shapes and any size, on devices of several kinds.

The shapes are layered random graphs, networks of blocks with branches, and tensor programs cut into shards. The devices are
unequal devices on unequal links, servers with equal accelerators, systems on a chip, and sets of cores that conflict. Transfers
take from a tenth of the time of ops to ten times as much.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem

__all__ = ["SHAPES", "large_problem", "list_problem"]

_KINDS = 5  # number of kinds of ops: each device is fast for some of them

Edges = list[tuple[int, int]]


def list_problem(shape: str, size: int, rng: np.random.Generator, *, tight: bool = False, cores: bool = False) -> Problem:
    """Draw a problem.

    Args:
        shape: one of :data:`SHAPES`.
        size: approximate number of ops.
        rng: the random number generator.
        tight: whether weights take most of the memory.
        cores: place on cores and sets of them, some of which conflict.
    """
    ops, edges = SHAPES[shape](rng, size)
    speed, bandwidth, latency, conflicts = _cores(rng) if cores else _devices(rng)
    devices = speed.shape[1]
    base = rng.lognormal(0.0, rng.uniform(0.2, 1.2), ops)
    compute = base[:, None] / speed[rng.integers(_KINDS, size=ops)] * rng.uniform(0.9, 1.1, (ops, devices))
    tail = np.array([u for u, _ in edges], np.int64)
    bytes_of = rng.lognormal(0.0, rng.uniform(0.2, 1.0), ops)  # all consumers of an op read the same tensor
    ratio = float(np.exp(rng.uniform(np.log(0.1), np.log(10.0))))
    mean_transfer = float((1.0 / bandwidth[~np.eye(devices, dtype=bool)]).mean())
    weights = rng.lognormal(0.0, 1.0, ops) if tight else np.zeros(ops)
    room = np.bincount(rng.integers(devices, size=ops), weights=weights, minlength=devices) * rng.uniform(1.05, 2.0)
    return Problem.from_arrays(
        compute,
        np.array(edges, np.int32),
        bytes_of[tail] * ratio * float(base.mean()) / mean_transfer / float(bytes_of.mean()),
        bandwidth,
        latency * float(base.mean()),
        edge_tensor=tail.astype(np.int32),
        param_bytes=weights,
        memory=room if tight else None,
        conflicts=conflicts,
    )


def large_problem(shape: str, size: int, devices: int, seed: int) -> Problem:
    """Draw a graph of one of :data:`SHAPES` on devices of unequal speed, whose transfers take as long as ops in the mean."""
    rng = np.random.default_rng([seed, size, devices])
    ops, edges = SHAPES[shape](rng, size)
    base, speed = rng.lognormal(0.0, 0.6, ops), rng.uniform(0.5, 1.5, devices)
    tail = np.array([u for u, _ in edges], np.int64)
    bytes_of = rng.lognormal(0.0, 0.6, ops)
    return Problem.from_arrays(
        base[:, None] / speed * rng.uniform(0.8, 1.2, (ops, devices)),
        np.array(edges, np.int32),
        bytes_of[tail],
        np.ones((devices, devices)),
        np.full((devices, devices), 0.01),
        edge_tensor=tail.astype(np.int32),
    )


def _layered(rng: np.random.Generator, size: int) -> tuple[int, Edges]:
    """Draw ops in layers, each reading from a few in the three layers before it."""
    width = max(2, round(size ** rng.uniform(0.2, 0.7)))
    layer = np.arange(size) // width
    edges = []
    for v in range(width, size):
        low, high = max(0, int(layer[v]) - int(rng.integers(1, 4))) * width, int(layer[v]) * width
        edges += [(int(u), v) for u in np.unique(rng.integers(low, high, size=rng.integers(1, 4)))]
    return size, edges


def _blocks(rng: np.random.Generator, size: int) -> tuple[int, Edges]:
    """Draw consecutive blocks, each of several branches between a fork and a join, some with a residual."""
    edges: Edges = []
    most, deepest, residual = int(rng.integers(2, 9)), int(rng.integers(1, 5)), rng.random()
    v, join = 0, -1
    while v < size:
        fork, ends = v, []
        if join >= 0:
            edges.append((join, fork))
        v += 1
        for _ in range(int(rng.integers(1, most + 1))):
            last = fork
            for _ in range(int(rng.integers(1, deepest + 1))):
                edges.append((last, v))
                last, v = v, v + 1
            ends.append(last)
        join, v = v, v + 1
        edges += [(end, join) for end in ends]
        if rng.random() < residual:
            edges.append((fork, join))
    return v, edges


def _shards(rng: np.random.Generator, size: int) -> tuple[int, Edges]:
    """Draw layers of equal shards: each layer works shard by shard, shuffles them in groups, or reduces them pair by pair."""
    shards = int(rng.choice((2, 4, 8, 16)))
    edges: Edges = []
    now, v = list(range(shards)), shards
    while v < size:
        way = int(rng.integers(3))
        if way == 2:  # partial sums of every pair, then as many shards again
            pairs = [(a, b) for a in now for b in now[:: max(1, shards // 2)]]
            made = list(range(v, v + len(pairs)))
            for op, (a, b) in zip(made, pairs, strict=True):
                edges += [(a, op)] if a == b else [(a, op), (b, op)]
            v += len(made)
            after = list(range(v, v + shards))
            edges += [(op, after[i % shards]) for i, op in enumerate(made)]
        else:
            after = list(range(v, v + shards))
            group = shards if way else 1
            edges += [(now[j], after[i]) for i in range(shards) for j in range(i // group * group, i // group * group + group)]
        now, v = after, v + shards
    return v, edges


def _devices(
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Draw speeds of each kind of op, ``float64[K, D]``, bandwidths, latencies in seconds of a mean op, and conflicts."""
    way = int(rng.choice(3, p=(0.5, 0.3, 0.2)))
    devices = int(rng.choice((2, 3, 4, 6, 8, 12, 16))) if way == 0 else int(rng.choice((2, 4, 8))) if way == 1 else 3
    speed, spread = np.ones((_KINDS, devices)), 0.0
    if way == 0:  # unequal devices on unequal links
        gap, spread = rng.uniform(0.0, 0.8), rng.uniform(0.0, 0.6)
        speed *= rng.uniform(1 - gap, 1 + gap, devices)
        speed *= rng.lognormal(0.0, rng.choice((0.0, 0.3, 0.6)), (_KINDS, devices))
    elif way == 1:  # a server: equal accelerators, or some of an older kind
        speed[:, devices // 2 :] *= rng.choice((1.0, 0.5))
    else:  # a system on a chip: devices that are fast for different kinds of ops
        speed *= rng.lognormal(0.0, 1.0, (_KINDS, devices))
    bandwidth = rng.uniform(1 - spread, 1 + spread, (devices, devices))
    return speed, (bandwidth + bandwidth.T) / 2, _latency(rng, devices), np.zeros((devices, devices), bool)


def _cores(
    rng: np.random.Generator,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Draw speeds, bandwidths, latencies and conflicts of two to four cores, one by one, and sets of them."""
    cores = int(rng.integers(2, 5))
    sets = [*({core} for core in range(cores)), set(range(cores)), *([set(range(2))] if cores > 2 else [])]
    speed = np.array([[len(chosen) ** power for chosen in sets] for power in rng.uniform(0.5, 1.0, _KINDS)])
    conflicts = np.array([[a is not b and bool(a & b) for b in sets] for a in sets])
    return speed, np.ones((len(sets), len(sets))), _latency(rng, len(sets)), conflicts


def _latency(rng: np.random.Generator, devices: int) -> NDArray[np.float64]:
    return np.full((devices, devices), rng.choice((0.0, 0.05, 0.2)))


SHAPES = {"layered": _layered, "blocks": _blocks, "shards": _shards}
"""Functions that draw edges, by name."""
