"""Plans of one segment for each op of a small model, on a core and on Intel GPUs."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.devices.base import Transport
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.runtime.executor import Executor
from placeit.runtime.runtime import Runtime
from tests.emulated_gpu.build import MISSING

ops = ov.opset13

CPU, FIRST, SECOND = range(3)
SHAPE = (8, 32)
BYTES = 4 * 8 * 32


def mixed_model() -> OpenVinoModel:
    """Two branches that read what comes before them; one reads an input of the model, too, and the other reads the first."""
    x, z = (ops.parameter(SHAPE, ov.Type.f32, name=name) for name in ("x", "z"))
    stem = ops.tanh(x, name="stem")
    one = ops.add(stem, z, name="one")
    two = ops.sigmoid(stem, name="two")
    three = ops.multiply(one, two, name="three")
    return describe(ov.Model([ops.result(ops.relu(three, name="head"), name="y")], [x, z], "branches"), Path("branches"))


def inputs() -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(SHAPE).astype(np.float32) for name in ("x", "z")}


def expected(given: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    stem = np.tanh(given["x"])
    return np.maximum((stem + given["z"]) / (1 + np.exp(-stem)), 0)


class Devices:
    """A runtime on one core and on GPUs, and plans of one segment for each op, or for those that share state."""

    def __init__(
        self,
        gpus: list[str],
        open_gpu: Callable[[Device], OpenVinoDevice] = OpenVinoDevice,
        *,
        model: OpenVinoModel | None = None,
        links: Mapping[tuple[int, int], Transport] | None = None,
    ) -> None:
        self.model, self.gpus = model or mixed_model(), gpus
        core = Device("cpu", address=Address("CPU", allowed_cores()[:1]))
        gpu = [Device(name, address=Address(name)) for name in gpus]
        self.cluster = Cluster((core, *gpu))
        self.grouping = coarsen(self.model.graph, keep_together=self.model.together, co_locate=False)
        devices = [OpenVinoDevice(core), *map(open_gpu, gpu)]
        self.runtime = Runtime(self.model, self.grouping, self.cluster, devices=devices, transports=links)

    def plan(self, **where: int) -> Plan:
        """A plan with some ops on GPUs and the others on the core."""
        members = map(self.grouping.members, range(len(self.grouping.groups)))
        placement = [next((where[name] for name in names if name in where), CPU) for names in members]
        return Segmenter(self.grouping, Costs.zero(len(placement), self.cluster)).plan(placement, merge=False)

    def executor(self, *, in_flight: int = 1, **where: int) -> Executor:
        return cast("Executor", self.runtime.executor(self.plan(**where), in_flight=in_flight))

    def memory(self, gpu: int, kind: str) -> int:
        """Bytes that a GPU's plugin has allocated, on the device (``usm_device``) or in the host's memory (``usm_host``)."""
        gc.collect()
        return int(openvino_core().get_property(self.gpus[gpu - 1], "GPU_MEMORY_STATISTICS").get(kind, 0))


Opened = Callable[..., Devices]


def needs_two(gpus: list[str]) -> None:
    if len(gpus) < 2:
        pytest.skip("needs two Intel GPUs, real or emulated ones: make intel-gpu")


def intel_gpus() -> list[str]:
    """Names of the Intel GPUs that OpenVINO finds; without one, skip the test, or fail it in CI."""
    found = [name for name in openvino_core().available_devices if name.split(".")[0] == "GPU"]
    if not found:
        reason = "needs an Intel GPU with its driver, or the emulated one: make intel-gpu"
        if missing := os.environ.get(MISSING):
            reason = f"{reason}. {missing}"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found
