from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import ClusterError, DeviceError, PlaceitError, UsageError
from placeit.devices import catalog, discover, parse_device, parse_devices, roofline_seconds
from placeit.devices.described import ROOFLINE_EFFICIENCY
from placeit.devices.discovery import available
from placeit.devices.host import free_bytes, memory_bytes, one_per_physical_core
from placeit.devices.opencl import driver_versions
from tests.recorded_plugins import DISCRETE, GPU, NPU, NPU_BARE, RecordedCore, recorded, thrown

__all__ = ["recorded"]

See = Callable[..., RecordedCore]


@pytest.fixture
def many_devices(recorded: See) -> RecordedCore:
    """OpenVINO on a machine with a CPU, two GPUs and an NPU."""
    return recorded(GPU_0=GPU, GPU_1=DISCRETE, NPU=NPU)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))


# --- names


@pytest.mark.parametrize(
    ("text", "address", "spelling"),
    [
        ("CPU", Address("CPU"), "CPU"),
        (" GPU.1 ", Address("GPU.1"), "GPU.1"),
        ("NPU", Address("NPU"), "NPU"),
        ("cuda:0", Address("cuda:0"), "cuda:0"),
        ("cuda:007", Address("cuda:7"), "cuda:7"),
        ("cuda:0@1of2", Address("cuda:0", part=(1, 2)), "cuda:0@1of2"),
        ("torch:cuda:1@03of4", Address("cuda:1", runtime="torch", part=(3, 4)), "torch:cuda:1@3of4"),
        ("CPU@2", Address("CPU", (2,)), "CPU@2"),
        ("CPU@0-3", Address("CPU", (0, 1, 2, 3)), "CPU@0-3"),
        ("CPU@4+1+0", Address("CPU", (0, 1, 4)), "CPU@0-1+4"),
        ("ort:CPU@2", Address("CPU", (2,), runtime="ort"), "ort:CPU@2"),
        ("torch:CPU@2", Address("CPU", (2,), runtime="torch"), "torch:CPU@2"),
        ("torch:cuda:00", Address("cuda:0", runtime="torch"), "torch:cuda:0"),
        ("edge1/CPU@0", Address("CPU", (0,), "edge1"), "edge1/CPU@0"),
        ("edge1/ort:cuda:1", Address("cuda:1", (), "edge1", "ort"), "edge1/ort:cuda:1"),
    ],
)
def test_names_are_taken_apart_and_spelled_canonically(text: str, address: Address, spelling: str) -> None:
    assert parse_device(text) == address
    assert str(address) == spelling


@pytest.mark.parametrize(
    ("address", "family", "number"),
    [
        (Address("CPU", (0, 1)), "CPU", None),
        (Address("GPU.1"), "GPU", 1),
        (Address("GPU.0.1"), "GPU", None),
        (Address("cuda:12", runtime="ort"), "cuda", 12),
        (Address("sleep:west"), "sleep", None),
    ],
)
def test_hardware_has_a_family_and_may_have_a_number(address: Address, family: str, number: int | None) -> None:
    assert (address.family, address.number) == (family, number)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cpu", "did you mean 'CPU'"),
        ("gpu.1", "did you mean 'GPU.1'"),
        ("ort", "did you mean 'ort:CPU'"),
        ("inductor", "did you mean 'inductor:CPU'"),
        ("boards", "NODE/CPU or auto."),
        ("cuda", "did you mean 'cuda:0'"),
        ("CUDA", "did you mean 'cuda:0'"),
        ("", "'' is not a device"),
        ("CPU@", "a core set is written"),
        ("CPU@a", "'a' is not a core"),
        ("CPU@0:3", "'0:3' is not a core"),
        ("CPU@3-1", "3-1 runs backwards"),
        ("CPU@0-1+1", "core 1 is named twice"),
        ("CPU@0-99999", "no core 99999"),
        ("CPU.0", "one CPU device, without a number"),
        ("GPU@1", "only the CPU has core sets"),
        ("cuda:0@0-65", "'0-65' is not a part of a GPU; one of two equal parts is written cuda:0@1of2"),
        ("cuda:0@", "'' is not a part of a GPU"),
        ("cuda:0@3of2", "there is no part 3 of 2"),
        ("cuda:0@0of2", "there is no part 0 of 2"),
        ("cuda:0@1of1", "a GPU has two or more parts"),
        ("cuda", "'cuda' is not a device"),
        ("HETERO:CPU", "virtual"),
        ("AUTO", "virtual"),
        ("torch:GPU", "PyTorch runs on the CPU and on NVIDIA GPUs (torch:CPU@0, torch:cuda:0), not on 'GPU'"),
        ("tf:CPU", "'tf:CPU' is not a device"),
        ("a/b/CPU", "'a/b' is not the name of a node"),
        ("/CPU", "'' is not the name of a node"),
    ],
)
def test_a_malformed_name_is_quoted_with_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_device(text)
    assert said in str(caught.value)
    assert f"'{text}'" in str(caught.value)


