"""The decisions of the executor, and nothing else: events in, instructions out; no clock, no threads, no devices.

The rules are those of :mod:`placeit.simulator.simulate`, and tests hold the two to each other event for event. With several
requests in flight, the one that began first goes first; under ``fifo``, whatever was queued first.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from placeit.core.errors import ExecutionError, ProblemError, UsageError
from placeit.core.graph import topological_order
from placeit.core.problem import Problem

__all__ = [
    "Instruction",
    "LinkModel",
    "Queue",
    "RequestDone",
    "Scheduler",
    "Start",
    "Transfer",
    "b_level",
    "check_discipline",
    "deadlock",
]

LinkModel: TypeAlias = Literal["contention-free", "channel"]
Queue: TypeAlias = Literal["fifo", "priority", "planned"]


class Start(NamedTuple):
    """Start an op on its device."""

    request: int
    op: int
    device: int


class Transfer(NamedTuple):
    """Start moving a tensor to another device."""

    request: int
    tensor: int
    src: int
    dst: int


class RequestDone(NamedTuple):
    """The request has ended: every op has finished, or it was aborted and nothing of it runs any more."""

    request: int


Instruction: TypeAlias = Start | Transfer | RequestDone


class _Request:
    """Progress of one request."""

    __slots__ = ("aborted", "base", "left", "next", "number", "pending", "running", "sent")

    def __init__(self, number: int, base: int, pending: list[int], devices: int) -> None:
        self.number = number
        self.base = base  # what its keys in a queue count from: earlier requests come first
        self.pending = pending  # in-edges of each op that have not fired
        self.left = len(pending)  # ops that have not finished
        self.next = [0] * devices  # planned: how many ops each device has started
        self.running: set[int] = set()  # ops, and transfers numbered after the ops
        self.sent: set[int] = set()  # transfers that have given their channel back before they arrive
        self.aborted = False


class _Move:
    """What happens, in each request, to one tensor that has to go to one device."""

    __slots__ = ("channel", "consumers", "dst", "node", "rank", "src", "tensor")

    def __init__(self, node: int, tensor: int, src: int, dst: int, channel: int) -> None:
        self.node, self.tensor, self.src, self.dst, self.channel = node, tensor, src, dst, channel
        self.consumers: list[int] = []
        self.rank = 0


class Scheduler:
    """Decides what starts when, for any number of requests in flight over one placement.

    Call :meth:`begin` for each request and report what has finished; every call answers what to start now, in that order.
    Not thread-safe.

    Args:
        problem: ops, tensors and costs.
        placement: ``int32[V]``.
        links: ``channel``, or ``contention-free`` for links that move everything at once.
        queue: ``fifo``, ``priority``, or ``planned`` for each device to run the ops of a request strictly in the order of
            priority (of several requests, the earliest one whose next op is ready).
        priority: ``float64[V]``, the higher goes first; None for the b-level. Not for ``fifo``.

    Raises:
        PlacementError: the placement is infeasible.
        UsageError: an option out of its range.
        ProblemError: a priority of the wrong shape, or a planned order that waits for itself.
    """

    def __init__(
        self,
        problem: Problem,
        placement: ArrayLike,
        *,
        links: LinkModel = "channel",
        queue: Queue = "priority",
        priority: ArrayLike | None = None,
    ) -> None:
        check_discipline(links, queue, priority)
        place: list[int] = problem.check(placement).tolist()
        ops, devices = len(problem), problem.devices
        self._names = problem.op_names
        self._place, self._devices = place, devices
        self._fifo, self._planned, self._contended = queue == "fifo", queue == "planned", links == "channel"
        self._pending: list[int] = np.bincount(problem.edges[:, 1], minlength=ops).tolist()
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
            high = b_level(problem, place) if priority is None else np.asarray(priority, np.float64).tolist()
            if np.shape(high) != (ops,) or np.isnan(high).any():
                raise ProblemError(f"'priority' must be {ops} numbers, one for each op, and none of them NaN.")
            order = sorted(problem.order.tolist(), key=lambda v: -high[v])
            for i, v in enumerate(order):
                self._rank[v] = i
            # transfers that serve equal priorities tie, whatever the numbers of the ops
            level = {p: i for i, p in enumerate(sorted(set(high), reverse=True))}
            for move in self._move_of.values():
                move.rank = min(level[high[w]] for w in move.consumers)
            self._plan: list[list[int]] = [[v for v in order if place[v] == d] for d in range(devices)]
            if self._planned:
                _check_plan(problem, self._plan)

        self._ready: list[list[tuple[int, _Request, int]]] = [[] for _ in range(devices)]
        self._busy = [False] * devices
        self._waiting: list[list[tuple[int, int, _Request, _Move]]] = [[] for _ in range(devices * devices)]
        self._moving = [False] * (devices * devices)
        self._requests: dict[int, _Request] = {}
        self._count = 0  # of everything queued, for ties
        self._begun = 0

    def begin(self, request: int) -> list[Instruction]:
        """Start a request. Raises ExecutionError if one of that number is in flight."""
        if request in self._requests:
            raise ExecutionError(f"Request {request} was begun while a request of that number is in flight.")
        state = _Request(request, self._begun * len(self._place), self._pending.copy(), self._devices)
        self._begun += 1
        self._requests[request] = state
        out: list[Instruction] = []
        for v in self._entries:
            self._enqueue(state, v)
        for v in self._entries:
            self._start_next(self._place[v], out)
        return out

    def op_finished(self, request: int, op: int) -> list[Instruction]:
        """Take note that an op has finished. Raises ExecutionError if it was not running."""
        state = self._requests.get(request)
        if state is None or op not in state.running:
            raise ExecutionError(f"Op '{self._names[op]}' of request {request} was reported as finished, but was not running.")
        out: list[Instruction] = []
        device = self._place[op]
        state.running.remove(op)
        state.left -= 1
        self._busy[device] = False
        if self._fifo:
            self._start_next(device, out)
        if not state.aborted:
            self._fire(state, self._local[op])
            moves = self._moves[op]
            if self._contended:
                for move in moves:
                    self._count += 1
                    key = 0 if self._fifo else state.base + move.rank
                    heapq.heappush(self._waiting[move.channel], (key, self._count, state, move))
                for move in moves:  # only now, so that of several tensors the most urgent goes first
                    if not self._moving[move.channel]:
                        self._move_next(move.channel, out)
            else:
                for move in moves:
                    state.running.add(move.node)
                    out.append(Transfer(request, move.tensor, move.src, move.dst))
        self._start_next(device, out)
        if not state.running:
            self._end(state, out)
        return out

    def transfer_sent(self, request: int, tensor: int, dst: int) -> list[Instruction]:
        """Take note that the channel of a transfer can take the next one, though the tensor has not arrived yet.

        For channels that queue: what is started next is behind it and waits for nothing else. Raises ExecutionError if the
        tensor was not on its way, or this was said before.
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
        """Take note that a tensor has arrived. Raises ExecutionError if it was not on its way."""
        state, move = self._requests.get(request), self._move_of.get((tensor, dst))
        if state is None or move is None or move.node not in state.running:
            raise ExecutionError(f"Tensor {tensor} of request {request} arrived on device {dst}, but was not on its way.")
        out: list[Instruction] = []
        state.running.remove(move.node)
        if move.node in state.sent:
            state.sent.remove(move.node)
        elif self._contended:
            self._move_next(move.channel, out)
        if not state.aborted:
            self._fire(state, move.consumers)
        self._start_next(dst, out)
        if not state.running:
            self._end(state, out)
        return out

    def abort(self, request: int) -> list[Instruction]:
        """Drop everything of a request that has not started; nothing happens if it is not in flight.

        What has started keeps its device or channel until it is reported as finished, failed or not; then comes
        ``RequestDone``.
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

    def running(self) -> list[Start | Transfer]:
        """What has been started and not been reported as finished, of all requests in flight."""
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
        elif self._planned and self._plan[device][state.next[device]] != op:
            return
        else:
            key = state.base + self._rank[op]
        heapq.heappush(self._ready[device], (key, state, op))

    def _start_next(self, device: int, out: list[Instruction]) -> None:
        if self._busy[device] or not self._ready[device]:
            return
        _, state, op = heapq.heappop(self._ready[device])
        self._busy[device] = True
        state.running.add(op)
        out.append(Start(state.number, op, device))
        if self._planned:
            state.next[device] += 1
            rest = self._plan[device][state.next[device] :][:1]
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
        """Report a request of which nothing runs, unless it waits for a device or a channel."""
        if state.left == 0 or state.aborted:
            del self._requests[state.number]
            out.append(RequestDone(state.number))


def check_discipline(links: str, queue: str, priority: object) -> None:
    """Check the options that simulator and scheduler share. Raises UsageError."""
    for option, value, choices in (("links", links, get_args(LinkModel)), ("queue", queue, get_args(Queue))):
        if value not in choices:
            raise UsageError(f"'{option}' is '{value}'; it must be one of {', '.join(choices)}.")
    if priority is not None and queue == "fifo":
        raise UsageError("'priority' has no meaning with queue='fifo'; use queue='priority' or 'planned'.")


def b_level(problem: Problem, placement: ArrayLike) -> list[float]:
    """Return seconds from the start of each op to the end of its longest path to an exit, under a placement.

    Transfers between devices and what cutting costs are included (the upward rank of Topcuoglu et al. 2002, with the costs
    of one placement instead of means).
    """
    place: list[int] = np.asarray(placement).tolist()
    heads, tensors, out = problem.edges[:, 1].tolist(), problem.edge_tensor.tolist(), problem.successors
    seconds: list[float] = problem.compute[np.arange(len(place)), place].tolist()
    if problem.cut.any():
        read, sent = set[tuple[int, int]](), set[int]()
        tails = problem.edges[:, 0].tolist()
        remote = {t for v, w, t in zip(tails, heads, tensors, strict=True) if place[v] != place[w]}
        for e in out.edge.tolist():
            v, w, t = tails[e], heads[e], tensors[e]
            if place[v] != place[w] and (t, w) not in read:
                read.add((t, w))
                seconds[w] += float(problem.cut[e, place[w]])
            if t in remote and t not in sent:
                sent.add(t)
                seconds[v] += float(problem.cut[e, place[v]])
    rank = [0.0] * len(place)
    for v in problem.order[::-1].tolist():
        d, longest = place[v], 0.0
        for e in out.edge[out.ptr[v] : out.ptr[v + 1]].tolist():
            w = heads[e]
            path = rank[w]
            if place[w] != d:
                path += float(problem.latency[d, place[w]] + problem.edge_bytes[e] / problem.bandwidth[d, place[w]])
            longest = max(longest, path)
        rank[v] = seconds[v] + longest
    return rank


def deadlock() -> ProblemError:
    """Return the error that says that a planned order waits for itself."""
    return ProblemError(
        "The planned order waits for itself: an op comes, on its device, before another that must precede it. Give every op a "
        "higher priority than its successors."
    )


def _check_plan(problem: Problem, plan: list[list[int]]) -> None:
    chains = [pair for ops in plan for pair in pairwise(ops)]
    together = np.concatenate([problem.edges, np.array(chains, np.int32).reshape(-1, 2)])
    if topological_order(together, len(problem)) is None:
        raise deadlock()
