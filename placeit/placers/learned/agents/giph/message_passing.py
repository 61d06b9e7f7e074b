"""Message passing level by level (GiPH, Equation 1), compiled, with its gradient.

With PyTorch's own operators each level costs a dozen small kernels in either direction, and deep graphs have many levels of a
few nodes: for 60 ops in a chain that is 13 milliseconds, nearly all of it overhead. Here a pass is two loops.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.kernels import jit

__all__ = ["EdgeOrder", "pass_by_level"]

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
_Kernel = Callable[..., None]


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
    embedding: Tensor = _PassByLevel.apply(x, edges, node_weight, node_bias, weight, bias, order)  # type: ignore[no-untyped-call]
    return embedding


class _PassByLevel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        order: EdgeOrder = inputs[-1]
        x, _, _, node_bias, *_ = arrays = [_array(tensor) for tensor in inputs[:-1]]
        hidden = (len(x), len(node_bias))
        embedding = x.copy()
        kept = np.empty(hidden, x.dtype), np.zeros(hidden, x.dtype), np.zeros(len(x), x.dtype)
        cast("_Kernel", _forward)(embedding, *kept, *arrays, *order)
        out = torch.from_numpy(embedding)
        ctx.save_for_backward(*inputs[1:-1], out)
        ctx.order, ctx.kept = order, kept
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        arrays = [_array(tensor) for tensor in ctx.saved_tensors]
        found = _array(gradients[0]).copy(), *map(np.zeros_like, arrays[:-1])
        cast("_Kernel", _backward)(*found, *arrays, *ctx.kept, *ctx.order)
        return *map(torch.from_numpy, found), None


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


# Inner loops run along rows, so that they are vectorised without reordering any sum.


@jit
def _forward(
    embedding: Floats,
    sent: Floats,
    mean: Floats,
    count: Floats,
    x: Floats,
    edges: Floats,
    node_weight: Floats,
    node_bias: Floats,
    weight: Floats,
    bias: Floats,
    src: Ints,
    dst: Ints,
    by_level: Ints,
    node_bounds: Ints,
    bounds: Ints,
    descending: bool,
) -> None:
    """Add to embeddings ``[N, F]``; write the node part of messages ``[N, H]``; add mean messages ``[N, H]``, how many."""
    width = x.shape[1]
    hidden, levels = len(node_bias), len(bounds) - 1
    to_message, to_embedding = np.ascontiguousarray(node_weight.T), np.ascontiguousarray(weight.T)
    a = np.empty(width, x.dtype)
    for i in range(levels):
        level = levels - 1 - i if descending else i
        for k in range(bounds[i], bounds[i + 1]):
            m = by_level[k]
            v, u = src[m], dst[m]
            count[u] += 1
            for h in range(hidden):
                mean[u, h] += max(sent[v, h] + edges[m, h], 0)
        for u in range(node_bounds[level], node_bounds[level + 1]):
            if count[u] > 0:
                a[:] = bias
                for h in range(hidden):
                    mean[u, h] /= count[u]
                    for f in range(width):
                        a[f] += mean[u, h] * to_embedding[h, f]
                for f in range(width):
                    embedding[u, f] += max(a[f], 0)
            for h in range(hidden):
                sent[u, h] = node_bias[h]
            for f in range(width):
                for h in range(hidden):
                    sent[u, h] += embedding[u, f] * to_message[f, h]


@jit
def _backward(
    gradient: Floats,
    of_edges: Floats,
    of_node_weight: Floats,
    of_node_bias: Floats,
    of_weight: Floats,
    of_bias: Floats,
    edges: Floats,
    node_weight: Floats,
    node_bias: Floats,
    weight: Floats,
    bias: Floats,
    embedding: Floats,
    sent: Floats,
    mean: Floats,
    count: Floats,
    src: Ints,
    dst: Ints,
    by_level: Ints,
    node_bounds: Ints,
    bounds: Ints,
    descending: bool,
) -> None:
    """Add the gradients of all tensors that ``_forward`` reads; ``gradient``, that of the embeddings, becomes that of x."""
    nodes, width = gradient.shape
    hidden, levels = len(node_bias), len(bounds) - 1
    of_sent, of_mean = np.zeros((nodes, hidden), gradient.dtype), np.zeros((nodes, hidden), gradient.dtype)
    for i in range(levels - 1, -1, -1):
        level = levels - 1 - i if descending else i
        for u in range(node_bounds[level], node_bounds[level + 1]):
            for h in range(hidden):
                g = of_sent[u, h]
                of_node_bias[h] += g
                for f in range(width):
                    of_node_weight[h, f] += g * embedding[u, f]
                    gradient[u, f] += g * node_weight[h, f]
            if count[u] == 0:
                continue
            for f in range(width):
                a = bias[f]
                for h in range(hidden):
                    a += weight[f, h] * mean[u, h]
                if a > 0:
                    g = gradient[u, f]
                    of_bias[f] += g
                    for h in range(hidden):
                        of_weight[f, h] += g * mean[u, h]
                        of_mean[u, h] += g * weight[f, h] / count[u]
        for k in range(bounds[i], bounds[i + 1]):
            m = by_level[k]
            v, u = src[m], dst[m]
            for h in range(hidden):
                if sent[v, h] + edges[m, h] > 0:
                    of_edges[m, h] = of_mean[u, h]
                    of_sent[v, h] += of_mean[u, h]
