"""The state machine of :mod:`placeit.simulator.rules` for executors: one call for everything that can happen.

Each call writes what to start into ``state.out`` and returns how many there are, or :data:`placeit.simulator.state.REFUSED`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.simulator.queues import DONE, IDLE, RUNNING, SENT, Records, dequeue, enqueue
from placeit.simulator.rules import (
    begin_rule,
    ended,
    move_next,
    op_finished_rule,
    release_rivals,
    start_next,
    transfer_finished_rule,
)
from placeit.simulator.state import CONTENTION_FREE, FIFO, REFUSED, State


class Machine(NamedTuple):
    """The rules of one placement, and where its requests stand."""

    op: Records  # OP[V + 1]
    edge: Records  # EDGE[E]
    entries: NDArray[np.int32]  # ops without in-edges, ascending
    place: NDArray[np.int32]  # [V]
    conflict: NDArray[np.bool_]  # [D * D] whether two devices never run at the same time; [0] if all may
    links: int
    discipline: int
    state: State


@jit
def begin(machine: Machine, slot: int) -> int:
    """Start a request in a slot; refused if one is in flight there, or an op is on a lost device."""
    s = machine.state
    nodes = len(machine.place) + len(machine.edge)
    if not s.request[slot].active:
        for n in range(slot * nodes, (slot + 1) * nodes):
            s.node[n].phase = IDLE
    return begin_rule(
        machine.op,
        machine.entries,
        machine.place,
        machine.conflict,
        machine.discipline,
        nodes,
        s.node,
        s.queue,
        s.request,
        s.lost,
        s.counter,
        s.out,
        slot,
    )


@jit
def op_finished(machine: Machine, n: int) -> int:
    """Take note that an op has finished; refused if it was not running."""
    s = machine.state
    nodes = len(machine.place) + len(machine.edge)
    return op_finished_rule(
        machine.op,
        machine.edge,
        machine.place,
        machine.conflict,
        machine.links,
        machine.discipline,
        nodes,
        s.node,
        s.queue,
        s.request,
        s.opened,
        s.sent,
        s.counter,
        s.out,
        n,
    )


@jit
def transfer_sent(machine: Machine, n: int) -> int:
    """Take note that a channel can take its next transfer before this tensor has arrived; refused if it was not to be sent."""
    s = machine.state
    if s.node[n].phase != RUNNING:
        return REFUSED
    s.node[n].phase = SENT
    if machine.links == CONTENTION_FREE:
        return 0
    p = n - s.node[n].slot * (len(machine.place) + len(machine.edge)) - len(machine.place)
    devices, src, dst = len(s.lost), machine.place[machine.edge[p].tail], machine.place[machine.edge[p].head]
    channel = devices + src * devices + dst
    return move_next(machine.discipline, s.node, s.queue, s.request, channel, s.out, 0)


@jit
def transfer_finished(machine: Machine, n: int) -> int:
    """Take note that a tensor has arrived; refused if it was not on its way."""
    s = machine.state
    nodes = len(machine.place) + len(machine.edge)
    return transfer_finished_rule(
        machine.edge,
        machine.place,
        machine.conflict,
        machine.links,
        machine.discipline,
        nodes,
        s.node,
        s.queue,
        s.request,
        s.counter,
        len(s.lost),
        s.out,
        n,
    )


@jit
def abort(machine: Machine, slot: int) -> int:
    """Drop everything of a request that has not started; nothing happens if it is not in flight.

    What has started keeps its device or channel until it is reported as finished; then the request has ended.
    """
    s = machine.state
    if not s.request[slot].active or s.request[slot].aborted:
        return 0
    _drop(machine, slot)
    return ended(s.request, slot, s.out, 0)


@jit
def device_lost(machine: Machine, device: int) -> int:
    """Take note that a device is gone, for good.

    Requests are aborted that have an op left there, or wait for a tensor from there. What ran there, or was on its way from or
    to it, has ended and is not to be reported. The others go on, also on devices that had to wait for this one.
    """
    s, ops, edges = machine.state, len(machine.place), len(machine.edge)
    devices = len(s.lost)
    s.lost[device] = True
    count = 0
    for slot in range(len(s.request)):
        if not s.request[slot].active:
            continue
        base = slot * (ops + edges)
        needed = False
        for v in range(ops):
            needed |= machine.place[v] == device and s.node[base + v].phase != DONE
        for p in range(edges):
            src, dst = machine.place[machine.edge[p].tail], machine.place[machine.edge[p].head]
            needed |= src == device and dst != device and s.node[base + ops + p].phase != DONE
        if not needed:
            continue
        if not s.request[slot].aborted:
            _drop(machine, slot)
        for n in range(base, base + ops + edges):
            if s.node[n].phase != RUNNING and s.node[n].phase != SENT:
                continue
            p = n - base - ops
            if p < 0:
                there = machine.place[n - base] == device
            else:
                there = machine.place[machine.edge[p].tail] == device or machine.place[machine.edge[p].head] == device
            if there:
                if p < 0 and len(machine.conflict):
                    release_rivals(machine.conflict, devices, s.queue, device)
                s.node[n].phase = DONE
                s.request[slot].running -= 1
        count = ended(s.request, slot, s.out, count)
    if len(machine.conflict):
        count = start_next(machine.discipline, machine.conflict, devices, s.node, s.queue, s.request, device, s.out, count)
    return count


@jit
def _drop(machine: Machine, slot: int) -> None:
    """Abort a request: take what has not started out of every queue."""
    s, fifo = machine.state, machine.discipline == FIFO
    devices = len(s.lost)
    s.request[slot].aborted = True
    kept = np.empty(len(s.node), np.int64)
    for q in range(len(s.queue)):
        planned = q >= devices + devices * devices
        if planned and (q - devices - devices * devices) // devices != slot:
            continue
        count = 0
        while s.queue[q].root >= 0:
            n = dequeue(fifo, s.node, s.request, s.queue, q)
            if s.node[n].slot != slot:
                kept[count] = n
                count += 1
        for i in range(count):
            enqueue(fifo, s.node, s.request, s.queue, q, kept[i])
        if planned:
            s.queue[q].busy = False
