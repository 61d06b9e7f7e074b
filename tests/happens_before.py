"""A checker of memory accesses of launches on streams: conflicting accesses must be ordered.

It knows nothing of plans, and shares no code with the checked code. It receives every launch, wait and report, in the order in
which the host makes them, and keeps vector clocks (Mattern 1989) over the host's threads, the streams and the events. Two
accesses to one memory of which one writes must be ordered (as in FastTrack, Flanagan and Freund 2009, without its savings);
memory that is read must have been written, through the same view; memory that is freed must no longer be used, before or after.
Only the order that launches, waits and reports enforce counts, and no wall clock, so a run that was lucky in its timing fails,
too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field

__all__ = ["HOST_THREAD", "Access", "HappensBefore"]

HOST_THREAD = "host"

_Clock = dict[Hashable, int]


@dataclass(frozen=True)
class Access:
    """One use of memory.

    Attributes:
        memory: the memory.
        view: the view; memory that was written through one view must not be read through another.
    """

    memory: Hashable
    view: Hashable


@dataclass
class _State:
    """State of one memory: the last write, and the reads since."""

    written: tuple[Hashable, int, str] | None = None
    view: Hashable = None
    reads: list[tuple[Hashable, int, str]] = field(default_factory=list)
    freed: bool = False


class HappensBefore:
    """Clocks and accesses of one run.

    Attributes:
        faults: descriptions of the faults found, one sentence each.
    """

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._clocks: dict[Hashable, _Clock] = {}
        self._memory: dict[Hashable, _State] = {}

    def use(
        self,
        thread: Hashable,
        what: str,
        reads: Iterable[Access] = (),
        writes: Iterable[Access] = (),
        *,
        host: Hashable = HOST_THREAD,
    ) -> None:
        """Record a use of memory by a launch on a stream, or by the host itself."""
        clock = self._clock(thread)
        _join(clock, self._clock(host))  # a launch comes after everything that the host has learned
        clock[thread] = clock.get(thread, 0) + 1
        now = (thread, clock[thread], what)
        for access in reads:
            state = self._state(access.memory, what)
            if state.written is None:
                self.faults.append(f"{what} reads {access.view}, which nothing has written")
                continue
            self._ordered(state.written, clock, f"{what} reads {access.view}, which {{}} may still be writing")
            if state.view != access.view:
                self.faults.append(f"{what} reads {access.view}, but {state.written[2]} has written {state.view} there")
            state.reads.append(now)
        for access in writes:
            state = self._state(access.memory, what)
            self._overwritten(state, clock, f"{what} writes {access.view}")
            state.written, state.view, state.reads = now, access.view, []

    def free(self, memory: Hashable, *, host: Hashable = HOST_THREAD) -> None:
        """Record that a thread of the host frees memory."""
        state = self._state(memory, "freeing")
        self._overwritten(state, self._clock(host), f"the host frees {memory}")
        state.freed = True

    def mark(self, thread: Hashable) -> Mapping[Hashable, int]:
        """Return the mark of an event on a stream: the clock at which everything launched there so far has ended."""
        return dict(self._clock(thread))

    def after(self, thread: Hashable, mark: Mapping[Hashable, int]) -> None:
        """Record that a stream waits for a mark, or that the host learns that it was reached."""
        _join(self._clock(thread), mark)

    def _clock(self, thread: Hashable) -> _Clock:
        return self._clocks.setdefault(thread, {})

    def _state(self, memory: Hashable, what: str) -> _State:
        state = self._memory.setdefault(memory, _State())
        if state.freed:
            self.faults.append(f"{what} uses {memory}, which was freed")
        return state

    def _overwritten(self, state: _State, clock: _Clock, what: str) -> None:
        if state.written is not None:
            self._ordered(state.written, clock, f"{what} where {{}} may still be writing")
        for read in state.reads:
            self._ordered(read, clock, f"{what} where {{}} may still be reading")

    def _ordered(self, earlier: tuple[Hashable, int, str], clock: _Clock, fault: str) -> None:
        thread, time, what = earlier
        if clock.get(thread, 0) < time:
            self.faults.append(fault.format(what))


def _join(clock: _Clock, other: Mapping[Hashable, int]) -> None:
    for thread, time in other.items():
        if time > clock.get(thread, 0):
            clock[thread] = time
