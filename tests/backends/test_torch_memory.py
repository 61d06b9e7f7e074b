"""The memory that a segment takes, against what is alive while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from placeit.backends.torch.model import TorchModel, load
from placeit.backends.torch.segment_memory import peak_bytes
from placeit.backends.torch.tracing import quiet
from placeit.planning.coarsen import coarsen
from tests.torch_models import Calling, ConvNet, Transformer

X = torch.arange(6.0).reshape(2, 3)


class Watch(torch.fx.Interpreter):
    """Runs a segment on real tensors and keeps account of the storages that it has made and not yet freed."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.given: set[int] = set()
        self.most = 0

    def run_node(self, n: torch.fx.Node) -> Any:
        value = super().run_node(n)
        here = self.storages([*self.env.values(), value])
        if n.op in ("placeholder", "get_attr"):
            self.given |= self.storages(value).keys()
        else:
            self.most = max(self.most, sum(size for number, size in here.items() if number not in self.given))
        return value

    def storages(self, values: Any) -> dict[int, int]:
        found = [leaf.untyped_storage() for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return {storage._cdata: storage.nbytes() for storage in found}


def transposed_and_flat(_: nn.Module, x: torch.Tensor) -> Any:
    return (x + 1).t().reshape(-1) * 2, (x * 3).topk(2).values, x[0].unsqueeze(0)


MODELS: list[tuple[nn.Module, tuple[Any, ...]]] = [
    (ConvNet(), (torch.randn(1, 3, 8, 8),)),
    (Transformer(), (torch.randint(20, (2, 6)), 0.5)),
    (nn.LSTM(4, 8, 2), (torch.randn(5, 2, 4),)),
    (nn.MultiheadAttention(8, 2), (torch.randn(5, 1, 8),) * 3),
    (Calling(transposed_and_flat), (X,)),
]


def segments(model: TorchModel) -> list[torch.fx.GraphModule]:
    """The whole model, and each group of it apart."""
    graph, grouping = model.graph, coarsen(model.graph)
    edges = list(zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True))
    cuts = [range(len(graph)), *(np.flatnonzero(grouping.group_of == g).tolist() for g in range(len(grouping.groups)))]
    return [
        model.segment(
            "torch",
            ops,
            sorted({t for (u, v), t in edges if v in ops and u not in ops}),
            sorted({t for (u, v), t in edges if u in ops and v not in ops}),
        )
        for ops in cuts
    ]


@pytest.mark.parametrize(("module", "inputs"), MODELS, ids=lambda value: type(value).__name__)
def test_the_peak_is_that_of_what_is_alive_in_a_real_run(module: nn.Module, inputs: tuple[Any, ...]) -> None:
    model = load(module, inputs)
    for segment in segments(model):
        watch = Watch(segment)
        arguments = [
            torch.zeros(node.meta["val"].shape, dtype=node.meta["val"].dtype)
            for node in watch.graph.nodes
            if node.op == "placeholder"
        ]
        with quiet(), torch.inference_mode():
            watch.run(*arguments)
        assert peak_bytes(segment) == watch.most


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        (lambda _, x: x.t(), 0),
        (lambda _, x: x + 1, 1),
        (lambda _, x: (x + 1).t().exp().log(), 2),  # two at once, however long the chain
        (lambda _, x: (x + 1, x + 2, x + 3), 3),
        (lambda _, x: (x + 1).view(-1)[1:], 1),
    ],
)
def test_views_count_nothing_and_values_die_after_their_last_use(function: Callable[..., Any], tensors: int) -> None:
    assert peak_bytes(segments(load(Calling(function), (X,)))[0]) == tensors * X.nbytes


def test_weights_are_not_counted() -> None:
    assert peak_bytes(segments(load(nn.Linear(3, 400, bias=False), (X,)))[0]) == 2 * 400 * 4
