"""The compiled event loop for one request, where nothing but weights counts in memory and no order is planned.

No devices may conflict under ``fifo``.

It does what :mod:`placeit.simulator.kernel` does by the rules, only faster, and tests hold the two to each other. The rules
have an event for every transfer. Here, when a transfer starts, its consumers are told at once when it will end: an op has one
event, when the last of its inputs arrives, at the place among simultaneous events that the last transfer's would have; and a
channel has one when something waits for it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.simulator.events import EVENT, factor, pop, push
from placeit.simulator.queues import NODE, QUEUE, REQUEST, Records, dequeue, enqueue, inline, int64, uncounted
from placeit.simulator.rules import first_among, rank_by_b_level, rank_of_transfer, release_rivals
from placeit.simulator.state import CHANNEL, FIFO, PRIORITY

INPUTS = np.dtype(
    [
        ("ready", "f8"),  # when and as which event the last input known so far arrives
        ("via", "i8"),
        ("pending", "i4"),  # inputs that have not fired, nor are on their way
    ],
    align=True,
)
POSITION = np.dtype([("op", "i4"), ("position", "i4")])


@inline
def transfer_seconds(edge: Records, link: Records, p: int, src: int, dst: int) -> float:
    """Return what the transfer of a position's tensor takes between two devices."""
    return float(link[src, dst].latency + edge[p].size / link[src, dst].bandwidth)


@inline
def _arrive(inputs: Records, event: Records, events: int, w: int, arrival: float, via: int) -> int:
    """Tell an op when, and as which event, one more of its inputs arrives; return how many events there are then."""
    if arrival > inputs[w].ready or (arrival == inputs[w].ready and via > inputs[w].via):
        inputs[w].ready = arrival
        inputs[w].via = via
    inputs[w].pending -= 1
    if inputs[w].pending == 0:
        push(event, events, inputs[w].ready, inputs[w].via)
        events += 1
    return events


@uncounted
def _start_among(
    conflict: NDArray[np.bool_],
    devices: int,
    node: Records,
    queue: Records,
    request: Records,
    event: Records,
    events: int,
    sequence: int,
    duration: NDArray[np.float64],
    time: float,
    d: int,
    over: bool,
) -> tuple[int, int]:
    """Have a device, of which an op may be over, and those that conflict with it start what they may (for -1, all devices)."""
    if over:
        release_rivals(conflict, devices, queue, d)
    while True:
        first = first_among(False, conflict, devices, node, queue, request, d)
        if first < 0:
            return events, sequence
        v = dequeue(False, node, request, queue, first)
        queue[first].busy = True
        for c in range(devices):
            queue[c].busy += conflict[first * devices + c]
        node[v].start = time
        node[v].finish = time + duration[v]
        push(event, events, node[v].finish, sequence << 32 | v)
        events, sequence = events + 1, sequence + 1


