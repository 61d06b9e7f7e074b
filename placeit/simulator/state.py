"""What the rules of :mod:`placeit.simulator.rules` keep of all requests in flight, and the numbers of their options."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.simulator.queues import NODE, QUEUE, REQUEST, Records

CONTENTION_FREE, CHANNEL = 0, 1
FIFO, PRIORITY, PLANNED = 0, 1, 2
REFUSED = -1

QUEUED, STAMP, AGE = 0, 1, 2
"""Counters: transfers requested, or under ``fifo`` ops that became ready where devices conflict (for ties); ops finished (for
``sent``); requests begun."""


class State(NamedTuple):
    """Where all requests in flight stand, as the rules keep it."""

    node: Records  # NODE[R * (V + E)]
    queue: Records  # QUEUE[D + D * D], and [R * D] more for PLANNED
    request: Records  # REQUEST[R]
    opened: NDArray[np.int32]  # [D] scratch: channels that an op puts to work
    sent: NDArray[np.int64]  # [K, D] scratch: the count of finished ops when a shared tensor was last sent to a device
    lost: NDArray[np.bool_]  # [D] devices that are gone
    counter: NDArray[np.int64]  # [3] QUEUED, STAMP, AGE
    out: NDArray[np.int64]  # [V + E + D + D * D + R] what to start


def _state(ops: int, devices: int, edges: int, shared: int, slots: int, planned: bool) -> State:
    queue = np.zeros(devices + devices * devices + (slots * devices if planned else 0), QUEUE)
    queue["root"][:] = -1
    return State(
        np.zeros(slots * (ops + edges), NODE),
        queue,
        np.zeros(slots, REQUEST),
        np.empty(devices, np.int32),
        np.full((shared, devices), -1, np.int64),
        np.zeros(devices, np.bool_),
        np.zeros(3, np.int64),
        np.empty(ops + edges + devices + devices * devices + slots, np.int64),
    )


_state_inside = jit(_state)


def new_state(ops: int, devices: int, edges: int, shared: int, slots: int, planned: bool) -> State:
    """Allocate the state of so many slots; ``shared`` is the largest number of tensors of an op that have several edges."""
    state = _state(ops, devices, edges, shared, slots, planned)
    state.node["slot"] = np.repeat(np.arange(slots), ops + edges)
    return state


@jit
def make_state(ops: int, devices: int, edges: int, shared: int, slots: int, planned: bool) -> State:
    """The same for compiled functions."""
    state = _state_inside(ops, devices, edges, shared, slots, planned)
    for n in range(len(state.node)):
        state.node[n].slot = n // (ops + edges)
    return state
