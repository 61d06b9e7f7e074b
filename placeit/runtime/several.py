"""Runs a model whole on a device that runs several requests at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from placeit.planning.segments import Plan
from placeit.runtime.device_pool import DevicePool
from placeit.runtime.devices.base import Program
from placeit.runtime.devices.throughput import ThroughputDevice
from placeit.runtime.executor import Executor
from placeit.runtime.segment_book import SegmentBook
from placeit.simulator.scheduler import Instruction, RequestDone, Scheduler, Start, Transfer

__all__ = ["SeveralExecutor", "device_of_several"]


class _AtOnce(Scheduler):
    """Starts the only segment of each request as soon as it begins, whatever else its device runs."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._flying: dict[int, Start | Transfer] = {}

    def begin(self, request: int) -> list[Instruction]:
        start = self._flying[request] = Start(request, 0, self._device)
        return [start]

    def op_finished(self, request: int, op: int) -> list[Instruction]:  # noqa: ARG002
        del self._flying[request]
        return [RequestDone(request)]

    def abort(self, request: int) -> list[Instruction]:  # noqa: ARG002 (what is in flight has started)
        return []

    def grow(self, slots: int, grow: Callable[[int], object] | None = None) -> None:
        """Do nothing: there is room for any number."""

    def running(self) -> list[Start | Transfer]:
        return list(self._flying.values())


class SeveralExecutor(Executor):
    """Runs a plan of one segment on a device in throughput mode, which has as many requests at work as are in flight.

    Args:
        book: names, shapes and buffers of the segment.
        pool: the device.
        plan: what to run, as :func:`device_of_several` knows it.
        programs: of the segment.
        in_flight: how many requests may be in flight at once.

    Raises:
        DeviceError: there is no room for buffers.
        UsageError: no request at all.
    """

    def __init__(self, book: SegmentBook, pool: DevicePool, plan: Plan, programs: Sequence[Program], *, in_flight: int) -> None:
        super().__init__(book, pool, plan, programs, in_flight=in_flight, native=False)
        self._scheduler = _AtOnce(plan.segments[0].device)


def device_of_several(pool: DevicePool, plan: Plan) -> ThroughputDevice | None:
    """Return the device of a plan that is one segment on a device in throughput mode; None for any other plan."""
    if pool.streams is not None or len(plan.segments) != 1 or len(plan.programs) != 1:
        return None
    device = pool.devices[plan.segments[0].device]
    return device if isinstance(device, ThroughputDevice) else None
