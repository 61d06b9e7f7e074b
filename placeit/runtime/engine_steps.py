"""Translation of a compiled engine's records, in which segments and transfers are nodes, into terms of the plan."""

from __future__ import annotations

from collections.abc import Sequence

from placeit.core.errors import ExecutionError, PlaceitError
from placeit.core.narrowing import narrowed
from placeit.planning.segments import Plan
from placeit.runtime.calls import failure_of, segment_failure
from placeit.runtime.engine_wiring import Wiring
from placeit.runtime.segment_book import SegmentBook
from placeit.runtime.spans import Moved, Ran
from placeit.runtime.step_names import StepNames
from placeit.simulator.scheduler import Scheduler, Transfer

__all__ = ["EngineSteps"]


class EngineSteps:
    """The segments and transfers of an engine's requests.

    Each slot has a node for each segment and edge of the plan. Node ``n`` belongs to slot ``n // size``.

    Args:
        wiring: the engine, and the devices that it uses.
        scheduler: turns nodes into instructions.
        book: names, shapes and buffers of the plan's segments.
        plan: the plan.
        devices: names of the devices.

    Attributes:
        names: names of segments and transfers.
        size: number of nodes of a slot.
    """

    def __init__(self, wiring: Wiring, scheduler: Scheduler, book: SegmentBook, plan: Plan, devices: Sequence[str]) -> None:
        self._engine, self._devices, self._scheduler = wiring.engine, wiring.devices, scheduler
        self._book, self._plan = book, plan
        self.names = StepNames(book, plan, devices)
        self.size = len(plan.segments) + len(plan.problem.edges)

    def ran(self, number: int) -> tuple[tuple[Ran, ...], tuple[Moved, ...]]:
        """Return the segments and transfers of the request in a slot that have ended, by start."""
        return self.decode(number, self._engine.ran(number))

    def decode(self, number: int, ran: Sequence[Ran]) -> tuple[tuple[Ran, ...], tuple[Moved, ...]]:
        """Return the segments and transfers of the request in a slot, from the engine's record ``ran``."""
        segments, moved, base = list[Ran](), list[Moved](), number * self.size
        for node, start, finish in ran:
            if node - base < len(self._plan.segments):
                segments.append((node - base, start, finish))
            else:
                step = narrowed(Transfer, self._scheduler.instruction(number, node - base))
                moved.append((step.tensor, step.src, step.dst, start, finish))
        return tuple(segments), tuple(moved)

    def named(self, nodes: Sequence[int]) -> list[str]:
        """Return the names of nodes."""
        return [self.names.step(self._scheduler.instruction(*divmod(node, self.size))) for node in nodes]

    def failure(self, node: int, *, interrupts: bool) -> tuple[int, PlaceitError]:
        """Return the slot of a segment or transfer that failed, and its error.

        Args:
            node: node of the segment or transfer.
            interrupts: whether to raise exceptions such as KeyboardInterrupt, which come from a signal handler of this thread.
        """
        number, of_slot = divmod(node, self.size)
        step, error = self._scheduler.instruction(number, of_slot), self._engine.error(node)
        if isinstance(error, BaseException):
            error = error.with_traceback(None)
            if interrupts and not isinstance(error, Exception):
                raise error
        if isinstance(step, Transfer):
            why = error if isinstance(error, BaseException) else ExecutionError("its link does not say why")
            return number, failure_of(f"Moving {self.names.step(step)} failed", why)
        segment = self._plan.segments[step.op]
        return number, segment_failure(self._book.op_names(segment)[0], self._devices[segment.device], error)
