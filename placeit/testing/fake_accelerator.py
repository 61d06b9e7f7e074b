"""An accelerator that computes on the CPU, at random speed, with the semantics of streams and events.

Streams run what was launched on them in order, each at its own pace, beside the host, which sees time pass between any two
calls. An event marks what its stream had been given when it was recorded; waiting for one that was never recorded waits for
nothing, as in CUDA. Reports of events reach the host late, and in any order.

Data is real: a launch makes its outputs unreadable when it starts and fills them when it ends, from what its inputs held when
it started; if they changed meanwhile the outputs stay unreadable. So what is read too early, or overwritten too early, gives
wrong results, if time happened to pass that way; and whichever way it passed, a
:class:`~placeit.testing.happens_before.HappensBefore` checker sees it.
"""

# ruff: noqa: S101 (assertions are what a test suite is made of)
from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.errors import DeviceError
from placeit.runtime.devices.base import TensorSpec
from placeit.runtime.devices.null import VirtualClock
from placeit.runtime.streams.accelerator import HOST, Inbox, LoadedProgram, Replay, Token
from placeit.testing.happens_before import HOST_THREAD, Access, HappensBefore

__all__ = ["FakeAccelerator", "Run"]

_SECONDS = (0.0, 1.0, 2.0, 10.0, 100.0)  # some things take a hundred times as long as others, and some no time at all
_UNREADABLE = 0xFF  # NaN in every floating-point type


class _Memory:
    def __init__(self, number: int, device: int, nbytes: int) -> None:
        self.number, self.device = number, device
        self.bytes = np.full(nbytes, _UNREADABLE, np.uint8)

    def __repr__(self) -> str:
        return f"memory {self.number}"


class _View:
    def __init__(self, memory: _Memory, spec: TensorSpec, number: int) -> None:
        self.memory, self.number = memory, number
        count = int(np.prod(spec.shape, dtype=np.int64)) * np.dtype(spec.dtype).itemsize
        self.array: NDArray[Any] = memory.bytes[:count].view(spec.dtype).reshape(spec.memory_shape)
        if spec.channels_last:
            self.array = self.array.transpose(0, 3, 1, 2)
        self.access = Access(memory, self)

    def __repr__(self) -> str:
        return f"tensor {self.number} of {self.memory}"


class _Mark:
    """A place in a stream: what an event stands for."""

    def __init__(self, device: int, clock: Mapping[Hashable, int]) -> None:
        self.device, self.clock = device, clock
        self.reached_at: float | None = None
        self.then: list[Callable[[], None]] = []

    @property
    def reached(self) -> bool:
        return self.reached_at is not None

    def reach(self, now: float) -> None:
        self.reached_at = now
        for call in self.then:
            call()


class _Event:
    mark: _Mark | None = None


class _Stream:
    def __init__(self, number: int, device: int) -> None:
        self.number, self.device = number, device
        self.queue: deque[_Mark | _Wait | Run] = deque()
        self.busy = False

    def __repr__(self) -> str:
        return f"stream {self.number}"


class _Wait:
    def __init__(self, mark: _Mark) -> None:
        self.mark = mark
        self.asked = False


class Run:
    """A program or a copy on a stream.

    Attributes:
        program: None for a copy.
        src: device that it runs on, or copies from.
        dst: device that it runs on, or copies to.
        inputs: what it reads.
        outputs: what it writes.
        start: virtual seconds.
        finish: virtual seconds.
    """

    def __init__(self, program: LoadedProgram | None, inputs: Sequence[_View], outputs: Sequence[_View], device: int) -> None:
        self.program, self.inputs, self.outputs = program, inputs, outputs
        self.src, self.dst = device, device
        if program is None:
            self.src, self.dst = inputs[0].memory.device, outputs[0].memory.device
        self.start = self.finish = 0.0
        self._given: list[NDArray[Any]] = []

    @property
    def nbytes(self) -> int:
        """Bytes that it writes."""
        return sum(view.array.nbytes for view in self.outputs)

    def begin(self) -> None:
        """Take the inputs, and make the outputs unreadable."""
        self._given = [view.array.copy() for view in self.inputs]
        for view in self.outputs:
            view.array[...] = np.full(view.array.itemsize, _UNREADABLE, np.uint8).view(view.array.dtype)[0]

    def end(self) -> None:
        """Fill the outputs, unless the inputs have changed."""
        if any(view.array.tobytes() != given.tobytes() for view, given in zip(self.inputs, self._given, strict=True)):
            return
        outputs = [view.array for view in self.outputs]
        if self.program is not None:
            self.program.launch(self._given, outputs)
        else:
            outputs[0][...] = self._given[0]


