"""Message passing level by level (GiPH, Equation 1), compiled, with its gradient.

With PyTorch's own operators each level costs a dozen small kernels in either direction, and deep graphs have many levels of a
few nodes: for 60 ops in a chain that is 13 milliseconds, nearly all of it overhead. Here a pass is two loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit import _core

__all__ = ["EdgeOrder", "pass_by_level"]

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

_Kernel = Callable[..., None]
_FORWARD: dict[str, _Kernel] = {"float32": _core.pass_forward_float32, "float64": _core.pass_forward_float64}
_BACKWARD: dict[str, _Kernel] = {"float32": _core.pass_backward_float32, "float64": _core.pass_backward_float64}


class EdgeOrder(NamedTuple):
    """Edges in the order of message passing in one direction.

    Attributes:
        src: ``int64[M]``, from which node a message comes.
        dst: ``int64[M]``, to which node it goes.
        edges: ``int64[M]``, edges by the level that they go to, first to last.
        node_bounds: ``int64[L + 1]``, nodes of each level, in ascending order whatever the direction.
        bounds: ``int64[L + 1]``, where each level's edges begin in ``edges``.
        descending: whether messages go to lower levels; then the first of ``bounds`` are those of the highest level.
    """

    src: Ints
    dst: Ints
    edges: Ints
    node_bounds: Ints
    bounds: Ints
    descending: bool


class Layers(NamedTuple):
    """The layers of messages and of what becomes of their mean, or their gradients.

    Attributes:
        node_weight: ``[H, F]``.
        node_bias: ``[H]``.
        weight: ``[F, H]``.
        bias: ``[F]``.
    """

    node_weight: Floats
    node_bias: Floats
    weight: Floats
    bias: Floats


class Messages(NamedTuple):
    """What a pass leaves for its gradient.

    Attributes:
        sent: ``[N, H]``, the node's part of the messages that it sends.
        mean: ``[N, H]``, of the messages that a node received.
        received: ``[N]``, how many they were.
    """

    sent: Floats
    mean: Floats
    received: Floats


def pass_by_level(
    x: Tensor, edges: Tensor, node_weight: Tensor, node_bias: Tensor, weight: Tensor, bias: Tensor, order: EdgeOrder
) -> Tensor:
    """Return ``[N, F]``: x plus each node's transform of the mean of its messages.

    ``e[u] = x[u] + relu(weight m[u] + bias)``, where m[u] is the mean over edges (v, u) of
    ``relu(node_weight e[v] + node_bias + edges[v, u])``; nodes without in-edges have ``e[u] = x[u]``.
    Differs from Equation 1, whose sum is a mean as in the paper's section 5, and which does not say what such nodes get.

    Args:
        x: ``[N, F]``, nodes sorted by level.
        edges: ``[M, H]``, what the features of each edge add to its message.
        node_weight: ``[H, F]``.
        node_bias: ``[H]``.
        weight: ``[F, H]``.
        bias: ``[F]``.
        order: of the edges.
    """
    if not torch.is_grad_enabled():
        layers = Layers(*map(_array, (node_weight, node_bias, weight, bias)))
        return torch.from_numpy(_embed(_array(x), _array(edges), layers, order)[0])
    embedding: Tensor = _PassByLevel.apply(x, edges, node_weight, node_bias, weight, bias, order)  # type: ignore[no-untyped-call]
    return embedding


class _PassByLevel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, edges, *layers = (_array(tensor) for tensor in inputs[:-1])
        embedding, ctx.messages = _embed(x, edges, Layers(*layers), inputs[-1])
        out = torch.from_numpy(embedding)
        ctx.save_for_backward(*inputs[1:-1], out)
        ctx.order = inputs[-1]
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        edges, *layers, embedding = (_array(tensor) for tensor in ctx.saved_tensors)
        gradient, of_edges, of_layers = _array(gradients[0]).copy(), np.zeros_like(edges), Layers(*map(np.zeros_like, layers))
        backward = _BACKWARD[embedding.dtype.name]
        backward(ctx.order, Layers(*layers), edges, embedding, ctx.messages, gradient, of_edges, of_layers)
        return *map(torch.from_numpy, (gradient, of_edges, *of_layers)), None


def _embed(x: Floats, edges: Floats, layers: Layers, order: EdgeOrder) -> tuple[Floats, Messages]:
    nodes, hidden = len(x), len(layers.node_bias)
    embedding = x.copy()
    messages = Messages(np.empty((nodes, hidden), x.dtype), np.zeros((nodes, hidden), x.dtype), np.zeros(nodes, x.dtype))
    _FORWARD[x.dtype.name](order, layers, edges, embedding, messages)
    return embedding, messages


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array
