"""Properties that models are compiled with for each plugin, depending on the properties that the plugin supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from openvino import Model, Type, opset13

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.openvino import compile_model, compile_properties
from tests.recorded_plugins import DISCRETE, GPU, NPU, NPU_BARE, Plugin, RecordedCore, recorded

__all__ = ["recorded"]

See = Callable[..., RecordedCore]


EXACT = {"DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
"""In f32, activations stay in f32."""


def device(hardware: str, *cores: int) -> Device:
    return Device(hardware, address=Address(hardware, cores), all_cores=() if cores or hardware != "CPU" else (0, 1))


def relu() -> Any:
    x = opset13.parameter([1, 4], Type.f32)
    return Model([opset13.relu(x)], [x])


@pytest.mark.parametrize(
    ("where", "precision", "expected"),
    [
        (device("CPU", 0), "f32", EXACT | {"NUM_STREAMS": "0", "INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False}),
        (device("CPU", 0, 1), "bf16", {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": 2, "ENABLE_CPU_PINNING": False}),
        (device("CPU"), "f32", EXACT | {"PERFORMANCE_HINT": "LATENCY"}),
        (device("GPU.0"), "f32", {"NUM_STREAMS": "1"}),
        (device("GPU.1"), "f16", {"NUM_STREAMS": "1"}),
        (device("NPU"), "f16", {"PERFORMANCE_HINT": "LATENCY"}),
        (device("NEW"), "f32", {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"}),
    ],
    ids=lambda value: value.name if isinstance(value, Device) else "",
)
def test_each_kind_of_device_has_its_properties(recorded: See, where: Device, precision: str, expected: dict[str, Any]) -> None:
    recorded(GPU_0=GPU, GPU_1=DISCRETE, NPU=NPU, NEW=GPU)
    assert compile_properties(where, precision) == {"INFERENCE_PRECISION_HINT": precision} | expected


@pytest.mark.parametrize(
    ("name", "plugin", "precision"), [("GPU.0", GPU, "f32"), ("GPU.0", DISCRETE, "f16"), ("NPU", NPU, "f16")]
)
def test_plugins_take_what_is_set_for_them(recorded: See, name: str, plugin: Plugin, precision: str) -> None:
    core = recorded(**{name.replace(".", "_"): plugin})
    compiled = compile_model(relu(), device(name), precision)
    assert compiled(np.array([[-1, 2, -3, 4]], np.float32))[0].tolist() == [[0, 2, 0, 4]]
    assert [target for target, _ in core.compiled] == [name]


def test_a_property_that_a_plugin_lacks_is_left_out(recorded: See) -> None:
    recorded(GPU_0=replace(GPU, settable=GPU.settable - {"NUM_STREAMS"}), NPU=NPU_BARE)
    assert compile_properties(device("GPU.0"), "f32") == {"INFERENCE_PRECISION_HINT": "f32"}
    # without a property for the precision, the only one that the device has is what it computes in
    assert compile_properties(device("NPU"), "f16") == {"PERFORMANCE_HINT": "LATENCY"}


@pytest.mark.parametrize(
    ("name", "plugin", "precision", "said"),
    [
        ("NPU", NPU, "f32", "NPU computes in f16, not in f32: pass --precision f16"),
        ("NPU", NPU_BARE, "bf16", "NPU computes in f16, not in bf16: pass --precision f16"),
        ("GPU.0", GPU, "bf16", "GPU.0 computes in f32 and f16, not in bf16: pass --precision f32"),
        (
            "GPU.0",
            replace(GPU, settable=GPU.settable - {"INFERENCE_PRECISION_HINT"}),
            "f32",
            "its plugin has no property to choose f32 by: leave GPU.0 out.",
        ),
        (
            "NEW",
            Plugin({"FULL_DEVICE_NAME": "New"}, frozenset(), ()),
            "f32",
            "NEW computes in a precision that its plugin does not name, not in f32: leave NEW out.",
        ),
    ],
)
def test_a_precision_that_a_device_does_not_compute_in_is_an_error(
    recorded: See, name: str, plugin: Plugin, precision: str, said: str
) -> None:
    core = recorded(**{name.replace(".", "_"): plugin})
    with pytest.raises(DeviceError) as caught:
        compile_properties(device(name), precision)
    assert said in str(caught.value)
    assert core.compiled == []


def test_a_plugin_that_does_not_say_what_it_computes_in_says_it_when_it_compiles(recorded: See) -> None:
    told = {name: value for name, value in GPU.values.items() if name != "OPTIMIZATION_CAPABILITIES"}
    recorded(NEW=replace(GPU, values=told))
    compile_model(relu(), device("NEW"), "f32")
    with pytest.raises(DeviceError, match=r"for NEW: Wrong value bf16 for property key INFERENCE_PRECISION_HINT\. Supported"):
        compile_model(relu(), device("NEW"), "bf16")


def test_a_device_that_has_gone_is_an_error_in_the_words_of_its_plugin(recorded: See) -> None:
    recorded(GPU_0=GPU)
    with pytest.raises(
        DeviceError, match=r"^OpenVINO does not say what GPU\.1 computes in: \[GPU\] get_property: Couldn't find"
    ):
        compile_properties(device("GPU.1"), "f32")
