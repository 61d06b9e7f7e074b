"""The scheduler of the executors: events in, instructions out. It has no clock, no threads and no devices.

The rules of ``native/rules/machine.hpp`` apply, which the simulator follows too. Of several requests in flight, the one that
began first goes first; under ``fifo``, the op or transfer that was queued first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit import _core
from placeit.core.errors import ExecutionError, ProblemError, UsageError
from placeit.core.graph import topological_order
from placeit.core.problem import Problem
from placeit.simulator.tables import compiled

__all__ = [
    "EXECUTED_RULES",
    "GIPH_RULES",
    "Instruction",
    "LinkModel",
    "Queue",
    "RequestDone",
    "Rules",
    "Scheduler",
    "Start",
    "Transfer",
    "b_level",
    "deadlock",
]

LinkModel: TypeAlias = Literal["contention-free", "channel"]
Queue: TypeAlias = Literal["fifo", "priority", "planned"]


@dataclass(frozen=True)
class Rules:
    """Rules of links and queues: how tensors move, and which ready op a device runs next. Defaults: the rules of executors.

    Attributes:
        links: ``channel`` for one tensor at a time between each ordered pair of devices (DOPPLER, Algorithm 1);
            ``contention-free`` for any number (GiPH, Appendix B.5).
        queue: ``priority`` for the most urgent op first, ``fifo`` for the one that has waited longest, ``planned`` for each
            device to run the ops of a request strictly in the order of priority (of several requests, the earliest one whose
            next op is ready).

    Raises:
        UsageError: ``links`` or ``queue`` has another value.
    """

    links: LinkModel = "channel"
    queue: Queue = "priority"

    def __post_init__(self) -> None:
        for option, value, choices in (("links", self.links, get_args(LinkModel)), ("queue", self.queue, get_args(Queue))):
            if value not in choices:
                raise UsageError(f"'{option}' is '{value}'; it must be one of {', '.join(choices)}.")

    def check_priority(self, priority: object) -> None:
        """Raise UsageError if a priority is given that the queue would not use."""
        if priority is not None and self.queue == "fifo":
            raise UsageError("'priority' has no meaning with the queue 'fifo'; use 'priority' or 'planned'.")

    @property
    def compiled(self) -> tuple[_core.LinkModel, _core.Discipline]:
        """The link model and the queue discipline, as compiled code takes them."""
        return _core.LinkModel(get_args(LinkModel).index(self.links)), _core.Discipline(get_args(Queue).index(self.queue))


EXECUTED_RULES = Rules()
"""The rules of executors."""

GIPH_RULES = Rules("contention-free", "fifo")
"""The rules of GiPH's simulator (Appendix B.5), by which GiPH's placers, and the placers in its comparison, are trained."""


class Start(NamedTuple):
    """Instruction to start an op on its device."""

    request: int
    op: int
    device: int


class Transfer(NamedTuple):
    """Instruction to start the transfer of a tensor to another device."""

    request: int
    tensor: int
    src: int
    dst: int


class RequestDone(NamedTuple):
    """The end of a request: every op has finished, or it was aborted and nothing of it runs any more."""

    request: int


Instruction: TypeAlias = Start | Transfer | RequestDone


class Scheduler:
    """Decides what starts when, for any number of requests in flight over one placement.

    Call :meth:`begin` for each request and report everything that has finished. Every call returns instructions: what to start
    now, in that order. Not thread-safe.

    Args:
        problem: ops, tensors and costs.
        placement: ``int32[V]``.
        rules: how links move tensors, and which ready op goes first.
        priority: ``float64[V]``, the op of highest priority goes first; None for the b-level. Not for ``fifo``.
        in_flight: number of requests in flight to make room for initially; there may be more.

    Attributes:
        machine: the compiled rules, for native loops that use them directly while no request is in flight in this object.

    Raises:
        PlacementError: the placement is infeasible.
        UsageError: an option is out of its range.
        ProblemError: a priority of the wrong shape, or a planned order that waits for itself.
    """

    def __init__(
        self,
        problem: Problem,
        placement: ArrayLike,
        *,
        rules: Rules = EXECUTED_RULES,
        priority: ArrayLike | None = None,
        in_flight: int = 1,
    ) -> None:
        rules.check_priority(priority)
        place = np.array(problem.check(placement), np.int32)
        ops = len(problem)
        self._names, self._place = problem.op_names, place.tolist()
        self._nodes = ops + len(problem.edges)
        self._slot_of: dict[int, int] = {}
        self._number_of: dict[int, int] = {}
        self._free, self._slots = list(range(in_flight))[::-1], in_flight
        self.machine = _core.Machine(compiled(problem), place, *rules.compiled, in_flight)
        if rules.queue != "fifo":
            ranks = b_level(problem, place) if priority is None else np.asarray(priority, np.float64)
            if ranks.shape != (ops,) or np.isnan(ranks).any():
                raise ProblemError(f"'priority' must be {ops} numbers, one for each op, and none of them NaN.")
            self.machine.rank(ranks)
            if rules.queue == "planned":
                _check_plan(problem, place, ranks)
        edges = problem.successors.edge
        (tail, head), tensor = problem.edges[edges].T.tolist(), problem.edge_tensor[edges].tolist()
        self._move = [(t, self._place[v], self._place[w]) for t, v, w in zip(tensor, tail, head, strict=True)]
        self._position: dict[tuple[int, int], int] = {}  # node of the transfer of a tensor to a device, counted after the ops
        for p, (t, src, dst) in enumerate(self._move):
            if src != dst:
                self._position.setdefault((t, dst), p)

    def instruction(self, request: int, node: int) -> Start | Transfer:
        """Return the instruction that starts a node: an op, or the transfer of an edge position, numbered after the ops."""
        ops = len(self._place)
        return Start(request, node, self._place[node]) if node < ops else Transfer(request, *self._move[node - ops])

    def begin(self, request: int) -> list[Instruction]:
        """Start a request. Raises ExecutionError if its number is in flight, or an op is on a lost device."""
        if request in self._slot_of:
            raise ExecutionError(f"Request {request} was begun while a request of that number is in flight.")
        if not self._free:
            self.grow(2 * self._slots)
        slot = self._free.pop()
        answer = self.machine.begin(slot)
        if answer is None:
            self._free.append(slot)
            raise ExecutionError(f"Request {request} was begun, and some op is on a device that is lost: place the model anew.")
        self._slot_of[request], self._number_of[slot] = slot, request
        return self._instructions(answer)

    def op_finished(self, request: int, op: int) -> list[Instruction]:
        """Report that an op has finished. Raises ExecutionError if it was not running."""
        slot = self._slot_of.get(request)
        answer = None if slot is None else self.machine.op_finished(slot * self._nodes + op)
        if answer is None:
            raise ExecutionError(f"Op '{self._names[op]}' of request {request} was reported as finished, but was not running.")
        return self._instructions(answer)

    def transfer_sent(self, request: int, tensor: int, dst: int) -> list[Instruction]:
        """Report that the channel of a transfer is free for the next one, though the tensor has not arrived yet.

        This is for channels with a queue, in which the next transfer only waits for this one. Raises ExecutionError if the
        tensor was not on its way, or this was reported before.
        """
        node = self._node(request, tensor, dst)
        answer = None if node is None else self.machine.transfer_sent(node)
        if answer is None:
            raise ExecutionError(f"Tensor {tensor} of request {request} left for device {dst}, but was not to be sent there.")
        return self._instructions(answer)

    def transfer_finished(self, request: int, tensor: int, dst: int) -> list[Instruction]:
        """Report that a tensor has arrived. Raises ExecutionError if it was not on its way."""
        node = self._node(request, tensor, dst)
        answer = None if node is None else self.machine.transfer_finished(node)
        if answer is None:
            raise ExecutionError(f"Tensor {tensor} of request {request} arrived on device {dst}, but was not on its way.")
        return self._instructions(answer)

    def abort(self, request: int) -> list[Instruction]:
        """Drop everything of a request that has not started; nothing happens if it is not in flight.

        Ops and transfers that have started keep their device or channel until they are reported as finished, whether they
        failed or not; then comes ``RequestDone``.
        """
        slot = self._slot_of.get(request)
        return [] if slot is None else self._instructions(self.machine.abort(slot))

    def device_lost(self, device: int) -> tuple[list[int], list[Instruction]]:
        """Report that a device is gone for good.

        Ops that ran there, and transfers from or to it, count as ended and must not be reported any more. Requests that still
        needed the device are aborted; the others go on.

        Returns:
            The requests in flight that are aborted, by this call or before, in order; and instructions: ``RequestDone`` for
            each aborted request of which nothing runs elsewhere.
        """
        answer = self.machine.device_lost(device)
        aborted = sorted(number for number, slot in self._slot_of.items() if self.machine.aborted(slot))
        return aborted, self._instructions(answer)

    def running(self) -> list[Start | Transfer]:
        """Return the ops and transfers that have started and were not yet reported as finished, of all requests in flight."""
        return [
            self.instruction(request, n % self._nodes)
            for request, slot in self._slot_of.items()
            for n in self.machine.running(slot)
        ]

    def _node(self, request: int, tensor: int, dst: int) -> int | None:
        slot, position = self._slot_of.get(request), self._position.get((tensor, dst))
        return None if slot is None or position is None else slot * self._nodes + len(self._place) + position

    def _instructions(self, answer: list[int]) -> list[Instruction]:
        """Convert an answer of the compiled rules, numbers of nodes and ``-1 - slot`` of requests that are done."""
        instructions: list[Instruction] = []
        for n in answer:
            if n < 0:
                number = self._number_of.pop(-1 - n)
                self._free.append(self._slot_of.pop(number))
                instructions.append(RequestDone(number))
            else:
                slot, node = divmod(n, self._nodes)
                instructions.append(self.instruction(self._number_of[slot], node))
        return instructions

    def grow(self, slots: int, grow: Callable[[int], object] | None = None) -> None:
        """Make room for ``slots`` requests in flight, if there is less room.

        Args:
            slots: number of requests in flight.
            grow: makes room in the compiled rules, given ``slots``; None for the method of :attr:`machine`.
        """
        if slots > self._slots:
            (grow or self.machine.grow)(slots)
            self._free[:0] = range(self._slots, slots)[::-1]
            self._slots = slots


def b_level(problem: Problem, placement: ArrayLike) -> NDArray[np.float64]:
    """Return each op's seconds from its start to the end of its longest path to an exit, under a placement, ``float64[V]``.

    Transfers between devices and ``cut`` costs are included (the upward rank of Topcuoglu et al. 2002, with the costs
    of one placement instead of means).
    """
    rank = np.empty(len(problem))
    _core.b_level(compiled(problem), np.array(placement, np.int32), rank)
    return rank


def deadlock() -> ProblemError:
    """Return the error for a planned order with a cyclic wait."""
    return ProblemError(
        "The planned order waits for itself: an op comes, on its device, before another that must precede it. Give every op a "
        "higher priority than its successors."
    )


def _check_plan(problem: Problem, place: NDArray[np.int32], priority: NDArray[np.float64]) -> None:
    order = sorted(problem.order.tolist(), key=lambda v: -priority[v])
    plans = [[v for v in order if place[v] == d] for d in range(problem.devices)]
    for d, other in np.argwhere(np.triu(problem.conflicts)):  # conflicting devices run their ops in one common order
        plans.append([v for v in order if place[v] in (d, other)])
    chains = [pair for ops in plans for pair in pairwise(ops)]
    together = np.concatenate([problem.edges, np.array(chains, np.int32).reshape(-1, 2)])
    if topological_order(together, len(problem)) is None:
        raise deadlock()
