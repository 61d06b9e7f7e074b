"""CPU core sets as streams: what ``torch.Stream`` and ``torch.Event`` are on accelerators, on a thread bound to cores."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from time import perf_counter

import torch

from placeit.cluster import Device
from placeit.runtime.devices.torch_cpu import use_threads
from placeit.runtime.devices.worker import Worker

__all__ = ["HostEvent", "HostStream"]


class HostEvent:
    """A mark in a stream. Waiting for one that was never recorded waits for nothing, as on accelerators."""

    def __init__(self) -> None:
        self._at = 0.0
        self._happened = threading.Event()
        self._happened.set()

    def record(self, stream: HostStream) -> None:
        """Mark what has been launched on the stream so far."""
        self._happened.clear()
        stream.launch(self._happen)

    def _happen(self) -> None:
        self._at = perf_counter()
        self._happened.set()

    def synchronize(self) -> None:
        """Wait until the event has happened."""
        self._happened.wait()

    def elapsed_time(self, end: HostEvent) -> float:
        """Milliseconds from this event to another, as PyTorch gives them."""
        return (end._at - self._at) * 1e3


class HostStream:
    """A thread that runs what is launched, in order, on the cores of a device.

    After a job has failed those behind it are left out until :meth:`query` has told of it.

    Args:
        device: a CPU core set.

    Raises:
        DeviceError: this process may not use the cores.
    """

    def __init__(self, device: Device) -> None:
        self._worker = Worker(f"placeit {device.name}", device.cores, torch.inference_mode)
        self._worker.submit(functools.partial(use_threads, max(1, len(device.cores))))
        self._failure: BaseException | None = None

    def launch(self, job: Callable[[], None]) -> None:
        """Queue a job that does not raise. Raises ExecutionError after the stream has been closed."""
        self._worker.submit(job)

    def run(self, job: Callable[[], None]) -> None:
        """Queue a job."""
        self.launch(functools.partial(self._run, job))

    def _run(self, job: Callable[[], None]) -> None:
        if self._failure is None:
            try:
                job()
            except Exception as error:  # noqa: BLE001 (whatever it is, the thread that waits has to be told)
                self._failure = error

    def wait_event(self, event: HostEvent) -> None:
        """Let what is launched from now on start only after an event."""
        self.launch(event.synchronize)

    def query(self) -> bool:
        """Say whether nothing has failed. Raises what a job has raised, once."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return True

    def synchronize(self) -> None:
        """Wait for everything launched. Raises what a job has raised."""
        ended = threading.Event()
        self.launch(ended.set)
        ended.wait()
        self.query()

    def close(self) -> None:
        """Stop the thread."""
        self._worker.close()
