"""Whether a plan fits into the memory of an accelerator's devices."""

from __future__ import annotations

from placeit.core.errors import NoRoomError
from placeit.core.units import format_quantity
from placeit.runtime.accelerators.layout import RequestLayout
from placeit.runtime.devices.accelerator import HOST, Accelerator

__all__ = ["check_room"]


def check_room(layout: RequestLayout, accelerator: Accelerator, in_flight: int) -> None:
    """Raise NoRoomError if weights, buffers and workspace of a plan do not fit into the free memory of a device.

    Args:
        layout: buffers of a request, and the plan's programs.
        accelerator: the devices.
        in_flight: maximum number of requests in flight at once.
    """
    memories: dict[int, list[int]] = {}
    for device in range(len(accelerator.names)):
        memories.setdefault(accelerator.memory(device), []).append(device)
    memories.pop(HOST, None)  # weights stay where they are
    for memory, devices in memories.items():
        place = accelerator.place(memory)
        programs = {d: [t.program for t in layout.work.tasks if t.device == d and t.program is not None] for d in devices}
        weights = sum(program.weight_bytes(place) for own in programs.values() for program in own)
        buffers = in_flight * layout.bytes_on(memory)
        free = accelerator.free_bytes(memory)
        left = free - weights - buffers
        workspace = sum(max((one.workspace_bytes(left) for one in own), default=0) for own in programs.values())
        if weights + buffers + workspace > free:
            raise NoRoomError(
                f"The plan does not fit on {' and '.join(accelerator.names[d] for d in devices)}: it needs "
                f"{_bytes(weights)} for weights, {_bytes(buffers)} for the tensors of {in_flight} request(s) in flight and "
                f"{_bytes(workspace)} of workspace, and {_bytes(free)} are free. Place fewer ops there, keep fewer requests "
                "in flight, or free memory that other processes use."
            )


def _bytes(count: float) -> str:
    return format_quantity(count, "memory")
