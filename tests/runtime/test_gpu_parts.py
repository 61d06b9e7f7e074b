"""Parts of a GPU: how the driver is asked for them, and what is said where it has none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.runtime.accelerators import gpu_parts
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.torch_library import open_torch
from placeit.runtime.devices import ort
from tests.eager_streams import devices
from tests.runtime.test_streams_torch import Recordable, expected, torch_work


class Driver(ModuleType):
    """What of ``cuda.bindings.driver`` divides a GPU: an H100, whose SMs come in groups of multiples of 8."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUdevResourceType = SimpleNamespace(CU_DEV_RESOURCE_TYPE_SM=1)
    CUgreenCtxCreate_flags = SimpleNamespace(CU_GREEN_CTX_DEFAULT_STREAM=1)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)

    def __init__(self) -> None:
        super().__init__("cuda.bindings.driver")
        self.version, self.divisions, self.contexts = 13000, 0, 0
        self.streams: list[tuple[str, int]] = []

    def cuDriverGetVersion(self) -> Any:  # noqa: N802
        return 0, self.version

    def cuDeviceGet(self, index: int) -> Any:  # noqa: N802
        return 0, f"device {index}"

    def cuDeviceGetDevResource(self, device: str, kind: int) -> Any:  # noqa: N802
        return 0, SimpleNamespace(sm=SimpleNamespace(smCount=132), device=device)

    def cuDevSmResourceSplitByCount(self, groups: int, whole: Any, flags: int, least: int) -> Any:  # noqa: N802
        self.divisions += 1
        size = -(-least // 8) * 8
        count = min(groups, 132 // size)
        made = [f"SMs {size * n} to {size * (n + 1) - 1} of {whole.device}" for n in range(count)]
        return 0, made + [None] * (groups - count), count, "the rest"

    def cuDevResourceGenerateDesc(self, resources: list[str], count: int) -> Any:  # noqa: N802
        assert len(resources) == count == 1
        return 0, resources[0]

    def cuGreenCtxCreate(self, description: str, device: str, flag: int) -> Any:  # noqa: N802
        assert flag == 1
        self.contexts += 1
        return 0, description

    def cuGreenCtxStreamCreate(self, context: str, flag: int, priority: int) -> Any:  # noqa: N802
        self.streams.append((context, priority))
        return 0, 1000 + len(self.streams)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made, bindings = Driver(), ModuleType("cuda.bindings")
    for name, module in (("cuda", ModuleType("cuda")), ("cuda.bindings", bindings), ("cuda.bindings.driver", made)):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(torch, "empty", lambda *_, device: None)
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda address, device: (address, device))
    monkeypatch.setattr(gpu_parts, "_created", {})
    return made


def test_parts_are_disjoint_equal_and_as_large_as_the_driver_makes_them(driver: Driver) -> None:
    gpu_parts.check_parts("cuda:0@1of2", 0, 2)
    assert gpu_parts.part_stream(0, (1, 2), 0) == (1001, torch.device("cuda", 0))
    assert gpu_parts.part_stream(0, (2, 2), -1) == (1002, torch.device("cuda", 0))
    assert driver.streams == [("SMs 0 to 63 of device 0", 0), ("SMs 64 to 127 of device 0", -1)]


def test_a_gpu_is_divided_once_so_that_its_parts_stay_where_they_are(driver: Driver) -> None:
    for _ in range(2):
        gpu_parts.check_parts("cuda:1@1of4", 1, 4)
        gpu_parts.part_stream(1, (3, 4), 0)
    assert driver.contexts == 4
    assert driver.streams == [("SMs 64 to 95 of device 1", 0)] * 2


def test_what_cannot_be_divided_says_why(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"cuda:0@1of17: the GPU has 132 SMs, which the driver does not divide into 17 parts"):
        gpu_parts.check_parts("cuda:0@1of17", 0, 17)
    monkeypatch.setattr(driver, "cuGreenCtxCreate", lambda *_: (SimpleNamespace(name="CUDA_ERROR_NOT_SUPPORTED"),))
    with pytest.raises(DeviceError, match=r"cannot be divided \(the driver says CUDA_ERROR_NOT_SUPPORTED\)"):
        gpu_parts.check_parts("cuda:0@1of2", 0, 2)
    driver.version = 12040
    with pytest.raises(DeviceError, match=r"driver is for CUDA 12\.4, and parts of a GPU need CUDA 12\.8: install a driver"):
        gpu_parts.check_parts("cuda:0@1of2", 0, 2)


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    with pytest.raises(
        DeviceError, match=r"cuda:0@1of2: parts of a GPU need the package cuda-bindings .*pip install cuda-bind"
    ):
        gpu_parts.check_parts("cuda:0@1of2", 0, 2)


def test_onnx_runtime_has_whole_gpus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device("cuda:0@1of2", "ort", Address("cuda:0", part=(1, 2)))
    with pytest.raises(DeviceError, match=r"cuda:0@1of2: ONNX Runtime uses a whole GPU.*name 'cuda:0'"):
        ort.check_device(device, "f32")


def parts() -> list[Device]:
    return [Device(f"cuda:0@{n}of2", "torch", Address("cuda:0", part=(n, 2))) for n in (1, 2)]


def test_parts_have_one_memory(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "placeit.runtime.accelerators.torch_library._module", lambda kind: SimpleNamespace(device_count=lambda: 2)
    )
    accelerator = open_torch([*devices("cuda:1"), *parts()])
    assert [accelerator.memory(device) for device in range(3)] == [0, 1, 1]
    assert accelerator.place(1) == accelerator.place(2) == torch.device("cuda", 0)
    accelerator.close()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU and a PyTorch built with CUDA")
def test_two_parts_of_a_gpu_compute_what_numpy_does_without_a_copy_between_them() -> None:
    pytest.importorskip("cuda.bindings.driver", reason="the package cuda-bindings is not installed")
    accelerator = open_torch(parts())
    case, work = torch_work([0, 1, 0, 1], Recordable)
    with StreamExecutor(work, accelerator, in_flight=2) as executor:
        for number in range(20):
            got = executor.run(case.inputs(number))["out_op5"]
            np.testing.assert_allclose(got, expected(case.inputs(number)["in_op0"], 4), rtol=1e-6)
        executor.times(5)
        assert all("host" in span.where for span in executor.spans() if span.kind == "copy")
    accelerator.close()
