"""Episodes of DOPPLER: both policies at work, compiled, many problems' worth of steps at a time."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.placers.learned.agents.doppler.features import DEVICE_FEATURES, HOPS, Arrays, Tables, device_features, place_op
from placeit.simulator.events import uniform

__all__ = ["DEVICE_INPUTS", "EARLIEST_START", "Manner", "Policy", "Record", "play", "see"]

DEVICE_INPUTS = len(DEVICE_FEATURES) + 1 + HOPS
"""What PLC sees of a device: the features of D.2, the op's compute there, and its affinity to the ops on it."""
EARLIEST_START = 4
_COMPUTE = len(DEVICE_FEATURES)
_SLOPE = np.float32(0.01)


class Policy(NamedTuple):
    """Both policies, with what has been computed beforehand; ``N`` is 1 where all episodes share it, else ``R``.

    Attributes:
        select: ``float32[N, V]``, SEL's logits.
        node: ``float32[N, V, W]``, what an op adds to the first layer of PLC.
        placed: ``float32[N, V, W]``, what it adds there once it is on the device.
        on: ``float32[R, D, W]``, the sums of those over the ops on each device, kept up to date.
        into: ``float32[F, W]``, weights of the first layer of device features.
        bias: ``float32[W]``, its bias.
        onward: ``float32[W, W]``, weights of their second layer.
        last: ``float32[W + 1]``, weights of the last layer, and its bias.
    """

    select: NDArray[np.float32]
    node: NDArray[np.float32]
    placed: NDArray[np.float32]
    on: NDArray[np.float32]
    into: NDArray[np.float32]
    bias: NDArray[np.float32]
    onward: NDArray[np.float32]
    last: NDArray[np.float32]


class Record(NamedTuple):
    """What was decided in ``R`` episodes, and what was known then.

    Attributes:
        order: ``int64[R, V]``, the op that was placed at each step.
        at: ``int64[R, V]``, the step at which each op was placed.
        ready: ``int64[R, V]``, from which step on it could have been.
        chosen: ``int64[R, V]``, the device of each op.
        inputs: ``float32[R, V, D, F]``, what PLC saw at each step; only where it decided.
        allowed: ``bool[R, V, D]``, which devices it could choose; only where it decided.
        decided: ``bool[R, V]``, the steps at which it decided.
    """

    order: NDArray[np.int64]
    at: NDArray[np.int64]
    ready: NDArray[np.int64]
    chosen: NDArray[np.int64]
    inputs: NDArray[np.float32]
    allowed: NDArray[np.bool_]
    decided: NDArray[np.bool_]

    @classmethod
    def empty(cls, episodes: int, ops: int, devices: int) -> Record:
        """Make room."""
        order, at, ready, chosen = (np.zeros((episodes, ops), np.int64) for _ in range(4))
        inputs = np.empty((episodes, ops, devices, DEVICE_INPUTS), np.float32)
        allowed, decided = np.zeros((episodes, ops, devices), np.bool_), np.zeros((episodes, ops), np.bool_)
        return cls(order, at, ready, chosen, inputs, allowed, decided)


class Manner(NamedTuple):
    """How episodes are played.

    Attributes:
        select: whether SEL decides; else it is the op with the longest path to an exit.
        place: whether PLC decides; else it is the device where the op can start first.
        draw: whether answers are drawn from the policies; else they are the likeliest.
        explore: how often each of them takes any answer.
    """

    select: bool
    place: bool
    draw: bool
    explore: float