@uncounted
def run_one(
    op: Records,
    edge: Records,
    link: Records,
    entries: NDArray[np.int32],
    place: NDArray[np.int32],
    conflict: NDArray[np.bool_],
    links: int,
    discipline: int,
    noise: float,
    stream: np.uint64,
    node: Records,
    inputs: Records,
    queue: Records,
    request: Records,
    event: Records,
    opened: NDArray[np.int32],
    position: Records,
    channel: Records,
    duration: NDArray[np.float64],
    moving: NDArray[np.float64],
) -> float:
    """Simulate one request on a prepared workspace (:class:`placeit.simulator.kernel.Workspace`) and return when it ends."""
    ops, devices = len(place), len(link)
    nodes = ops + len(edge)
    fifo, contended = discipline == FIFO, links == CHANNEL
    for q in range(devices + devices * devices if contended else devices):
        queue[q].root = -1
        queue[q].busy = False  # of a channel: whether an event says when it is idle
    for c in range(devices * devices if contended else 0):
        channel[c].time = -1.0
    for v in range(ops):
        inputs[v].ready = -1.0
        inputs[v].pending = op[v].indegree
    for k in range(len(position)):
        for d in range(devices):
            position[k, d].op = -1
    if noise > 0:
        for v in range(ops):
            duration[v] *= factor(noise, stream, v)
    events, sequence, requests, done = 0, 0, 0, 0
    for v in entries:
        enqueue(fifo, node, request, queue, place[v], v)
        if not queue[place[v]].busy:
            queue[place[v]].busy = True
            push(event, events, 0.0, sequence << 32 | (nodes + place[v]))
            events, sequence = events + 1, sequence + 1
    time = 0.0
    if len(conflict):  # all devices wake up as one
        events = min(events, 1)
        for d in range(devices):
            queue[d].busy = False
    while events > 0:
        time, key = event[0].time, event[0].key
        events -= 1
        pop(event, events)
        n = key & 0xFFFFFFFF
        put = 0  # how many channels may take their next transfer once all edges have fired
        turn = -1  # the device's next op, if it goes before what the edges bring: its place among simultaneous events
        if n < ops:  # an op finishes
            done += 1
            d = int64(np.uint32(place[n]))
            queue[d].busy = False
            if fifo and queue[d].root >= 0:
                turn = sequence
                sequence += 1
            for p in range(int64(op[n].first), int64(op[n + 1].first)):
                w = int64(edge[p].head)
                dst = int64(np.uint32(place[w]))
                if dst == d:
                    inputs[w].pending -= 1
                    if inputs[w].pending > 0:
                        continue
                    if inputs[w].ready > time or (inputs[w].ready == time and inputs[w].via > key):
                        push(event, events, inputs[w].ready, inputs[w].via)
                        events += 1
                        continue
                    enqueue(fifo, node, request, queue, d, w)
                    continue
                first = p  # position of the first edge of this tensor towards this device
                if edge[p].shared >= 0:
                    k = int64(edge[p].shared)
                    if position[k, dst].op == n:
                        first = int64(position[k, dst].position)
                    else:
                        position[k, dst].op = n
                        position[k, dst].position = p
                if contended:
                    if first < p:
                        continue
                    if not fifo:
                        node[ops + p].rank = rank_of_transfer(edge, node, place, 0, p)
                        node[ops + p].tie = requests
                        requests += 1
                    c = d * devices + dst
                    if queue[devices + c].root < 0:
                        opened[put] = c
                        put += 1
                    enqueue(fifo, node, request, queue, devices + c, ops + p)
                    continue
                if first == p:
                    seconds = transfer_seconds(edge, link, p, d, dst)
                    if noise > 0:
                        seconds *= factor(noise, stream, ops + edge[p].tensor * devices + dst)
                    node[ops + p].finish = time + seconds
                    node[ops + p].tie = sequence
                    sequence += 1
                arrival, via = node[ops + first].finish, int64(node[ops + first].tie) << 32 | (ops + p)
                events = _arrive(inputs, event, events, w, arrival, via)
        elif n < nodes:  # the last input of an op arrives
            w = int64(edge[n - ops].head)
            d = int64(np.uint32(place[w]))
            enqueue(fifo, node, request, queue, d, w)
            if events > 0 and event[0].time == time and event[0].key >> 32 == key >> 32:
                continue  # the same transfer serves another op, or its channel takes its next first
        elif n < nodes + devices:  # a device wakes up
            d = n - nodes
            queue[d].busy = False
            if len(conflict):
                d = int64(-1)
        else:  # a channel that something waits for is idle
            c = n - nodes - devices
            d = c % devices
            queue[devices + c].busy = False
            opened[0] = c
            put = 1
        for i in range(put):
            c = int64(np.uint32(opened[i]))
            if channel[c].time > time or (channel[c].time == time and channel[c].key > key):  # busy
                if not queue[devices + c].busy:
                    queue[devices + c].busy = True
                    push(event, events, channel[c].time, channel[c].key)
                    events += 1
                continue
            p = dequeue(fifo, node, request, queue, devices + c) - ops
            src, dst = int64(np.uint32(place[edge[p].tail])), int64(np.uint32(place[edge[p].head]))
            seconds = transfer_seconds(edge, link, p, src, dst) if fifo else moving[p]
            if noise > 0:
                seconds *= factor(noise, stream, ops + edge[p].tensor * devices + dst)
            arrival = time + seconds
            channel[c].time = arrival
            channel[c].key = sequence << 32 | (nodes + devices + c)
            while p >= 0:
                w = int64(edge[p].head)
                if place[w] == dst:
                    events = _arrive(inputs, event, events, w, arrival, sequence << 32 | (ops + p))
                p = int64(edge[p].following)
            if queue[devices + c].root >= 0:
                queue[devices + c].busy = True
                push(event, events, channel[c].time, channel[c].key)
                events += 1
            sequence += 1
        if len(conflict):
            events, sequence = _start_among(
                conflict, devices, node, queue, request, event, events, sequence, duration, time, d, n < ops
            )
        elif not queue[d].busy and queue[d].root >= 0:
            v = dequeue(fifo, node, request, queue, d)
            queue[d].busy = True
            node[v].start = time
            node[v].finish = time + duration[v]
            if turn < 0:
                turn = sequence
                sequence += 1
            push(event, events, node[v].finish, turn << 32 | v)
            events += 1
    return time if done == ops else np.nan


@jit
def time_transfers(edge: Records, link: Records, place: NDArray[np.int32], moving: NDArray[np.float64]) -> None:
    """Write seconds of the transfer that each edge needs if its ends are apart, ``float64[E]``."""
    for p in range(len(edge)):
        src, dst = place[edge[p].tail], place[edge[p].head]
        moving[p] = transfer_seconds(edge, link, p, src, dst)


@jit
def makespan_of(
    op: Records,
    edge: Records,
    link: Records,
    place: NDArray[np.int32],
    conflict: NDArray[np.bool_],
    duration: NDArray[np.float64],
    start: NDArray[np.float64],
) -> float:
    """Simulate ops whose seconds are known, over channels, the highest b-level first.

    Args:
        op: ``OP[V + 1]``; parameters and what is read from it do not matter.
        edge: ``EDGE[E]``.
        link: ``LINK[D, D]``.
        place: ``int32[V]``.
        conflict: ``bool[D * D]``, or empty.
        duration: ``float64[V]``.
        start: ``float64[V]``, receives when each op starts.

    Returns:
        The makespan in seconds.
    """
    ops, edges, devices = len(place), len(edge), len(link)
    node, moving = np.zeros(ops + edges, NODE), np.empty(edges)
    time_transfers(edge, link, place, moving)
    rank_by_b_level(op, edge, place, duration, moving, node)
    entries, shared, found = np.empty(ops, np.int32), 0, 0
    for v in range(ops):
        if op[v].indegree == 0:
            entries[found] = v
            found += 1
    for p in range(edges):
        shared = max(shared, edge[p].shared + 1)
    makespan = run_one(
        op,
        edge,
        link,
        entries[:found],
        place,
        conflict,
        CHANNEL,
        PRIORITY,
        0.0,
        np.uint64(0),
        node,
        np.empty(ops, INPUTS),
        np.empty(devices + devices * devices, QUEUE),
        np.zeros(1, REQUEST),
        np.empty(ops + 2 * edges + devices + 1, EVENT),
        np.empty(devices, np.int32),
        np.empty((shared, devices), POSITION),
        np.empty(devices * devices, EVENT),
        duration,
        moving,
    )
    for v in range(ops):
        start[v] = node[v].start
    return makespan
