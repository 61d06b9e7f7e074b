"""Parts of the streams of a :class:`~tests.fake_accelerator.FakeAccelerator`: memory, marks, submissions."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.runtime.devices.accelerator import Inbox, LoadedProgram, Token
from placeit.runtime.devices.base import BufferSpec
from tests.happens_before import Access

__all__ = ["FakeEvent", "FakeMemory", "FakeStream", "FakeView", "StreamMark", "Submission", "Turn", "Wait", "one_at_a_time"]

_UNREADABLE = 0xFF  # NaN in every floating-point type


_P = ParamSpec("_P")
_R = TypeVar("_R")


def one_at_a_time(method: Callable[_P, _R]) -> Callable[_P, _R]:
    """Allow one call of the accelerator at a time, and none from a host function."""

    @functools.wraps(method)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        accelerator: Any = args[0]
        with accelerator._lock:
            if accelerator._in_host_function:
                accelerator.order.faults.append(f"a host function calls '{method.__name__}'")
            return method(*args, **kwargs)

    return call


class Turn:
    """A lock that transfers its holders' vector clocks."""

    def __init__(self, begin: Callable[[Mapping[Hashable, int]], None], end: Callable[[], Mapping[Hashable, int]]) -> None:
        self._begin, self._end, self._lock = begin, end, threading.RLock()
        self._known: Mapping[Hashable, int] = {}

    def __enter__(self) -> None:
        self._lock.acquire()
        self._begin(self._known)

    def __exit__(self, *error: object) -> None:
        self._known = self._end()
        self._lock.release()


class FakeMemory:
    """Bytes on a device, unreadable at first."""

    def __init__(self, number: int, device: int, nbytes: int) -> None:
        self.number, self.device = number, device
        self.bytes = np.full(nbytes, _UNREADABLE, np.uint8)

    def make_unreadable(self) -> None:
        """Overwrite the memory with NaN."""
        self.bytes[:] = _UNREADABLE

    def __repr__(self) -> str:
        return f"memory {self.number}"


class FakeView:
    """A tensor in some memory."""

    def __init__(self, memory: FakeMemory, spec: BufferSpec, number: int) -> None:
        self.memory, self.number = memory, number
        count = int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        self.array: NDArray[Any] = memory.bytes[:count].view(spec.dtype).reshape(spec.memory_shape)
        if spec.channels_last:
            self.array = self.array.transpose(0, 3, 1, 2)
        self.access = Access(memory, self)

    def __repr__(self) -> str:
        return f"tensor {self.number} of {self.memory}"


class StreamMark:
    """A position in a stream, marked by an event."""

    def __init__(self, device: int, clock: Mapping[Hashable, int]) -> None:
        self.device, self.clock = device, clock
        self.reached_at: float | None = None
        self.then: list[Callable[[], None]] = []

    @property
    def reached(self) -> bool:
        """True if the stream has reached this position."""
        return self.reached_at is not None

    def reach(self, now: float) -> None:
        """Mark the position as reached, and notify everything that waits for it."""
        self.reached_at = now
        for call in self.then:
            call()


class FakeEvent:
    """An event, with the mark of its last record."""

    mark: StreamMark | None = None


class FakeStream:
    """A queue of work that runs on a device in order."""

    def __init__(self, number: int, device: int) -> None:
        self.number, self.device = number, device
        self.queue: deque[StreamMark | Wait | Submission] = deque()
        self.busy = False

    def __repr__(self) -> str:
        return f"stream {self.number}"


class Wait:
    """A position where a stream waits for a mark."""

    def __init__(self, mark: StreamMark) -> None:
        self.mark = mark
        self.asked = False


class Submission:
    """A program or a copy on a stream.

    Attributes:
        program: the program; None for a copy.
        src: device that it runs on, or copies from.
        dst: device that it runs on, or copies to.
        inputs: views that it reads.
        outputs: views that it writes.
        start: virtual seconds.
        finish: virtual seconds.
        tell: inbox and token that receive the error if it fails on a device in the host's memory.
        fails: whether it fails when it ends, whatever the program.
        hangs: whether it does not end.
    """

    def __init__(
        self,
        program: LoadedProgram | None,
        inputs: Sequence[FakeView],
        outputs: Sequence[FakeView],
        device: int,
        tell: tuple[Inbox, Token] | None = None,
        *,
        fails: bool = False,
    ) -> None:
        self.program, self.inputs, self.outputs = program, inputs, outputs
        self.tell, self.fails, self.hangs = tell, fails, False
        self.src, self.dst = device, device
        if program is None:
            self.src, self.dst = inputs[0].memory.device, outputs[0].memory.device
        self.start = self.finish = 0.0
        self._given: list[NDArray[Any]] = []

    @property
    def nbytes(self) -> int:
        """Number of bytes that it writes."""
        return sum(view.array.nbytes for view in self.outputs)

    def begin(self) -> None:
        """Read the inputs, and make the outputs unreadable."""
        self._given = [view.array.copy() for view in self.inputs]
        for view in self.outputs:
            view.array[...] = np.full(view.array.itemsize, _UNREADABLE, np.uint8).view(view.array.dtype)[0]

    def end(self) -> None:
        """Write the outputs, unless the inputs have changed."""
        if any(view.array.tobytes() != given.tobytes() for view, given in zip(self.inputs, self._given, strict=True)):
            return
        if self.fails:
            raise RuntimeError("this job fails")
        outputs = [view.array for view in self.outputs]
        if self.program is not None:
            self.program.launch(self._given, outputs)
        else:
            outputs[0][...] = self._given[0]
