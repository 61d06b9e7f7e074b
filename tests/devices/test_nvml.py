from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from placeit.cli import app
from placeit.core.errors import DeviceError, UsageError
from placeit.devices import discover
from placeit.devices.nvml import Gpu, GpuSample, GpuSampler, GpuUse, gpu_use, gpus, sample_gpus, why_not
from tests.devices.fake_nvml import (
    DRIVER_NOT_LOADED,
    GIB,
    GPU_IS_LOST,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NOT_SUPPORTED,
    UNKNOWN,
    FakeNvml,
)


def names() -> list[str]:
    return [gpu.full_name[-1] for gpu in gpus()]


# --- nothing there


def without_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)


def without_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    fake.fails["nvmlInit", None] = LIBRARY_NOT_FOUND
    monkeypatch.setitem(sys.modules, "pynvml", fake)


def without_module(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    fake.fails["nvmlInit", None] = DRIVER_NOT_LOADED
    monkeypatch.setitem(sys.modules, "pynvml", fake)


def with_another_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    fake.fails["nvmlInit", None] = LIB_RM_VERSION_MISMATCH
    monkeypatch.setitem(sys.modules, "pynvml", fake)


def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(0))


def without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    fake.fails["nvmlDeviceGetCount", None] = NO_PERMISSION
    monkeypatch.setitem(sys.modules, "pynvml", fake)


@pytest.mark.parametrize(
    "absent", [without_package, without_driver, without_module, with_another_driver, without_gpu, without_permission]
)
def test_where_there_is_nothing_to_see_nothing_is_said(
    monkeypatch: pytest.MonkeyPatch, absent: Callable[[pytest.MonkeyPatch], None]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    absent(monkeypatch)
    threads = threading.active_count()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gpus() == []
        assert sample_gpus() == []
        with GpuSampler() as sampler:
            assert threading.active_count() == threads
        assert sampler.samples == ()
        assert gpu_use(sampler.samples) == {}


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        (without_package, "nvidia-ml-py, through which GPUs are found, is not installed: `pip install"),
        (without_module, "the NVIDIA driver does not answer (.*): check it with `nvidia-smi`"),
        (without_gpu, "the NVIDIA driver lists no GPU and not cuda:1"),
    ],
)
def test_who_names_a_gpu_is_told_why_it_is_not_there(
    monkeypatch: pytest.MonkeyPatch, absent: Callable[[pytest.MonkeyPatch], None], said: str
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    absent(monkeypatch)
    assert re.search(said, why_not("cuda:1"))
    with pytest.raises(DeviceError, match=rf"placeit finds no NVIDIA GPU 'cuda:1' on this machine: .*{said}"):
        discover("cuda:1")


def test_gpus_that_a_variable_hides_are_not_said_to_be_missing(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert why_not("cuda:1") == "the NVIDIA driver lists cuda:0 and not cuda:1; CUDA_VISIBLE_DEVICES is '0'"


def test_neither_package_nor_driver_is_needed_to_import_the_module() -> None:
    code = "import sys; sys.modules['pynvml'] = None; import placeit.devices.nvml as n; sys.exit(n.gpus() != [])"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- what is there


def test_gpus_are_listed_with_what_the_driver_says(nvml: FakeNvml) -> None:
    assert gpus() == [Gpu(f"cuda:{n}", f"NVIDIA H100 no. {n}", 80.0 * GIB, "580.65.06") for n in range(2)]


def test_a_gpu_that_does_not_answer_is_left_out_and_the_others_keep_their_numbers(nvml: FakeNvml) -> None:
    nvml.count = 3
    nvml.fails["nvmlDeviceGetHandleByIndex", 0] = GPU_IS_LOST
    nvml.fails["nvmlDeviceGetMemoryInfo", 1] = UNKNOWN
    assert [gpu.name for gpu in gpus()] == ["cuda:2"]
    nvml.fails["nvmlSystemGetDriverVersion", None] = UNKNOWN
    assert gpus()[0].driver == "of unknown version"


def test_a_sample_has_shares_bytes_and_watts(nvml: FakeNvml) -> None:
    before = time.perf_counter()
    first, second = sample_gpus()
    assert before <= first.time <= second.time <= time.perf_counter()
    assert first == GpuSample("cuda:0", first.time, 0.25, 1.0 * GIB, 71.5, 0.03)
    assert second == GpuSample("cuda:1", second.time, 0.25, 2.0 * GIB, 71.5, 0.03)


@pytest.mark.parametrize(
    ("function", "fields"),
    [
        ("nvmlDeviceGetUtilizationRates", ["utilization", "memory_utilization"]),
        ("nvmlDeviceGetMemoryInfo", ["memory_bytes"]),
        ("nvmlDeviceGetPowerUsage", ["power_w"]),
    ],
)
@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, UNKNOWN])
def test_what_a_gpu_does_not_report_is_absent_from_its_samples(
    nvml: FakeNvml, function: str, fields: list[str], code: int
) -> None:
    nvml.fails[function, 1] = code
    first, second = (vars(sample) for sample in sample_gpus())
    assert all(first[field] is not None for field in fields)
    assert [key for key, value in second.items() if value is None] == fields


