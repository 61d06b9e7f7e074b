"""The decisions of the executor, and nothing else: events in, instructions out; no clock, no threads, no devices.

The rules are those of :mod:`placeit.runtime.simulator`, and tests hold the two to each other event for event: one op at a
time per device, one transfer at a time per ordered pair of devices, and nothing idle while something is ready for it.
"""

from __future__ import annotations

import heapq
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from placeit.problem import Problem

__all__ = ["Done", "Instruction", "Links", "Queue", "Scheduler", "Start", "Transfer"]

Links: TypeAlias = Literal["contention-free", "channel"]
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


class Done(NamedTuple):
    """The request has ended: every op has finished, or it was aborted and nothing of it runs any more."""

    request: int


Instruction: TypeAlias = Start | Transfer | Done


class _Request:
    """Progress of one request."""

    __slots__ = ("aborted", "left", "pending", "running")

    def __init__(self, pending: list[int]) -> None:
        self.pending, self.left, self.running, self.aborted = pending, len(pending), 0, False


class Scheduler:
    """Decides what starts when, for any number of requests in flight over one placement.

    Earlier requests go first. Within one, ``priority`` starts the ready op with the longest path to an exit under this
    placement (or the highest ``priority`` given; of equals the lowest number), ``fifo`` the one that became ready first.

    Args:
        problem: ops, tensors and costs.
        placement: ``int32[V]``.
        links: ``channel``, or ``contention-free`` for links that move everything at once.
        queue: ``priority`` or ``fifo``.
        priority: ``float64[V]``; None for the b-level.
    """

    def __init__(
        self,
        problem: Problem,
        placement: ArrayLike,
        *,
        links: Literal["channel", "contention-free"] = "channel",
        queue: Literal["priority", "fifo"] = "priority",
        priority: ArrayLike | None = None,
    ) -> None:
        place = problem.check(placement).tolist()
        ops, self._devices = len(problem), problem.devices
        self._place, self._fifo, self._contended = place, queue == "fifo", links == "channel"
        self._pending = np.bincount(problem.edges[:, 1], minlength=ops).tolist()
        self._entries = [v for v in range(ops) if self._pending[v] == 0]
        # what an op's end sets off, in edge order: (consumer, -1) on the same device, or (destination, tensor)
        self._fires: list[list[tuple[int, int]]] = [[] for _ in range(ops)]
        self._served: dict[tuple[int, int], list[int]] = {}
        for (u, v), tensor in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), strict=True):
            if place[v] == place[u]:
                self._fires[u].append((v, -1))
            else:
                if (tensor, place[v]) not in self._served:
                    self._fires[u].append((place[v], tensor))
                self._served.setdefault((tensor, place[v]), []).append(v)
        self._source = {int(t): place[u] for (u, _), t in zip(problem.edges.tolist(), problem.edge_tensor, strict=True)}
        rank = b_level(problem, place) if priority is None else np.asarray(priority, np.float64).tolist()
        self._rank: list[float] = [0.0] * ops if self._fifo else [-r for r in rank]
        self._transfer_rank = {key: min(self._rank[v] for v in consumers) for key, consumers in self._served.items()}
        self._ready: list[list[tuple[int, float, int, int]]] = [[] for _ in range(self._devices)]
        self._busy = [False] * self._devices
        self._waiting: dict[tuple[int, int], list[tuple[int, float, int, int]]] = {}
        self._moving: set[tuple[int, int]] = set()
        self._requests: dict[int, _Request] = {}
        self._order = 0

    def begin(self, request: int) -> list[Instruction]:
        """Start a request under a number that is not in flight."""
        self._requests[request] = _Request(self._pending.copy())
        out: list[Instruction] = []
        for v in self._entries:
            self._enqueue(request, v)
        for v in self._entries:
            self._next(self._place[v], out)
        return out

    def op_finished(self, request: int, op: int) -> list[Instruction]:
        """Take note that an op has finished."""
        out: list[Instruction] = []
        state, device = self._requests[request], self._place[op]
        state.left -= 1
        state.running -= 1
        self._busy[device] = False
        if self._fifo:
            self._next(device, out)
        if not state.aborted:
            pending = state.pending
            opened: list[int] = []
            for to, tensor in self._fires[op]:
                if tensor >= 0:
                    self._ask(request, tensor, device, to)
                    opened.append(to)
                else:
                    pending[to] -= 1
                    if pending[to] == 0:
                        self._enqueue(request, to)
            for to in opened:  # only now, so that of several tensors the most urgent goes first
                self._next_transfer(device, to, out)
        self._next(device, out)
        self._end(request, state, out)
        return out

    def transfer_finished(self, request: int, tensor: int, dst: int) -> list[Instruction]:
        """Take note that a tensor has arrived."""
        out: list[Instruction] = []
        state, src = self._requests[request], self._source[tensor]
        state.running -= 1
        if self._contended:
            self._moving.discard((src, dst))
            self._next_transfer(src, dst, out)
        if not state.aborted:
            for v in self._served[tensor, dst]:
                state.pending[v] -= 1
                if state.pending[v] == 0:
                    self._enqueue(request, v)
        self._next(dst, out)
        self._end(request, state, out)
        return out

    def abort(self, request: int) -> list[Instruction]:
        """Drop everything of a request that has not started; ``Done`` follows when what has started has finished."""
        out: list[Instruction] = []
        state = self._requests.get(request)
        if state is None or state.aborted:
            return out
        state.aborted = True
        for queue in (*self._ready, *self._waiting.values()):
            queue[:] = [entry for entry in queue if entry[0] != request]
            heapq.heapify(queue)
        self._end(request, state, out)
        return out

    def _enqueue(self, request: int, op: int) -> None:
        self._order += 1
        tie = self._order if self._fifo else op
        heapq.heappush(self._ready[self._place[op]], (request, self._rank[op], tie, op))

    def _next(self, device: int, out: list[Instruction]) -> None:
        if not self._busy[device] and self._ready[device]:
            request, _, _, op = heapq.heappop(self._ready[device])
            self._busy[device] = True
            self._requests[request].running += 1
            out.append(Start(request, op, device))

    def _ask(self, request: int, tensor: int, src: int, dst: int) -> None:
        self._order += 1
        queue = self._waiting.setdefault((src, dst), [])
        heapq.heappush(queue, (request, self._transfer_rank[tensor, dst], self._order, tensor))

    def _next_transfer(self, src: int, dst: int, out: list[Instruction]) -> None:
        queue = self._waiting.get((src, dst))
        if queue and (src, dst) not in self._moving:
            request, _, _, tensor = heapq.heappop(queue)
            if self._contended:
                self._moving.add((src, dst))
            self._requests[request].running += 1
            out.append(Transfer(request, tensor, src, dst))

    def _end(self, request: int, state: _Request, out: list[Instruction]) -> None:
        if state.running == 0 and (state.left == 0 or state.aborted):
            del self._requests[request]
            out.append(Done(request))


def b_level(problem: Problem, place: list[int]) -> list[float]:
    """Seconds from the start of each op to the end of its longest path to an exit, transfers under the placement included."""
    rank = [0.0] * len(problem)
    out, bandwidth, latency = problem.successors, problem.bandwidth, problem.latency
    edges, sizes = problem.edges.tolist(), problem.edge_bytes.tolist()
    for v in problem.order[::-1].tolist():
        d, longest = place[v], 0.0
        for e in out.edge[out.ptr[v] : out.ptr[v + 1]].tolist():
            w = edges[e][1]
            move = 0.0 if place[w] == d else latency[d, place[w]] + sizes[e] / bandwidth[d, place[w]]
            longest = max(longest, move + rank[w])
        rank[v] = float(problem.compute[v, d]) + longest
    return rank
