"""The rules of execution, compiled: what starts when, for any number of requests in flight over one placement.

:mod:`placeit.simulator.simulate` states the rules. Here they are a state machine without a clock: :func:`begin`,
:func:`op_finished`, :func:`transfer_sent`, :func:`transfer_finished`, :func:`abort` and :func:`device_lost` take note of what
happened and write what to start now. The simulator calls them from an event heap, executors with what their devices report
(:class:`placeit.simulator.scheduler.Scheduler`, or a compiled loop). Compiled functions call the ``..._rule`` of each, which is
inlined and takes the arrays one by one: numba counts references to each array of a tuple.

Numbers: A *position* numbers an edge after a stable sort by producer, so that the out-edges of an op are adjacent and still in
edge order. A request in flight has a *slot*. A *node* is, in slot ``r``, an op (``r * (V + E) + v``) or a transfer
(``r * (V + E) + V + p``, where ``p`` is the position of the first edge of its tensor towards its destination). A *queue* is a
device (``d``), the channel of an ordered pair of devices (``D + src * D + dst``), or, for ``planned`` only, the ops of a slot
that a device has still to take, in order (``D + D * D + r * D + d``).

What is written to ``out``, in the order in which it is to be started: nodes, and ``-1 - r`` for a slot whose request has ended.
A rule returns how many there are, or :data:`REFUSED` if it was told what cannot have happened; nothing has changed then.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.simulator.queues import (
    DONE,
    NODE,
    QUEUE,
    REQUEST,
    RUNNING,
    SENT,
    Records,
    dequeue,
    enqueue,
    inline,
    int64,
    uncounted,
)

CONTENTION_FREE, CHANNEL = 0, 1
FIFO, PRIORITY, PLANNED = 0, 1, 2
REFUSED = -1

TENSORS, STAMP, AGE = 0, 1, 2
"""Counters: transfers requested (for ties), ops finished (for ``sent``), requests begun."""


class State(NamedTuple):
    """Where all requests in flight stand, as the rules keep it."""

    node: Records  # NODE[R * (V + E)]
    queue: Records  # QUEUE[D + D * D], and [R * D] more for PLANNED
    request: Records  # REQUEST[R]
    opened: NDArray[np.int32]  # [D] scratch: channels that an op puts to work
    sent: NDArray[np.int64]  # [K, D] scratch: the count of finished ops when a shared tensor was last sent to a device
    lost: NDArray[np.bool_]  # [D] devices that are gone
    counter: NDArray[np.int64]  # [3] TENSORS, STAMP, AGE
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


@inline
def _ready(discipline: int, devices: int, node: Records, queue: Records, request: Records, n: int, d: int) -> None:
    """An op on a device has all its inputs: queue it, or with ``planned`` what the device has to take next, if that is it."""
    if discipline == PLANNED:
        _take_from_plan(devices, node, queue, request, node[n].slot, d)
    else:
        enqueue(discipline == FIFO, node, request, queue, d, n)


@uncounted
def _take_from_plan(devices: int, node: Records, queue: Records, request: Records, slot: int, d: int) -> None:
    plan = devices + devices * devices + slot * devices + d
    if not queue[plan].busy and queue[plan].root >= 0 and node[queue[plan].root].pending == 0:
        queue[plan].busy = True
        enqueue(False, node, request, queue, d, dequeue(False, node, request, queue, plan))


@inline
def _start(node: Records, request: Records, n: int, out: NDArray[np.int64], count: int) -> int:
    """Have a node started."""
    node[n].phase = RUNNING
    request[node[n].slot].running += 1
    out[count] = n
    return count + 1


@inline
def _start_next(
    discipline: int, devices: int, node: Records, queue: Records, request: Records, d: int, out: NDArray[np.int64], count: int
) -> int:
    """Have an idle device start the op that comes first, if one is ready."""
    if not queue[d].busy and queue[d].root >= 0:
        n = dequeue(discipline == FIFO, node, request, queue, d)
        slot = node[n].slot
        queue[d].busy = True
        count = _start(node, request, n, out, count)
        if discipline == PLANNED:
            queue[devices + devices * devices + slot * devices + d].busy = False
            _take_from_plan(devices, node, queue, request, slot, d)
    return count


@inline
def move_next(
    discipline: int, node: Records, queue: Records, request: Records, q: int, out: NDArray[np.int64], count: int
) -> int:
    """Have a channel that has nothing to do start the transfer that comes first, if one waits."""
    queue[q].busy = queue[q].root >= 0
    if queue[q].busy:
        count = _start(node, request, dequeue(discipline == FIFO, node, request, queue, q), out, count)
    return count


@inline
def ended(request: Records, slot: int, out: NDArray[np.int64], count: int) -> int:
    """Say so if nothing of a request runs and nothing is left to do of it."""
    if request[slot].running == 0 and (request[slot].left == 0 or request[slot].aborted):
        request[slot].active = False
        out[count] = -1 - slot
        count += 1
    return count


@uncounted
def rank_of_transfer(edge: Records, node: Records, place: NDArray[np.int32], base: int, p: int) -> float:
    """Return the highest rank among the consumers that a transfer serves; ``base`` is the first node of the slot."""
    dst, highest = place[edge[p].head], node[base + edge[p].head].rank
    q = edge[p].following
    while q >= 0:
        if place[edge[q].head] == dst:
            highest = max(highest, node[base + edge[q].head].rank)
        q = edge[q].following
    return float(highest)


@uncounted
def rank_by_b_level(
    op: Records,
    edge: Records,
    place: NDArray[np.int32],
    seconds: NDArray[np.float64],
    moving: NDArray[np.float64],
    node: Records,
) -> None:
    """Rank the ops of slot 0 by the longest path to an exit, transfers between devices included.

    Args:
        op: ``OP[V + 1]``.
        edge: ``EDGE[E]``.
        place: ``int32[V]``.
        seconds: ``float64[V]``, of each op where it is.
        moving: ``float64[E]``, by position: of the transfer that the edge needs; unused where none is.
        node: receives the ranks, and ties by the topological order.
    """
    for i in range(len(place) - 1, -1, -1):
        v = op[i].order
        longest = 0.0
        for p in range(op[v].first, op[v + 1].first):
            w = edge[p].head
            path = node[w].rank
            if place[w] != place[v]:
                path += moving[p]
            longest = max(longest, path)
        node[v].rank = seconds[v] + longest
        node[v].tie = i


@inline
def begin_rule(
    op: Records,
    entries: NDArray[np.int32],
    place: NDArray[np.int32],
    discipline: int,
    nodes: int,
    node: Records,
    queue: Records,
    request: Records,
    lost: NDArray[np.bool_],
    counter: NDArray[np.int64],
    out: NDArray[np.int64],
    slot: int,
) -> int:
    """Start a request in a slot; refused if one is in flight there, or an op is on a lost device.

    Args:
        op: ``OP[V + 1]``.
        entries: ops without in-edges, ascending.
        place: ``int32[V]``.
        discipline: ``FIFO``, ``PRIORITY`` or ``PLANNED``.
        nodes: ``V + E``.
        node: ranks and ties of the slot are set, unless for ``FIFO``.
        queue: likewise from :class:`State`, as the next ones are.
        request: requests.
        lost: lost devices.
        counter: counters.
        out: receives what to start.
        slot: which slot.
    """
    ops, devices, base = len(place), len(lost), slot * nodes
    refused = bool(request[slot].active)
    for v in range(ops):
        refused |= bool(lost[place[v]])
    count = REFUSED
    if not refused:
        count = 0
        request[slot].active, request[slot].aborted = True, False
        request[slot].left, request[slot].running = ops, 0
        request[slot].age = counter[AGE]
        counter[AGE] += 1
        for v in range(ops):
            node[base + v].pending = op[v].indegree
        if discipline == PLANNED:
            plan = devices + devices * devices + slot * devices
            for v in range(ops):
                enqueue(False, node, request, queue, plan + place[v], base + v)
        for v in entries:
            _ready(discipline, devices, node, queue, request, base + v, place[v])
        for v in entries:
            count = _start_next(discipline, devices, node, queue, request, place[v], out, count)
        if ops == 0:
            count = ended(request, slot, out, count)
    return count


@inline
def op_finished_rule(
    op: Records,
    edge: Records,
    place: NDArray[np.int32],
    links: int,
    discipline: int,
    nodes: int,
    node: Records,
    queue: Records,
    request: Records,
    opened: NDArray[np.int32],
    sent: NDArray[np.int64],
    counter: NDArray[np.int64],
    out: NDArray[np.int64],
    n: int,
) -> int:
    """Take note that an op has finished; refused if it was not running."""
    count = REFUSED
    if node[n].phase == RUNNING:
        devices, ops = len(opened), len(place)
        slot = int64(node[n].slot)
        base = slot * nodes
        v = n - base
        d = int64(np.uint32(place[v]))
        node[n].phase = DONE
        request[slot].left -= 1
        request[slot].running -= 1
        queue[d].busy = False
        count = 0
        if discipline == FIFO:
            count = _start_next(discipline, devices, node, queue, request, d, out, count)
        if not request[slot].aborted:
            counter[STAMP] += 1
            put = 0
            for p in range(int64(op[v].first), int64(op[v + 1].first)):
                w = int64(edge[p].head)
                dst = int64(np.uint32(place[w]))
                if dst == d:
                    node[base + w].pending -= 1
                    if node[base + w].pending == 0:
                        _ready(discipline, devices, node, queue, request, base + w, d)
                    continue
                if edge[p].shared >= 0:
                    k = int64(edge[p].shared)
                    if sent[k, dst] == counter[STAMP]:
                        continue
                    sent[k, dst] = counter[STAMP]
                t = base + ops + p
                if links == CONTENTION_FREE:
                    count = _start(node, request, t, out, count)
                    continue
                if discipline != FIFO:
                    node[t].rank = rank_of_transfer(edge, node, place, base, p)
                    node[t].tie = counter[TENSORS]
                    counter[TENSORS] += 1
                channel = devices + d * devices + dst
                enqueue(discipline == FIFO, node, request, queue, channel, t)
                if not queue[channel].busy:
                    queue[channel].busy = True
                    opened[put] = channel
                    put += 1
            for i in range(put):  # only now, so that of several tensors the most urgent goes first
                count = move_next(discipline, node, queue, request, opened[i], out, count)
        count = _start_next(discipline, devices, node, queue, request, d, out, count)
        count = ended(request, slot, out, count)
    return count


@inline
def transfer_finished_rule(
    edge: Records,
    place: NDArray[np.int32],
    links: int,
    discipline: int,
    nodes: int,
    node: Records,
    queue: Records,
    request: Records,
    devices: int,
    out: NDArray[np.int64],
    n: int,
) -> int:
    """Take note that a tensor has arrived; refused if it was not on its way."""
    count = REFUSED
    if node[n].phase == RUNNING or node[n].phase == SENT:
        slot = int64(node[n].slot)
        base = slot * nodes
        p = n - base - len(place)
        src, dst = int64(np.uint32(place[edge[p].tail])), int64(np.uint32(place[edge[p].head]))
        free = links == CHANNEL and node[n].phase == RUNNING
        node[n].phase = DONE
        request[slot].running -= 1
        count = 0
        if free:
            count = move_next(discipline, node, queue, request, devices + src * devices + dst, out, count)
        if not request[slot].aborted:
            while p >= 0:
                w = int64(edge[p].head)
                if place[w] == dst:
                    node[base + len(place) + p].phase = DONE
                    node[base + w].pending -= 1
                    if node[base + w].pending == 0:
                        _ready(discipline, devices, node, queue, request, base + w, dst)
                p = int64(edge[p].following)
        count = _start_next(discipline, devices, node, queue, request, dst, out, count)
        count = ended(request, slot, out, count)
    return count