class FakeAccelerator:
    """Devices that exist in virtual time.

    Args:
        devices: how many.
        seed: of every duration, and of how time passes.
        peers: ordered pairs of devices of which the first can write the second's memory; None for all.
        memory_bytes: of each device.
        on_host: devices that compute in the host's memory, and cannot hold up any other's streams, nor be held up by them.
        skip_wait: number of a wait, in the order of the calls, that is left out: what a forgotten wait does.
        fail_at: number of a launch of a program that raises, as when memory runs out.
        die_at: number of a launch of a program that breaks its device, so that nothing on it is ever reported again.
        patience: mean number of events that happen between two calls of the host.
        seconds: what programs and copies take, ``seconds(program, src, dst, nbytes)`` with the program None for a copy; reports
            then come at once. None for random times.

    Attributes:
        order: the checker of this run.
        waits: how many waits were asked for.
        launches: how many programs were launched.
        allocated: bytes in use on each device.
        names: ``fake:0`` and so on.
        trace: what has ended, in that order.
    """

    def __init__(
        self,
        devices: int,
        seed: int = 0,
        *,
        peers: set[tuple[int, int]] | None = None,
        memory_bytes: float = float("inf"),
        on_host: Collection[int] = (),
        skip_wait: int | None = None,
        fail_at: int | None = None,
        die_at: int | None = None,
        patience: float = 1.0,
        seconds: Callable[[LoadedProgram | None, int, int, int], float] | None = None,
    ) -> None:
        self.names = tuple(f"fake:{d}" for d in range(devices))
        self.order = HappensBefore()
        self.waits = self.launches = 0
        self.allocated = dict.fromkeys((HOST, *range(devices)), 0)
        self.trace: list[Run] = []
        self._peers, self._memory_bytes, self._seconds = peers, memory_bytes, seconds
        self._on_host = frozenset(on_host)
        self._skip_wait, self._fail_at, self._die_at, self._patience = skip_wait, fail_at, die_at, patience
        self._rng = np.random.default_rng(seed)
        self._clock = VirtualClock()
        self._made = 0
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._broken: str | None = None
        self._delivered: dict[tuple[int, Token], Mapping[Hashable, int]] = {}
        self._captured: list[Callable[[], None]] | None = None

    def close(self) -> None:
        """Do nothing: there are no threads."""

    def memory(self, device: int) -> int:
        """Its own, or the host's, as was given."""
        return HOST if device in self._on_host else device

    def place(self, device: int) -> object:
        """Its name."""
        return self.names[device]

    def can_peer(self, src: int, dst: int) -> bool:
        """What was given."""
        return self._peers is None or (src, dst) in self._peers

    def free_bytes(self, device: int) -> float:
        """What is not in use."""
        return self._memory_bytes - self.allocated[device]

    def allocate(self, device: int, nbytes: int) -> _Memory:
        """Unreadable memory."""
        if device != HOST and nbytes > self.free_bytes(device):
            raise DeviceError(f"{self.names[device]} is out of memory.")
        self.allocated[device] += nbytes
        return _Memory(self._number(), device, nbytes)

    def free(self, memory: _Memory) -> None:
        """Check that nothing uses the memory, and make it unreadable."""
        self.order.free(memory)
        memory.bytes[:] = _UNREADABLE
        self.allocated[memory.device] -= len(memory.bytes)

    def trim(self) -> None:
        """Do nothing: nothing is kept in reserve."""

    def view(self, memory: _Memory, spec: TensorSpec) -> _View:
        """An array in the memory."""
        return _View(memory, spec, self._number())

    def write(self, view: _View, value: NDArray[np.generic]) -> None:
        """Write as the host."""
        self.order.use(HOST_THREAD, "the host", writes=[view.access])
        np.copyto(view.array, value, casting="same_kind")

    def read(self, view: _View) -> NDArray[np.generic]:
        """Read as the host."""
        self.order.use(HOST_THREAD, "the host", reads=[view.access])
        return view.array.copy()

    def stream(self, device: int, number: int) -> _Stream:
        """A stream, empty when it is first asked for."""
        return self._streams.setdefault((device, number), _Stream(self._number(), device))

    def event(self, device: int, *, timed: bool = False) -> _Event:  # noqa: ARG002
        """An event that marks nothing."""
        return _Event()

    def elapsed(self, first: _Event, second: _Event) -> float:
        """Virtual seconds."""
        assert first.mark is not None and second.mark is not None, "an event that was never recorded has no time"  # noqa: PT018
        ends = first.mark.reached_at, second.mark.reached_at
        assert ends[0] is not None and ends[1] is not None, "an event that has not happened has no time"  # noqa: PT018
        return ends[1] - ends[0]

    def record(self, event: _Event, stream: _Stream) -> None:
        """Queue a mark."""
        if self._captured is not None:
            self._captured.append(functools.partial(self.record, event, stream))
            return
        event.mark = self._mark(stream)
        self._pass_time()

    def wait(self, stream: _Stream, event: _Event) -> None:
        """Queue a wait for what the event marks now."""
        if self._captured is not None:
            self._captured.append(functools.partial(self.wait, stream, event))
            return
        awaited = event.mark.device if event.mark is not None else None
        assert awaited not in self._on_host or stream.device in self._on_host, "a stream cannot wait for a thread of the host"
        self.waits += 1
        if event.mark is not None and self.waits - 1 != self._skip_wait:
            self._wait(stream, event.mark)
        self._pass_time()

    def launch(self, stream: _Stream, program: LoadedProgram, inputs: Sequence[_View], outputs: Sequence[_View]) -> None:
        """Queue a program."""
        if self._captured is not None:
            self._captured.append(functools.partial(self.launch, stream, program, inputs, outputs))
            return
        self.launches += 1
        if self.launches - 1 == self._fail_at:
            raise DeviceError(f"{self.names[stream.device]} is out of memory.")
        if self.launches - 1 == self._die_at:
            self._broken = self.names[stream.device]
        self._run(stream, f"launch {self.launches - 1}", program, inputs, outputs)

    def copy(self, stream: _Stream, source: _View, destination: _View) -> None:
        """Queue a copy."""
        if self._captured is not None:
            self._captured.append(functools.partial(self.copy, stream, source, destination))
            return
        ends = source.memory.device, destination.memory.device
        owner = ends[1] if ends[0] == HOST else ends[0]
        assert stream.device == owner, "a copy belongs on a stream of its source, or of its destination if that is the host"
        assert HOST in ends or self.can_peer(*ends), f"{self.names[ends[0]]} cannot write to {self.names[ends[1]]}"
        self._run(stream, f"the copy of {source}", None, [source], [destination])

    def notify(self, stream: _Stream, event: _Event, inbox: Inbox, token: Token) -> None:  # noqa: ARG002
        """Report an event, some time after it has happened."""
        mark = event.mark
        assert mark is not None, "nobody can be told of an event that was never recorded"
        deliver = functools.partial(self._deliver, mark, inbox, token)
        if mark.reached:
            self._after(deliver)
        else:
            mark.then.append(functools.partial(self._after, deliver))

    def take(self, inbox: Inbox) -> Token:
        """Let time pass until something is reported."""
        while inbox.empty():
            self._let_one_thing_happen("a report")
        token = inbox.get()
        self.order.after(HOST_THREAD, self._delivered.pop((id(inbox), token)))
        return token

    def finish(self, streams: Sequence[_Stream]) -> None:
        """Let time pass until the streams are empty."""
        marks = [self._mark(stream) for stream in streams]
        for mark in marks:
            while not mark.reached:
                self._let_one_thing_happen("the end")
            self.order.after(HOST_THREAD, mark.clock)

    def capture(self, streams: Sequence[_Stream], launches: Callable[[], None]) -> Replay:
        """Keep the calls, and make them again on every replay."""
        calls: list[Callable[[], None]] = []
        self._captured = calls
        launches()
        self._captured = None

        def replay() -> None:
            first, *others = streams
            fork = self._mark(first)
            for stream in others:
                self._wait(stream, fork)
            for call in calls:
                call()
            for stream in others:
                self._wait(first, self._mark(stream))

        return replay

    # -- time ----------------------------------------------------------------------------------------------------------

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _run(
        self, stream: _Stream, what: str, program: LoadedProgram | None, inputs: Sequence[_View], outputs: Sequence[_View]
    ) -> None:
        self.order.use(stream, what, [view.access for view in inputs], [view.access for view in outputs])
        self._queue(stream, Run(program, inputs, outputs, stream.device))
        self._pass_time()

    def _mark(self, stream: _Stream) -> _Mark:
        mark = _Mark(stream.device, self.order.mark(stream))
        self._queue(stream, mark)
        return mark

    def _wait(self, stream: _Stream, mark: _Mark) -> None:
        self.order.after(stream, mark.clock)
        self._queue(stream, _Wait(mark))

    def _queue(self, stream: _Stream, item: _Mark | _Wait | Run) -> None:
        stream.queue.append(item)
        self._advance(stream)

    def _advance(self, stream: _Stream) -> None:
        """Let a stream go on as far as it can."""
        while stream.queue and not stream.busy and self._broken != self.names[stream.device]:
            item = stream.queue[0]
            if isinstance(item, Run):
                stream.busy = True
                item.begin()
                item.start = self._clock.now
                self._after(functools.partial(self._end, stream, item), item)
                return
            if isinstance(item, _Wait) and not item.mark.reached:
                if not item.asked:
                    item.asked = True
                    item.mark.then.append(functools.partial(self._advance, stream))
                return
            stream.queue.popleft()
            if isinstance(item, _Mark):
                item.reach(self._clock.now)

    def _end(self, stream: _Stream, run: Run) -> None:
        run.end()
        run.finish = self._clock.now
        self.trace.append(run)
        stream.busy = False
        stream.queue.popleft()
        self._advance(stream)

    def _deliver(self, mark: _Mark, inbox: Inbox, token: Token) -> None:
        self._delivered[id(inbox), token] = mark.clock
        inbox.put(token)

    def _after(self, call: Callable[[], None], run: Run | None = None) -> None:
        """Call back when a run ends or a report arrives: at random, or as was given."""
        if self._seconds is None:
            seconds = float(self._rng.choice(_SECONDS))
        else:
            seconds = 0.0 if run is None else self._seconds(run.program, run.src, run.dst, run.nbytes)
        self._clock.at(self._clock.now + seconds, call)

    def _pass_time(self) -> None:
        if self._seconds is None:
            for _ in range(int(self._rng.poisson(self._patience))):
                self._clock.step()

    def _let_one_thing_happen(self, awaited: str) -> None:
        if not self._clock.step():
            if self._broken is not None:
                raise DeviceError(f"{self._broken} has failed.")
            raise AssertionError(f"nothing is left to happen, and {awaited} has not come: the streams wait for each other")
