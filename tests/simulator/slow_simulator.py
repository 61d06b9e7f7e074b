"""The rules of the simulator once more, written to be read: one event per transfer, lists and dictionaries, no tricks."""

import heapq
from dataclasses import dataclass, field

import numpy as np
from hypothesis import given, settings

from placeit.core.problem import Problem
from placeit.testing.oracle import durations, ranks


def holds_for(*, max_examples=100, **arguments):
    """Hypothesis without a deadline: the first example may have to compile the simulator."""
    return lambda test: settings(max_examples=max_examples)(given(**arguments)(test))


def random_problem(seed, ops, devices, *, cut=False, conflicts=False):
    """A problem full of ties whose costs add up without rounding: shared tensors, parallel edges, free transfers.

    With conflicts, each pair of devices may be one that never runs at the same time.
    """
    rng = np.random.default_rng(seed)
    label = rng.permutation(ops)  # op numbers need not be in topological order
    edges, sizes, tensors = [], [], []
    for v in range(1, ops):
        edges += [(int(label[u]), int(label[v])) for u in rng.integers(0, v, rng.integers(0, 4))]
    rng.shuffle(edges)
    known = {}
    for u, _ in edges:
        mine = known.setdefault(u, [])
        if not mine or rng.random() < 0.4:
            mine.append((len(tensors), float(rng.choice([0, 1, 2, 4]))))
        tensor, size = mine[rng.integers(len(mine))]
        tensors.append(tensor)
        sizes.append(size)
    return Problem.from_arrays(
        compute=rng.choice([0, 1, 1, 2, 3], (ops, devices)),
        edges=np.array(edges, int).reshape(-1, 2),
        edge_bytes=sizes,
        bandwidth=rng.choice([0.5, 1, 2, np.inf], (devices, devices)),
        latency=rng.choice([0, 0, 1], (devices, devices)),
        edge_tensor=np.array(tensors, int),
        cut=_same_for_a_tensor(rng, tensors, devices) if cut else None,
        param_bytes=rng.integers(0, 3, ops),
        conflicts=random_conflicts(seed, devices) if conflicts else None,
    )


def random_conflicts(seed, devices):
    """Draw which devices never run at the same time, ``bool[D, D]``: any graph, not only graphs that core sets can have."""
    rng = np.random.default_rng([seed, 2])
    upper = np.triu(rng.random((devices, devices)) < rng.choice([0.2, 0.5, 1.0]), 1)
    return upper | upper.T


def _same_for_a_tensor(rng, tensors, devices):
    return rng.choice([0, 0.5, 1], (len(tensors) + 1, devices))[np.array(tensors, int)]


@dataclass
class Trace:
    start: dict = field(default_factory=dict)
    finish: dict = field(default_factory=dict)
    sent: dict = field(default_factory=dict)  # by (tensor, destination)
    arrived: dict = field(default_factory=dict)
    at: dict = field(default_factory=dict)  # number of the event at which something starts or finishes