def test_a_gpu_that_is_lost_is_sampled_no_more(nvml: FakeNvml) -> None:
    nvml.fails["*", 0] = GPU_IS_LOST
    assert [sample.gpu for sample in sample_gpus()] == ["cuda:1"]


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("", []),
        ("0,1,2,3", ["0", "1", "2", "3"]),
        ("2, 1", ["2", "1"]),
        ("0,2,-1,1", ["0", "2"]),
        ("3,4,1", ["3"]),
        ("GPU-b3-1234,0", ["3", "0"]),
        ("GPU-a2", ["2"]),
        ("GPU-a,0", []),
        ("GPU-c,0", []),
        ("1,nonsense,2", ["1"]),
        ("MIG-7", ["7"]),
        ("MIG-8,0", []),
    ],
)
def test_gpus_are_numbered_as_cuda_numbers_those_that_it_may_use(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, listed: str, found: list[str]
) -> None:
    nvml.count = 4
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    assert names() == found
    assert [gpu.name for gpu in gpus()] == [f"cuda:{n}" for n in range(len(found))]


# --- sampling a run


def test_a_run_is_sampled_from_its_start_to_its_end(nvml: FakeNvml) -> None:
    before = time.perf_counter()
    with GpuSampler(0.005) as sampler:
        assert len(sampler.samples) >= 2, "there is a sample before the run"
        while nvml.asked < 10:
            time.sleep(0.001)
        nvml.busy = 75
    after = time.perf_counter()
    samples = sampler.samples
    assert len(samples) >= 10
    assert {sample.gpu for sample in samples} == {"cuda:0", "cuda:1"}
    times = [sample.time for sample in samples]
    assert before <= times[0]
    assert times == sorted(times)
    assert times[-1] <= after
    assert samples[0].utilization == 0.25
    assert samples[-1].utilization == 0.75, "there is a sample after the run"


def test_a_sampler_stops_when_the_run_fails(nvml: FakeNvml) -> None:
    with pytest.raises(ZeroDivisionError), GpuSampler(60) as sampler:
        raise ZeroDivisionError
    assert len(sampler.samples) == 4, "without waiting for the next sample"
    assert nvml.open == 0


def test_a_sampler_that_is_entered_again_starts_afresh(nvml: FakeNvml) -> None:
    sampler = GpuSampler(60)
    for count in (2, 1):
        nvml.count = count
        with sampler:
            pass
        assert len(sampler.samples) == 2 * count


def test_a_gpu_that_is_lost_during_a_run_ends_its_samples_and_not_the_run(nvml: FakeNvml) -> None:
    with GpuSampler(0.002) as sampler:
        nvml.fails["*", 1] = GPU_IS_LOST
        asked = nvml.asked
        while nvml.asked < asked + 5:
            time.sleep(0.001)
    by_gpu = [sample.gpu for sample in sampler.samples]
    assert by_gpu[-3:] == ["cuda:0"] * 3
    assert "cuda:1" in by_gpu


