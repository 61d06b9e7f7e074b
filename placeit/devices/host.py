"""Cores and memory of this machine that the process may use."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["allowed_cores", "cpu_name", "free_bytes", "memory_bytes", "one_per_physical_core"]

_ROOT = Path("/")
_IN_KIB = ("MemAvailable:", "VmRSS:")


def allowed_cores() -> tuple[int, ...]:
    """Return the cores that this process may run on (its affinity), ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def one_per_physical_core(cores: tuple[int, ...], root: Path = _ROOT) -> tuple[int, ...]:
    """Return the first hardware thread of each physical core, ordered by socket and core.

    Two hardware threads of one core share its arithmetic units: as two devices they would slow each other down. A core
    whose topology the system does not report counts as physical.
    """
    first: dict[tuple[int, int], int] = {}
    for core in cores:
        topology = root / f"sys/devices/system/cpu/cpu{core}/topology"
        package, number = _integer(topology / "physical_package_id"), _integer(topology / "core_id")
        # -1 cannot be a package, so cores without a known topology never merge with others
        key = (-1, core) if package is None or number is None else (package, number)
        first.setdefault(key, core)
    return tuple(core for _, core in sorted(first.items()))


def cpu_name() -> str:
    """Return the model name of the CPU; empty if the system does not report it."""
    named = (line.partition(":") for line in _lines(_ROOT / "proc/cpuinfo"))
    return next((name.strip() for what, _, name in named if what.strip() in ("model name", "CPU part")), "")


def memory_bytes(root: Path = _ROOT) -> float:
    """Return the memory that this process may use: the machine's, or its control group's limit if lower; ``inf`` if unknown."""
    meminfo = (line.split() for line in _lines(root / "proc/meminfo"))
    limits = [float("inf"), *(1024.0 * int(words[1]) for words in meminfo if words[0] == "MemTotal:")]
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        # version 2 has one hierarchy and no controller in this file; inside a container the path may not be visible
        mount, name = ("memory", "memory.limit_in_bytes") if controllers else ("", "memory.max")
        folder = root / "sys/fs/cgroup" / mount
        for part in ("", *Path(path.strip("/")).parts):
            folder = folder / part
            limit = _integer(folder / name)
            if limit is not None:
                limits.append(float(limit))
    return min(limits)


def free_bytes(root: Path = _ROOT) -> float:
    """Return the memory that this process may still use, by free memory and its own limit; ``inf`` if unknown."""
    figures = [(path, line.split()) for path in ("proc/meminfo", "proc/self/status") for line in _lines(root / path)]
    figure = {(path, words[0]): 1024.0 * int(words[1]) for path, words in figures if words and words[0] in _IN_KIB}
    free = figure.get(("proc/meminfo", "MemAvailable:"), float("inf"))
    return max(0.0, min(free, memory_bytes(root) - figure.get(("proc/self/status", "VmRSS:"), 0.0)))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []  # another system, or not visible in this container


def _integer(path: Path) -> int | None:
    """Return the whole number in a file; None if the file does not exist or holds no number (``max``)."""
    text = "".join(_lines(path)).strip()
    return int(text) if text.isascii() and text.isdigit() else None
