"""Energy of devices by meters: which devices a meter covers, why a meter is missing, and the joules of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.devices.energy import EnergyMeter, EnergyMeters, energy_meters
from placeit.devices.meters import Meter
from tests.devices.fake_nvml import NOT_SUPPORTED, FakeNvml

RAPL = "class/powercap/intel-rapl"
CARD = "class/drm/card1/device"
PACKAGES = {
    **{f"{RAPL}:{n}/name": f"package-{n}\n" for n in range(2)},
    **{f"{RAPL}:{n}/energy_uj": "9000000\n" for n in range(2)},
    **{f"{RAPL}:{n}/max_energy_range_uj": "10000000\n" for n in range(2)},
    f"{RAPL}:0:0/name": "core\n",
    f"{RAPL}:0:0/energy_uj": "1\n",
    f"{RAPL}:2/name": "psys\n",
    f"{RAPL}:2/energy_uj": "1\n",
}


def system(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def cpu(core: int) -> Device:
    return Device(f"CPU@{core}", address=Address("CPU", (core,)))


def gpu(number: int, tag: str) -> Device:
    return Device(f"GPU.{number}", address=Address(f"GPU.{number}"), tags=frozenset({tag}))


def counter(read: Callable[[], float], *, wraps: float = 0.0, window_s: float = 0.1) -> EnergyMeters:
    return EnergyMeters([EnergyMeter(Meter("energy", "J", "it", read, counts=True, wraps=wraps), "it", ("d0",), window_s)])


def test_packages_cover_all_core_sets_and_the_integrated_gpu(tmp_path: Path) -> None:
    found = energy_meters(Cluster((cpu(0), cpu(1), gpu(0, "integrated"))), system=system(tmp_path, PACKAGES))
    assert found.complete
    assert [(one.name, one.devices) for one in found.meters] == [
        (f"package-{n}", ("CPU@0", "CPU@1", "GPU.0")) for n in range(2)
    ]
    assert str(found) == ("measured by package-0 (covers CPU@0, CPU@1, GPU.0) and package-1 (covers CPU@0, CPU@1, GPU.0)")
    assert found.to_dict()["source"] == "measured"


def test_the_counter_of_a_card_covers_the_discrete_gpu_unless_there_are_several(tmp_path: Path) -> None:
    files = {
        f"{CARD}/vendor": "0x8086",
        f"{CARD}/hwmon/hwmon3/energy1_input": "5000000",
        f"{CARD}/hwmon/hwmon3/energy2_input": "1",
    }
    root = system(tmp_path, files | {f"{CARD}/hwmon/hwmon3/energy1_label": "card", f"{CARD}/hwmon/hwmon3/energy2_label": "pkg"})
    found = energy_meters(Cluster((gpu(1, "discrete"),)), system=root)
    assert [(one.name, one.meter.read()) for one in found.meters] == [("card1", 5.0)]
    two = energy_meters(Cluster((gpu(0, "discrete"), gpu(1, "discrete"))), system=root)
    assert two.missing.keys() == {"GPU.0", "GPU.1"}
    assert "does not say which GPU is which of card1" in str(two)


def test_devices_without_a_meter_are_named_with_the_reason(tmp_path: Path) -> None:
    cluster = Cluster(
        (
            Device("far", address=Address("CPU", node="edge1")),
            Device("slow", address=Address("CPU", (0,)), slowdown=2.0),
            Device("none", kind="described"),
            Device("sleep:0", kind="sleep", address=Address("sleep:0")),
            gpu(0, "discrete"),
            cpu(0),
        )
    )
    found = energy_meters(cluster, system=tmp_path)
    assert list(found.missing) == list(cluster.names)
    assert not found.complete
    said = str(found)
    assert said.startswith("modelled; no meter for far: it is on the node edge1")
    for why in ("slow: it is emulated", "none: it exists in simulation only", "sleep:0: placeit knows no", "GPU.0: its driver"):
        assert f"nor for {why}" in said
    assert f"CPU@0: this machine has no energy counter of its CPU packages (RAPL) in {tmp_path / 'class/powercap'}" in said


def test_a_counter_that_only_root_may_read_is_said_once_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, original = system(tmp_path, PACKAGES), Path.read_text

    def read(path: Path, *args: str, **options: str) -> str:  # root may read what is forbidden, and tests may run as root
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *args, **options)

    monkeypatch.setattr(Path, "read_text", read)
    found = energy_meters(Cluster((cpu(0), cpu(1))), system=root)
    assert not found.meters
    assert str(found).count("run placeit as root") == 1
    assert f"sudo chmod a+r {root}/class/powercap/intel-rapl:*/energy_uj" in str(found)
    assert str(found).startswith("modelled; no meter for CPU@0, CPU@1: this user may not read")


def test_gpus_of_nvidia_are_read_while_the_driver_is_held_open(nvml: FakeNvml) -> None:
    devices = tuple(Device(f"cuda:{n}", kind="cuda", address=Address(f"cuda:{n}")) for n in range(3))
    found = energy_meters(Cluster(devices))
    assert [(one.name, one.meter.counts) for one in found.meters] == [("cuda:0", True), ("cuda:1", True)]
    assert found.missing == {"cuda:2": "the NVIDIA driver reports neither its energy nor its power"}
    only = energy_meters(Cluster(devices[:1]))

    def run() -> float:
        assert nvml.open == 1
        nvml.energy_mj += 2500
        return 0.4

    with only:
        taken, joules = only.over(run)
    assert (taken, joules) == ([0.4] * 3, pytest.approx(2.5))


def test_power_is_integrated_where_a_gpu_counts_no_energy(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("placeit.devices.energy.time.perf_counter", lambda: now[0])
    nvml.fails["nvmlDeviceGetTotalEnergyConsumption", 0] = NOT_SUPPORTED
    found = energy_meters(Cluster((Device("cuda:0", kind="cuda", address=Address("cuda:0")),)))

    def run() -> float:
        now[0] += 1.5
        return 1.0

    with found:
        taken, joules = found.over(run)
    assert (len(taken), joules) == (2, pytest.approx(71.5 * 1.5))


def test_a_counter_is_read_over_as_many_runs_as_its_window_takes_and_wraps_around() -> None:
    runs = [0]

    def run() -> float:
        runs[0] += 1
        return 0.004

    meters = counter(lambda: (9.0 + 0.25 * runs[0]) % 10, wraps=10.0)
    taken, joules = meters.over(run)
    assert (len(taken), joules) == (25, pytest.approx(0.25))


def test_a_counter_that_is_slow_is_waited_for_and_one_that_stands_is_given_up() -> None:
    runs = [0]

    def run() -> float:
        runs[0] += 1
        return 0.05

    taken, joules = counter(lambda: runs[0] // 10 * 30.0).over(run)  # renewed with every tenth run
    assert (len(taken), joules) == (10, pytest.approx(3.0))
    stands = counter(lambda: 5.0)
    assert stands.over(run)[1] is None
    assert str(stands) == "modelled; it showed no energy in 1 s of runs"


def test_a_counter_that_began_again_at_an_unknown_value_or_went_away_invents_nothing() -> None:
    values = iter([9.0, 1.0])
    again = counter(lambda: next(values))
    assert again.over(lambda: 1.0) == ([1.0], None)
    assert "began again" in str(again)

    def gone() -> float:
        raise OSError("gone")

    lost = counter(gone)
    assert lost.over(lambda: 1.0) == ([1.0], None)
    assert not lost.complete
    assert lost.to_dict() == {
        "source": "modelled",
        "meters": [{"name": "it", "devices": ["d0"]}],
        "without_meter": {},
        "fault": "it could not be read any more: gone",
    }


def test_what_a_run_raises_is_not_taken_for_a_fault_of_a_meter() -> None:
    meters = counter(lambda: 1.0)
    with pytest.raises(OSError, match="the run"):
        meters.over(lambda: (_ for _ in ()).throw(OSError("the run")))
    assert meters.complete