nodes = st.sampled_from(["", "edge-1", "10.0.0.7"])
runtimes = st.sampled_from(["", "ort", "torch"])
core_sets = st.builds(
    lambda cores, *rest: Address("CPU", tuple(sorted(cores)), *rest),
    st.sets(st.integers(0, 8191), max_size=60),
    nodes,
    runtimes,
)
parts = st.just((1, 1)) | st.integers(2, 99).flatmap(lambda of: st.tuples(st.integers(1, of), st.just(of)))
gpus = st.builds(lambda number, *rest: Address(f"cuda:{number}", (), *rest), st.integers(0, 9999), nodes, runtimes, parts)
others = st.builds(
    lambda name, node: Address(name, node=node), st.from_regex(r"\A(GPU|NPU|FPGA_X)(\.[0-9]{1,2}){0,2}\Z"), nodes
)


@given(core_sets | gpus | others)
def test_any_address_reads_back_from_its_spelling(address: Address) -> None:
    assert parse_device(str(address)) == address
    assert str(parse_device(str(address))) == str(address)


@given(st.text(alphabet="CPUGNortcuda@/:.,0123-+ ", max_size=16))
def test_whatever_can_be_read_is_spelled_in_one_way(text: str) -> None:
    try:
        address = parse_device(text)
    except UsageError:
        return
    assert parse_device(str(address)) == address


@given(st.text(alphabet="CPUGNautocd@/:.,0123-+ é", max_size=20))
def test_any_text_is_a_list_of_devices_or_a_clear_error(text: str) -> None:
    try:
        said = ",".join(str(name) for name in parse_devices(text))
    except PlaceitError as error:
        said = str(error)
    assert said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("CPU@0,CPU@0", UsageError, "'CPU@0' is listed twice"),
        ("auto,CPU", UsageError, "'auto' stands for all devices"),
        ("CPU, auto", UsageError, "'auto' stands for all devices"),
        ("auto", UsageError, "'auto' stands for several devices"),
        (" ", UsageError, "list of devices is empty"),
        ("CPU@0,", UsageError, "''"),
        ("CPU@0-1,CPU@0+1", UsageError, "'CPU@0-1' is listed twice"),
        ("GPU,GPU.0", DeviceError, "'GPU' and 'GPU.0' are both the device GPU.0"),
        ("edge/cuda:0,edge/torch:cuda:0", DeviceError, "are both the device cuda:0"),
        ("cuda:0,ort:cuda:0,torch:cuda:0", DeviceError, "'cuda:0' and 'ort:cuda:0' are both the device cuda:0"),
        ("cuda:0@1of2,torch:cuda:0@1of2", DeviceError, "'cuda:0@1of2' and 'torch:cuda:0@1of2' are both the device cuda:0@1of2"),
    ],
)
def test_devices_that_are_the_same_hardware_are_refused(text: str, error: type[PlaceitError], said: str) -> None:
    with pytest.raises(error) as caught:
        parse_devices(text)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "text",
    ["CPU@0-1,CPU@0,CPU@1", "CPU,CPU@0-1,CPU@1", "CPU@0,ort:CPU@0,torch:CPU@0-1", "edge/CPU,edge/CPU@1,CPU@1", "CPU,ort:CPU"],
)
def test_core_sets_may_share_cores(text: str) -> None:
    assert [str(address) for address in parse_devices(text)] == text.split(",")


def test_parts_of_a_gpu_stand_beside_each_other_and_take_turns_with_what_overlaps() -> None:
    names = ["cuda:0@1of2", "cuda:0@2of2", "cuda:0@1of3", "cuda:0", "cuda:1@1of2"]
    addresses = parse_devices(names)
    assert [str(address) for address in addresses] == names
    found = Cluster(tuple(Device(name, "cuda", address) for name, address in zip(names, addresses, strict=True))).conflicts()
    shared = {(i, j) for i in range(5) for j in range(5) if i != j and {i, j} != {0, 1} and 4 not in (i, j)}
    assert {(i, j) for i in range(5) for j in range(5) if found[i, j]} == shared


