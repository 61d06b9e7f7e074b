"""Links that copy tensors through the host's memory, between devices with separate memories."""

from __future__ import annotations

import functools

from placeit.core.errors import first_line
from placeit.core.threads import Worker
from placeit.runtime.devices.base import Buffer, DoneCallback
from placeit.runtime.devices.worker import perform

__all__ = ["HandOver"]


class HandOver:
    """A link that reads a tensor from one memory and writes it to another one, on a separate thread.

    Args:
        name: name of the thread, such as ``placeit cuda:0 -> CPU@0``.

    Attributes:
        worker: the thread.
    """

    def __init__(self, name: str) -> None:
        self._name, self.worker = name, Worker(name)

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:
        """Queue a transfer behind earlier ones."""
        self.worker.submit(functools.partial(perform, functools.partial(_move, source, destination), self._explain, done))

    def _explain(self, error: BaseException) -> str:
        return f"{self._name.removeprefix('placeit ')}: {first_line(error)}"

    def close(self) -> None:
        """Stop the link's thread."""
        self.worker.close()


def _move(source: Buffer, destination: Buffer) -> None:
    if source is not destination:
        destination.fill(source.array())
