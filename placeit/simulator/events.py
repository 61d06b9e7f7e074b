"""What the simulator's compiled loops share: the heap of events, random factors, and what tensors take in memory.

An event is a time and a key: a sequence number, shifted left by 32 bits, and what happens. Simultaneous events happen in the
order of their keys.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.simulator.queues import Records, inline, int64, uncounted

EVENT = np.dtype([("time", "f8"), ("key", "i8")])
MEMORY = np.dtype([("live", "f8"), ("peak", "f8")])


@uncounted
def _mix(x: np.uint64) -> np.uint64:
    """Scramble 64 bits (the finaliser of SplitMix64; Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@uncounted
def _unit(bits: np.uint64) -> float:
    """Make a number in [0, 1) of 64 bits."""
    return np.float64(bits >> np.uint64(11)) / 9007199254740992.0


@uncounted
def uniform(state: NDArray[np.uint64]) -> float:
    """Return the next number in [0, 1) of SplitMix64, and change its state, ``uint64[1]``."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return _unit(_mix(state[0]))


@uncounted
def stream_of(seed: np.uint64, index: int) -> np.uint64:
    """Return the random stream of the ``index``-th placement of a batch."""
    return _mix(_mix(seed) + np.uint64(index))


@uncounted
def factor(noise: float, stream: np.uint64, item: int) -> float:
    """Return the ``item``-th factor of a stream, uniform in [1 - noise, 1 + noise] whatever the order of asking."""
    bits = _mix(stream + np.uint64(item + 1) * np.uint64(0x9E3779B97F4A7C15))
    return 1.0 + noise * (2.0 * _unit(bits) - 1.0)


@inline
def push(event: Records, count: int, time: float, key: int) -> None:
    """Add an event to a heap of ``count``."""
    i = count
    while i > 0:
        parent = (i - 1) >> 1
        above = event[parent]
        if above.time < time or (above.time == time and above.key < key):
            break
        event[i].time = above.time
        event[i].key = above.key
        i = parent
    event[i].time = time
    event[i].key = key


@inline
def pop(event: Records, count: int) -> None:
    """Remove the first event of a heap that holds ``count`` afterwards."""
    replace(event, count, event[count].time, event[count].key)


@inline
def replace(event: Records, count: int, time: float, key: int) -> None:
    """Put an event in place of the first one of a heap of ``count``; the event behind the heap must not precede any of it."""
    # walk the hole down to a leaf without a branch that cannot be predicted, then let the event rise from there
    i, child = 0, 1
    while child < count:
        a, b = event[child], event[child + 1]
        child += int64((b.time < a.time) | ((b.time == a.time) & (b.key < a.key)))
        event[i].time = event[child].time
        event[i].key = event[child].key
        i, child = child, 2 * child + 1
    push(event, i, time, key)


@inline
def hold(device: Records, d: int, size: float) -> None:
    """A tensor takes memory of a device."""
    device[d].live += size
    device[d].peak = max(device[d].peak, device[d].live)


@uncounted
def hold_outputs(
    op: Records, edge: Records, uses: NDArray[np.int32], device: Records, place: NDArray[np.int32], first: int, v: int
) -> None:
    """An op starts: its tensors, whose numbers in its request begin at ``first``, take memory; every user of one is known."""
    d = place[v]
    for p in range(op[v].first, op[v + 1].first):
        tensor, dst = first + edge[p].tensor, place[edge[p].head]
        if edge[p].opens:
            hold(device, d, edge[p].size)
        if dst != d and uses[tensor, dst] == 0:
            uses[tensor, d] += 1  # the transfer reads it too
        uses[tensor, dst] += 1


@uncounted
def release(edge: Records, uses: NDArray[np.int32], device: Records, first: int, p: int, d: int) -> None:
    """One user of a tensor on a device is done with it."""
    uses[first + edge[p].tensor, d] -= 1
    if uses[first + edge[p].tensor, d] == 0:
        device[d].live -= edge[p].size
