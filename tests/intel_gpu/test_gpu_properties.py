"""Models compile for Intel GPUs with the properties that placeit sets."""

import numpy as np
import pytest
from openvino import Model, Type, opset13

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.devices.openvino import compile_model


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_model_compiles_for_a_gpu_and_computes_there(gpus: list[str], precision: str) -> None:
    x = opset13.parameter([1, 4], Type.f32)
    compiled = compile_model(Model([opset13.relu(x)], [x]), Device("gpu", address=Address(gpus[0])), precision)
    assert compiled(np.array([[-1, 2, -3, 4]], np.float32))[0].tolist() == [[0, 2, 0, 4]]