def run(problem, place, links, queue, priority=None):
    """Trace of one placement, or None if a planned order waits for itself."""
    place = [int(d) for d in place]
    seconds, moves = durations(problem, place)
    rank = ranks(problem, place) if priority is None else list(priority)
    edges = [(u, v, int(t)) for (u, v), t in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), strict=True)]
    pending = [sum(v == w for _, w, _ in edges) for v in range(len(place))]
    order = sorted(problem.order.tolist(), key=lambda v: -rank[v])
    ready = [[] for _ in range(problem.devices)]
    asked, queued = {}, {}
    busy = set()
    rivals = [np.flatnonzero(row).tolist() for row in problem.conflicts]
    events, trace, number, sequence = [], Trace(), 0, 0

    def served(tensor, dst):
        return [w for _, w, t in edges if t == tensor and place[w] == dst]

    def schedule(time, what):
        nonlocal sequence
        heapq.heappush(events, (time, sequence, what))
        sequence += 1

    def startable(d):
        """Ready ops that a device could start now."""
        if busy & {d, *rivals[d]}:
            return []
        if queue == "planned":
            plan = [v for v in order if place[v] in (d, *rivals[d]) and v not in trace.start]
            return [v for v in plan[:1] if v in ready[d]]
        return ready[d]

    def devices_next(devices, time):
        while able := [v for d in devices for v in startable(d)]:
            v = min(able, key=queued.get if queue == "fifo" else order.index)
            ready[place[v]].remove(v)
            busy.add(place[v])
            trace.start[v], trace.at["start", v] = time, number
            schedule(time + seconds[v], ("op", v))

    def channel_next(channel, time):
        waiting = asked.get(channel, [])
        if waiting and (links == "contention-free" or channel not in busy):
            if queue != "fifo" and links == "channel":
                waiting.sort(key=lambda tensor: -max(rank[w] for w in served(tensor, channel[1])))
            tensor = waiting.pop(0)
            busy.add(channel)
            trace.sent[tensor, channel[1]], trace.at["sent", tensor, channel[1]] = time, number
            schedule(time + moves[tensor, channel[1]], ("move", tensor, *channel))

    def fire(w):
        pending[w] -= 1
        if pending[w] == 0:
            ready[place[w]].append(w)
            queued[w] = len(queued)

    sources = [v for v in range(len(place)) if pending[v] == 0]
    for v in sources:
        ready[place[v]].append(v)
        queued[v] = len(queued)
    if any(rivals):
        devices_next(range(problem.devices), 0.0)
    for v in sources:
        devices_next([place[v]], 0.0)
    while events:
        time, _, what = heapq.heappop(events)
        number += 1
        if what[0] == "op":
            v = what[1]
            d = place[v]
            trace.finish[v], trace.at["finish", v] = time, number
            busy.discard(d)
            if queue == "fifo":
                devices_next([d, *rivals[d]], time)
            requested = []
            for u, w, tensor in edges:
                if u != v:
                    continue
                if place[w] == d:
                    fire(w)
                elif (tensor, place[w]) not in requested:
                    requested.append((tensor, place[w]))
                    asked.setdefault((d, place[w]), []).append(tensor)
            for _, dst in requested:
                channel_next((d, dst), time)
            devices_next([d, *rivals[d]], time)
        else:
            _, tensor, src, dst = what
            trace.arrived[tensor, dst], trace.at["arrived", tensor, dst] = time, number
            busy.discard((src, dst))
            for w in served(tensor, dst):
                fire(w)
            if links == "channel":
                channel_next((src, dst), time)
            devices_next([dst], time)
    return trace if len(trace.finish) == len(place) else None


def peak_memory(problem, place, trace):
    """Most bytes on each device, from the numbers of the events between which each tensor is there."""
    place = [int(d) for d in place]
    spans = []
    users = {}
    for e, (u, v) in enumerate(problem.edges.tolist()):
        users.setdefault(int(problem.edge_tensor[e]), []).append((e, u, v))
    for tensor, uses in users.items():
        e, u, _ = uses[0]
        size, at = float(problem.edge_bytes[e]), trace.at
        ends = [at["finish", v] for _, _, v in uses if place[v] == place[u]]
        for dst in {place[v] for _, _, v in uses} - {place[u]}:
            ends.append(at["arrived", tensor, dst])
            spans.append((dst, at["sent", tensor, dst], max(at["finish", v] for _, _, v in uses if place[v] == dst), size))
        spans.append((place[u], at["start", u], max(ends), size))
    last = max(trace.at.values())
    peaks = []
    for d in range(problem.devices):
        weights = sum(float(problem.param_bytes[v]) for v in range(len(place)) if place[v] == d)
        live = [sum(size for device, begin, end, size in spans if device == d and begin <= i < end) for i in range(last + 1)]
        peaks.append(weights + max(live))
    return peaks
