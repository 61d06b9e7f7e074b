"""Meters of the process, and meters of a system, as files in a folder that the test makes."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from placeit.core.errors import UsageError
from placeit.devices import meters
from placeit.devices.meters import Sampler, Series


def system(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def found(sampler: Sampler) -> dict[tuple[str | None, str], Series]:
    return {(one.device, one.name): one for one in sampler.readings}


def test_the_process_is_sampled_by_a_thread_that_ends(tmp_path: Path) -> None:
    with Sampler(0.001, system=tmp_path) as sampler:
        while len(found(sampler).get((None, "resident memory"), Series("", "", None, (), ())).time_s) < 5:
            sum(range(1000))
    assert not any(thread.name == "placeit meters" for thread in threading.enumerate())
    readings = found(sampler)
    assert readings.keys() == {(None, "process CPU"), (None, "resident memory")}
    cpu, memory = readings[None, "process CPU"], readings[None, "resident memory"]
    assert (cpu.unit, memory.unit) == ("cores", "B")
    assert min(cpu.values) >= 0
    assert max(cpu.values) > 0
    assert all(1e6 < value < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") for value in memory.values)
    assert list(memory.time_s) == sorted(memory.time_s)


def test_energy_counters_of_packages_and_intel_gpus_become_watts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rapl, gpu = "class/powercap/intel-rapl:0", "class/drm/card1"
    root = system(
        tmp_path,
        {
            f"{rapl}/name": "package-0\n",
            f"{rapl}/energy_uj": "9000000\n",
            f"{rapl}/max_energy_range_uj": "10000000\n",
            "class/powercap/intel-rapl:0:0/name": "core\n",
            "class/powercap/intel-rapl:0:0/energy_uj": "1\n",
            f"{gpu}/device/vendor": "0x8086\n",
            f"{gpu}/device/hwmon/hwmon3/energy1_input": "5000000\n",
            f"{gpu}/device/hwmon/hwmon3/energy1_label": "card\n",
            f"{gpu}/gt_act_freq_mhz": "1500\n",
            "class/drm/card0/device/vendor": "0x10de\n",
            "class/drm/card0/gt_act_freq_mhz": "1\n",
            "class/drm/card1-HDMI-A-1/device/vendor": "0x8086\n",
        },
    )
    now = [100.0]
    monkeypatch.setattr(meters.time, "perf_counter", lambda: now[0])
    sampler = Sampler(600.0, system=root)
    with sampler:
        now[0] = 102.0
        (root / rapl / "energy_uj").write_text("1000000\n")  # it has begun again at 10 J
        (root / gpu / "device/hwmon/hwmon3/energy1_input").write_text("25000000\n")
    readings = found(sampler)
    assert readings["package-0", "power"] == Series("power", "W", "package-0", (102.0,), (pytest.approx(1.0),))  # type: ignore[arg-type]
    assert readings["package-0 core", "power"].values == (0.0,)
    assert readings["card1", "power card"].values == (pytest.approx(10.0),)
    assert readings["card1", "frequency"].values == (1.5e9, 1.5e9)
    assert {device for device, _ in readings} == {None, "package-0", "package-0 core", "card1"}


@pytest.mark.parametrize("content", ["", "none", "12 34 x"])
def test_what_cannot_be_read_is_left_out(tmp_path: Path, content: str) -> None:
    root = system(tmp_path, {"class/powercap/intel-rapl:0/energy_uj": content, "class/drm/card0/device/vendor": "0x8086"})
    with Sampler(600.0, system=root) as sampler:
        pass
    assert {device for device, _ in found(sampler)} == {None}


def test_a_meter_that_goes_away_keeps_what_it_has_shown(tmp_path: Path) -> None:
    clock = "class/drm/card0/gt_act_freq_mhz"
    root = system(tmp_path, {clock: "800", "class/drm/card0/device/vendor": "0x8086"})
    with Sampler(600.0, system=root) as sampler:
        (root / clock).unlink()
    assert found(sampler)["card0", "frequency"].values == (8e8,)


@pytest.mark.parametrize("interval", [0.0, -1.0])
def test_an_interval_has_to_be_positive(interval: float) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        Sampler(interval)
