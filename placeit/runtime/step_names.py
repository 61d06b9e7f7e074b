"""Names of a plan's segments and transfers, for errors, messages and traces."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from placeit.planning.segments import Plan
from placeit.runtime.segment_book import SegmentBook
from placeit.runtime.spans import Labels
from placeit.simulator.scheduler import Start, Transfer

__all__ = ["StepNames"]


class StepNames:
    """Names of the steps (segments and transfers) of a plan.

    Args:
        book: names of the plan's segments and tensors.
        plan: the plan.
        devices: names of the devices.
    """

    def __init__(self, book: SegmentBook, plan: Plan, devices: Sequence[str]) -> None:
        self._book, self._plan, self._devices = book, plan, tuple(devices)

    @functools.cached_property
    def labels(self) -> Labels:
        """Names of segments, tensors and devices."""
        plan, book = self._plan, self._book
        segments = tuple((segment.device, tuple(book.op_names(segment))) for segment in plan.segments)
        tensors = (*map(book.grouping.tensor_name, plan.tensors), *book.inputs, *book.outputs)
        return Labels(self._devices, segments, tensors)

    def step(self, step: Start | Transfer) -> str:
        """Return the name of a segment or a transfer."""
        if isinstance(step, Start):
            return self.segment(step.op)
        return f"{self._tensor(step.tensor)} from {self._devices[step.src]} to {self._devices[step.dst]}"

    def segment(self, s: int) -> str:
        """Return the name of a segment, by its number."""
        segment = self._plan.segments[s]
        return f"the segment that starts with '{self._book.op_names(segment)[0]}' on {self._devices[segment.device]}"

    def writer(self, what: tuple[int, ...]) -> str:
        """Return the name of a writer of buffers, given its key in :attr:`placeit.runtime.slots.Slot.writes`."""
        if len(what) == 1:
            return self.segment(what[0])
        return f"the transfer of {self._tensor(what[0])} to {self._devices[what[1]]}"

    def _tensor(self, tensor: int) -> str:
        return f"'{self._book.grouping.tensor_name(self._plan.tensors[tensor])}'"
