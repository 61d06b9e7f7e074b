"""Meters of this process and this machine: CPU time and memory of the process, GPUs, power of CPU packages and Intel GPUs.

Meters that the machine does not have, or that this user may not read, are left out.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Self, TypeAlias

from placeit.core.errors import UsageError
from placeit.devices.nvml import GpuSample, GpuSampler

__all__ = ["Meter", "Sampler", "Series", "intel_gpus", "packages"]

_Read: TypeAlias = Callable[[], float]


@dataclass(frozen=True)
class Series:
    """Values of a meter over time.

    Attributes:
        name: name of the quantity, such as ``process CPU``, ``resident memory``, ``power``.
        unit: ``cores``, ``B``, ``W``, ``Hz`` or ``share``.
        device: package, GPU or device that the meter belongs to; None for the process.
        time_s: times in seconds of ``time.perf_counter``; in a recording, from its beginning.
        values: the values at these times.
    """

    name: str
    unit: str
    device: str | None
    time_s: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Meter:
    """A quantity that can be read repeatedly. Its :class:`Series` has the same name, unit and device.

    Attributes:
        read: returns the value. Raises OSError or ValueError if it cannot be read.
        counts: whether the value is a counter, whose growth per second is of interest.
        wraps: value at which the counter starts again from zero; 0 if it does not.
    """

    name: str
    unit: str
    device: str | None
    read: _Read
    counts: bool = False
    wraps: float = 0.0

    def growth(self, before: float, after: float) -> float | None:
        """Return how much a counter grew between two readings; None if it started again at an unknown value."""
        grown = after - before + (self.wraps if after < before else 0.0)
        return grown if grown >= 0 else None


class Sampler:
    """Reader of all meters while something runs. A context manager.

    There is a reading at the start, one at the end, and one every ``interval`` in between, by a thread.

    Args:
        interval: seconds between two readings.
        system: folder of the kernel's files about hardware.

    Raises:
        UsageError: the interval is not positive.
    """

    def __init__(self, interval: float = 0.1, *, system: Path = Path("/sys")) -> None:
        if not interval > 0:
            raise UsageError(f"Meters cannot be read every {interval} s: the interval must be positive.")
        self._interval, self._stop = interval, threading.Event()
        process = Meter("process CPU", "cores", None, time.process_time, counts=True)
        memory = Meter("resident memory", "B", None, _resident_bytes)
        meters = [process, memory, *packages(system), *intel_gpus(system)]
        self._meters = [meter for meter in meters if _readable(meter)]
        self._points: list[list[tuple[float, float]]] = [[] for _ in self._meters]  # time and value
        self._thread: threading.Thread | None = None
        self._gpus = GpuSampler(interval)

    def __enter__(self) -> Self:
        self._gpus.__enter__()
        self._read_all()
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, name="placeit meters", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        self._read_all()
        self._gpus.__exit__(kind, error, where)

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self._read_all()

    def _read_all(self) -> None:
        for meter, points in zip(self._meters, self._points, strict=True):
            with contextlib.suppress(OSError, ValueError):
                points.append((time.perf_counter(), meter.read()))

    @property
    def gpu_samples(self) -> tuple[GpuSample, ...]:
        """Samples by the driver of NVIDIA GPUs, in order of time."""
        return self._gpus.samples

    @property
    def readings(self) -> list[Series]:
        """Readings so far, without meters that have none."""
        found = [_to_series(meter, points) for meter, points in zip(self._meters, self._points, strict=True)]
        samples = self._gpus.samples
        for gpu in dict.fromkeys(sample.gpu for sample in samples):
            of_gpu = [sample for sample in samples if sample.gpu == gpu]
            for name, unit, attribute in (
                ("utilization", "share", "utilization"),
                ("memory utilization", "share", "memory_utilization"),
                ("memory", "B", "memory_bytes"),
                ("power", "W", "power_w"),
            ):
                points = [(sample.time, value) for sample in of_gpu if (value := getattr(sample, attribute)) is not None]
                found.append(_series(name, unit, gpu, points))
        return [series for series in found if series.time_s]


def _series(name: str, unit: str, device: str | None, points: Sequence[tuple[float, float]]) -> Series:
    return Series(name, unit, device, tuple(t for t, _ in points), tuple(value for _, value in points))


def _to_series(meter: Meter, points: list[tuple[float, float]]) -> Series:
    """Return the readings of a meter; of a counter, its growth per second."""
    if meter.counts:
        pairs = [((s, v), (t, w)) for (s, v), (t, w) in pairwise(points) if t > s]
        points = [(t, growth / (t - s)) for (s, v), (t, w) in pairs if (growth := meter.growth(v, w)) is not None]
    return _series(meter.name, meter.unit, meter.device, points)


def _readable(meter: Meter) -> bool:
    with contextlib.suppress(OSError, ValueError):
        meter.read()
        return True
    return False


def _resident_bytes() -> float:
    return float(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _number(path: Path, scale: float) -> _Read:
    return lambda: float(path.read_text(encoding="ascii")) * scale


def _text(path: Path, default: str) -> str:
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="ascii").strip() or default
    return default


def packages(system: Path) -> list[Meter]:
    """Return the energy counters of CPU packages and their parts (RAPL), which most systems let only root read."""
    found = []
    for zone in sorted(system.glob("class/powercap/intel-rapl:*")):
        name = _text(zone / "name", zone.name)
        if zone.name.count(":") > 1:  # a part of a package
            name = f"{_text(system / 'class/powercap' / zone.name.rpartition(':')[0] / 'name', 'package')} {name}"
        wraps = 0.0
        with contextlib.suppress(OSError, ValueError):
            wraps = _number(zone / "max_energy_range_uj", 1e-6)()
        found.append(Meter("power", "W", name, _number(zone / "energy_uj", 1e-6), counts=True, wraps=wraps))
    return found


def intel_gpus(system: Path) -> list[Meter]:
    """Return meters of power and frequency of Intel GPUs, from the drivers i915 and xe."""
    found = []
    for card in sorted(system.glob("class/drm/card[0-9]*")):
        if not card.name.removeprefix("card").isdecimal() or _text(card / "device/vendor", "") != "0x8086":
            continue
        for sensors in sorted(card.glob("device/hwmon/hwmon*")):
            for energy in sorted(sensors.glob("energy*_input")):
                part = _text(sensors / energy.name.replace("_input", "_label"), "")
                found.append(Meter(f"power {part}".strip(), "W", card.name, _number(energy, 1e-6), counts=True))
        clocks = (card / "gt_act_freq_mhz", *sorted(card.glob("device/tile*/gt*/freq*/act_freq")))
        found += [Meter("frequency", "Hz", card.name, _number(clock, 1e6)) for clock in clocks]
    return found