def test_a_list_of_names_may_be_a_sequence_and_cores_of_other_nodes_do_not_clash() -> None:
    names = ["CPU@0", "edge/CPU@0", "core/CPU", "GPU.0", "GPU.1", "edge/GPU", "cuda:0", "edge/cuda:0"]
    assert [str(address) for address in parse_devices(names)] == names
    assert parse_devices(names) == parse_devices(",".join(names))


# --- discovery


def test_the_cpu_of_this_machine_is_found_with_its_properties() -> None:
    (cpu,) = discover("CPU").devices
    assert cpu.name == str(cpu.address) == "CPU"
    assert cpu.kind == "openvino"
    assert cpu.cores == tuple(sorted(os.sched_getaffinity(0)))
    assert cpu.full_name
    assert "fp32" in cpu.tags
    assert cpu.driver.startswith("OpenVINO 20")
    assert 2**28 < cpu.memory_bytes < 2**50


def test_devices_keep_the_order_in_which_they_are_named(many_devices: RecordedCore) -> None:
    allowed = min(os.sched_getaffinity(0))
    cluster = discover(f"NPU,CPU@{allowed},GPU.1")
    assert cluster.names == ("NPU", f"CPU@{allowed}", "GPU.1")
    assert cluster.devices[0].driver == "OpenVINO 2099.1, driver 1004404"
    assert cluster.missing_links()


