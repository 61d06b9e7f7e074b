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
that a device has still to take, in order (``D + D * D + r * D + d``). ``conflict`` says which devices never run at the same
time (``bool[D * D]``, row by row); it is empty if all may, and then costs nothing.

What is written to ``out``, in the order in which it is to be started: nodes, and ``-1 - r`` for a slot whose request has ended.
A rule returns how many there are, or :data:`REFUSED` if it was told what cannot have happened; nothing has changed then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.simulator.queues import (
    DONE,
    RUNNING,
    SENT,
    Records,
    before,
    dequeue,
    enqueue,
    inline,
    int64,
    uncounted,
)
from placeit.simulator.state import AGE, CHANNEL, CONTENTION_FREE, FIFO, PLANNED, QUEUED, REFUSED, STAMP


@inline
def _ready(
    discipline: int,
    conflict: NDArray[np.bool_],
    devices: int,
    node: Records,
    queue: Records,
    request: Records,
    counter: NDArray[np.int64],
    n: int,
    d: int,
) -> None:
    """An op on a device has all its inputs: queue it, or with ``planned`` what the device has to take next, if that is it."""
    if discipline == PLANNED:
        _take_from_plan(conflict, devices, node, queue, request, node[n].slot, d)
        return
    if discipline == FIFO and len(conflict):
        node[n].rank = -counter[QUEUED]
        counter[QUEUED] += 1
    enqueue(discipline == FIFO, node, request, queue, d, n)


@uncounted
def _take_from_plan(
    conflict: NDArray[np.bool_], devices: int, node: Records, queue: Records, request: Records, slot: int, d: int
) -> None:
    """Queue what a device has to take next of a slot, if it has all its inputs and nothing that conflicts has to go before."""
    first = devices + devices * devices + slot * devices
    plan = first + d
    if queue[plan].busy or queue[plan].root < 0 or node[queue[plan].root].pending != 0:
        return
    if len(conflict):
        for c in range(devices):
            rival = first + c
            if conflict[d * devices + c] and (
                queue[rival].busy or (queue[rival].root >= 0 and before(node, request, queue[rival].root, queue[plan].root))
            ):
                return
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
def start_next(
    discipline: int,
    conflict: NDArray[np.bool_],
    devices: int,
    node: Records,
    queue: Records,
    request: Records,
    d: int,
    out: NDArray[np.int64],
    count: int,
) -> int:
    """Have a device that may run something start the op that comes first, if one is ready; also those that conflict with it."""
    if len(conflict):
        return _start_among(discipline, conflict, devices, node, queue, request, d, out, count)
    if not queue[d].busy and queue[d].root >= 0:
        n = dequeue(discipline == FIFO, node, request, queue, d)
        slot = node[n].slot
        queue[d].busy = True
        count = _start(node, request, n, out, count)
        if discipline == PLANNED:
            queue[devices + devices * devices + slot * devices + d].busy = False
            _take_from_plan(conflict, devices, node, queue, request, slot, d)
    return count


@uncounted
def first_among(
    fifo: bool, conflict: NDArray[np.bool_], devices: int, node: Records, queue: Records, request: Records, d: int
) -> int:
    """Return which of a device and those that conflict with it (of all, for -1) starts an op first.

    The one whose first op is the most urgent of those that can start now, which may keep other devices from it; -1 if none can.
    """
    first = int64(-1)
    for c in range(devices):
        if queue[c].busy or queue[c].root < 0 or not (d < 0 or c == d or conflict[c * devices + d]):
            continue
        if first < 0:
            first = c
        elif fifo:
            if node[queue[c].root].rank > node[queue[first].root].rank:
                first = c
        elif before(node, request, queue[c].root, queue[first].root):
            first = c
    return int(first)


@uncounted
def _start_among(
    discipline: int,
    conflict: NDArray[np.bool_],
    devices: int,
    node: Records,
    queue: Records,
    request: Records,
    d: int,
    out: NDArray[np.int64],
    count: int,
) -> int:
    """Have a device and those that conflict with it (all, for -1) start what they may."""
    while True:
        first = first_among(discipline == FIFO, conflict, devices, node, queue, request, d)
        if first < 0:
            return count
        n = dequeue(discipline == FIFO, node, request, queue, first)
        count = _start(node, request, n, out, count)
        slot = node[n].slot
        queue[first].busy = True
        if discipline == PLANNED:
            queue[devices + devices * devices + slot * devices + first].busy = False
        for c in range(devices):
            queue[c].busy += conflict[first * devices + c]
            if discipline == PLANNED and (c == first or conflict[first * devices + c]):
                _take_from_plan(conflict, devices, node, queue, request, slot, c)


@uncounted
def release_rivals(conflict: NDArray[np.bool_], devices: int, queue: Records, d: int) -> None:
    """A device has ended what it ran, and no longer keeps those busy that conflict with it."""
    for c in range(devices):
        queue[c].busy -= conflict[d * devices + c]


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
    conflict: NDArray[np.bool_],
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
        conflict: ``bool[D * D]``, or empty.
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
            _ready(discipline, conflict, devices, node, queue, request, counter, base + v, place[v])
        for v in entries:
            d = int64(-1) if len(conflict) else int64(place[v])
            count = start_next(discipline, conflict, devices, node, queue, request, d, out, count)
        if ops == 0:
            count = ended(request, slot, out, count)
    return count


@inline
def op_finished_rule(
    op: Records,
    edge: Records,
    place: NDArray[np.int32],
    conflict: NDArray[np.bool_],
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
        if len(conflict):
            release_rivals(conflict, devices, queue, d)
        count = 0
        if discipline == FIFO:
            count = start_next(discipline, conflict, devices, node, queue, request, d, out, count)
        if not request[slot].aborted:
            counter[STAMP] += 1
            put = 0
            for p in range(int64(op[v].first), int64(op[v + 1].first)):
                w = int64(edge[p].head)
                dst = int64(np.uint32(place[w]))
                if dst == d:
                    node[base + w].pending -= 1
                    if node[base + w].pending == 0:
                        _ready(discipline, conflict, devices, node, queue, request, counter, base + w, d)
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
                    node[t].tie = counter[QUEUED]
                    counter[QUEUED] += 1
                channel = devices + d * devices + dst
                enqueue(discipline == FIFO, node, request, queue, channel, t)
                if not queue[channel].busy:
                    queue[channel].busy = True
                    opened[put] = channel
                    put += 1
            for i in range(put):  # only now, so that of several tensors the most urgent goes first
                count = move_next(discipline, node, queue, request, opened[i], out, count)
        count = start_next(discipline, conflict, devices, node, queue, request, d, out, count)
        count = ended(request, slot, out, count)
    return count


@inline
def transfer_finished_rule(
    edge: Records,
    place: NDArray[np.int32],
    conflict: NDArray[np.bool_],
    links: int,
    discipline: int,
    nodes: int,
    node: Records,
    queue: Records,
    request: Records,
    counter: NDArray[np.int64],
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
                        _ready(discipline, conflict, devices, node, queue, request, counter, base + w, dst)
                p = int64(edge[p].following)
        count = start_next(discipline, conflict, devices, node, queue, request, dst, out, count)
        count = ended(request, slot, out, count)
    return count