@pytest.mark.parametrize("interval", [0, -1, math.nan])
def test_an_interval_that_is_not_positive_is_an_error(interval: float) -> None:
    with pytest.raises(UsageError, match="must be positive"):
        GpuSampler(interval)


# --- in short


def test_samples_are_summed_up_over_time() -> None:
    samples = [
        GpuSample("cuda:0", 10.0, 0.0, 5.0, 100.0),
        GpuSample("cuda:1", 10.0, None, 1.0, None),
        GpuSample("cuda:0", 13.0, 1.0, 7.0, None),
        GpuSample("cuda:0", 11.0, 1.0, 6.0, 200.0),
    ]
    first, second = gpu_use(samples).values()
    assert first == GpuUse(utilization=pytest.approx(2.5 / 3), peak_memory_bytes=7.0, power_w=150.0, energy_j=450.0)
    assert second == GpuUse(utilization=None, peak_memory_bytes=1.0, power_w=None, energy_j=None)


shares = st.floats(0, 1)


@given(st.lists(st.tuples(st.integers(0, 1000), shares), min_size=1))
def test_a_mean_lies_between_the_samples(points: list[tuple[int, float]]) -> None:
    (use,) = gpu_use(GpuSample("cuda:0", float(moment), share, None, None) for moment, share in points).values()
    assert use.utilization is not None
    assert min(share for _, share in points) - 1e-9 <= use.utilization <= max(share for _, share in points) + 1e-9


# --- on the command line


def devices(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["devices", "--no-links", *arguments])


def test_devices_shows_how_busy_gpus_are(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    nvml.fails["nvmlDeviceGetPowerUsage", 1] = NOT_SUPPORTED
    listed = {device["name"]: device for device in json.loads(devices("--json").stdout)["devices"]}
    assert listed["cuda:0"]["load"] == {"utilization": 0.25, "memory_bytes": 1.0 * GIB, "power_w": 71.5}
    assert listed["cuda:1"]["load"] == {"utilization": 0.25, "memory_bytes": 2.0 * GIB, "power_w": None}
    assert listed["CPU"]["load"] is None
    lines = [" ".join(line.split()) for line in devices().stdout.splitlines()]
    assert "device busy memory in use power" in lines
    assert "cuda:0 25 % 1.07 GB 72 W" in lines
    assert "cuda:1 25 % 2.15 GB -" in lines


def test_a_gpu_that_no_package_drives_is_listed_with_what_to_install(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placeit.runtime.kinds.cuda.installed", lambda module: False)
    found = json.loads(CliRunner().invoke(app, ["devices", "--no-links", "--json"]).stdout)
    (gpu,) = [device for device in found["devices"] if device["name"] == "cuda:0"]
    assert re.search(r"ONNX models need CuPy.*pip install 'placeit\[cuda\]' onnxruntime-gpu", gpu["unusable"])


def test_devices_shows_nothing_about_gpus_where_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    without_package(monkeypatch)
    result = devices()
    assert result.exit_code == 0
    assert "power" not in result.stdout
    assert result.stderr == ""


# --- the real thing


def test_the_fake_has_what_the_package_has() -> None:
    pynvml = pytest.importorskip("pynvml", reason="the package nvidia-ml-py is not installed")
    wanted = [name for name in vars(FakeNvml) if name.startswith(("nvml", "NVML"))]
    assert [name for name in wanted if not hasattr(pynvml, name)] == []
    error = pynvml.NVMLError(NOT_SUPPORTED)
    assert type(error) is not pynvml.NVMLError
    assert error.value == NOT_SUPPORTED


@pytest.mark.gpu
def test_a_real_gpu_reports_its_memory() -> None:
    if not Path("/dev/nvidiactl").exists() or importlib.util.find_spec("pynvml") is None:
        pytest.skip("needs an NVIDIA GPU with its driver, and the package nvidia-ml-py")
    with GpuSampler(0.05) as sampler:
        time.sleep(0.2)
    assert [gpu.name for gpu in gpus()] == sorted(gpu_use(sampler.samples))
    for gpu in gpus():
        use = gpu_use(sampler.samples)[gpu.name]
        assert use.peak_memory_bytes is None or 0 <= use.peak_memory_bytes <= gpu.memory_bytes
