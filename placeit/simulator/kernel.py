"""The compiled event loop behind :mod:`placeit.simulator.simulate`.

It drives :mod:`placeit.simulator.rules`, which also says what a position, a node, a slot and a queue are, from a heap of
events in virtual time; one request, as it is simulated most, has a faster loop (:mod:`placeit.simulator.one_request`).

Everything here is callable from other compiled functions. Few arrays of records instead of many arrays, because numba passes
each as seven words: the loops take them as arguments and small helpers are inlined. Unsigned fields where nothing is
negative: no index needs to be wrapped around. References to arrays are not counted (``uncounted``), except where arrays are
made.

What Python calls returns numbers at most, and writes arrays where it is told to. To return an array or a named tuple numba
calls a Python function of its own for their class and does not expect it to raise, as it does when a signal handler raises
there (Ctrl-C while the kernel ran, for instance): the process ends, or another error takes the place of the interrupt.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit
from placeit.simulator.events import factor, hold, hold_outputs, pop, push, release, replace, stream_of
from placeit.simulator.one_request import run_one, time_transfers, transfer_seconds
from placeit.simulator.queues import NODE, Records, int64, uncounted
from placeit.simulator.rules import begin_rule, op_finished_rule, rank_by_b_level, transfer_finished_rule
from placeit.simulator.state import FIFO, PLANNED, PRIORITY
from placeit.simulator.tables import Tables
from placeit.simulator.workspace import Workspace, make_workspace

WEIGHTS_ONLY, TRACK, LIMIT = 0, 1, 2
"""What is known of memory: weights (too many: inf); live tensors too; live tensors too, and too many: inf."""


@uncounted
def _add_cuts(edge: Records, cut: NDArray[np.float64], duration: NDArray[np.float64], place: NDArray[np.int32]) -> None:
    """Charge ``cut`` to both ends of every tensor that crosses a border, once per tensor and op."""
    for p in range(len(edge)):
        v, w = edge[p].tail, edge[p].head
        if edge[p].enters and place[w] != place[v]:
            duration[w] += cut[p, place[w]]
        if edge[p].opens:
            q = int64(p)
            while q >= 0 and place[edge[q].head] == place[v]:
                q = edge[q].following
            if q >= 0:
                duration[v] += cut[p, place[v]]


@jit
def b_level_kernel(tables: Tables, place: NDArray[np.int32], rank: NDArray[np.float64]) -> None:
    """Write the longest path from each op to an exit under a placement, ``float64[V]``."""
    ops, edges = len(place), len(tables.edge)
    duration, moving, node = np.empty(ops), np.empty(edges), np.zeros(ops, NODE)
    for v in range(ops):
        duration[v] = tables.compute[v, place[v]]
    if len(tables.cut):
        _add_cuts(tables.edge, tables.cut, duration, place)
    time_transfers(tables.edge, tables.link, place, moving)
    rank_by_b_level(tables.op, tables.edge, place, duration, moving, node)
    for v in range(ops):
        rank[v] = node[v].rank


@uncounted
def _prepare(
    tables: Tables, place: NDArray[np.int32], priority: NDArray[np.float64], queue: int, memory: int, ws: Workspace
) -> bool:
    """Fill the workspace for one simulation; False if the placement is infeasible."""
    ops, devices = tables.compute.shape
    compute, op, edge, link = tables.compute, tables.op, tables.edge, tables.link
    duration, node, device = ws.duration, ws.node, ws.device
    for d in range(devices):
        device[d].live = 0.0
    for v in range(ops):
        d = place[v]
        duration[v] = compute[v, d]
        device[d].live += op[v].param_bytes
        if compute[v, d] == np.inf:
            return False
    for d in range(devices):
        device[d].peak = device[d].live
        if device[d].live > tables.memory[d]:
            return False
    if len(tables.cut):
        _add_cuts(edge, tables.cut, duration, place)
    if queue != FIFO:
        time_transfers(edge, link, place, ws.moving)
        if len(priority):
            for i in range(ops):
                node[i].rank = priority[i]
                node[op[i].order].tie = i
        else:
            rank_by_b_level(op, edge, place, duration, ws.moving, node)
        for r in range(1, len(ws.request)):
            for v in range(ops):
                node[r * (ops + len(edge)) + v].rank = node[v].rank
                node[r * (ops + len(edge)) + v].tie = node[v].tie
    if memory != WEIGHTS_ONLY:
        ws.uses[:] = 0
    return True


@jit
def makespan_kernel(
    tables: Tables,
    place: NDArray[np.int32],
    priority: NDArray[np.float64],
    links: int,
    queue: int,
    noise: float,
    stream: np.uint64,
    memory: int,
    ws: Workspace,
) -> float:
    """Simulate one request over one placement; see :mod:`placeit.simulator.simulate` for the rules.

    Args:
        tables: the problem.
        place: ``int32[V]``, device numbers within range (not checked).
        priority: ``float64[V]``, or empty for the b-level under the placement; unused by FIFO.
        links: ``CONTENTION_FREE`` or ``CHANNEL``.
        queue: ``FIFO``, ``PRIORITY`` or ``PLANNED``.
        noise: half width of the factor on every duration; 0 for none.
        stream: which random factors (see :func:`stream_of`); unused without noise.
        memory: ``WEIGHTS_ONLY``, ``TRACK`` or ``LIMIT``.
        ws: from :func:`new_workspace`, of the same problem; overwritten.

    Returns:
        Makespan in seconds; ``inf`` if an op cannot run where it is placed or memory is too small; NaN if a planned order
        waits for itself.
    """
    if queue != PLANNED and memory == WEIGHTS_ONLY and (queue == PRIORITY or len(tables.conflict) == 0):
        if not _prepare(tables, place, priority, queue, memory, ws):
            return np.inf
        return run_one(
            tables.op,
            tables.edge,
            tables.link,
            tables.entries,
            place,
            tables.conflict,
            links,
            queue,
            noise,
            stream,
            ws.node,
            ws.inputs,
            ws.queue,
            ws.request,
            ws.event,
            ws.opened,
            ws.position,
            ws.channel,
            ws.duration,
            ws.moving,
        )
    times, log = np.empty((2, 0)), np.empty((0, 2, 0))
    return requests_kernel(tables, place, priority, links, queue, noise, stream, memory, ws, np.zeros(1), times, log)


@jit
def requests_kernel(
    tables: Tables,
    place: NDArray[np.int32],
    priority: NDArray[np.float64],
    links: int,
    queue: int,
    noise: float,
    stream: np.uint64,
    memory: int,
    ws: Workspace,
    arrivals: NDArray[np.float64],
    times: NDArray[np.float64],
    log: NDArray[np.float64],
) -> float:
    """Simulate any number of requests over one placement, as many in flight as the workspace has slots.

    Args:
        tables: the problem.
        place: likewise as for :func:`makespan_kernel`, as the next ones are.
        priority: priorities.
        links: link model.
        queue: queue discipline.
        noise: half width of the random factors.
        stream: which of them.
        memory: what is known of memory.
        ws: from :func:`new_workspace`; overwritten.
        arrivals: ``float64[R]``, seconds, ascending: when each request arrives; one that finds no free slot waits for it.
        times: ``float64[2, R]``, receives when each began and ended; ``[2, 0]`` if nobody wants to know.
        log: ``float64[R, 2, V + E]``, receives the start and the finish of every node, NaN of transfers that do not
            happen; ``[0, 2, 0]`` if nobody wants to know.

    Returns:
        When the last one has ended, in seconds; or what :func:`makespan_kernel` returns.
    """
    if not _prepare(tables, place, priority, queue, memory, ws):
        return np.inf
    end = _run(
        tables.op,
        tables.edge,
        tables.link,
        tables.entries,
        place,
        tables.conflict,
        links,
        queue,
        noise,
        stream,
        memory != WEIGHTS_ONLY,
        ws.node,
        ws.queue,
        ws.request,
        ws.opened,
        ws.sent,
        ws.lost,
        ws.counter,
        ws.out,
        ws.duration,
        ws.moving,
        ws.event,
        ws.uses,
        ws.device,
        ws.number,
        arrivals,
        times,
        log,
    )
    if memory == LIMIT:
        for d in range(len(tables.memory)):
            if ws.device[d].peak > tables.memory[d]:
                return np.inf
    return end


@uncounted
def _run(
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
    tracked: bool,
    node: Records,
    queue: Records,
    request: Records,
    opened: NDArray[np.int32],
    sent: NDArray[np.int64],
    lost: NDArray[np.bool_],
    counter: NDArray[np.int64],
    out: NDArray[np.int64],
    duration: NDArray[np.float64],
    moving: NDArray[np.float64],
    event: Records,
    uses: NDArray[np.int32],
    device: Records,
    number: NDArray[np.int64],
    arrivals: NDArray[np.float64],
    times: NDArray[np.float64],
    log: NDArray[np.float64],
) -> float:
    """Drive the rules from the event heap on a prepared workspace."""
    ops, edges, devices, slots = len(place), len(edge), len(lost), len(request)
    nodes, tensors = ops + edges, len(uses) // slots
    requests = len(arrivals)
    arrival = slots * nodes  # events from here on are no nodes
    for q in range(len(queue)):
        queue[q].root = -1
        queue[q].busy = False
    for r in range(slots):
        request[r].active = False
    events, sequence, arrived, begun, done = 0, 0, 0, 0, 0
    time, handled = 0.0, False  # whether the first event of the heap has been handled, and is to be replaced or removed
    push(event, events, arrivals[0], int64(-requests) << 32 | arrival)
    events += 1
    while True:
        if handled:
            events -= 1
            pop(event, events)
        if events == 0:
            break
        time, key = event[0].time, event[0].key
        handled = True
        n = key & 0xFFFFFFFF
        count, slot = 0, int64(-1)  # slot: one that can take the next request
        if n >= arrival:
            arrived += 1
            if arrived < requests:  # before anything else that happens at that time
                push(event, events, arrivals[arrived], int64(arrived - requests) << 32 | arrival)
                events += 1
            r = 0
            while slot < 0 and r < slots:
                if not request[r].active:
                    slot = r
                r += 1
        else:
            r = int64(node[n].slot)
            v = n - r * nodes
            if v < ops:
                if tracked:
                    for i in range(op[v].in_first, op[v + 1].in_first):
                        release(edge, uses, device, r * tensors, edge[i].into, place[v])
                count = op_finished_rule(
                    op, edge, place, conflict, links, discipline, nodes, node, queue, request, opened, sent, counter, out, n
                )
            else:
                if tracked:
                    release(edge, uses, device, r * tensors, v - ops, place[edge[v - ops].tail])
                count = transfer_finished_rule(
                    edge, place, conflict, links, discipline, nodes, node, queue, request, counter, devices, out, n
                )
        i = 0
        while True:
            if i == count:
                if slot < 0 or begun == arrived:
                    break
                number[slot] = begun
                if times.shape[1]:
                    times[0, begun] = time
                begun += 1
                count = begin_rule(
                    op, entries, place, conflict, discipline, nodes, node, queue, request, lost, counter, out, slot
                )
                slot, i = int64(-1), 0
                continue
            n = out[i]
            i += 1
            if n < 0:
                slot = -1 - n
                done += 1
                if times.shape[1]:
                    times[1, number[slot]] = time
                if len(log):
                    for m in range(nodes):
                        log[number[slot], 0, m] = node[slot * nodes + m].start
                        log[number[slot], 1, m] = node[slot * nodes + m].finish
                continue
            r = int64(node[n].slot)
            v = n - r * nodes
            if v < ops:
                seconds, item = duration[v], v
                if tracked:
                    hold_outputs(op, edge, uses, device, place, r * tensors, v)
            else:
                p = v - ops
                src, dst = int64(np.uint32(place[edge[p].tail])), int64(np.uint32(place[edge[p].head]))
                if discipline == FIFO:
                    seconds = transfer_seconds(edge, link, p, src, dst)
                else:
                    seconds = moving[p]
                item = ops + int64(edge[p].tensor) * devices + dst
                if tracked:
                    hold(device, dst, edge[p].size)
            if noise > 0:
                seconds *= factor(noise, stream, item + number[r] * (ops + edges * devices))
            node[n].start = time
            node[n].finish = time + seconds
            if handled:
                handled = False
                event[events].time = np.inf
                replace(event, events, time + seconds, sequence << 32 | n)
            else:
                push(event, events, time + seconds, sequence << 32 | n)
                events += 1
            sequence += 1
    return time if done == requests else np.nan


@jit
def makespans(
    tables: Tables,
    placements: NDArray[np.int32],
    priority: NDArray[np.float64],
    links: int,
    queue: int,
    noise: float,
    seed: np.uint64,
    memory: int,
    arrivals: NDArray[np.float64],
    slots: int,
    begin: int,
    end: int,
    out: NDArray[np.float64],
) -> int:
    """Simulate placements ``begin`` to ``end`` of a batch; the options are those of :func:`makespan_kernel`.

    Args:
        tables: the problem.
        placements: ``int32[B, V]``.
        priority: ``float64[B, V]``, one row for all, or no row for b-levels.
        links: link model.
        queue: queue discipline.
        noise: half width of the random factors.
        seed: of all random factors.
        memory: what is known of memory.
        arrivals: ``float64[R]``, seconds, ascending: when each request arrives.
        slots: most of them in flight.
        begin: first placement.
        end: one after the last.
        out: ``float64[B]``, receives makespans; NaN where a planned order waits for itself.

    Returns:
        -1, or the number of a placement with an unknown device, at which the work ended.
    """
    ws = make_workspace(tables, slots)
    ops, devices = tables.compute.shape
    none, times, log = np.empty(0), np.empty((2, 0)), np.empty((0, 2, 0))
    for b in range(begin, end):
        strange = False
        for v in range(ops):
            strange |= placements[b, v] < 0 or placements[b, v] >= devices
        if strange:
            return b
        row = priority[b if len(priority) > 1 else 0] if len(priority) else none
        place, stream = placements[b], stream_of(seed, b)
        if len(arrivals) == 1 and arrivals[0] == 0:
            out[b] = makespan_kernel(tables, place, row, links, queue, noise, stream, memory, ws)
        else:
            out[b] = requests_kernel(tables, place, row, links, queue, noise, stream, memory, ws, arrivals, times, log)
    return -1
