"""What OpenVINO would do by itself on some devices: which modes there are, and over which devices in which order."""

from __future__ import annotations

from typing import Any

import pytest

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.devices.own_modes import own_modes

CPU, INTEGRATED, DISCRETE, NPU = (Device(name, address=Address(name)) for name in ("CPU", "GPU.0", "GPU.1", "NPU"))


class Plugins:
    """Answers of OpenVINO's plugins."""

    def get_property(self, target: str, name: str) -> Any:
        if name == "DEVICE_TYPE":
            return {"GPU.0": "Type.INTEGRATED", "GPU.1": "Type.DISCRETE"}[target]
        return {"SUPPORTED_PROPERTIES": "RO"} | ({"OPTIMAL_BATCH_SIZE": "RO"} if target.startswith("GPU") else {})


@pytest.fixture(autouse=True)
def _plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placeit.devices.own_modes.openvino_core", Plugins)


def test_for_one_request_auto_prefers_what_openvino_prefers_and_hetero_the_first() -> None:
    modes = own_modes([CPU, INTEGRATED, DISCRETE], [CPU, INTEGRATED, DISCRETE], steady=False)
    assert [mode.target for mode in modes] == ["AUTO:GPU.1,GPU.0,CPU", "HETERO:CPU,GPU.0,GPU.1"]
    assert not any(mode.steady for mode in modes)


def test_for_many_requests_there_are_multi_and_the_throughput_mode_of_each_device() -> None:
    modes = own_modes([INTEGRATED, CPU, NPU], [INTEGRATED, CPU, NPU], steady=True)
    assert {mode.name: mode.target for mode in modes} == {
        "MULTI:GPU.0,CPU,NPU": "MULTI:GPU.0,CPU,NPU",
        "HETERO:GPU.0,CPU,NPU": "HETERO:GPU.0,CPU,NPU",
        "BATCH:GPU.0": "BATCH:GPU.0",
        "CPU in throughput mode": "CPU",
        "NPU in throughput mode": "NPU",
    }
    assert all(mode.steady for mode in modes)


def test_on_a_cpu_requests_of_a_model_with_a_batch_size_of_one_are_collected_too() -> None:
    core = Device("CPU", address=Address("CPU"), all_cores=(0, 1))
    assert core.core_set
    modes = own_modes([core, INTEGRATED], [core, INTEGRATED], steady=True, single=True)
    assert [mode.target for mode in modes[2:]] == ["BATCH:GPU.0", "CPU", "BATCH:CPU(8)"]
    assert own_modes([core], [core], steady=False, single=True) == []


def test_hetero_is_one_device_alone_if_that_runs_every_op() -> None:
    _, hetero = own_modes([INTEGRATED, CPU], [INTEGRATED, CPU], steady=False)
    assert hetero.same == "GPU.0 can run every op, so this is GPU.0 alone"
    (hetero,) = own_modes([INTEGRATED, CPU], [CPU], steady=False)
    assert (hetero.target, hetero.same) == ("HETERO:GPU.0,CPU", None)


def test_one_device_has_no_mode_for_one_request() -> None:
    assert own_modes([INTEGRATED], [INTEGRATED], steady=False) == []
    assert own_modes([], [], steady=True) == []
