"""Telling the host that an event has happened, without making any stream wait for the host."""

from __future__ import annotations

import importlib
import threading
from importlib.metadata import distributions
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Protocol

import torch

from placeit.errors import DeviceError
from placeit.runtime.streams.accelerator import Inbox, Token

__all__ = ["CupyReports", "Reports", "ThreadReports", "load_cupy", "native_handle"]

_INSTALL = "install the one for this PyTorch with `pip install {wheel}`, and no other cupy package beside it"


class Reports(Protocol):
    """A way to report events."""

    def report(self, stream: torch.Stream, event: torch.Event, inbox: Inbox, token: Token) -> None:
        """Put a token into an inbox once the event, last recorded in the stream, has happened."""
        ...

    def close(self) -> None:
        """Stop threads, if there are any. What was asked for is reported first."""
        ...


class CupyReports:
    """Host functions that CUDA calls, launched through CuPy.

    A host function holds up what is launched behind it in its stream. So each stream has a companion of its own for them, which
    waits for the event. They must not call CUDA, and so do nothing but put the token into the inbox.

    Raises:
        DeviceError: CuPy is missing, or built for another CUDA than PyTorch.
    """

    def __init__(self) -> None:
        self._cupy = load_cupy()
        self._companions: dict[int, tuple[torch.Stream, Any]] = {}

    def report(self, stream: torch.Stream, event: torch.Event, inbox: Inbox, token: Token) -> None:
        """Launch a host function on the stream's companion."""
        found = self._companions.get(id(stream))
        if found is None:
            companion = torch.Stream(torch.device(stream.device))
            external = self._cupy.cuda.ExternalStream(native_handle(companion), stream.device.index)
            # the stream itself is kept as well, so that no other gets its id
            found = self._companions[id(stream)] = (companion, (stream, external))
        companion, (_, external) = found
        companion.wait_event(event)
        external.launch_host_func(_put, (inbox, token))

    def close(self) -> None:
        """Do nothing: CUDA has the thread."""


def _put(message: tuple[Inbox, Token]) -> None:
    inbox, token = message
    inbox.put(token)


def native_handle(stream: torch.Stream) -> int:
    """The driver's address of a stream."""
    handle = getattr(stream, "native_handle", None)
    if handle is None:  # an older PyTorch
        make: Any = torch.cuda.Stream
        handle = make(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type).cuda_stream
    return int(handle)


class ThreadReports:
    """A thread per stream that waits for its events: for accelerators without host functions."""

    def __init__(self) -> None:
        self._threads: dict[int, tuple[threading.Thread, SimpleQueue[tuple[torch.Event, Inbox, Token] | None]]] = {}
        self._kept: list[torch.Stream] = []

    def report(self, stream: torch.Stream, event: torch.Event, inbox: Inbox, token: Token) -> None:
        """Hand the event to the stream's thread."""
        if id(stream) not in self._threads:
            queue: SimpleQueue[tuple[torch.Event, Inbox, Token] | None] = SimpleQueue()
            thread = threading.Thread(target=_wait_in_turn, args=(queue,), name="placeit reports", daemon=True)
            thread.start()
            self._kept.append(stream)
            self._threads[id(stream)] = thread, queue
        self._threads[id(stream)][1].put((event, inbox, token))

    def close(self) -> None:
        """Stop the threads."""
        for thread, queue in self._threads.values():
            queue.put(None)
            thread.join()
        self._threads.clear()


def _wait_in_turn(queue: SimpleQueue[tuple[torch.Event, Inbox, Token] | None]) -> None:
    while (asked := queue.get()) is not None:
        event, inbox, token = asked
        event.synchronize()
        inbox.put(token)


def load_cupy() -> ModuleType:
    """Import CuPy, built for the CUDA that PyTorch uses.

    Raises:
        DeviceError: it is missing, cannot be loaded, or is built for another CUDA; says what to install.
    """
    wanted = str(torch.version.cuda).split(".")[0]
    advice = _INSTALL.format(wheel=f"cupy-cuda{wanted}x")
    present = sorted({name for d in distributions() if (name := str(d.metadata["Name"]).lower()).startswith("cupy")})
    try:
        cupy = importlib.import_module("cupy")
        built = int(cupy.cuda.runtime.runtimeGetVersion()) // 1000
    except ModuleNotFoundError as error:
        if error.name != "cupy":
            raise _unusable(error, present, advice) from error
        raise DeviceError(f"CUDA devices need the package cupy, which is not installed: {advice}.") from error
    except (ImportError, OSError, RuntimeError) as error:  # CuPy's CUDARuntimeError is a RuntimeError
        raise _unusable(error, present, advice) from error
    if built != int(wanted):
        raise DeviceError(
            f"CuPy {cupy.__version__} ({', '.join(present) or 'built from source'}) is for CUDA {built}, and this PyTorch "
            f"{torch.__version__} for CUDA {wanted}; the two cannot share streams: {advice}."
        )
    return cupy


def _unusable(error: Exception, present: list[str], advice: str) -> DeviceError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" =\n")]
    cause = lines[-1] if lines else type(error).__name__
    return DeviceError(
        f"The package {' and '.join(present) or 'cupy'} is installed and does not work here ({cause}): {advice}."
    )
