from __future__ import annotations

from placeit.runtime.devices.base import Instance, RuntimeDevice
from placeit.testing.devices import ComputingDeviceConformance


class Cpu(ComputingDeviceConformance):
    def failing(self, device: RuntimeDevice) -> Instance:
        (instance,) = self._instances(device, 1)

        def run() -> None:
            raise RuntimeError("out of memory")

        instance.run = run  # type: ignore[attr-defined]
        return instance
