"""A kind of device with its hardware: boards that compute like a CPU, once they have slept, and cables between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from dataclasses import replace

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.threads import Worker
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, Program, RuntimeDevice
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.devices.openvino import KIND as OPENVINO
from placeit.runtime.devices.openvino import NativeInstance, OpenVinoDevice, OpenVinoInstance
from placeit.runtime.devices.worker import perform

SLEEP_S = 0.001


class Sleeper(OpenVinoDevice):
    """A device that sleeps before each segment. A board has separate memory, a core does not.

    Args:
        device: core or board.
        precision: as OpenVINO has it.
    """

    def __init__(self, device: Device, precision: str) -> None:
        super().__init__(on_cpu(device), precision=precision)
        self.space = "host" if device.core_set else device.name

    def allocate(self, spec: BufferSpec) -> HostBuffer:
        return self._here(super().allocate(spec))

    def _here(self, buffer: HostBuffer) -> HostBuffer:
        buffer.space = self.space
        return buffer

    def instance(self, program: Program) -> NativeInstance | OpenVinoInstance:
        made = super().instance(program)
        for i in range(len(program.outputs)):
            self._here(made.output(i))
        compute = made.run

        def run() -> object:
            time.sleep(SLEEP_S)
            return compute()

        made.run = run
        return made


class Cable:
    """What leads from one board to another.

    Attributes:
        moved: tensors that have been moved by any cable.
        plugged: cables that are in use.
    """

    moved = 0
    plugged = 0

    def __init__(self, name: str) -> None:
        self.worker = Worker(name)
        Cable.plugged += 1

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:
        self.worker.submit(functools.partial(perform, functools.partial(self._move, source, destination), str, done))

    def _move(self, source: Buffer, destination: Buffer) -> None:
        destination.fill(source.array())
        Cable.moved += 1

    def close(self) -> None:
        self.worker.close()
        Cable.plugged -= 1


def cable(source: RuntimeDevice, destination: RuntimeDevice) -> Cable | None:
    """Boards are linked by cables; what leads from and to other devices is left to placeit."""
    boards = all(isinstance(device, Sleeper) and device.space != "host" for device in (source, destination))
    return Cable(f"cable {source.name} -> {destination.name}") if boards else None


def on_cpu(device: Device) -> Device:
    """Return the device where OpenVINO computes for a device: ``sleep:CPU@0`` is a core; a board has no core, so the CPU."""
    return device if device.core_set else replace(device, address=Address("CPU"))


def boards() -> Sequence[Device]:
    """Two boards are there: ``sleep:0`` and ``sleep:1``."""
    return [Device(f"sleep:{n}", "sleep", Address(f"sleep:{n}"), "A board that sleeps", 1e9) for n in range(2)]


KIND = DeviceKind(
    open=Sleeper,
    supported=lambda model, device: OPENVINO.supported(model, on_cpu(device)),
    kernels=lambda model, grouping, device, precision, passes: OPENVINO.kernels(
        model, grouping, on_cpu(device), precision, passes
    ),
    link=cable,
    version=lambda: "sleep 1.0",
    devices=boards,
)
