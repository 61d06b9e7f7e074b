"""Try devices that OpenVINO lists, since a device that reports its properties may still fail to run anything."""

from __future__ import annotations

import numpy as np

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import compile_properties, explaining, openvino_core, target_name

__all__ = ["why_unusable"]


def why_unusable(device: Device) -> str:
    """Compile one op for a device that OpenVINO drives and run it; return why that fails, empty if it works.

    No cache of compiled models is used, since an earlier compilation does not show the present state of the device.
    """
    precision = "f32" if "fp32" in device.tags or "fp16" not in device.tags else "f16"
    openvino = import_openvino()
    x = openvino.opset13.parameter([1, 4], openvino.Type.f32)
    model = openvino.Model([openvino.opset13.relu(x)], [x], "trial")
    try:
        properties = compile_properties(device, precision)
        with explaining("One op cannot be compiled"):
            compiled = openvino_core().compile_model(model, target_name(device), properties)
        with explaining("One op cannot be run"):
            found = np.array(compiled.create_infer_request().infer([np.array([[-1, 2, -3, 4]], np.float32)])[0])
    except DeviceError as error:
        return str(error)
    if not np.array_equal(found, [[0, 2, 0, 4]]):
        return f"One op computes wrong results: the ReLU of [-1, 2, -3, 4] is {found.ravel().tolist()}"
    return ""
