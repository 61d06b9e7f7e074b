"""Meters of the joules that a cluster's devices take: CPU packages (RAPL), Intel GPUs (hwmon) and NVIDIA GPUs (NVML).

A meter belongs to a piece of hardware, and counts all of its energy, whether used or idle, and by whatever process. The meters
of CPU packages cover every set of cores, and an integrated GPU; they do not count memory modules.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from placeit.core.cluster import Cluster, Device
from placeit.devices.meters import Meter, intel_gpus, packages
from placeit.devices.nvml import GpuEnergy

__all__ = ["EnergyMeter", "EnergyMeters", "energy_meters"]

_COUNTER_WINDOW_S, _NVML_WINDOW_S, _POWER_WINDOW_S = 0.1, 1.0, 2.0
"""Seconds over which counters in the kernel's files, NVML's counters, and powers are read.

RAPL updates its counter about every millisecond, NVML every 20 to 100 ms (100 on an H200), and NVIDIA's power is an average
over a second. So one update more or less is 1 % of a counter's growth in this time, or 10 % for NVML."""
_READINGS = 10  # of a power in its window; counters are read at its ends only, as reading NVML's takes 4 ms on an H200
_MAX_WINDOWS = 10  # after which a counter that has not moved is given up


@dataclass(frozen=True)
class EnergyMeter:
    """A meter of the energy that some devices take.

    Attributes:
        meter: a counter of joules, or a reading of watts, which are integrated over time.
        name: ``package-0``, ``card1``, ``cuda:0``.
        devices: names of the cluster's devices that it covers.
        window_s: seconds over which it has to be read, so that the time of its last update does not matter.
    """

    meter: Meter
    name: str
    devices: tuple[str, ...]
    window_s: float = _COUNTER_WINDOW_S


class _MeterError(Exception):
    """A meter cannot be used any more; the message says why."""


class _Total:
    """Joules that a meter has counted since construction; raises _MeterError if the meter cannot be read."""

    def __init__(self, meter: EnergyMeter, window_s: float) -> None:
        self.name, self._meter, self.joules = meter.name, meter.meter, 0.0
        self._window_s = window_s
        self._due = window_s if meter.meter.counts else window_s / _READINGS
        self._last_time, self._last_value = self._read()

    def _read(self) -> tuple[float, float]:
        try:
            return time.perf_counter(), self._meter.read()
        except (OSError, ValueError) as error:
            raise _MeterError(f"{self.name} could not be read any more: {error}") from error

    def update(self, seconds: float) -> None:
        """Add the joules since the last reading, if a reading is due after this many seconds of runs."""
        if seconds < self._due:
            return
        self._due = min(seconds + self._window_s / _READINGS, self._window_s)
        now, value = self._read()
        if self._meter.counts:
            grown = self._meter.growth(self._last_value, value)
        else:
            grown = (self._last_value + value) / 2 * (now - self._last_time)
        if grown is None:
            raise _MeterError(f"the counter {self.name} began again, at an unknown value")
        self.joules += grown
        self._last_time, self._last_value = now, value


