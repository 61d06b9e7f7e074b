"""Dividing the time of a model among its groups."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import Grouping, coarsen
from placeit.runtime.devices.kernels import Kernel, group_shares
from placeit.runtime.devices.kinds import device_kind
from tests.small_models import convolution, inception_like

ops = ov.opset13
CORE = Device("a", address=Address("CPU", allowed_cores()[:1]))


def kernels(model: OpenVinoModel, device: Device = CORE, passes: int = 10) -> Sequence[Kernel]:
    return device_kind(device).kernels(model, Grouping.singletons(model.graph), device, "f32", passes)


@pytest.mark.parametrize("group", [Grouping.singletons, coarsen], ids=["ops", "groups"])
def test_shares_are_not_negative_and_sum_to_one(group) -> None:
    model = inception_like()
    grouping = group(model.graph)
    shares = group_shares(kernels(model, passes=3), grouping)
    assert shares.shape == (len(grouping.groups),)
    assert (shares >= 0).all()
    assert shares.sum() == pytest.approx(1.0)


def _one_heavy_branch() -> OpenVinoModel:
    rng = np.random.default_rng(0)
    image = ops.parameter([1, 16, 48, 48], ov.Type.f32, name="image")
    heavy = convolution(convolution(image.output(0), 64, 5, rng), 64, 5, rng)
    light = convolution(image.output(0), 1, 1, rng)
    return describe(ov.Model([ops.result(heavy), ops.result(light)], [image], "branches"), Path("branches"))


def test_a_heavy_branch_gets_most() -> None:
    model = _one_heavy_branch()
    grouping = coarsen(model.graph)
    heaviest = int(grouping.groups.flops.argmax())
    # it has a thousand times the operations of the rest
    assert grouping.groups.flops[heaviest] > 0.999 * grouping.groups.flops.sum()
    assert group_shares(kernels(model), grouping)[heaviest] > 0.5


def test_a_kernel_that_stands_for_ops_of_several_groups_is_shared_by_them() -> None:
    model = _one_heavy_branch()
    shares = group_shares(kernels(model), Grouping.singletons(model.graph))
    share = dict(zip(model.graph.names, shares, strict=True))
    heavy = [model.graph.names[v] for v in np.argsort(model.graph.flops)[-2:]]
    # each ReLU is part of its convolution's kernel, which takes no additional time for it
    for conv in heavy:
        assert share[conv] > 0
        reader = next(int(v) for u, v in model.graph.edges if model.graph.names[u] == conv)
        assert share[model.graph.names[reader]] == pytest.approx(share[conv])


def test_a_model_that_computes_nothing_is_divided_evenly() -> None:
    inputs = [ops.parameter([2], ov.Type.f32, name=name) for name in ("x", "y")]
    model = describe(ov.Model([ops.result(value) for value in inputs], inputs, "nothing"), Path("nothing"))
    grouping = coarsen(model.graph)
    shares = group_shares(kernels(model, passes=1), grouping)
    assert shares.sum() == pytest.approx(1.0)


def test_inference_that_fails_is_a_device_error_and_no_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("Check failed\nout of memory")

    monkeypatch.setattr("placeit.runtime.devices.counters._run_after", fails)
    with pytest.raises(DeviceError, match=r"run on a: .*out of memory"):
        kernels(inception_like())


def test_a_device_that_openvino_does_not_have_is_a_device_error() -> None:
    model = inception_like()
    with pytest.raises(DeviceError, match=r"what mine computes in: Device with .NOSUCH. name is not registered"):
        kernels(model, Device("mine", address=Address("NOSUCH")))