def test_memory_is_the_cards_own_or_at_most_the_hosts(many_devices: RecordedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placeit.runtime.kinds.openvino.memory_bytes", lambda: 20e9)
    shared, card, npu = discover("GPU.0,GPU.1,NPU").devices
    assert [device.memory_bytes for device in (shared, card, npu)] == [20e9, 16e9, 20e9]
    assert {"integrated", "fp16", "fp32"} <= shared.tags
    assert {"discrete", "gpu_hw_matmul"} <= card.tags
    assert "fp32" not in npu.tags


def test_the_driver_of_a_gpu_is_opencls(many_devices: RecordedCore, monkeypatch: pytest.MonkeyPatch) -> None:
    card = DISCRETE.values["DEVICE_UUID"]
    monkeypatch.setattr("placeit.runtime.kinds.openvino.driver_versions", lambda: {card: "25.13.33276.16"})
    one, other = discover("GPU.0,GPU.1").devices
    assert (one.driver, other.driver) == ("OpenVINO 2099.1", "OpenVINO 2099.1, driver 25.13.33276.16")


def test_without_opencl_no_driver_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", missing)
    assert driver_versions.__wrapped__() == {}


def test_auto_is_everything_that_openvino_finds_and_that_computes_in_the_precision(
    many_devices: RecordedCore, caplog: pytest.LogCaptureFixture
) -> None:
    assert discover().names == ("CPU", "GPU.0", "GPU.1")
    assert "is left out. NPU computes in f16, not in f32: pass --precision f16" in caplog.text
    caplog.clear()
    assert discover("auto", precision="f16").names == ("CPU", "GPU.0", "GPU.1", "NPU")
    assert not caplog.records


STREAMS = thrown(
    "Exception from src/inference/src/dev/plugin_config.cpp:90:",
    "Invalid value: 1 for property: NUM_STREAMS",
    "Property description: Number of streams to be used for inference",
)
LOST = thrown(
    "Caught exception: Exception from src/plugins/intel_gpu/src/runtime/ocl/ocl_stream.cpp:365:",
    "[GPU] clFlush, error code: -36 CL_INVALID_COMMAND_QUEUE",
)


def failing(message: str) -> Callable[..., object]:
    """Raise as a plugin does, whatever for."""

    def fail(*_: object) -> object:
        raise RuntimeError(message)

    return fail


BROKEN = {
    "compiling": (
        replace(GPU, compiling=failing(STREAMS)),
        (
            "One op cannot be compiled: Invalid value: 1 for property: NUM_STREAMS. Property description: Number of streams to "
            "be used for inference"
        ),
    ),
    "running": (
        replace(GPU, running=failing(LOST)),
        "One op cannot be run: [GPU] clFlush, error code: -36 CL_INVALID_COMMAND_QUEUE",
    ),
    "answering": (
        replace(GPU, values={name: value for name, value in GPU.values.items() if name != "FULL_DEVICE_NAME"}),
        "OpenVINO lists the device 'GPU.0' but cannot use it: Unsupported configuration key: FULL_DEVICE_NAME",
    ),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_device_that_fails_is_listed_with_what_its_plugin_says_and_auto_leaves_it_out(
    recorded: See, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    plugin, said = BROKEN[fault]
    recorded(GPU_0=plugin, GPU_1=GPU)
    listed = {device.name: device.unusable for device in available()}
    assert listed["GPU.0"] == said
    assert (listed["CPU"], listed["GPU.1"]) == ("", "")
    assert discover().names == ("CPU", "GPU.1")
    assert f"A device that OpenVINO finds is left out. GPU.0 cannot be used: {said}" in caplog.text


def test_a_device_that_computes_wrong_results_cannot_be_used(recorded: See, monkeypatch: pytest.MonkeyPatch) -> None:
    core = recorded(GPU_0=GPU)
    compile_model = core.compile_model

    def wrong(model: Any, device: str, config: Any) -> Any:
        x = openvino.opset13.parameter([1, 4], openvino.Type.f32)
        return compile_model(openvino.Model([openvino.opset13.negative(x)], [x]), device, config)

    core.compile_model = wrong  # type: ignore[method-assign]
    (gpu,) = (device for device in available() if device.name == "GPU.0")
    assert gpu.unusable == "One op computes wrong results: the ReLU of [-1, 2, -3, 4] is [1.0, -2.0, 3.0, -4.0]"


def test_where_no_device_can_be_used_auto_is_an_error_that_says_why(recorded: See, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordedCore, "available_devices", ["GPU.0"])
    recorded(GPU_0=BROKEN["running"][0])
    with pytest.raises(DeviceError, match=r"finds no device that can be used\. GPU\.0 cannot be used: One op cannot be run"):
        discover()


def test_on_a_machine_whose_gpu_fails_auto_splits_the_cores(
    recorded: See, eight_cores: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placeit.devices.discovery.one_per_physical_core", lambda cores: cores)
    recorded(GPU=BROKEN["running"][0])
    assert discover().names == ("CPU@0-3", "CPU@4-7")


@pytest.mark.parametrize(
    ("cores", "names"),
    [
        ({0}, ("CPU",)),
        ({0, 1}, ("CPU@0", "CPU@1")),
        ({4, 5, 6}, ("CPU@4-5", "CPU@6")),
        (set(range(8)), ("CPU@0-3", "CPU@4-7")),
    ],
)
def test_auto_on_a_machine_with_only_a_cpu_splits_its_cores(
    recorded: See, monkeypatch: pytest.MonkeyPatch, cores: set[int], names: tuple[str, ...]
) -> None:
    recorded()
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores)
    monkeypatch.setattr("placeit.devices.discovery.one_per_physical_core", lambda cores: cores)
    assert discover("auto").names == names


def test_a_core_that_the_process_may_not_use_is_an_error_that_lists_those_it_may(eight_cores: None) -> None:
    with pytest.raises(DeviceError, match=r"wants cores 8-9, which this process may not use; it may use 0-7"):
        discover("CPU@7-9")


@pytest.mark.parametrize("name", ["GPU.2", "NPU.1", "FPGA"])
def test_a_device_that_is_not_there_is_an_error_that_lists_what_is(many_devices: RecordedCore, name: str) -> None:
    with pytest.raises(DeviceError) as caught:
        discover(name)
    assert str(caught.value) == f"There is no device '{name}' on this machine. OpenVINO finds: CPU, GPU.0, GPU.1, NPU."


def test_hardware_that_is_missing_is_not_taken_for_a_misspelt_name(recorded: See) -> None:
    recorded()
    with pytest.raises(DeviceError) as caught:
        discover("NPU")
    assert "did you mean" not in str(caught.value)


def test_a_driver_that_is_missing_is_named(recorded: See) -> None:
    why = 'Cannot load library "/x/libopenvino_intel_gpu_plugin.so": libOpenCL.so.1: cannot open shared object file'
    recorded(GPU=replace(GPU, values={"AVAILABLE_DEVICES": []}, unloadable=why), NPU=NPU_BARE)
    for name in ("GPU", "GPU.1"):
        with pytest.raises(DeviceError, match=r"a driver is missing: libOpenCL\.so\.1: cannot open shared object file\.$"):
            discover(name)
    with pytest.raises(DeviceError, match=r"has a plugin for such devices, which finds none: its driver may be missing"):
        discover("NPU")


def test_the_first_gpu_answers_to_both_of_its_names(many_devices: RecordedCore) -> None:
    assert discover("GPU").devices[0].full_name == discover("GPU.0").devices[0].full_name == GPU.values["FULL_DEVICE_NAME"]


def test_an_nvidia_gpu_that_is_not_there_is_an_error_that_says_why_and_lists_what_is() -> None:
    with pytest.raises(DeviceError) as caught:
        discover("cuda:9")
    assert "NVIDIA GPU" in str(caught.value)
    assert "OpenVINO finds: CPU" in str(caught.value)


def test_everything_that_can_be_named_is_available(eight_cores: None, many_devices: RecordedCore) -> None:
    names = [device.name for device in available() if device.kind == "openvino"]
    assert names == ["CPU", "GPU.0", "GPU.1", "NPU", *(f"CPU@{core}" for core in range(8))]


def test_nvidia_gpus_are_listed_if_their_library_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[bool] = []
    library = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: closed.append(True),
        nvmlSystemGetDriverVersion=lambda: b"580.1",
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda handle: "Fake H100",
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=80 * 2**30),
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    gpu = available()[-1]
    assert gpu == Device("cuda:0", "cuda", Address("cuda:0"), "Fake H100", 80.0 * 2**30, driver="NVIDIA 580.1")
    assert closed == [True]
    (part,) = discover("cuda:0@2of4").devices
    assert (part.name, part.full_name, part.memory_bytes) == ("cuda:0@2of4", "Fake H100, part 2 of 4", gpu.memory_bytes)
    assert part.address == Address("cuda:0", part=(2, 4))


def test_no_nvidia_driver_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise OSError("no driver")

    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=OSError, nvmlInit=fails))
    assert all(device.kind == "openvino" for device in available())