@jit
def play(
    first: int,
    last: int,
    arrays: Arrays,
    tables: Tables,
    record: Record,
    policy: Policy,
    manner: Manner,
    kept: NDArray[np.int32],
    rank: NDArray[np.float64],
    unit: float,
    random: NDArray[np.uint64],
) -> None:
    """Play steps ``first`` to ``last`` of all episodes.

    Args:
        first: step.
        last: the step after the last one.
        arrays: where the episodes stand.
        tables: of the problem.
        record: is written.
        policy: decides.
        manner: how.
        kept: ``int32[R, V]``, the devices of ops that are not PLC's to place; -1 for those that are.
        rank: ``float64[V]``, seconds to an exit.
        unit: seconds that the features of devices are in multiples of.
        random: ``uint64[R]``, states of the generators.
    """
    episodes, ops = arrays.placement.shape
    devices, width = tables.compute.shape[1], len(policy.bias)
    logits, hidden, out = np.empty(devices, np.float32), np.empty(width, np.float32), np.empty(width, np.float32)
    features = np.empty((devices, len(DEVICE_FEATURES)))
    several = len(policy.select) > 1
    every = np.empty(ops, np.float32)
    for b in range(episodes):
        n, state = b if several else 0, random[b : b + 1]
        for t in range(first, last):
            candidates = arrays.candidates[b]
            if manner.select:
                for v in range(ops):
                    every[v] = policy.select[n, v]
                v = _choose(every, candidates, manner, state)
            else:
                v = 0
                for u in range(ops):
                    if candidates[u] and (not candidates[v] or rank[u] > rank[v]):
                        v = u
            d = int(kept[b, v])
            if d < 0:
                allowed, inputs = record.allowed[b, t], record.inputs[b, t]
                _write_inputs(inputs, allowed, features, b, v, arrays, tables, unit)
                if manner.place:
                    for k in range(devices):
                        parts = (policy.node[n, v], policy.on[b, k])
                        logits[k] = _logit(inputs[k], parts[0], parts[1], policy, hidden, out)
                    d = _choose(logits, allowed, manner, state)
                else:
                    d = -1
                    for k in range(devices):
                        if allowed[k] and (d < 0 or features[k, EARLIEST_START] < features[d, EARLIEST_START]):
                            d = k
                record.decided[b, t] = True
            place_op(b, v, d, arrays, tables)
            for j in range(width):
                policy.on[b, d, j] += policy.placed[n, v, j]
            record.order[b, t], record.at[b, v], record.chosen[b, v] = v, t, d
            for k in range(tables.out_ptr[v], tables.out_ptr[v + 1]):
                w = tables.edges[tables.out_edge[k], 1]
                if candidates[w]:
                    record.ready[b, w] = t + 1


@jit
def _write_inputs(
    inputs: NDArray[np.float32],
    allowed: NDArray[np.bool_],
    features: NDArray[np.float64],
    b: int,
    v: int,
    arrays: Arrays,
    tables: Tables,
    unit: float,
) -> None:
    """Write what PLC sees of the devices for an op, and those that are allowed.

    A device is allowed if it can run the op and has room for its weights; if none has, all that can run it are.
    """
    device_features(features, b, v, arrays, tables)
    room = False
    for k in range(len(features)):
        able = tables.feasible[v, k]
        allowed[k] = able and arrays.used[b, k] + tables.param_bytes[v] <= tables.memory[k]
        room = room or allowed[k]
        for i in range(_COMPUTE):
            inputs[k, i] = features[k, i] / unit
        inputs[k, _COMPUTE] = tables.compute[v, k] / unit if able else 0.0
        for hop in range(HOPS):
            inputs[k, _COMPUTE + 1 + hop] = arrays.near[b, k, v, hop]
    if not room:
        for k in range(len(features)):
            allowed[k] = tables.feasible[v, k]


@jit
def see(
    inputs: NDArray[np.float32],
    allowed: NDArray[np.bool_],
    t: int,
    ops: NDArray[np.int64],
    arrays: Arrays,
    tables: Tables,
    unit: float,
) -> None:
    """Write what PLC sees for an op of each episode to step ``t`` of a record's ``inputs`` and ``allowed``."""
    features = np.empty((allowed.shape[2], len(DEVICE_FEATURES)))
    for b in range(len(ops)):
        _write_inputs(inputs[b, t], allowed[b, t], features, b, ops[b], arrays, tables, unit)


@jit
def _choose(logits: NDArray[np.float32], allowed: NDArray[np.bool_], manner: Manner, state: NDArray[np.uint64]) -> int:
    """Draw an allowed answer, by the Gumbel-max trick, or take the likeliest, the first of equals."""
    any_of = manner.explore > 0 and uniform(state) < manner.explore
    best, most = -1, 0.0
    for i in range(len(logits)):
        if allowed[i]:
            score = 0.0 if any_of else np.float64(logits[i])
            if any_of or manner.draw:
                score -= np.log(-np.log(uniform(state) + 1e-300) + 1e-300)
            if best < 0 or score > most:
                best, most = i, score
    return best


@jit
def _logit(
    inputs: NDArray[np.float32],
    node: NDArray[np.float32],
    on: NDArray[np.float32],
    policy: Policy,
    hidden: NDArray[np.float32],
    out: NDArray[np.float32],
) -> float:
    """PLC's logit of a device: as the network's ``place``."""
    width = len(hidden)
    for j in range(width):
        hidden[j] = policy.bias[j]
        out[j] = node[j] + on[j]
    for i in range(len(inputs)):
        for j in range(width):
            hidden[j] += inputs[i] * policy.into[i, j]
    for i in range(width):
        through = hidden[i] if hidden[i] > 0 else _SLOPE * hidden[i]
        for j in range(width):
            out[j] += through * policy.onward[i, j]
    logit: float = policy.last[width]
    for j in range(width):
        logit += policy.last[j] * (out[j] if out[j] > 0 else _SLOPE * out[j])
    return logit
