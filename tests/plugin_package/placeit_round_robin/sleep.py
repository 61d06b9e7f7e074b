"""A kind of device with its hardware: boards that compute like a CPU, once they have slept, and cables between them."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Sequence
from dataclasses import replace

from placeit.backends.base import Model
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.threads import Worker
from placeit.planning.coarsen import Grouping
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, Program, RuntimeDevice
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.devices.openvino import NativeInstance, OpenVinoDevice, OpenVinoInstance
from placeit.runtime.devices.worker import perform
from placeit.runtime.kinds.openvino import KIND as OPENVINO

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


class SleepKind(DeviceKind):
    """``sleep:CPU@0`` is a core that sleeps; ``sleep:0`` and ``sleep:1`` are boards, which compute on the CPU."""

    on_nodes = True

    def version(self) -> str:
        return "sleep 1.0"

    def devices(self) -> Sequence[Device]:
        return [Device(f"sleep:{n}", "sleep", Address(f"sleep:{n}"), "A board that sleeps", 1e9) for n in range(2)]

    def open(self, device: Device, precision: str) -> Sleeper:
        return Sleeper(device, precision)

    def open_sizes(self, device: Device) -> bool:
        """Boards compute with OpenVINO, at any size."""
        return True

    def supported(self, model: Model, device: Device) -> Collection[str]:
        return OPENVINO.supported(model, on_cpu(device))

    def kernels(self, model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> Sequence[Kernel]:
        return OPENVINO.kernels(model, grouping, on_cpu(device), precision, passes)

    def link(self, source: RuntimeDevice, destination: RuntimeDevice) -> Cable | None:
        """Boards are linked by cables; what leads from and to other devices is left to placeit."""
        boards = all(isinstance(device, Sleeper) and device.space != "host" for device in (source, destination))
        return Cable(f"cable {source.name} -> {destination.name}") if boards else None


KIND = SleepKind()


def on_cpu(device: Device) -> Device:
    """Return the device where OpenVINO computes for a device: ``sleep:CPU@0`` is a core; a board has no core, so the CPU."""
    return device if device.core_set else replace(device, address=Address("CPU"))