def test_importing_the_module_does_not_import_openvino() -> None:
    code = "import sys, placeit.devices, placeit.devices.clusterfile; sys.exit('openvino' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- the host


def _write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, float("inf")),
        ({"proc/meminfo": "MemTotal:  1000 kB\nMemFree: 5 kB\n"}, 1024e3),
        (
            {
                "proc/meminfo": "MemTotal: 1000 kB\n",
                "proc/self/cgroup": "0::/a/b\n",
                "sys/fs/cgroup/a/memory.max": "5000\n",
                "sys/fs/cgroup/a/b/memory.max": "max\n",
            },
            5000,
        ),
        (
            {
                "proc/meminfo": "MemTotal: 1000 kB\n",
                "proc/self/cgroup": "9:name=systemd:/\n4:memory:/job\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "777\n",
            },
            777,
        ),
    ],
)
def test_memory_is_the_machines_or_the_control_groups_limit(tmp_path: Path, files: dict[str, str], expected: float) -> None:
    _write(tmp_path, files)
    assert memory_bytes(tmp_path) == expected


def test_free_memory_is_what_the_machine_has_left_or_what_the_limit_leaves(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) == np.inf
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemAvailable: 400 kB\n")
    assert free_bytes(tmp_path) == 400 * 1024
    (tmp_path / "proc/self/status").write_text("Name: x\nVmRSS:\t 700 kB\n")
    assert free_bytes(tmp_path) == 300 * 1024
    assert 0 < free_bytes() < memory_bytes()


def test_of_two_threads_of_one_core_only_the_first_counts(tmp_path: Path) -> None:
    for cpu, core in enumerate([0, 1, 0, 1]):
        folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
        _write(tmp_path, {f"{folder}/physical_package_id": "0", f"{folder}/core_id": str(core)})
    assert one_per_physical_core((0, 1, 2, 3), tmp_path) == (0, 1)
    assert one_per_physical_core((2, 3), tmp_path) == (2, 3)
    assert one_per_physical_core((0, 9), tmp_path) == (9, 0), "a core of unknown topology is kept"


# --- described devices


def test_every_catalogue_entry_has_figures_and_a_source() -> None:
    assert len(catalog()) >= 15
    for name, (device, source) in catalog().items():
        assert device.name == name
        assert device.described
        assert device.flops_per_s is not None
        assert 1e10 < device.flops_per_s < 1e15
        assert device.bytes_per_s is not None
        assert 1e9 < device.bytes_per_s < 1e13
        assert device.memory_bytes >= 2**32
        assert device.power is None or 5 <= device.power.busy_w <= 1000
        assert device.full_name
        assert device.tags
        assert len(source) > 30


def test_the_roofline_is_the_slower_of_arithmetic_and_memory_plus_the_overhead() -> None:
    device = Device("d", "described", flops_per_s=1e12, bytes_per_s=1e9, op_overhead_s=1e-6)
    seconds = roofline_seconds([1e9, 0.0, 0.0], [0.0, 1e6, 0.0], device)
    np.testing.assert_allclose(seconds, [1e9 / (1e12 * ROOFLINE_EFFICIENCY) + 1e-6, 1e-3 + 1e-6, 1e-6], rtol=1e-12)


def test_a_device_without_figures_has_no_roofline() -> None:
    with pytest.raises(ClusterError, match="'CPU@0'"):
        roofline_seconds(1.0, 1.0, Device("CPU@0"))
