"""Reference implementation of the rules of execution, written for readability.

Tests compare the compiled simulator and executors with it, call by call (``tests/simulator/test_rules.py``), and PlaceBench
checks the value of each placement with it. It shares only :class:`~placeit.core.problem.Problem` and the names of instructions
with them.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from placeit.core.errors import ExecutionError
from placeit.core.problem import Problem
from placeit.simulator.scheduler import EXECUTED_RULES, Instruction, RequestDone, Rules, Start, Transfer

__all__ = ["ReferenceScheduler", "busiest", "durations", "held", "makespan", "pipelined", "ranks", "seconds_per_request"]

_Place: TypeAlias = Sequence[int]


def durations(problem: Problem, place: _Place) -> tuple[list[float], dict[tuple[int, int], float]]:
    """Return the seconds of each op, and of each transfer by (tensor, destination)."""
    seconds = [float(problem.compute[v, d]) for v, d in enumerate(place)]
    moves, charged = dict[tuple[int, int], float](), set[tuple[int, int]]()
    for e, (u, v) in enumerate(problem.edges.tolist()):
        src, dst, tensor = place[u], place[v], int(problem.edge_tensor[e])
        if src == dst:
            continue
        moves[tensor, dst] = float(problem.latency[src, dst] + problem.edge_bytes[e] / problem.bandwidth[src, dst])
        for op, device in ((u, src), (v, dst)):
            if (tensor, op) not in charged:
                charged.add((tensor, op))
                seconds[op] += float(problem.cut[e, device])
    return seconds, moves


def ranks(problem: Problem, place: _Place) -> list[float]:
    """Return the b-level of each op: seconds of the longest path to an exit, with the transfers of the placement."""
    seconds, moves = durations(problem, place)
    leaving: list[list[tuple[int, int]]] = [[] for _ in place]
    for (u, w), tensor in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), strict=True):
        leaving[u].append((w, tensor))
    rank = [0.0] * len(place)
    for v in reversed(problem.order.tolist()):
        paths = [rank[w] + (moves[tensor, place[w]] if place[w] != place[v] else 0.0) for w, tensor in leaving[v]]
        rank[v] = seconds[v] + max([0.0, *paths])
    return rank


def held(problem: Problem, place: _Place) -> list[float]:
    """Return the bytes of weights on each device. A weight that several ops on a device read counts once."""
    return [
        sum(float(problem.param_bytes[v]) for v, at in enumerate(place) if at == d)
        + sum(size for size, ops in problem.shared if place[ops[0]] != d and any(place[v] == d for v in ops))
        for d in range(problem.devices)
    ]


def busiest(problem: Problem, place: _Place) -> float:
    """Return the busy seconds per request of the busiest device, set of conflicting devices, or link."""
    _, moves = durations(problem, place)
    device = [sum(float(problem.compute[v, d]) for v, at in enumerate(place) if at == d) for d in range(problem.devices)]
    crossed = dict[tuple[int, int], float]()  # the cost of each tensor on each device that it enters or leaves
    source = dict[int, int]()
    for e, (u, v) in enumerate(problem.edges.tolist()):
        source[int(problem.edge_tensor[e])] = place[u]
        if place[u] != place[v]:
            for at in (place[u], place[v]):
                crossed.setdefault((int(problem.edge_tensor[e]), at), float(problem.cut[e, at]))
    for (_, at), taken in crossed.items():
        device[at] += taken
    link = dict[tuple[int, int], float]()
    for (tensor, dst), taken in moves.items():
        link[source[tensor], dst] = link.get((source[tensor], dst), 0.0) + taken
    rivals = np.flatnonzero(problem.conflicts.any(axis=0)).tolist()
    together = [
        sum(device[d] for d in members)
        for count in range(2, len(rivals) + 1)
        for members in itertools.combinations(rivals, count)
        if all(problem.conflicts[a, b] for a, b in itertools.combinations(members, 2))
    ]
    return max([*device, *together, *link.values()])


def makespan(problem: Problem, place: _Place, rules: Rules = EXECUTED_RULES) -> float:
    """Return the seconds until the last op has finished, without the time of the host."""
    return max(pipelined(problem, place, rules, [0.0], 1)[1].values())


def seconds_per_request(problem: Problem, place: _Place, in_flight: int) -> float:
    """Return the seconds per request in steady state, as :func:`placeit.simulator.depth.served` defines them."""
    first = 16 + 2 * in_flight
    counted = math.ceil(64 / in_flight) * in_flight
    arrivals = [0.0] * (first + counted + in_flight)
    ended = sorted(pipelined(problem, place, EXECUTED_RULES, arrivals, in_flight)[1].values())
    return max((ended[first + counted - 1] - ended[first - 1]) / counted, busiest(problem, place))


def pipelined(
    problem: Problem, place: _Place, rules: Rules, arrivals: Sequence[float], in_flight: float
) -> tuple[dict[int, float], dict[int, float], dict[Instruction, float]]:
    """Return when each request began, when it ended, and when each of its ops and transfers started."""
    scheduler = ReferenceScheduler(problem, place, rules=rules)
    seconds, moves = durations(problem, place)
    # arrivals come before other events at the same time
    events: list[tuple[float, int, Any]] = [(when, r - len(arrivals), r) for r, when in enumerate(arrivals)]
    begun, ended, started = dict[int, float](), dict[int, float](), dict[Instruction, float]()
    waiting, flying, sequence = list[int](), set[int](), 0

    def carry_out(steps: Iterable[Instruction]) -> None:
        nonlocal sequence
        for step in steps:
            if isinstance(step, RequestDone):
                ended[step.request] = now
                flying.remove(step.request)
            else:
                taken = seconds[step.op] if isinstance(step, Start) else moves[step.tensor, step.dst]
                started[step] = now
                heapq.heappush(events, (now + taken, sequence, step))
                sequence += 1
        if waiting and len(flying) < in_flight:
            request = waiting.pop(0)
            flying.add(request)
            begun[request] = now
            carry_out(scheduler.begin(request))

    while events:
        now, _, what = heapq.heappop(events)
        if isinstance(what, int):
            waiting.append(what)
            carry_out([])
        elif isinstance(what, Start):
            carry_out(scheduler.op_finished(what.request, what.op))
        else:
            carry_out(scheduler.transfer_finished(what.request, what.tensor, what.dst))
    return begun, ended, started


class _Request:
    """Progress of one request."""

    __slots__ = ("aborted", "base", "finished", "left", "next", "number", "pending", "running", "sent")

    def __init__(self, number: int, base: int, pending: list[int], devices: int) -> None:
        self.number = number
        self.base = base  # offset of its keys in queues, so that earlier requests come first
        self.pending = pending  # in-edges of each op that have not fired
        self.left = len(pending)  # ops that have not finished
        self.next = [0] * devices  # planned: how many ops each device has started
        self.running: set[int] = set()  # ops, and transfers numbered after the ops
        self.finished: set[int] = set()  # ops and transfers, as in ``running``
        self.sent: set[int] = set()  # transfers that have given their channel back before they arrive
        self.aborted = False


class _Move:
    """Transfer of a tensor to a device, which takes place in each request."""

    __slots__ = ("channel", "consumers", "dst", "node", "rank", "src", "tensor")

    def __init__(self, node: int, tensor: int, src: int, dst: int, channel: int) -> None:
        self.node, self.tensor, self.src, self.dst, self.channel = node, tensor, src, dst, channel
        self.consumers: list[int] = []
        self.rank = 0


class ReferenceScheduler:
    """Reference of :class:`placeit.simulator.scheduler.Scheduler`: decides which ops and transfers start when."""

    def __init__(
        self, problem: Problem, placement: _Place, *, rules: Rules = EXECUTED_RULES, priority: Sequence[float] | None = None
    ) -> None:
        place = problem.check(placement).tolist()
        ops, devices = len(problem), problem.devices
        self._names = problem.op_names
        self._place, self._devices = place, devices
        self._fifo, self._planned, self._contended = rules.queue == "fifo", rules.queue == "planned", rules.links == "channel"
        self._rivals = [np.flatnonzero(row).tolist() for row in problem.conflicts]
        self._pending = np.bincount(problem.edges[:, 1], minlength=ops).tolist()
        self._entries = [v for v in range(ops) if self._pending[v] == 0]
        self._local: list[list[int]] = [[] for _ in range(ops)]  # consumers on the same device, in edge order
        self._moves: list[list[_Move]] = [[] for _ in range(ops)]  # what goes elsewhere, in the order of requests
        self._move_of: dict[tuple[int, int], _Move] = {}
        for (v, w), tensor in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), strict=True):
            src, dst = place[v], place[w]
            if src == dst:
                self._local[v].append(w)
                continue
            move = self._move_of.get((tensor, dst))
            if move is None:
                move = _Move(ops + len(self._move_of), tensor, src, dst, src * devices + dst)
                self._move_of[tensor, dst] = move
                self._moves[v].append(move)
            move.consumers.append(w)

        self._rank = [0] * ops  # place of each op in the order of priority
        if not self._fifo:
            high = ranks(problem, place) if priority is None else np.asarray(priority, np.float64).tolist()
            order = sorted(problem.order.tolist(), key=lambda v: -high[v])
            for i, v in enumerate(order):
                self._rank[v] = i
            # transfers that serve equal priorities tie, whatever the numbers of the ops
            level = {p: i for i, p in enumerate(sorted(set(high), reverse=True))}
            for move in self._move_of.values():
                move.rank = min(level[high[w]] for w in move.consumers)
            self._plan = [[v for v in order if place[v] == d] for d in range(devices)]

        self._ready: list[list[tuple[int, _Request, int]]] = [[] for _ in range(devices)]
        self._running: set[int] = set()  # devices that run something
        self._waiting: list[list[tuple[int, int, _Request, _Move]]] = [[] for _ in range(devices * devices)]
        self._moving = [False] * (devices * devices)
        self._requests: dict[int, _Request] = {}
        self._count = 0  # of everything queued, for ties
        self._begun = 0

    def begin(self, request: int) -> list[Instruction]:
        """Start a request. Raises ExecutionError if a request with this number is in flight."""
        if request in self._requests:
            raise ExecutionError(f"Request {request} was begun while a request of that number is in flight.")
        state = _Request(request, self._begun * len(self._place), self._pending.copy(), self._devices)
        self._begun += 1
        self._requests[request] = state
        out: list[Instruction] = []
        for v in self._entries:
            self._enqueue(state, v)
        if any(self._rivals):
            self._start_among(range(self._devices), out)
        for v in self._entries:
            self._start_among([self._place[v]], out)
        return out

    def op_finished(self, request: int, op: int) -> list[Instruction]:
        """Record that an op has finished. Raises ExecutionError if it was not running."""
        state = self._requests.get(request)
        if state is None or op not in state.running:
            raise ExecutionError(f"Op '{self._names[op]}' of request {request} was reported as finished, but was not running.")
        out: list[Instruction] = []
        device = self._place[op]
        state.running.remove(op)
        state.finished.add(op)
        state.left -= 1
        self._running.remove(device)
        if self._fifo:
            self._start_among([device, *self._rivals[device]], out)
        if not state.aborted:
            self._fire(state, self._local[op])
            moves = self._moves[op]
            if self._contended:
                for move in moves:
                    self._count += 1
                    key = 0 if self._fifo else state.base + move.rank
                    heapq.heappush(self._waiting[move.channel], (key, self._count, state, move))
                for move in moves:  # in a second loop, so that the most urgent of several tensors goes first
                    if not self._moving[move.channel]:
                        self._move_next(move.channel, out)
            else:
                for move in moves:
                    state.running.add(move.node)
                    out.append(Transfer(request, move.tensor, move.src, move.dst))
        self._start_among([device, *self._rivals[device]], out)
        if not state.running:
            self._end(state, out)
        return out

    def transfer_sent(self, request: int, tensor: int, dst: int) -> list[Instruction]:
        """Record that the channel of a transfer can accept the next transfer, before the tensor has arrived.

        This is for channels with a queue: the next transfer is queued behind this one. Raises ExecutionError if the transfer
        is not running, or has been reported as sent.
        """
        state, move = self._requests.get(request), self._move_of.get((tensor, dst))
        if state is None or move is None or move.node not in state.running or move.node in state.sent:
            raise ExecutionError(f"Tensor {tensor} of request {request} left for device {dst}, but was not to be sent there.")
        out: list[Instruction] = []
        state.sent.add(move.node)
        if self._contended:
            self._move_next(move.channel, out)
        return out

    def transfer_finished(self, request: int, tensor: int, dst: int) -> list[Instruction]:
        """Record that a tensor has arrived. Raises ExecutionError if it was not on its way."""
        state, move = self._requests.get(request), self._move_of.get((tensor, dst))
        if state is None or move is None or move.node not in state.running:
            raise ExecutionError(f"Tensor {tensor} of request {request} arrived on device {dst}, but was not on its way.")
        out: list[Instruction] = []
        state.running.remove(move.node)
        state.finished.add(move.node)
        if move.node in state.sent:
            state.sent.remove(move.node)
        elif self._contended:
            self._move_next(move.channel, out)
        if not state.aborted:
            self._fire(state, move.consumers)
        self._start_among([dst], out)
        if not state.running:
            self._end(state, out)
        return out

    def abort(self, request: int) -> list[Instruction]:
        """Drop all ops and transfers of a request that have not started; no effect if it is not in flight.

        Running ops and transfers occupy their device or channel until they are reported as finished, whether they failed or
        not. Then ``RequestDone`` follows.
        """
        state = self._requests.get(request)
        out: list[Instruction] = []
        if state is not None and not state.aborted:
            state.aborted = True
            for ready in self._ready:
                ready[:] = [entry for entry in ready if entry[1] is not state]
                heapq.heapify(ready)
            for waiting in self._waiting:
                waiting[:] = [entry for entry in waiting if entry[2] is not state]
                heapq.heapify(waiting)
            if not state.running:
                self._end(state, out)
        return out

    def device_lost(self, device: int) -> tuple[list[int], list[Instruction]]:
        """Record that a device is lost, and return the aborted requests and the next instructions."""
        out, ops = list[Instruction](), len(self._place)
        moves = {move.node: move for move in self._move_of.values()}

        def there(node: int) -> bool:
            return self._place[node] == device if node < ops else device in (moves[node].src, moves[node].dst)

        for state in list(self._requests.values()):
            left = {v for v in range(ops) if v not in state.finished}
            left |= {node for node, move in moves.items() if move.src == device and node not in state.finished}
            if not any(self._place[node] == device if node < ops else True for node in left):
                continue
            gone = {node for node in state.running if there(node)}
            if any(node < ops for node in gone):
                self._running.remove(device)
            state.running -= gone
            out += self.abort(state.number) if not state.aborted else []
            if state.number in self._requests and not state.running:
                self._end(state, out)
        aborted = sorted({step.request for step in out} | {state.number for state in self._requests.values() if state.aborted})
        self._start_among([device, *self._rivals[device]], out)
        return aborted, out

    def running(self) -> list[Start | Transfer]:
        """Return the running ops and transfers of all requests in flight."""
        ops, out = len(self._place), list[Start | Transfer]()
        of_node = {move.node: move for move in self._move_of.values()}
        for state in self._requests.values():
            for node in sorted(state.running):
                if node < ops:
                    out.append(Start(state.number, node, self._place[node]))
                else:
                    move = of_node[node]
                    out.append(Transfer(state.number, move.tensor, move.src, move.dst))
        return out

    def _fire(self, state: _Request, consumers: Sequence[int]) -> None:
        pending = state.pending
        for w in consumers:
            pending[w] -= 1
            if pending[w] == 0:
                self._enqueue(state, w)

    def _enqueue(self, state: _Request, op: int) -> None:
        device = self._place[op]
        if self._fifo:
            self._count += 1
            key = self._count
        elif self._planned and not self._is_next(state, op):
            return
        else:
            key = state.base + self._rank[op]
        heapq.heappush(self._ready[device], (key, state, op))

    def _is_next(self, state: _Request, op: int) -> bool:
        """Return whether all earlier ops of the plan on this device and on conflicting devices have started."""
        device = self._place[op]
        nexts = [self._plan[d][state.next[d] :][:1] for d in (device, *self._rivals[device])]
        return self._rank[op] == min(self._rank[rest[0]] for rest in nexts if rest)

    def _start_among(self, devices: Iterable[int], out: list[Instruction]) -> None:
        """Start as many ready ops on devices as possible, the most urgent ones first."""
        while True:
            able = [d for d in devices if self._ready[d] and self._running.isdisjoint((d, *self._rivals[d]))]
            if not able:
                return
            device = min(able, key=lambda d: self._ready[d][0][0])
            _, state, op = heapq.heappop(self._ready[device])
            self._running.add(device)
            state.running.add(op)
            out.append(Start(state.number, op, device))
            if self._planned:
                state.next[device] += 1
                for d in (device, *self._rivals[device]):
                    rest = self._plan[d][state.next[d] :][:1]
                    if rest and state.pending[rest[0]] == 0:
                        self._enqueue(state, rest[0])

    def _move_next(self, channel: int, out: list[Instruction]) -> None:
        waiting = self._waiting[channel]
        self._moving[channel] = bool(waiting)
        if waiting:
            _, _, state, move = heapq.heappop(waiting)
            state.running.add(move.node)
            out.append(Transfer(state.number, move.tensor, move.src, move.dst))

    def _end(self, state: _Request, out: list[Instruction]) -> None:
        """Report a request without running ops as done, unless it waits for a device or a channel."""
        if state.left == 0 or state.aborted:
            del self._requests[state.number]
            out.append(RequestDone(state.number))
