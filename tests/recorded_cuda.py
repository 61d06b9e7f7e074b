"""A stand-in of CUDA below PyTorch and below CuPy, which tells the checker of memory accesses what happens in which order.

It has streams, events, memory, copies and graphs. Work is done at once, when it is launched, so results are right whatever the
order; :class:`~tests.happens_before.HappensBefore` finds what only the host's order makes right. Rules of CUDA and of the two
libraries that the code has to keep are faults, too: an event belongs to the device of its streams, and CuPy makes a stream
current only where its device is. :mod:`tests.recorded_libraries` has the names that PyTorch and CuPy give all this.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import threading
import time
from collections import deque
from typing import Any, Self

import numpy as np

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.runtime.accelerators.library import array_at
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from tests.fake_streams import Turn
from tests.happens_before import Access, HappensBefore

__all__ = ["CallersArray", "OnCuda", "RecordedAccelerator", "RecordedCuda", "RecordedEvent", "RecordedStream", "dtype_of"]

_host = threading.get_ident  # identifies the calling thread


class RecordedCuda:
    """CUDA with some devices.

    Attributes:
        order: the checker.
        waits: how many times a stream was told to wait for an event.
        replays: how many graphs were launched.
        enabled: pairs of devices of which the first may write the second's memory.
        copies: devices that copies were launched from and to; None for the host.
        hosts: threads of the host that have launched something.
    """

    def __init__(self, devices: int, *, peers: frozenset[tuple[int, int]] | None = None, skip_wait: int | None = None) -> None:
        self.devices, self.order, self.waits, self.replays = devices, HappensBefore(), 0, 0
        self.enabled: set[tuple[int, int]] = set()
        self.copies: list[tuple[int | None, int | None]] = []
        self.hosts: set[int] = set()
        self.lock = threading.RLock()
        self.events: dict[int, RecordedEvent] = {}
        self.streams: dict[int, RecordedStream] = {}
        self._peers, self._skip_wait = peers, skip_wait
        self._memory: dict[int, tuple[int, int, int | None]] = {}  # by number: address, bytes, device
        self._numbers = itertools.count(1)
        self._local = threading.local()

    def number(self) -> int:
        return next(self._numbers)

    def can_peer(self, src: int, dst: int) -> bool:
        return self._peers is None or (src, dst) in self._peers

    # -- memory -------------------------------------------------------------------------------------------------------

    def allocated(self, address: int, nbytes: int, device: int | None) -> int:
        with self.lock:
            number = self.number()
            self._memory[number] = address, nbytes, device
            return number

    def freed(self, number: int) -> None:
        with self.lock:
            self.told()  # the last reference may end on any thread, after all others
            self.order.free(number, host=_host())
            del self._memory[number]

    def find(self, address: int) -> tuple[int, int | None] | None:
        """Number and device of the memory at an address; None for memory that is not CUDA's."""
        for number, (start, nbytes, device) in self._memory.items():
            if start <= address < start + max(1, nbytes):
                return number, device
        return None

    def accesses(self, *addresses: int) -> list[Access]:
        found = [(self.find(address), address) for address in addresses]
        return [Access(memory[0], f"address {address}") for memory, address in found if memory is not None]

    def by_host(self, reads: tuple[int, ...] = (), writes: tuple[int, ...] = ()) -> None:
        with self.lock:
            self.order.use(_host(), "the host", self.accesses(*reads), self.accesses(*writes), host=_host())

    # -- work -----------------------------------------------------------------------------------------------------------

    @property
    def current(self) -> list[RecordedStream]:
        if not hasattr(self._local, "streams"):
            self._local.streams, self._local.device = [], [0]
        return self._local.streams

    @property
    def device(self) -> list[int]:
        """Current devices of the thread, the last one counts."""
        _ = self.current
        return self._local.device

    def launch(self, stream: RecordedStream, what: str, reads: tuple[int, ...], writes: tuple[int, ...], work: Any) -> None:
        if stream.capture is not None:
            stream.capture.append(lambda on: self.launch(on, what, reads, writes, work))
            return
        with self.lock:
            self.hosts.add(_host())
            self.order.use(stream, what, self.accesses(*reads), self.accesses(*writes), host=_host())
            work()

    def copy(self, stream: RecordedStream, source: int, destination: int, nbytes: int) -> None:
        ends = [self.find(address) for address in (source, destination)]
        self.copies.append(tuple(None if end is None else end[1] for end in ends))  # type: ignore[arg-type]
        move = functools.partial(ctypes.memmove, destination, source, nbytes)
        self.launch(stream, f"the copy from {source}", (source,), (destination,), move)

    def told(self) -> None:
        """The calling thread learns what all others know, as when it gets the result of a run."""
        with self.lock:
            for host in self.hosts:
                self.order.after(_host(), dict(self.order.mark(host)))

    def wait(self, stream: RecordedStream, event: RecordedEvent) -> None:
        with self.lock:
            self.waits += 1
            if self.waits - 1 != self._skip_wait and event.mark is not None:
                self.order.after(stream, event.mark)

    def replay(self, stream: RecordedStream, graph: list[Any]) -> None:
        self.replays += 1
        for step in graph:
            step(stream)


class RecordedStream:
    """A stream, with the methods of both libraries."""

    def __init__(self, cuda: RecordedCuda, device: int, priority: int = 0) -> None:
        self.cuda, self.device_id, self.priority, self.ptr = cuda, device, priority, cuda.number()
        self.cuda_stream = self.ptr
        self.capture: list[Any] | None = None
        self._modes: list[Any] = []
        cuda.streams[self.ptr] = self

    def __enter__(self) -> Self:
        self.cuda.current.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.cuda.current.pop()

    def wait_event(self, event: Any) -> None:
        self.cuda.wait(self, self.cuda.events[event.ptr])

    def synchronize(self) -> None:
        with self.cuda.lock:
            self.cuda.order.after(_host(), self.cuda.order.mark(self))


