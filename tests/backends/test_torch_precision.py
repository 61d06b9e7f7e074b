"""PyTorch programs in shorter precisions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from placeit.backends.torch.model import load
from placeit.backends.torch.precision import in_precision
from placeit.core.errors import DeviceError
from placeit.measuring.check import OutputDifference
from tests.torch_models import ConvNet, Transformer


@pytest.mark.parametrize(("precision", "tolerance"), [("f16", 0.02), ("bf16", 0.1)])
@pytest.mark.parametrize("module", [ConvNet, Transformer])
def test_products_are_computed_in_a_shorter_precision(module: type[torch.nn.Module], precision: str, tolerance: float) -> None:
    torch.manual_seed(0)
    example = (torch.randn(1, 3, 8, 8),) if module is ConvNet else (torch.randint(20, (2, 6)), 0.5)
    model = load(module(), example)
    inputs = model.random_inputs()
    exact, found = model.reference(None, "f32")(inputs), model.reference(None, precision)(inputs)
    assert 0 < OutputDifference.between(found, exact).max_rel < tolerance
    assert {name: value.dtype for name, value in found.items()} == {name: value.dtype for name, value in exact.items()}
    assert all(np.array_equal(found[name], exact[name]) for name in exact if exact[name].dtype.kind == "i")


def test_a_segment_keeps_weights_of_products_in_the_short_type_alone() -> None:
    model = load(ConvNet(), (torch.randn(1, 3, 8, 8),))
    segment = model.segment("torch", range(len(model.graph)), [], [])
    short = in_precision(segment, "bf16")
    types = {name: tensor.dtype for name, tensor in short.named_buffers()}
    assert types["p_stem_weight_short"] is torch.bfloat16
    assert types["p_norm_weight"] is torch.float32
    assert "p_stem_weight" not in types
    assert segment.get_buffer("p_stem_weight").dtype is torch.float32
    assert in_precision(segment, "f32") is segment


def test_a_module_that_is_no_program_has_no_other_precision() -> None:
    with pytest.raises(DeviceError, match=r"A ReLU computes in its own types, not in f16: use the precision f32"):
        in_precision(torch.nn.ReLU(), "f16")
