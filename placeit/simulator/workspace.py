"""The arrays that one simulation works on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.simulator.events import EVENT, MEMORY
from placeit.simulator.one_request import INPUTS, POSITION
from placeit.simulator.queues import Records
from placeit.simulator.state import State, make_state, new_state
from placeit.simulator.tables import Tables


class Workspace(NamedTuple):
    """Arrays that one simulation at a time uses; ``node`` says afterwards when ops started and finished."""

    node: Records  # NODE[R * (V + E)] start and finish in seconds
    queue: Records  # QUEUE[D + D * D + R * D]
    request: Records  # REQUEST[R]
    opened: NDArray[np.int32]  # [D]
    sent: NDArray[np.int64]  # [K, D]
    lost: NDArray[np.bool_]  # [D]
    counter: NDArray[np.int64]  # [3]
    out: NDArray[np.int64]  # [V + E + D + D * D + R]
    duration: NDArray[np.float64]  # [V] seconds of each op where it is
    moving: NDArray[np.float64]  # [E] seconds of the transfer of each position between devices
    inputs: Records  # [V]
    position: Records  # [K, D] which op sent its k-th shared tensor last to a device, and from where
    channel: Records  # [D * D] the last event of each channel
    event: Records  # [V + 2 * E + D + R + 1] a heap
    uses: NDArray[np.int32]  # [R * T, D] unfinished users of a tensor where it is
    device: Records  # [D]
    number: NDArray[np.int64]  # [R] of the request in a slot


def new_workspace(tables: Tables, slots: int = 1) -> Workspace:
    """Allocate what the kernels need to simulate a problem with so many requests in flight at most."""
    (ops, devices), edge = tables.compute.shape, tables.edge
    shared, tensors = int(edge["shared"].max(initial=-1)) + 1, int(edge["tensor"].max(initial=0)) + 1
    return _workspace(new_state(ops, devices, len(edge), shared, slots, True), len(edge), shared, tensors)


@jit
def make_workspace(tables: Tables, slots: int) -> Workspace:
    """The same for compiled functions."""
    ops, devices = tables.compute.shape
    edges, shared, tensors = len(tables.edge), 0, 0
    for p in range(edges):
        shared = max(shared, tables.edge[p].shared + 1)
        tensors = max(tensors, tables.edge[p].tensor + 1)
    return _workspace_inside(make_state(ops, devices, edges, shared, slots, True), edges, shared, tensors)


def _workspace(state: State, edges: int, shared: int, tensors: int) -> Workspace:
    devices, slots = len(state.lost), len(state.request)
    ops = len(state.node) // slots - edges
    return Workspace(
        state.node,
        state.queue,
        state.request,
        state.opened,
        state.sent,
        state.lost,
        state.counter,
        state.out,
        np.empty(ops),
        np.empty(edges),
        np.empty(ops, INPUTS),
        np.empty((shared, devices), POSITION),
        np.empty(devices * devices, EVENT),
        np.empty(slots * (ops + 2 * edges) + devices + 1, EVENT),
        np.empty((slots * tensors, devices), np.int32),
        np.empty(devices, MEMORY),
        np.zeros(slots, np.int64),
    )


_workspace_inside = jit(_workspace)
