"""What Intel GPUs cannot do: an op that their plugin does not support, and memory that they do not have."""

from pathlib import Path

import numpy as np
import pytest
from openvino import Model, Type, opset13, opset14

import placeit
from placeit.backends.openvino.model import describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import NoRoomError
from placeit.devices import discover
from placeit.devices.discovery import tried
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import compile_model


def test_a_gpu_runs_an_op_and_has_a_name_memory_and_a_driver(gpus: list[str]) -> None:
    (gpu,) = discover(gpus[0]).devices
    assert tried(gpu).unusable == ""
    assert "Intel" in gpu.full_name
    assert 2**28 < gpu.memory_bytes < 2**40
    assert gpu.tags & {"integrated", "discrete"}
    assert ", driver " in gpu.driver


def test_a_tensor_that_is_larger_than_a_gpu_allocates_is_a_lack_of_room(gpus: list[str]) -> None:
    x = opset13.parameter([2 * 10**10], Type.f32)
    model = Model([opset13.relu(x)], [x])
    with pytest.raises(NoRoomError, match=r"Exceeded max size of memory object allocation|bad_alloc"):
        compile_model(model, Device("gpu", address=Address(gpus[0])), "f32")


def test_an_op_that_the_plugin_does_not_support_runs_on_the_cpu_and_others_may_run_there(gpus: list[str]) -> None:
    x = opset13.parameter([4, 4], Type.f32, name="x")
    product = opset13.matmul(x, opset13.constant(np.eye(4, dtype=np.float32)), False, False, name="product")
    inverse = opset14.inverse(opset13.add(product, opset13.constant(3 * np.eye(4, dtype=np.float32))), False, name="inverse")
    model = describe(Model([opset13.result(opset13.relu(inverse))], [x], "inverse"), Path("inverse"))
    found = discover([f"CPU@{allowed_cores()[0]}", gpus[0]])
    links = {pair: Link(1e9, 1e-4) for pair in found.missing_links()}
    with placeit.Session(model, Cluster(found.devices, links), cache=None) as session:
        session.profile(budget_s=5.0)
        can = np.isfinite(session.costs.core[:, 1])
        on_gpu = {name: bool(can[session.grouping.group_of[v]]) for v, name in enumerate(session.model.graph.names)}
    assert not on_gpu["inverse"]
    assert any(on_gpu.values())
