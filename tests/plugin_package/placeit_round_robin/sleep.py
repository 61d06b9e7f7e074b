"""A kind of device with hardware of its own: boards that compute like a CPU, once they have slept."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.runtime.devices.base import Program
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.devices.openvino import KIND as OPENVINO
from placeit.runtime.devices.openvino import NativeInstance, OpenVinoDevice, OpenVinoInstance

SLEEP_S = 0.001


class Sleeper(OpenVinoDevice):
    """A device that sleeps before each segment."""

    def instance(self, program: Program) -> NativeInstance | OpenVinoInstance:
        made = super().instance(program)
        compute = made.run

        def run() -> object:
            time.sleep(SLEEP_S)
            return compute()

        made.run = run
        return made


def on_cpu(device: Device) -> Device:
    """Where OpenVINO computes for a device: ``sleep:CPU@0`` is a core already, and a board has none of its own."""
    return device if device.core_set else replace(device, address=Address("CPU"))


def boards() -> Sequence[Device]:
    """Two boards are there: ``sleep:0`` and ``sleep:1``."""
    return [Device(f"sleep:{n}", "sleep", Address(f"sleep:{n}"), "A board that sleeps", 1e9) for n in range(2)]


KIND = DeviceKind(
    open=lambda device, precision: Sleeper(on_cpu(device), precision=precision),
    supported=lambda model, device: OPENVINO.supported(model, on_cpu(device)),
    group_shares=lambda model, grouping, device, precision, passes: OPENVINO.group_shares(
        model, grouping, on_cpu(device), precision, passes
    ),
    version=lambda: "sleep 1.0",
    devices=boards,
)
