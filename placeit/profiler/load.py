"""CPU load of other processes on this machine."""

from __future__ import annotations

import os
import time
from pathlib import Path

__all__ = ["MachineLoad"]

_STAT = Path("/proc/stat")
_IDLE = (3, 4)  # idle, and idle while a disk works


class MachineLoad:
    """Counts the CPU time of other processes since its construction."""

    def __init__(self) -> None:
        self._begin = _clocks()

    def cores(self) -> float | None:
        """Return how many cores other processes kept busy, on average; None if the system does not report it.

        Time that a hypervisor took away counts as work of others.
        """
        begin, end = self._begin, _clocks()
        if begin is None or end is None or end[0] <= begin[0]:
            return None
        wall, machine, own = (after - before for before, after in zip(begin, end, strict=True))
        return max(0.0, (machine - own) / wall)


def _clocks() -> tuple[float, float, float] | None:
    """Return seconds on the wall, seconds that all cores were busy, and those of this process and its children."""
    try:
        name, *ticks = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        # time of guests is part of the first two already
        busy = sum(int(count) for place, count in enumerate(ticks[:8]) if place not in _IDLE)
    except (OSError, ValueError):
        return None
    if name != "cpu":
        return None
    own = os.times()
    return (
        time.perf_counter(),
        busy / os.sysconf("SC_CLK_TCK"),
        own.user + own.system + own.children_user + own.children_system,
    )