class RecordedEvent:
    """An event, with the methods of both libraries."""

    def __init__(self, cuda: RecordedCuda, device: int | None) -> None:
        self.cuda, self.device, self.ptr, self.mark, self.at = cuda, device, cuda.number(), None, 0.0
        cuda.events[self.ptr] = self

    def record(self, stream: Any) -> None:
        if stream.capture is not None:
            stream.capture.append(self.record)
            return
        with self.cuda.lock:
            self.device = stream.device_id if self.device is None else self.device
            if self.device != stream.device_id:
                self.cuda.order.faults.append(f"an event of device {self.device} is recorded on device {stream.device_id}")
            self.mark, self.at = self.cuda.order.mark(stream), time.perf_counter()

    def synchronize(self) -> None:
        with self.cuda.lock:
            assert self.mark is not None
            self.cuda.order.after(_host(), self.mark)

    def elapsed_time(self, end: RecordedEvent) -> float:
        return (end.at - self.at) * 1e3


# -- the accelerator ------------------------------------------------------------------------------------------------------


class RecordedAccelerator(StreamAccelerator):
    """An accelerator that also tells the checker what the host does, and what its threads learn from each other."""

    def __init__(self, cuda: RecordedCuda, library: Any) -> None:
        self.cuda = cuda
        self._reports_of: dict[int, deque[Any]] = {}  # by inbox
        names = [f"cuda:{number}" for number in range(cuda.devices)]
        super().__init__([Device(name, kind="cuda", address=Address(name)) for name in names], library)

    def usage_lock(self) -> Any:
        turn, order = super().usage_lock(), self.cuda.order
        known = Turn(lambda mark: order.after(_host(), mark), lambda: dict(order.mark(_host())))

        class Both:
            def __enter__(self) -> None:
                turn.__enter__()
                known.__enter__()

            def __exit__(self, *error: object) -> None:
                known.__exit__(*error)
                turn.__exit__(*error)

        return Both()

    def write(self, view: Any, value: Any) -> None:
        self.cuda.by_host(writes=(self.library.address(view),))
        super().write(view, value)

    def read(self, view: Any) -> Any:
        self.cuda.by_host(reads=(self.library.address(view),))
        return super().read(view)

    def blank(self, view: Any, sentinel: int) -> None:
        self.cuda.by_host(writes=(self.library.address(view),))
        super().blank(view, sentinel)

    def is_blank(self, view: Any, sentinel: int) -> bool:
        self.cuda.by_host(reads=(self.library.address(view),))
        return super().is_blank(view, sentinel)

    def notify(self, stream: Any, event: Any, inbox: Any, token: Any) -> None:
        self._reports_of.setdefault(id(inbox), deque()).append((event, token))

    def take(self, inbox: Any) -> Any:
        """Tell the host of the oldest report when it waits for one, and of no other, so that all runs need equal waits."""
        if self._reports_of.get(id(inbox)):
            event, token = self._reports_of[id(inbox)].popleft()
            event.synchronize()
            inbox.put(token)
        return super().take(inbox)


class OnCuda:
    """A program of the fake accelerator's tests, as a kernel on the current stream."""

    def __init__(self, cuda: RecordedCuda, library: Any, program: Any, *, replayable: bool = False) -> None:
        self._cuda, self._library, self._program, self.replayable = cuda, library, program, replayable

    def workspace_bytes(self, enough: float) -> int:
        return 0

    def weight_bytes(self, place: object) -> int:
        return 0

    def load(self, place: object) -> OnCuda:
        return OnCuda(self._cuda, self._library, self._program.load(place), replayable=self.replayable)

    def launch(self, inputs: Any, outputs: Any) -> None:
        ends = [tuple(self._library.address(view) for view in views) for views in (inputs, outputs)]
        arrays = [[_array(self._library.address(view), view) for view in views] for views in (inputs, outputs)]
        self._cuda.launch(self._cuda.current[-1], f"a kernel of {self._program}", *ends, lambda: self._program.launch(*arrays))


def _array(address: int, view: Any) -> Any:
    return array_at(address, tuple(view.shape), dtype_of(view), view)


def dtype_of(view: Any) -> np.dtype[Any]:
    """Return the type of a tensor of either library."""
    return np.dtype(str(view.dtype).removeprefix("torch."))


class CallersArray:
    """An array on a GPU that a stream of the caller has written, with DLPack.

    Args:
        cuda: CUDA.
        device: the GPU.
        value: what is written there.
        careless: whether it lets others read it before it was written.
    """

    def __init__(self, cuda: RecordedCuda, device: int, value: Any, *, careless: bool = False) -> None:
        self.value, self.shape, self.dtype = np.zeros_like(value), value.shape, value.dtype
        self._cuda, self._device, self._careless = cuda, device, careless
        self._stream, address = RecordedStream(cuda, device), self.value.ctypes.data
        cuda.allocated(address, value.nbytes, device)
        cuda.launch(self._stream, "the caller", (), (address,), lambda: np.copyto(self.value, value))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self._device

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        with self._cuda.lock:
            if stream is not None and not self._careless:
                self._cuda.order.after(self._cuda.streams[stream], self._cuda.order.mark(self._stream))
        return self.value.__dlpack__()