@dataclass(eq=False)
class EnergyMeters:
    """The meters of a cluster. A context manager, which opens a driver where meters need one.

    Attributes:
        meters: the meters; each covers some devices.
        missing: why a device has no meter, by the name of the device.
        fault: why a meter was given up during a run; None if no meter was.
        driver: context that is open while meters are read.
    """

    meters: Sequence[EnergyMeter] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    fault: str | None = None
    driver: AbstractContextManager[object] = field(default_factory=contextlib.nullcontext, repr=False)

    def __enter__(self) -> Self:
        self.driver.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.driver.__exit__(kind, error, where)

    @property
    def complete(self) -> bool:
        """True if each device has a meter, and none was given up, so that their sum is the energy of a request."""
        return not self.missing and self.fault is None

    @property
    def window_s(self) -> float:
        """Seconds over which each of the meters can be read."""
        return max((meter.window_s for meter in self.meters), default=0.0)

    def over(self, run: Callable[[], float]) -> tuple[list[float], float | None]:
        """Repeat a run until all meters have moved and the runs have taken at least the meters' windows.

        Args:
            run: runs once and returns its seconds. Its exceptions pass through.

        Returns:
            The seconds of each run, and the mean joules of a run; None if a meter is given up, which :attr:`fault` explains.
        """
        runs: list[float] = []
        try:
            seconds, totals = 0.0, [_Total(meter, self.window_s) for meter in self.meters]
            while True:
                runs.append(run())
                seconds += runs[-1]
                for total in totals:
                    total.update(seconds)
                unmoved = [total.name for total in totals if not total.joules > 0]
                if seconds >= self.window_s and not unmoved:
                    return runs, sum(total.joules for total in totals) / len(runs)
                if seconds >= _MAX_WINDOWS * self.window_s:
                    raise _MeterError(f"{' and '.join(unmoved)} showed no energy in {seconds:.3g} s of runs")
        except _MeterError as error:
            self.fault = str(error)
        return runs or [run()], None

    def __str__(self) -> str:
        """Return a text that says by which meters energy is measured, or why it is not measured."""
        if self.fault is not None:
            return f"modelled; {self.fault}"
        if self.missing:
            reasons: dict[str, list[str]] = {}
            for device, why in self.missing.items():
                reasons.setdefault(why, []).append(device)
            without = [f"{', '.join(names)}: {why}" for why, names in reasons.items()]
            return f"modelled; no meter for {'; nor for '.join(without)}"
        covered = [f"{meter.name} (covers {', '.join(meter.devices)})" for meter in self.meters]
        return f"measured by {' and '.join(covered)}"

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dict for JSON."""
        return {
            "source": "measured" if self.complete else "modelled",
            "meters": [{"name": meter.name, "devices": list(meter.devices)} for meter in self.meters],
            "without_meter": dict(self.missing),
            "fault": self.fault,
        }


def energy_meters(cluster: Cluster, *, system: Path = Path("/sys")) -> EnergyMeters:
    """Find the meters of a cluster's devices.

    Args:
        cluster: the devices.
        system: folder of the kernel's files about hardware.
    """
    missing: dict[str, str] = {}
    local: list[Device] = []
    for device in cluster.devices:
        if device.address is None:
            missing[device.name] = "it exists in simulation only"
        elif device.emulated:
            missing[device.name] = "it is emulated, and what it stands for takes other energy"
        elif device.address.node:
            missing[device.name] = f"it is on the node {device.address.node}, where no meter is read"
        else:
            local.append(device)
    found: list[EnergyMeter] = []
    cpus = [one for one in local if one.core_set or (one.where.family == "GPU" and "integrated" in one.tags)]
    cards = [one for one in local if one.where.family == "GPU" and one not in cpus]
    nvidia = [one for one in local if one.where.family == "cuda"]
    for device in local:
        if device not in (*cpus, *cards, *nvidia):
            missing[device.name] = "placeit knows no meter for such devices"
    for devices, meters in ((cpus, _packages(system)), (cards, _card(system, cards))):
        names = tuple(device.name for device in devices)
        if names and isinstance(meters, str):
            missing |= dict.fromkeys(names, meters)
        elif names:
            found += [EnergyMeter(meter, str(meter.device), names) for meter in meters if not isinstance(meter, str)]
    gpus = GpuEnergy()
    driver: AbstractContextManager[object] = gpus if nvidia else contextlib.nullcontext()
    with driver:
        for hardware in dict.fromkeys(device.where.hardware for device in nvidia):
            names = tuple(device.name for device in nvidia if device.where.hardware == hardware)
            kinds = (("J", True, gpus.joules, _NVML_WINDOW_S), ("W", False, gpus.watts, _POWER_WINDOW_S))
            for unit, counts, read, window_s in kinds:
                meter = Meter("energy", unit, hardware, partial(read, hardware), counts=counts)
                if _why_unreadable(meter) is None:
                    found.append(EnergyMeter(meter, hardware, names, window_s))
                    break
            else:
                missing |= dict.fromkeys(names, "the NVIDIA driver reports neither its energy nor its power")
    return EnergyMeters(found, {name: missing[name] for name in cluster.names if name in missing}, driver=driver)


def _packages(system: Path) -> list[Meter] | str:
    """Return the counters of all CPU packages, without counters of their parts; or why there are none that can be read."""
    zones = [meter for meter in packages(system) if str(meter.device).startswith("package-") and " " not in str(meter.device)]
    if not zones:
        return f"this machine has no energy counter of its CPU packages (RAPL) in {system / 'class/powercap'}"
    files = system / "class/powercap/intel-rapl:*/energy_uj"
    return next((why for meter in zones if (why := _why_unreadable(meter, files)) is not None), zones)


def _card(system: Path, devices: Sequence[Device]) -> list[Meter] | str:
    """Return the counter of the only discrete Intel GPU; or why no such counter can be read."""
    cards: dict[str | None, Meter] = {}
    for meter in intel_gpus(system):
        if meter.counts and (meter.device not in cards or meter.name == "power card"):
            cards[meter.device] = meter
    if not cards:
        return "its driver shows no energy counter (hwmon)"
    if len(cards) > 1 or len({device.where.unit for device in devices}) > 1:
        return f"OpenVINO does not say which GPU is which of {', '.join(map(str, cards))}"
    return next((why for meter in cards.values() if (why := _why_unreadable(meter)) is not None), list(cards.values()))


def _why_unreadable(meter: Meter, files: Path | None = None) -> str | None:
    """Return why a meter cannot be read; None if it can. ``files`` is a pattern of all such meters' files, for the message."""
    try:
        meter.read()
    except PermissionError as error:
        return (
            f"this user may not read {error.filename}, as most systems let only root do: run placeit as root, or allow it "
            f"until the next start of the system by `sudo chmod a+r {files or error.filename}`"
        )
    except (OSError, ValueError) as error:
        return f"its meter cannot be read: {error}"
    return None
