"""The compiled event loop behind :mod:`placeit.simulator.simulate`.

Everything here is callable from other compiled functions. A *position* numbers an edge after a stable sort by producer, so
that the out-edges of an op are adjacent and still in edge order. A *node* is an op (``v``) or a transfer (``V + p``, where
``p`` is the position of the first edge of its tensor towards its destination). A *queue* is a device (``d``) or the channel
of an ordered pair of devices (``D + src * D + dst``).

Three habits make it fast. Few arrays of records instead of many arrays: numba passes each as seven words and counts
references to it, so the loop takes them as arguments and small helpers are inlined. Unsigned fields where nothing is
negative: no index needs to be wrapped around. And without contention an op gets one event when its last input arrives,
instead of one for each transfer; it has the place among simultaneous events that the last transfer's would have.

What Python calls returns numbers at most, and writes arrays where it is told to. To return an array or a named tuple numba
calls a Python function of its own for their class and does not expect it to raise, as it does when a signal handler raises
there (Ctrl-C while the kernel ran, for instance): the process ends, or another error takes the place of the interrupt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.kernels import jit

F = TypeVar("F", bound=Callable[..., Any])
Records: TypeAlias = NDArray[Any]
_int64 = cast(Callable[[Any], int], np.int64)  # unlike int(), signed whatever it is given

CONTENTION_FREE, CHANNEL = 0, 1
FIFO, PRIORITY, PLANNED = 0, 1, 2
WEIGHTS_ONLY, TRACK, LIMIT = 0, 1, 2
"""What is known of memory: weights (too many: inf); live tensors too; live tensors too, and too many: inf."""

OP = np.dtype(
    [
        ("first", "u4"),  # the out-edges of v are positions op[v].first to op[v + 1].first
        ("in_first", "u4"),  # the in-edges of v are positions edge[i].into, i from op[v].in_first to op[v + 1].in_first
        ("indegree", "i4"),
        ("order", "u4"),  # the v-th op of a topological order
        ("param_bytes", "f8"),
    ],
    align=True,
)
EDGE = np.dtype(
    [
        ("head", "u4"),  # consumer
        ("tail", "u4"),  # producer
        ("tensor", "u4"),
        ("following", "i4"),  # next position of the same tensor, or -1
        ("shared", "i4"),  # number, among its op's, of a tensor with several edges; -1 with one edge
        ("into", "u4"),  # see OP.in_first
        ("opens", "b1"),  # whether it is the first position of its tensor
        ("enters", "b1"),  # whether it is the first position of its tensor towards its consumer
        ("size", "f8"),  # bytes
    ],
    align=True,
)
LINK = np.dtype([("latency", "f8"), ("bandwidth", "f8")])
_NODE = np.dtype(
    [
        ("start", "f8"),
        ("finish", "f8"),
        ("rank", "f8"),
        ("left", "i4"),  # next in a FIFO queue, or left child in a heap
        ("right", "i4"),  # right child in a heap
        ("tie", "i4"),  # of equal ranks, the lowest goes first
    ],
    align=True,
)
_STATE = np.dtype(
    [
        ("duration", "f8"),
        ("ready", "f8"),  # without contention: when and as which event the last input known so far arrives
        ("via", "i8"),
        ("pending", "i4"),  # in-edges that have not fired (without contention: whose producer has not), then _RUNNABLE
    ],
    align=True,
)
_RUNNABLE = -1
_QUEUE = np.dtype([("root", "i4"), ("last", "i4"), ("busy", "b1")], align=True)  # root: first node, or -1
_EVENT = np.dtype([("time", "f8"), ("key", "i8")])  # key: sequence number << 32 | what happens
_SENT = np.dtype([("op", "i4"), ("position", "i4")])
_DEVICE = np.dtype([("live", "f8"), ("peak", "f8")])


def _inline(function: F) -> F:
    return jit(function, forceinline=True)


class Tables(NamedTuple):
    """A problem as the kernels read it."""

    compute: NDArray[np.float64]  # [V, D] seconds
    op: Records  # OP[V + 1]
    edge: Records  # EDGE[E]
    link: Records  # LINK[D, D]
    entries: NDArray[np.int32]  # ops without in-edges, ascending
    cut: NDArray[np.float64]  # [E, D] by position, or [0, D] if it is zero everywhere
    memory: NDArray[np.float64]  # [D]


class Workspace(NamedTuple):
    """Arrays that one simulation at a time uses; ``node`` holds its schedule afterwards."""

    node: Records  # [V + E] start and finish in seconds; a transfer that does not happen keeps what was there
    state: Records  # [V]
    queue: Records  # [D + D * D]
    event: Records  # [V + 2 * E + D] a heap
    opened: NDArray[np.int32]  # [D] channels that an event puts to work
    sent: Records  # [K, D] which op sent its k-th shared tensor last to a device, and from which position
    uses: NDArray[np.int32]  # [T, D] unfinished users of a tensor where it is
    device: Records  # [D]


def new_workspace(tables: Tables) -> Workspace:
    """Allocate what :func:`makespan_kernel` needs for one problem."""
    (ops, devices), edge = tables.compute.shape, tables.edge
    shared, tensors = int(edge["shared"].max(initial=-1)) + 1, int(edge["tensor"].max(initial=0)) + 1
    return _workspace(ops, devices, len(edge), shared, tensors)


@jit
def make_workspace(tables: Tables) -> Workspace:
    """The same for compiled functions."""
    ops, devices = tables.compute.shape
    edges, shared, tensors = len(tables.edge), 0, 0
    for p in range(edges):
        shared = max(shared, tables.edge[p].shared + 1)
        tensors = max(tensors, tables.edge[p].tensor + 1)
    return _workspace_inside(ops, devices, edges, shared, tensors)


def _workspace(ops: int, devices: int, edges: int, shared: int, tensors: int) -> Workspace:
    return Workspace(
        np.empty(ops + edges, _NODE),
        np.empty(ops, _STATE),
        np.empty(devices + devices * devices, _QUEUE),
        np.empty(ops + 2 * edges + devices, _EVENT),
        np.empty(devices, np.int32),
        np.empty((shared, devices), _SENT),
        np.empty((tensors, devices), np.int32),
        np.empty(devices, _DEVICE),
    )


_workspace_inside = jit(_workspace)


@jit
def _mix(x: np.uint64) -> np.uint64:
    """Scramble 64 bits (the finaliser of SplitMix64; Steele, Lea and Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@jit
def stream_of(seed: np.uint64, index: int) -> np.uint64:
    """Return the random stream of the ``index``-th placement of a batch."""
    return _mix(_mix(seed) + np.uint64(index))


@jit
def _factor(noise: float, stream: np.uint64, item: int) -> float:
    """Return the ``item``-th factor of a stream, uniform in [1 - noise, 1 + noise] whatever the order of asking."""
    bits = _mix(stream + np.uint64(item + 1) * np.uint64(0x9E3779B97F4A7C15))
    return 1.0 + noise * (2.0 * (np.float64(bits >> np.uint64(11)) / 9007199254740992.0) - 1.0)


@_inline
def _push(event: Records, count: int, time: float, key: int) -> None:
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


@_inline
def _pop(event: Records, count: int) -> None:
    """Remove the first event of a heap that holds ``count`` afterwards."""
    # walk the hole down to a leaf without a branch that cannot be predicted, then let the last event rise from there
    i, child = 0, 1
    while child < count:
        a, b = event[child], event[child + 1]
        child += _int64((b.time < a.time) | ((b.time == a.time) & (b.key < a.key)))
        event[i].time = event[child].time
        event[i].key = event[child].key
        i, child = child, 2 * child + 1
    _push(event, i, event[count].time, event[count].key)


@_inline
def _before(node: Records, a: int, b: int) -> bool:
    return bool(node[a].rank > node[b].rank or (node[a].rank == node[b].rank and node[a].tie < node[b].tie))


@jit
def _merge(node: Records, a: int, b: int) -> int:
    """Merge two skew heaps of nodes (Sleator and Tarjan 1986), highest rank first, and return the root."""
    if a < 0:
        return b
    if b < 0:
        return a
    if _before(node, b, a):
        a, b = b, a
    root = a
    while True:
        child = node[a].right
        node[a].right = node[a].left
        if child < 0:
            node[a].left = b
            return root
        if _before(node, b, child):
            node[a].left = b
            a, b = b, child
        else:
            node[a].left = child
            a = child


@_inline
def _enqueue(fifo: bool, node: Records, queue: Records, q: int, n: int) -> None:
    node[n].left = -1
    if not fifo:
        node[n].right = -1
        queue[q].root = _merge(node, queue[q].root, n)
        return
    if queue[q].root < 0:
        queue[q].root = n
    else:
        node[queue[q].last].left = n
    queue[q].last = n


@_inline
def _dequeue(fifo: bool, node: Records, queue: Records, q: int) -> int:
    n = _int64(queue[q].root)
    queue[q].root = node[n].left if fifo else _merge(node, node[n].left, node[n].right)
    return n


@_inline
def _hold(device: Records, d: int, size: float) -> None:
    device[d].live += size
    device[d].peak = max(device[d].peak, device[d].live)


@jit
def _hold_outputs(
    op: Records, edge: Records, uses: NDArray[np.int32], device: Records, place: NDArray[np.int32], v: int
) -> None:
    """An op starts: its tensors take memory, and every user of one is known."""
    d = place[v]
    for p in range(op[v].first, op[v + 1].first):
        tensor, dst = edge[p].tensor, place[edge[p].head]
        if edge[p].opens:
            _hold(device, d, edge[p].size)
        if dst != d and uses[tensor, dst] == 0:
            uses[tensor, d] += 1  # the transfer reads it too
        uses[tensor, dst] += 1


@jit
def _release(edge: Records, uses: NDArray[np.int32], device: Records, p: int, d: int) -> None:
    """One user of a tensor on a device is done with it."""
    uses[edge[p].tensor, d] -= 1
    if uses[edge[p].tensor, d] == 0:
        device[d].live -= edge[p].size


@jit
def _add_cuts(edge: Records, cut: NDArray[np.float64], state: Records, place: NDArray[np.int32]) -> None:
    """Charge ``cut`` to both ends of every tensor that crosses a border, once per tensor and op."""
    for p in range(len(edge)):
        v, w = edge[p].tail, edge[p].head
        if edge[p].enters and place[w] != place[v]:
            state[w].duration += cut[p, place[w]]
        if edge[p].opens:
            q = _int64(p)
            while q >= 0 and place[edge[q].head] == place[v]:
                q = edge[q].following
            if q >= 0:
                state[v].duration += cut[p, place[v]]


@jit
def _rank_by_b_level(op: Records, edge: Records, link: Records, ws: Workspace, place: NDArray[np.int32]) -> None:
    """Rank ops by the longest path to an exit, transfers between devices included."""
    node, state = ws.node, ws.state
    for i in range(len(place) - 1, -1, -1):
        v = op[i].order
        d = place[v]
        longest = 0.0
        for p in range(op[v].first, op[v + 1].first):
            w = edge[p].head
            path = node[w].rank
            if place[w] != d:
                path += link[d, place[w]].latency + edge[p].size / link[d, place[w]].bandwidth
            longest = max(longest, path)
        node[v].rank = state[v].duration + longest


@jit
def _rank_of_transfer(edge: Records, node: Records, place: NDArray[np.int32], p: int) -> float:
    """Return the highest rank among the consumers that a transfer serves."""
    dst, highest = place[edge[p].head], node[edge[p].head].rank
    q = edge[p].following
    while q >= 0:
        if place[edge[q].head] == dst:
            highest = max(highest, node[edge[q].head].rank)
        q = edge[q].following
    return float(highest)


@_inline
def _prepare(
    tables: Tables, place: NDArray[np.int32], priority: NDArray[np.float64], queue: int, memory: int, ws: Workspace
) -> bool:
    """Fill the workspace for one simulation; False if the placement is infeasible."""
    ops, devices = tables.compute.shape
    compute, op = tables.compute, tables.op
    state, node, device = ws.state, ws.node, ws.device
    for d in range(devices):
        device[d].live = 0.0
    for v in range(ops):
        d = place[v]
        seconds = compute[v, d]
        state[v].duration = seconds
        state[v].ready = -1.0
        state[v].pending = op[v].indegree
        device[d].live += op[v].param_bytes
        if seconds == np.inf:
            return False
    for d in range(devices):
        device[d].peak = device[d].live
        if device[d].live > tables.memory[d]:
            return False
    if len(tables.cut):
        _add_cuts(tables.edge, tables.cut, state, place)
    if queue != FIFO:
        if len(priority):
            for v in range(ops):
                node[v].rank = priority[v]
        else:
            _rank_by_b_level(op, tables.edge, tables.link, ws, place)
        for i in range(ops):
            node[op[i].order].tie = i
    if memory != WEIGHTS_ONLY:
        ws.uses[:] = 0
    for k in range(len(ws.sent)):
        for d in range(devices):
            ws.sent[k, d].op = -1
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
    """Simulate one placement; see :mod:`placeit.simulator.simulate` for the rules.

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
    if not _prepare(tables, place, priority, queue, memory, ws):
        return np.inf
    makespan = _run(
        tables.op,
        tables.edge,
        tables.link,
        tables.entries,
        place,
        links,
        queue,
        noise,
        stream,
        memory != WEIGHTS_ONLY,
        ws.node,
        ws.state,
        ws.queue,
        ws.event,
        ws.opened,
        ws.sent,
        ws.uses,
        ws.device,
    )
    if memory == LIMIT:
        for d in range(len(tables.memory)):
            if ws.device[d].peak > tables.memory[d]:
                return np.inf
    return makespan


@_inline
def _run(
    op: Records,
    edge: Records,
    link: Records,
    entries: NDArray[np.int32],
    place: NDArray[np.int32],
    links: int,
    discipline: int,
    noise: float,
    stream: np.uint64,
    tracked: bool,
    node: Records,
    state: Records,
    queue: Records,
    event: Records,
    opened: NDArray[np.int32],
    sent: Records,
    uses: NDArray[np.int32],
    device: Records,
) -> float:
    """Run the event loop on a prepared workspace."""
    ops, devices = len(place), len(link)
    nodes = ops + len(edge)
    fifo, planned, contended = discipline == FIFO, discipline == PLANNED, links == CHANNEL
    for q in range(devices + devices * devices if contended else devices):
        queue[q].root = -1
        queue[q].busy = False
    if noise > 0:
        for v in range(ops):
            state[v].duration *= _factor(noise, stream, v)
    if planned:  # a queue then holds all ops of its device, in order, ready or not
        for v in range(ops):
            _enqueue(fifo, node, queue, place[v], v)
    events, sequence, requests, done = 0, 0, 0, 0
    for v in entries:
        state[v].pending = _RUNNABLE
        if not planned:
            _enqueue(fifo, node, queue, place[v], v)
        if not queue[place[v]].busy:
            queue[place[v]].busy = True
            _push(event, events, 0.0, sequence << 32 | (nodes + place[v]))
            events, sequence = events + 1, sequence + 1

    time = 0.0
    while events > 0:
        time, key = event[0].time, event[0].key
        events -= 1
        _pop(event, events)
        n = key & 0xFFFFFFFF
        put = 0  # how many channels take their next transfer once all edges have fired
        turn = -1  # the device's next op, if it goes before what the edges bring: its place among simultaneous events
        if n < ops:  # an op finishes
            done += 1
            d = _int64(np.uint32(place[n]))
            queue[d].busy = False
            if tracked:
                for i in range(op[n].in_first, op[n + 1].in_first):
                    _release(edge, uses, device, edge[i].into, d)
            if fifo and queue[d].root >= 0:
                turn = sequence
                sequence += 1
            for p in range(_int64(op[n].first), _int64(op[n + 1].first)):
                w = _int64(edge[p].head)
                dst = _int64(np.uint32(place[w]))
                if dst == d:
                    state[w].pending -= 1
                    if state[w].pending > 0:
                        continue
                    if state[w].ready > time or (state[w].ready == time and state[w].via > key):
                        _push(event, events, state[w].ready, state[w].via)
                        events += 1
                        continue
                    state[w].pending = _RUNNABLE
                    if not planned:
                        _enqueue(fifo, node, queue, d, w)
                    continue
                first = p  # position of the first edge of this tensor towards this device
                if edge[p].shared >= 0:
                    k = _int64(edge[p].shared)
                    if sent[k, dst].op == n:
                        first = _int64(sent[k, dst].position)
                    else:
                        sent[k, dst].op = n
                        sent[k, dst].position = p
                if contended:
                    if first < p:
                        continue
                    if not fifo:
                        node[ops + p].rank = _rank_of_transfer(edge, node, place, p)
                        node[ops + p].tie = requests
                        requests += 1
                    channel = devices + d * devices + dst
                    _enqueue(fifo, node, queue, channel, ops + p)
                    if not queue[channel].busy:
                        queue[channel].busy = True
                        opened[put] = channel
                        put += 1
                    continue
                if first == p:
                    seconds = link[d, dst].latency + edge[p].size / link[d, dst].bandwidth
                    if noise > 0:
                        seconds *= _factor(noise, stream, ops + edge[p].tensor * devices + dst)
                    node[ops + p].start = time
                    node[ops + p].finish = time + seconds
                    node[ops + p].tie = sequence
                    if tracked:
                        _hold(device, dst, edge[p].size)
                        _push(event, events, time + seconds, sequence << 32 | (nodes + devices + p))
                        events += 1
                    sequence += 1
                arrival, via = node[ops + first].finish, _int64(node[ops + first].tie) << 32 | (ops + p)
                if arrival > state[w].ready or (arrival == state[w].ready and via > state[w].via):
                    state[w].ready = arrival
                    state[w].via = via
                state[w].pending -= 1
                if state[w].pending == 0:
                    _push(event, events, state[w].ready, state[w].via)
                    events += 1
        elif n < nodes and contended:  # a transfer finishes
            p = n - ops
            d = _int64(place[edge[p].head])
            src = _int64(place[edge[p].tail])
            if tracked:
                _release(edge, uses, device, p, src)
            channel = devices + src * devices + d
            queue[channel].busy = queue[channel].root >= 0
            if queue[channel].busy:
                opened[put] = channel
                put += 1
            while p >= 0:
                w = _int64(edge[p].head)
                if place[w] == d:
                    state[w].pending -= 1
                    if state[w].pending == 0:
                        state[w].pending = _RUNNABLE
                        if not planned:
                            _enqueue(fifo, node, queue, d, w)
                p = _int64(edge[p].following)
        elif n < nodes:  # the last input of an op arrives
            w = _int64(edge[n - ops].head)
            d = _int64(np.uint32(place[w]))
            state[w].pending = _RUNNABLE
            if not planned:
                _enqueue(fifo, node, queue, d, w)
            if events > 0 and event[0].time == time and event[0].key >> 32 == key >> 32:
                continue  # the same transfer serves another op: the device chooses among them all
        elif n < nodes + devices:  # a device wakes up
            d = n - nodes
            queue[d].busy = False
        else:  # a transfer finishes, which its producer's memory needs to know
            p = n - nodes - devices
            d = _int64(place[edge[p].head])
            _release(edge, uses, device, p, place[edge[p].tail])
        for i in range(put):
            p = _dequeue(fifo, node, queue, opened[i]) - ops
            src, dst = _int64(place[edge[p].tail]), _int64(place[edge[p].head])
            seconds = link[src, dst].latency + edge[p].size / link[src, dst].bandwidth
            if noise > 0:
                seconds *= _factor(noise, stream, ops + edge[p].tensor * devices + dst)
            node[ops + p].start = time
            node[ops + p].finish = time + seconds
            if tracked:
                _hold(device, dst, edge[p].size)
            _push(event, events, time + seconds, sequence << 32 | (ops + p))
            events, sequence = events + 1, sequence + 1
        if not queue[d].busy and queue[d].root >= 0 and (not planned or state[queue[d].root].pending == _RUNNABLE):
            v = _dequeue(fifo, node, queue, d)
            queue[d].busy = True
            node[v].start = time
            node[v].finish = time + state[v].duration
            if tracked:
                _hold_outputs(op, edge, uses, device, place, v)
            if turn < 0:
                turn = sequence
                sequence += 1
            _push(event, events, node[v].finish, turn << 32 | v)
            events += 1
    return time if done == ops else np.nan


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
        begin: first placement.
        end: one after the last.
        out: ``float64[B]``, receives makespans; NaN where a planned order waits for itself.

    Returns:
        -1, or the number of a placement with an unknown device, at which the work ended.
    """
    ws = make_workspace(tables)
    ops, devices = tables.compute.shape
    none = np.empty(0)
    for b in range(begin, end):
        strange = False
        for v in range(ops):
            strange |= placements[b, v] < 0 or placements[b, v] >= devices
        if strange:
            return b
        row = priority[b if len(priority) > 1 else 0] if len(priority) else none
        out[b] = makespan_kernel(tables, placements[b], row, links, queue, noise, stream_of(seed, b), memory, ws)
    return -1
