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

from placeit.runtime._kernel import jit

__all__ = ["Order", "pass_by_level"]

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
_Kernel = Callable[..., tuple[Floats, ...]]


class Order(NamedTuple):
    """Edges in the order in which a direction passes along them.

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
    x: Tensor,
    edges: Tensor,
    node_weight: Tensor,
    node_bias: Tensor,
    edge_weight: Tensor,
    weight: Tensor,
    bias: Tensor,
    order: Order,
) -> Tensor:
    """Return ``[N, F]``, x plus what each node makes of the mean of its messages.

    ``e[u] = x[u] + relu(weight m[u] + bias)``, where m[u] is the mean over edges (v, u) of
    ``relu(node_weight e[v] + node_bias + edge_weight edges[v, u])``; nodes without in-edges have ``e[u] = x[u]``.
    Differs from Equation 1, whose sum is a mean as in the paper's section 5, and which does not say what such nodes get.

    Args:
        x: ``[N, F]``, nodes sorted by level.
        edges: ``[M, K]``, features; no gradient is computed for them.
        node_weight: ``[H, F]``.
        node_bias: ``[H]``.
        edge_weight: ``[H, K]``.
        weight: ``[F, H]``.
        bias: ``[F]``.
        order: of the edges.
    """
    embedding: Tensor = _PassByLevel.apply(x, edges, node_weight, node_bias, edge_weight, weight, bias, order)  # type: ignore[no-untyped-call]
    return embedding


class _PassByLevel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edges: Tensor, *rest: Any) -> Tensor:
        order: Order = rest[5]
        inputs = tuple(_array(tensor) for tensor in (x, edges, *rest[:5]))
        embedding, sent, mean, count = cast("_Kernel", _forward)(*inputs, *order)
        out = torch.from_numpy(embedding)
        ctx.save_for_backward(edges, *rest[:5], out)
        ctx.order, ctx.sent, ctx.mean, ctx.count = order, sent, mean, count
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        edges, *layers, embedding = (_array(saved) for saved in ctx.saved_tensors)
        gradient = _array(gradients[0]).copy()
        found = cast("_Kernel", _backward)(gradient, edges, *layers, embedding, ctx.sent, ctx.mean, ctx.count, *ctx.order)
        of_x, *of_layers = (torch.from_numpy(array) for array in found)
        return of_x, None, *of_layers, None


def _array(tensor: Tensor) -> Floats:
    array: Floats = tensor.detach().contiguous().numpy()
    return array


@jit
def _message(z: Floats, sent: Floats, features: Floats, edge_weight: Floats) -> None:
    """Write a message before its ReLU: ``z = sent + edge_weight features``; ``edge_weight`` is transposed, ``[K, H]``."""
    for h in range(len(z)):
        z[h] = sent[h]
    for k in range(len(features)):
        f = features[k]
        for h in range(len(z)):
            z[h] += f * edge_weight[k, h]


@jit
def _forward(
    x: Floats,
    features: Floats,
    node_weight: Floats,
    node_bias: Floats,
    edge_weight: Floats,
    weight: Floats,
    bias: Floats,
    src: Ints,
    dst: Ints,
    edges: Ints,
    node_bounds: Ints,
    bounds: Ints,
    descending: bool,
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return embeddings ``[N, F]``, the node part of messages ``[N, H]``, mean messages ``[N, H]``, how many there were."""
    nodes, width = x.shape
    hidden = len(node_bias)
    across = np.ascontiguousarray(edge_weight.T)
    embedding = x.copy()
    sent = np.empty((nodes, hidden), x.dtype)
    mean = np.zeros((nodes, hidden), x.dtype)
    count = np.zeros(nodes, x.dtype)
    z = np.empty(hidden, x.dtype)
    levels = len(bounds) - 1
    for i in range(levels):
        level = levels - 1 - i if descending else i
        for m in edges[bounds[i] : bounds[i + 1]]:
            _message(z, sent[src[m]], features[m], across)
            u = dst[m]
            count[u] += 1
            for h in range(hidden):
                mean[u, h] += max(z[h], 0)
        for u in range(node_bounds[level], node_bounds[level + 1]):
            if count[u] > 0:
                for h in range(hidden):
                    mean[u, h] /= count[u]
                for f in range(width):
                    a = bias[f]
                    for h in range(hidden):
                        a += weight[f, h] * mean[u, h]
                    embedding[u, f] += max(a, 0)
            for h in range(hidden):
                a = node_bias[h]
                for f in range(width):
                    a += node_weight[h, f] * embedding[u, f]
                sent[u, h] = a
    return embedding, sent, mean, count


@jit
def _backward(
    gradient: Floats,
    features: Floats,
    node_weight: Floats,
    node_bias: Floats,
    edge_weight: Floats,
    weight: Floats,
    bias: Floats,
    embedding: Floats,
    sent: Floats,
    mean: Floats,
    count: Floats,
    src: Ints,
    dst: Ints,
    edges: Ints,
    node_bounds: Ints,
    bounds: Ints,
    descending: bool,
) -> tuple[Floats, Floats, Floats, Floats, Floats, Floats]:
    """Return gradients of x and the five parameters; ``gradient``, that of the embeddings, is used up."""
    nodes, width = gradient.shape
    hidden, kinds = edge_weight.shape
    across = np.ascontiguousarray(edge_weight.T)
    of_node_weight, of_node_bias = np.zeros_like(node_weight), np.zeros_like(node_bias)
    of_across = np.zeros((kinds, hidden), gradient.dtype)
    of_weight, of_bias = np.zeros_like(weight), np.zeros_like(bias)
    of_sent = np.zeros((nodes, hidden), gradient.dtype)
    of_message = np.zeros((nodes, hidden), gradient.dtype)
    z = np.empty(hidden, gradient.dtype)
    levels = len(bounds) - 1
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
                        of_message[u, h] += g * weight[f, h] / count[u]
        for m in edges[bounds[i] : bounds[i + 1]]:
            v, u = src[m], dst[m]
            _message(z, sent[v], features[m], across)
            for h in range(hidden):
                z[h] = of_message[u, h] if z[h] > 0 else 0
                of_sent[v, h] += z[h]
            for k in range(kinds):
                f = features[m, k]
                for h in range(hidden):
                    of_across[k, h] += f * z[h]
    of_edge_weight = np.ascontiguousarray(of_across.T)
    return gradient, of_node_weight, of_node_bias, of_edge_weight, of_weight, of_bias
