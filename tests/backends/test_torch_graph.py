"""PyTorch modules and programs as task graphs: ops, tensors, names, operations and constants."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from placeit.backends.torch.model import TorchModel, load
from tests.torch_models import ConvNet, X, calling, conv_net, transformer


def of_kind(model: TorchModel, kind: str) -> list[str]:
    return [name for name, have in zip(model.graph.names, model.graph.kinds, strict=True) if have == kind]


def test_ops_are_named_after_the_modules_that_call_them() -> None:
    graph = conv_net()[1].graph
    assert {"stem/conv2d", "head/linear"} <= set(graph.names)
    assert graph.kinds[graph.index["stem/conv2d"]] == "conv2d"


def test_inputs_and_outputs_are_parameters_and_results() -> None:
    model = conv_net()[1]
    assert [(spec.name, spec.op, spec.shape, spec.dtype) for spec in model.inputs] == [
        ("image", "image", (1, 3, 8, 8), "float32")
    ]
    assert [(spec.name, spec.shape) for spec in model.outputs] == [("scores", (1, 5)), ("features", (1, 24, 8, 8))]
    assert of_kind(model, "Parameter") == ["image"]
    assert of_kind(model, "Result") == [spec.op for spec in model.outputs]


def test_outputs_are_named_by_their_place_in_what_the_module_returns() -> None:
    assert [spec.name for spec in transformer()[1].outputs] == ["output.0", "output.1.0", "output.1.1"]
    assert [spec.name for spec in calling(lambda _, x: x + 1).outputs] == ["output"]
    dotted = calling(lambda _, x: {"a.b": x + 1, "a": {"b": x + 2}, "none": None, "five": 5})
    assert [spec.name for spec in dotted.outputs] == ["a.b", "a.b_"]


class Answer(dict[str, torch.Tensor]):
    """A result as transformers and diffusers have them: a registered type with names, and no keyed flattening."""


class Pair:
    """A registered type without names."""

    def __init__(self, *values: torch.Tensor) -> None:
        self.values = values


class Answering(nn.Module):
    """Results in registered types, one in the other."""

    def forward(self, x: torch.Tensor) -> Answer:
        return Answer(hidden=x + 1, pair=Pair(x, x * 2))  # type: ignore[arg-type]


@contextlib.contextmanager
def registered() -> Iterator[None]:
    pytree.register_pytree_node(
        Answer,
        lambda answer: ([*answer.values()], [*answer]),
        lambda values, names: Answer(zip(names, values, strict=False)),
        serialized_type_name="tests.Answer",
    )
    pytree.register_pytree_node(
        Pair, lambda pair: ([*pair.values], None), lambda values, _: Pair(*values), serialized_type_name="tests.Pair"
    )
    try:
        yield
    finally:
        for kind in (Answer, Pair):
            pytree._deregister_pytree_node(kind)


def test_results_of_registered_types_are_named_by_their_keys_and_places(tmp_path: Path) -> None:
    path, names = tmp_path / "answer.pt2", ["hidden", "pair.0", "pair.1"]
    with registered():
        model = load(Answering(), (X,))
        assert [spec.name for spec in model.outputs] == names
        made = model.reference(None, "f32")({"x": X.numpy()})
        assert [made[name].tolist() for name in names] == [one.tolist() for one in (X + 1, X, X * 2)]
        torch.export.save(model.program, path)
        assert [spec.name for spec in load(path).outputs] == names
        assert torch.export.load(path).call_spec.out_spec.type is Answer  # as before
    assert [spec.name for spec in load(path).outputs] == names  # where nothing knows the types
    assert [spec.name for spec in load(path, trust=True).outputs] == names


def test_flops_and_weights_are_those_of_the_layers() -> None:
    graph = conv_net()[1].graph
    stem, head = graph.index["stem/conv2d"], graph.index["head/linear"]
    assert graph.flops[stem] == 2 * 8 * 8 * 8 * 3 * 9
    assert graph.param_bytes[stem] == 4 * (8 * 3 * 9 + 8)
    assert graph.flops[head] == 2 * 5 * 24
    assert graph.param_bytes[head] == 4 * (5 * 24 + 5)
    (right,) = (graph.index[name] for name in graph.names if name.startswith("right/"))
    assert graph.flops[right] == 2 * 8 * 8 * 8 * 4 * 9  # in two groups


@pytest.mark.parametrize(
    ("function", "flops"),
    [
        (lambda _, x: x.t() @ x, 2 * 3 * 3 * 2),
        (lambda _, x: torch.bmm(x[None], x.t()[None]), 2 * 2 * 2 * 3),
        (lambda _, x: x.reshape(3, 2).flip(0), 0),
        (lambda _, x: x.exp(), 6),
        (lambda _, x: x.softmax(-1), 30),
        (lambda _, x: x.sum(0), 6),
        (lambda _, x: nn.functional.max_pool1d(x[None], 3, 1, 1), 18),
        (lambda _, x: nn.functional.conv_transpose1d(x[None], torch.ones(2, 4, 3)), 2 * 6 * 4 * 3),
        (lambda _, x: nn.functional.scaled_dot_product_attention(x, x, x), 2 * 4 * 3 + 7 * 4 + 2 * 6 * 2),
    ],
)
def test_flops_of_an_op(function: Callable[..., Any], flops: float) -> None:
    assert calling(function).graph.flops.sum() == flops


def test_a_recurrent_layer_applies_all_its_weights_at_every_step() -> None:
    model = load(nn.LSTM(4, 8, num_layers=2), (torch.randn(5, 2, 4),))
    weights = 4 * 8 * (4 + 8 + 8 + 8) + 4 * 4 * 8
    assert model.graph.flops[model.graph.kinds.index("lstm")] == 2 * 10 * weights


def test_several_outputs_of_an_op_are_several_tensors_of_it() -> None:
    model = transformer()[1]
    graph = model.graph
    (topk,) = of_kind(model, "topk")
    tensors = np.flatnonzero(graph.tensor_op == graph.index[topk])
    assert graph.tensor_port[tensors].tolist() == [0, 1]
    assert [graph.tensor_dtypes[t] for t in tensors] == ["float32", "int64"]
    assert not any("getitem" in name for name in graph.names)


def test_what_depends_on_no_input_is_computed_once_and_belongs_to_its_reader() -> None:
    model = transformer()[1]
    assert not {"arange", "full", "triu", "t"} & set(model.graph.kinds)
    masked = model.graph.index[of_kind(model, "scaled_dot_product_attention")[0]]
    assert model.graph.param_bytes[masked] > 0


def test_random_ops_are_not_computed_once() -> None:
    assert "rand" in calling(lambda _, x: x + torch.rand(3)).graph.kinds


def test_dropout_and_in_place_ops_leave_no_trace() -> None:
    kinds = conv_net()[1].graph.kinds
    assert not {"clone", "dropout", "relu_", "sigmoid_"} & set(kinds)


def test_the_mode_of_the_module_is_left_alone() -> None:
    module = ConvNet()
    module.norm.eval()
    load(module, (torch.randn(1, 3, 8, 8),))
    assert [part.training for part in (module, module.stem, module.norm, module.drop)] == [True, True, False, True]
