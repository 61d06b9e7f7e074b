"""The load of other processes on this machine, and whether they disturb a measurement."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

__all__ = ["MachineLoad", "Reading", "Watch"]

_STAT = Path("/proc/stat")
_THREADS = Path("/proc/self/task")
_IDLE = (3, 4)  # columns of /proc/stat: idle, and idle while a disk works
_STEAL = 7  # column of /proc/stat: time that a hypervisor took away
_MIN_S = 0.5e-3  # waiting time that is ignored: threads wake up on cores that are about to be free
_SHARE = 0.05  # share of a period, waiting for a core or taken by a hypervisor, above which it is disturbed
_SLOWER = 1.5  # ratio of the control's time to its best time above which a period is disturbed
_SPINS, _STEPS = 5, 1000  # repetitions of the control, and their steps; it takes about 0.1 ms


class MachineLoad:
    """Measures the CPU time of other processes since its creation."""

    def __init__(self) -> None:
        self._begin = _clocks()

    def cores(self) -> float | None:
        """Return the average number of cores that other processes kept busy; None if the system does not report it.

        Time that a hypervisor took away counts as time of other processes.
        """
        begin, end = self._begin, _clocks()
        if begin is None or end is None or end[0] <= begin[0]:
            return None
        wall, machine, own = (after - before for before, after in zip(begin, end, strict=True))
        return max(0.0, (machine - own) / wall)


class Reading(NamedTuple):
    """Counters of the system at a moment, in seconds; 0 for a counter that the system does not report.

    Attributes:
        wall: wall-clock time.
        waiting: time that runnable threads of this process waited for a core.
        stolen: mean time per core that a hypervisor took away.
        control: time of the control, a fixed Python loop that ran just now.
    """

    wall: float
    waiting: float
    stolen: float
    control: float


class Watch:
    """A monitor that detects periods in which other work disturbed the machine.

    A period is disturbed if threads of this process waited for a core, or a hypervisor took cores away, for more than 5 % of
    it, or if the control at its end takes more than 1.5 times its best time.

    Args:
        read: returns the current counters; None for the counters of this machine.
    """

    def __init__(self, read: Callable[[], Reading] | None = None) -> None:
        self._read = _reading if read is None else read
        self._begun = self._read()
        self._best = self._begun.control

    def begin(self) -> None:
        """Start a period."""
        self._begun = self._read()
        self._best = min(self._best, self._begun.control)

    def disturbed(self, *, alone: bool = True) -> bool:
        """Return whether the current period has been disturbed so far.

        Args:
            alone: False if threads of this process competed for cores, so that their waiting time says nothing.
        """
        now, begun = self._read(), self._begun
        self._best = min(self._best, now.control)
        wall = now.wall - begun.wall
        return (
            (alone and now.waiting - begun.waiting > _SHARE * wall + _MIN_S)
            or now.stolen - begun.stolen > _SHARE * wall
            or now.control > _SLOWER * self._best
        )


def _reading() -> Reading:
    ticks = _ticks()
    stolen = 0.0 if ticks is None else ticks[_STEAL] / os.sysconf("SC_CLK_TCK") / (os.cpu_count() or 1)
    return Reading(time.perf_counter(), _waiting(), stolen, _control())


def _waiting() -> float:
    """Return the seconds that the threads of this process have waited for a core."""
    total = 0
    try:
        for thread in _THREADS.iterdir():
            try:
                total += int((thread / "schedstat").read_bytes().split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended
    except (OSError, ValueError, IndexError):
        return 0.0
    return total * 1e-9


def _control() -> float:
    best = math.inf
    for _ in range(_SPINS):
        begin = time.perf_counter()
        for _ in range(_STEPS):
            pass
        best = min(best, time.perf_counter() - begin)
    return best


def _ticks() -> list[int] | None:
    """Return the ticks of all cores, by column of ``/proc/stat``; None if the system does not report them."""
    try:
        name, *ticks = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        counts = [int(count) for count in ticks[:8]]  # time of guests is part of the first two already
    except (OSError, ValueError):
        return None
    return counts if name == "cpu" and len(counts) > _STEAL else None


def _clocks() -> tuple[float, float, float] | None:
    """Return the seconds of the clock, the busy time of all cores, and the CPU time of this process and its children."""
    ticks = _ticks()
    if ticks is None:
        return None
    busy = sum(count for place, count in enumerate(ticks) if place not in _IDLE)
    return time.perf_counter(), busy / os.sysconf("SC_CLK_TCK"), sum(os.times()[:4])
