"""Entries of OpenVINO's devices that are neither core sets nor GPUs: native ones, if the C library knows the device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.runtime.devices.openvino_c import NativeModel, NativeOpenVino, native_openvino
from tests.gpu_plans import Devices, expected, inputs
from tests.recorded_plugins import NPU, RecordedCore, recorded

__all__ = ["recorded"]


@pytest.mark.parametrize("known", [True, False])
def test_an_npu_runs_without_python_if_the_c_library_knows_it_and_through_the_python_binding_otherwise(
    recorded: Callable[..., RecordedCore], monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    """The CPU stands in for the NPU, in the C library too if that is to know it."""
    monkeypatch.setenv("PLACEIT_MODEL_CACHE", "0")
    assert native_openvino() is not None
    core, compile_model, asked = recorded(NPU=NPU), NativeOpenVino.compile, list[Mapping[str, Any]]()

    def compiling(native: NativeOpenVino, model: Any, target: str, properties: Mapping[str, Any], *rest: str) -> NativeModel:
        if target == "NPU" and known:
            asked.append(properties)
            return compile_model(native, model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}, *rest)
        return compile_model(native, model, target, properties, *rest)

    monkeypatch.setattr(NativeOpenVino, "compile", compiling)
    devices = Devices(["NPU"], functools.partial(OpenVinoDevice, precision="f16"))
    try:
        with devices.executor(one=1, three=1) as executor:
            assert executor.native == known
            np.testing.assert_allclose(executor.run(inputs(), timeout=60)["y"], expected(inputs()), atol=1e-5)
    finally:
        devices.runtime.close()
    compiled = asked if known else [properties for device, properties in core.compiled if device == "NPU"]
    assert compiled == 2 * [{"INFERENCE_PRECISION_HINT": "f16", "PERFORMANCE_HINT": "LATENCY"}]
