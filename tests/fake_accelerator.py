"""An accelerator that computes on the CPU, at random speed, with the semantics of streams and events.

Streams run their launches in order, each stream at its own pace, beside the host, which sees time pass between any two calls. A
copy between two devices waits for the earlier launches on a stream of the destination, and holds up the later launches there,
as PyTorch's copies do. Without a named stream that is the destination's default stream, so that copies into one device follow
each other. An event marks the work that its stream had been given when it was recorded; waiting for an event that was never
recorded waits for nothing, as in CUDA. Reports of events reach the host late, in any order, through a host function, which must
not call the accelerator. On devices in the host's memory, launches may fail when they run. Any number of threads may call at
the same time; a thread learns what another one knows only when it takes its turn.

Data is real: a launch makes its outputs unreadable when it starts and fills them when it ends, from the values of its inputs at
the start; if the inputs changed in between, the outputs stay unreadable. So a read or a write that comes too early gives wrong
results if time happened to pass that way; :class:`~tests.happens_before.HappensBefore` detects it in any case.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, ExecutionError
from placeit.runtime.blank import blank_value, is_blank
from placeit.runtime.devices.accelerator import HOST, Inbox, LoadedProgram, Step, Token
from placeit.runtime.devices.base import BufferSpec
from tests.fake_streams import (
    FakeEvent,
    FakeMemory,
    FakeStream,
    FakeView,
    StreamMark,
    Submission,
    Turn,
    Wait,
    one_at_a_time,
)
from tests.happens_before import HappensBefore
from tests.null_devices import VirtualClock

__all__ = ["FakeAccelerator"]

_host = threading.get_ident  # identifies the calling thread
_SECONDS = (0.0, 1.0, 2.0, 10.0, 100.0)  # durations to choose from: zero to a hundred times the usual


class FakeAccelerator:
    """Devices that exist in virtual time.

    Args:
        devices: number of devices.
        seed: seed of every duration and of the passing of time.
        peers: ordered pairs of devices of which the first can write the second's memory; None for all.
        memory_bytes: of each device.
        parts: for devices that are parts of one GPU: the first part, whose memory they all use.
        on_host: devices that compute in the host's memory; their streams and other devices' streams cannot hold each other up.
        skip_wait: number of the wait, in the order of the calls, that is left out, as if it had been forgotten.
        fail_at: number of the launch of a program that raises, as when memory runs out.
        fail_job: numbers of the launches of programs on devices in the host's memory that raise when they run.
        hang_at: number of the launch of a program that does not end.
        die_at: number of the launch of a program that breaks its device, which then runs nothing more. Other devices go on.
        patience: mean number of events that happen between two calls of the host.
        seconds: duration of programs and copies, ``seconds(program, src, dst, nbytes)`` with the program None for a copy;
            reports
            then come at once. None for random times.

    Attributes:
        order: the checker of this run.
        waits: number of waits that were requested.
        streams: number of streams that are open.
        priorities: priorities of the streams that were opened, in that order.
        launches: number of programs that were launched.
        allocated: bytes in use on each device.
        names: ``fake:0`` and so on.
        trace: programs and copies that have ended, in that order.
        closed: whether the accelerator was closed.
    """

    def __init__(
        self,
        devices: int,
        seed: int = 0,
        *,
        peers: set[tuple[int, int]] | None = None,
        memory_bytes: float = float("inf"),
        on_host: Collection[int] = (),
        parts: Mapping[int, int] = MappingProxyType({}),
        skip_wait: int | None = None,
        fail_at: int | None = None,
        fail_job: Collection[int] = (),
        hang_at: int | None = None,
        die_at: int | None = None,
        patience: float = 1.0,
        seconds: Callable[[LoadedProgram | None, int, int, int], float] | None = None,
    ) -> None:
        self.names = tuple(f"fake:{d}" for d in range(devices))
        self.order = HappensBefore()
        self.waits = self.launches = self.streams = 0
        self.priorities: list[int] = []
        self.allocated = dict.fromkeys((HOST, *range(devices)), 0)
        self.trace: list[Submission] = []
        self._peers, self._memory_bytes, self._seconds = peers, memory_bytes, seconds
        self._on_host, self._fail_job, self._hang_at = frozenset(on_host), frozenset(fail_job), hang_at
        self._parts = parts
        self.closed = False
        self._lock = threading.RLock()
        self._turns: list[Turn] = []
        self._held: dict[int, int] = {}  # turns, by thread
        self._in_host_function = False
        self._skip_wait, self._fail_at, self._die_at, self._patience = skip_wait, fail_at, die_at, patience
        self._rng = np.random.default_rng(seed)
        self._clock = VirtualClock()
        self._made = 0
        self._shared: dict[int, FakeStream] = {}  # default streams; the only streams of devices in the host's memory
        self._broken: str | None = None
        self._delivered: dict[tuple[int, Token], Mapping[Hashable, int]] = {}
        self._hanging: tuple[FakeStream, Submission] | None = None

    @one_at_a_time
    def usage_lock(self) -> AbstractContextManager[object]:
        """Return a lock that :meth:`close` takes."""
        if self.closed:
            raise ExecutionError("The fake accelerator is closed.")
        self._turns.append(Turn(self._begin_turn, self._end_turn))
        return self._turns[-1]

    def launching(self) -> AbstractContextManager[object]:
        """Return a context that does nothing."""
        return nullcontext()

    def close(self) -> None:
        """Take every turn; there are no threads to stop."""
        self.closed = True
        with ExitStack() as held:
            for turn in self._turns:
                held.enter_context(turn)

    def hang_no_more(self) -> None:
        """Let hanging launches end."""
        with self._lock:
            if self._hanging is not None:
                stream, run = self._hanging
                self._hanging = None
                self._after(functools.partial(self._end, stream, run), run)

    def memory(self, device: int) -> int:
        """Return the number of the device whose memory a device uses, or ``HOST``."""
        return HOST if device in self._on_host else self._parts.get(device, device)

    def place(self, device: int) -> object:
        """Return the device's name."""
        return self.names[device]

    def can_peer(self, src: int, dst: int) -> bool:
        """Return whether ``src`` can write ``dst``'s memory, as given by ``peers``."""
        return self._peers is None or (src, dst) in self._peers

    @one_at_a_time
    def free_bytes(self, device: int) -> float:
        """Return the unused bytes of a device."""
        return self._memory_bytes - self.allocated[device]

    @one_at_a_time
    def allocate(self, device: int, nbytes: int) -> FakeMemory:
        """Return new, unreadable memory."""
        if device != HOST and nbytes > self.free_bytes(device):
            raise DeviceError(f"{self.names[device]} is out of memory.")
        self.allocated[device] += nbytes
        return FakeMemory(self._number(), device, nbytes)

    @one_at_a_time
    def free(self, memory: FakeMemory) -> None:
        """Check that nothing uses the memory, and make it unreadable."""
        self.order.free(memory, host=_host())
        memory.make_unreadable()
        self.allocated[memory.device] -= len(memory.bytes)

    @one_at_a_time
    def trim(self) -> None:
        """Do nothing: no memory is kept in reserve."""

    @one_at_a_time
    def view(self, memory: FakeMemory, spec: BufferSpec) -> FakeView:
        """Return an array in the memory."""
        return FakeView(memory, spec, self._number())

    @one_at_a_time
    def write(self, view: FakeView, value: NDArray[np.generic]) -> None:
        """Write a value as the host."""
        self.order.use(_host(), "the host", host=_host(), writes=[view.access])
        np.copyto(view.array, value, casting="same_kind")

    @one_at_a_time
    def read(self, view: FakeView) -> NDArray[np.generic]:
        """Return a view's value, read as the host."""
        self.order.use(_host(), "the host", host=_host(), reads=[view.access])
        return view.array.copy()

    @one_at_a_time
    def host_view(self, view: FakeView, owner: object) -> NDArray[np.generic]:
        """Return a view's value, read as the host."""
        self.order.use(_host(), "the host", host=_host(), reads=[view.access])
        return view.array

    @one_at_a_time
    def blank(self, view: FakeView, sentinel: int) -> None:
        """Write the blank value as the host."""
        self.order.use(_host(), "the host", host=_host(), writes=[view.access])
        view.array[...] = blank_value(view.array.dtype, sentinel)

    @one_at_a_time
    def is_blank(self, view: FakeView, sentinel: int) -> bool:
        """Return whether a view is blank, read as the host."""
        self.order.use(_host(), "the host", host=_host(), reads=[view.access])
        return is_blank(view.array, sentinel)

    @one_at_a_time
    def open_stream(self, device: int, priority: int = 0) -> FakeStream:
        """Return a new stream, or, on a device in the host's memory, its only stream."""
        self.streams += 1
        self.priorities.append(priority)
        return self._default(device) if device in self._on_host else FakeStream(self._number(), device)

    @one_at_a_time
    def close_stream(self, stream: FakeStream) -> None:
        """Check that nothing runs on the stream, and close it."""
        self.streams -= 1
        if stream.device not in self._on_host and stream.queue and self._broken is None:
            self.order.faults.append(f"{stream} is closed while work is queued there")

    @one_at_a_time
    def event(self, device: int) -> FakeEvent:
        """Return an event that marks nothing yet."""
        return FakeEvent()

    @one_at_a_time
    def elapsed(self, first: FakeEvent, second: FakeEvent) -> float:
        """Return the virtual seconds between two events."""
        assert first.mark is not None and second.mark is not None, "an event that was never recorded has no time"  # noqa: PT018
        ends = first.mark.reached_at, second.mark.reached_at
        assert ends[0] is not None and ends[1] is not None, "an event that has not happened has no time"  # noqa: PT018
        return ends[1] - ends[0]

    @one_at_a_time
    def record(self, event: FakeEvent, stream: FakeStream) -> None:
        """Queue a mark for the event."""
        event.mark = self._mark(stream)
        self._pass_time()

    @one_at_a_time
    def wait(self, stream: FakeStream, event: FakeEvent) -> None:
        """Queue a wait for the mark that the event has at this moment."""
        awaited = event.mark.device if event.mark is not None else None
        assert awaited not in self._on_host or stream.device in self._on_host, "a stream cannot wait for a thread of the host"
        self.waits += 1
        if event.mark is not None and self.waits - 1 != self._skip_wait:
            self._wait(stream, event.mark)
        self._pass_time()

    @one_at_a_time
    def launch(
        self,
        stream: FakeStream,
        program: LoadedProgram,
        inputs: Sequence[FakeView],
        outputs: Sequence[FakeView],
        inbox: Inbox,
        token: Token,
    ) -> None:
        """Queue a program."""
        number, self.launches = self.launches, self.launches + 1
        if number == self._fail_at:
            raise DeviceError(f"{self.names[stream.device]} is out of memory.")
        if number == self._die_at:
            self._broken = self.names[stream.device]
        tell = (inbox, token) if stream.device in self._on_host else None
        run = Submission(program, inputs, outputs, stream.device, tell, fails=tell is not None and number in self._fail_job)
        run.hangs = number == self._hang_at
        self._run(stream, f"launch {number}", run)

    def prepare(
        self, stream: FakeStream, program: LoadedProgram, inputs: Sequence[FakeView], outputs: Sequence[FakeView]
    ) -> Callable[[Inbox, Token], None]:
        """Return a call of :meth:`launch`."""
        return functools.partial(self.launch, stream, program, inputs, outputs)

    def batch(self, stream: FakeStream, begin: FakeEvent, steps: Sequence[Step]) -> FakeBatch:
        """Return calls of :meth:`launch` and :meth:`copy` as one batch."""
        return FakeBatch(self, stream, begin, steps)

    @one_at_a_time
    def copy(
        self, stream: FakeStream, source: FakeView, destination: FakeView, destination_stream: FakeStream | None = None
    ) -> None:
        """Queue a copy; between two devices, order it with the launches on a stream of the destination."""
        ends = source.memory.device, destination.memory.device
        owner = ends[1] if ends[0] == HOST else ends[0]
        assert self.memory(stream.device) == owner, "a copy belongs on a stream of its source, unless that is the host"
        src, dst = stream.device, ends[1] if destination_stream is None else destination_stream.device
        assert HOST in ends or self.can_peer(src, dst), f"{self.names[src]} cannot write to {self.names[dst]}"
        copy = Submission(None, [source], [destination], stream.device)
        if HOST in ends:
            self._run(stream, f"the copy of {source}", copy)
            return
        there = self._default(ends[1]) if destination_stream is None else destination_stream
        assert self.memory(there.device) == ends[1], "the other stream of a copy is one of its destination"
        self._wait(stream, self._mark(there))
        self._run(stream, f"the copy of {source}", copy)
        self._wait(there, self._mark(stream))

    @one_at_a_time
    def notify(self, stream: FakeStream, event: FakeEvent, inbox: Inbox, token: Token) -> None:
        """Report an event, at a random time after it has happened."""
        mark = event.mark
        assert mark is not None, "an event that was never recorded cannot be reported"
        deliver = functools.partial(self._deliver, mark, inbox, token)
        if mark.reached:
            self._after(deliver)
        else:
            mark.then.append(functools.partial(self._after, deliver))

    def take(self, inbox: Inbox) -> Token | None:
        """Advance time until something is reported."""
        while True:
            with self._lock:
                token = inbox.get(0.0)
                if token is not None:
                    self.order.after(_host(), self._delivered.pop((id(inbox), token)))
                    return token
                if inbox.over:
                    return None
                if self._broken is not None and self._rng.random() < 0.5:
                    raise DeviceError(f"{self._broken} has failed.")
                going_on = self._let_one_thing_happen("a report")
            if not going_on:
                time.sleep(1e-4)

    def finish(self, stream: FakeStream) -> None:
        """Advance time until the stream is empty."""
        with self._lock:
            mark = self._mark(stream)
        while True:
            with self._lock:
                broken = self._broken == self.names[stream.device]
                if mark.reached or broken:
                    self.order.after(_host(), mark.clock)
                if broken:
                    raise DeviceError(f"{self._broken} has failed.")
                if mark.reached:
                    return
                try:
                    going_on = self._let_one_thing_happen("the end")
                except DeviceError:  # streams that wait for a broken device run nothing more, either
                    self.order.after(_host(), mark.clock)
                    raise
            if not going_on:
                time.sleep(1e-4)

    # -- time ----------------------------------------------------------------------------------------------------------

    def _default(self, device: int) -> FakeStream:
        if device not in self._shared:
            self._shared[device] = FakeStream(self._number(), device)
        return self._shared[device]

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _run(self, stream: FakeStream, what: str, run: Submission) -> None:
        accesses = [view.access for view in run.inputs], [view.access for view in run.outputs]
        self.order.use(stream, what, *accesses, host=_host())
        self._queue(stream, run)
        self._pass_time()

    def _mark(self, stream: FakeStream) -> StreamMark:
        mark = StreamMark(stream.device, self.order.mark(stream))
        self._queue(stream, mark)
        return mark

    def _wait(self, stream: FakeStream, mark: StreamMark) -> None:
        self.order.after(stream, mark.clock)
        self._queue(stream, Wait(mark))

    def _queue(self, stream: FakeStream, item: StreamMark | Wait | Submission) -> None:
        stream.queue.append(item)
        self._advance(stream)

    def _advance(self, stream: FakeStream) -> None:
        """Let a stream go on as far as it can."""
        while stream.queue and not stream.busy and self._broken != self.names[stream.device]:
            item = stream.queue[0]
            if isinstance(item, Submission) and (item.tell is None or not item.tell[0].over):
                stream.busy = True
                item.begin()
                item.start = self._clock.now
                if item.hangs:
                    self._hanging = stream, item
                else:
                    self._after(functools.partial(self._end, stream, item), item)
                return
            if isinstance(item, Wait) and not item.mark.reached:
                if not item.asked:
                    item.asked = True
                    item.mark.then.append(functools.partial(self._advance, stream))
                return
            stream.queue.popleft()
            if isinstance(item, StreamMark):
                item.reach(self._clock.now)

    def _end(self, stream: FakeStream, run: Submission) -> None:
        try:
            run.end()
        except BaseException as error:
            if run.tell is None:
                raise
            self._call_back(functools.partial(run.tell[0].fail, run.tell[1], error))
        run.finish = self._clock.now
        self.trace.append(run)
        stream.busy = False
        stream.queue.popleft()
        self._advance(stream)

    def _deliver(self, mark: StreamMark, inbox: Inbox, token: Token) -> None:
        self._delivered[id(inbox), token] = mark.clock
        self._call_back(functools.partial(inbox.put, token))

    def _call_back(self, function: Callable[[], None]) -> None:
        self._in_host_function = True
        function()
        self._in_host_function = False

    def _after(self, call: Callable[[], None], run: Submission | None = None) -> None:
        """Call back when a run ends or a report arrives: after a random time, or after ``seconds``."""
        if self._seconds is None:
            seconds = float(self._rng.choice(_SECONDS))
        else:
            seconds = 0.0 if run is None else self._seconds(run.program, run.src, run.dst, run.nbytes)
        self._clock.at(self._clock.now + seconds, call)

    def _pass_time(self) -> None:
        for _ in range(0 if self._seconds else int(self._rng.poisson(self._patience))):
            self._clock.step()

    def _let_one_thing_happen(self, awaited: str) -> bool:
        """Return whether something has happened, or may happen if another thread goes on."""
        if self._clock.step():
            return True
        if self._broken is not None:
            raise DeviceError(f"{self._broken} has failed.")
        if not (self._hanging or self._held.keys() - {_host()}):
            raise AssertionError(f"nothing is left to happen, and {awaited} has not come: the streams wait for each other")
        return False

    def _begin_turn(self, known: Mapping[Hashable, int]) -> None:
        with self._lock:
            self._held[_host()] = self._held.get(_host(), 0) + 1
            self.order.after(_host(), known)

    def _end_turn(self) -> Mapping[Hashable, int]:
        with self._lock:
            self._held[_host()] -= 1
            if not self._held[_host()]:
                del self._held[_host()]
            return self.order.mark(_host())


class FakeBatch:
    """Steps that are launched in order."""

    def __init__(self, accelerator: FakeAccelerator, stream: FakeStream, begin: FakeEvent, steps: Sequence[Step]) -> None:
        self.at = 0
        self._accelerator, self._stream, self._begin, self._steps = accelerator, stream, begin, steps
        self._inbox = Inbox()

    def start(self) -> None:
        """Launch the steps."""
        accelerator, stream = self._accelerator, self._stream
        accelerator.record(self._begin, stream)
        for self.at, step in enumerate(self._steps):  # noqa: B020
            if step.program is None:
                accelerator.copy(stream, step.reads[0], step.writes[0])
            else:
                accelerator.launch(stream, step.program, step.reads, step.writes, self._inbox, (0, self.at))
            accelerator.record(step.end, stream)
