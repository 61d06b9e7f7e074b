"""Reporting events to the host without making any stream wait for the host."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

import torch

from placeit.core.errors import ExecutionError
from placeit.core.threads import Worker
from placeit.runtime.accelerators.host_stream import HostStream
from placeit.runtime.devices.accelerator import Inbox, Token

__all__ = ["Reports", "ThreadReports", "native_handle", "wait_for"]


class Reports(Protocol):
    """A way to report events."""

    def report(self, stream: torch.Stream, event: torch.Event, inbox: Inbox, token: Token) -> None:
        """Put a token into an inbox once the event, last recorded in the stream, has happened; or put the error."""
        ...

    def close(self) -> None:
        """Stop threads, if there are any, after all requested reports."""
        ...


class ThreadReports:
    """A thread per stream that waits for its events without the interpreter lock (``synchronize`` releases it).

    A driver could call back instead, by a host function. But Python must not run there: the driver's thread would wait for the
    interpreter, maybe while another thread holds it and waits for the driver.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._waiters: dict[int, tuple[Worker, _Marks, torch.Stream]] = {}  # by id of the stream, which is kept, as is its id

    def report(self, stream: torch.Stream, event: torch.Event, inbox: Inbox, token: Token) -> None:
        """Hand the event to the stream's thread. Raises ExecutionError after :meth:`close`."""
        found = self._waiters.get(id(stream)) or self._start(stream)
        wait = event.synchronize if stream.device.type != "cuda" else found[1].mark()
        found[0].submit(functools.partial(_report, wait, inbox, token))

    def _start(self, stream: torch.Stream) -> tuple[Worker, _Marks, torch.Stream]:
        with self._lock:
            if self._closed:
                raise ExecutionError("Reports are closed, and nothing more can run there: open a new session or runtime.")
            if id(stream) not in self._waiters:
                self._waiters[id(stream)] = Worker("placeit reports"), _Marks(stream), stream
            return self._waiters[id(stream)]

    def close(self) -> None:
        """Stop the threads."""
        with self._lock:
            self._closed = True
        for waiter, *_ in self._waiters.values():
            waiter.close()


def wait_for(stream: torch.Stream | HostStream) -> None:
    """Wait for everything launched on a stream, asleep."""
    if isinstance(stream, HostStream) or stream.device.type != "cuda":
        stream.synchronize()
    else:
        _Marks(stream).mark()()


class _Marks:
    """Events of one stream of CUDA that are waited for asleep.

    CUDA spins in waits for all events but those that were made for sleeping, which ``torch.Event`` cannot be.

    Args:
        stream: where they are recorded. Nothing is made of it before the first one is.
    """

    def __init__(self, stream: torch.Stream) -> None:
        self._stream = stream
        self._idle: deque[Any] = deque()  # to be recorded again: making one takes longer than recording it

    @functools.cached_property
    def _cuda(self) -> Any:
        return _cuda_stream(self._stream)

    def mark(self) -> Callable[[], None]:
        """Mark the stream, and return a call that waits for the mark."""
        make: Any = torch.cuda.Event
        try:
            event = self._idle.pop()
        except IndexError:
            event = make(blocking=True)
        event.record(self._cuda)
        return functools.partial(self._wait, event)

    def _wait(self, event: Any) -> None:
        event.synchronize()
        self._idle.append(event)


def _report(wait: Callable[[], object], inbox: Inbox, token: Token) -> None:
    try:
        wait()
    except BaseException as error:  # noqa: BLE001 (whatever it is, the thread that waits has to be told)
        inbox.fail(token, error)
    else:
        inbox.put(token)


def native_handle(stream: torch.Stream) -> int:
    """The driver's address of a stream."""
    handle = getattr(stream, "native_handle", None)
    if handle is None:  # an older PyTorch
        handle = _cuda_stream(stream).cuda_stream
    return int(handle)


def _cuda_stream(stream: torch.Stream) -> Any:
    """The same stream as ``torch.cuda`` has them."""
    make: Any = torch.cuda.Stream
    return make(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
