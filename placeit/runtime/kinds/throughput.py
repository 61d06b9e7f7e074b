"""CPU cores in OpenVINO's throughput mode: several streams run requests of a model at the same time."""

from __future__ import annotations

import threading
from typing import Any

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.core.threads import Worker
from placeit.devices.openvino_errors import explaining
from placeit.runtime.devices.base import Program, RuntimeDevice
from placeit.runtime.devices.openvino import OpenVinoDevice, OpenVinoInstance, OpenVinoProgram
from placeit.runtime.kinds.openvino import DrivenByOpenVino

__all__ = ["KIND", "ThroughputDevice"]

_PROPERTIES = {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": "AUTO"}


class ThroughputDevice(OpenVinoDevice):
    """CPU cores that OpenVINO divides among streams, by its throughput hint.

    Requests in different slots run at the same time. A thread for each slot waits for its request.

    Args:
        device: CPU cores.
        precision: inference precision.

    Raises:
        DeviceError: the device is not a CPU.
    """

    one_at_a_time = False

    def __init__(self, device: Device, *, precision: str = "f32") -> None:
        if not device.core_set:
            raise DeviceError(f"{device.name}: only CPU core sets have a throughput mode.")
        super().__init__(device, precision=precision, properties=_PROPERTIES)
        self._workers: list[Worker] = []  # the threads that wait for requests, by slot
        self._lock = threading.Lock()

    @property
    def pages(self) -> bool:
        """False: requests of a program run at the same time."""
        return False

    def instance(self, program: Program) -> OpenVinoInstance:
        """Make an infer request that runs on a stream while a thread waits for it. Raises DeviceError."""
        with explaining(f"OpenVINO cannot make buffers for {self.name}"):
            return OpenVinoInstance(narrowed(OpenVinoProgram, program), _run)

    def worker_of(self, number: int) -> Worker:
        """Return the thread that waits for the requests in a slot, by its number."""
        with self._lock:
            while len(self._workers) <= number:
                self._workers.append(Worker(f"placeit {self.name}"))
            return self._workers[number]

    def streams(self, program: Program) -> int:
        """Return how many requests in flight OpenVINO finds best for a program."""
        compiled = narrowed(OpenVinoProgram, program).compiled
        return max(1, int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")))

    def close(self) -> None:
        """Stop all threads."""
        for worker in self._workers:
            worker.close()
        super().close()


def _run(request: Any) -> None:
    request.start_async()
    request.wait()


class _ThroughputKind(DrivenByOpenVino):
    """Core sets that serve several requests at the same time."""

    label = "OpenVINO's throughput mode"
    hardware = ("CPU",)
    elsewhere = "is known of the CPU only (throughput:CPU), not of {}"
    mode = True

    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Open CPU cores. Raises DeviceError for other hardware."""
        return ThroughputDevice(device, precision=precision)


KIND = _ThroughputKind()
