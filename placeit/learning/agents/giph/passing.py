"""Message passing level by level (GiPH, Equation 1) in compiled code, on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.learning.agents.giph.gpnet import GpNets

__all__ = ["EdgeOrder", "Floats", "Layers", "Messages", "embed", "orders"]

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]

_FORWARD: dict[str, Callable[..., None]] = {"float32": _core.pass_forward_float32, "float64": _core.pass_forward_float64}


class EdgeOrder(NamedTuple):
    """Edges in the order of message passing in one direction.

    Attributes:
        src: ``int64[M]``, sender of each message.
        dst: ``int64[M]``, receiver of each message.
        edges: ``int64[M]``, edges in the order of their receivers' levels.
        node_bounds: ``int64[L + 1]``, bounds of each level's nodes, by ascending level in both directions.
        bounds: ``int64[L + 1]``, bounds of each level's edges in ``edges``.
        descending: whether messages go to lower levels; then ``bounds`` starts with the edges to the highest level.
    """

    src: Ints
    dst: Ints
    edges: Ints
    node_bounds: Ints
    bounds: Ints
    descending: bool


class Layers(NamedTuple):
    """Weights and biases of the two layers of message passing, or their gradients.

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
    """Values of a forward pass that its gradient needs.

    Attributes:
        sent: ``[N, H]``, term of the sending node in the messages that it sends.
        mean: ``[N, H]``, mean of the messages that a node received.
        received: ``[N]``, number of messages that a node received.
    """

    sent: Floats
    mean: Floats
    received: Floats


def orders(nets: GpNets) -> tuple[EdgeOrder, EdgeOrder]:
    """Return copies of the current edges in the order of messages along them, and against them."""
    src, dst = nets.src.copy(), nets.dst.copy()
    return (
        EdgeOrder(src, dst, nets.forward, nets.node_bounds, nets.forward_bounds, descending=False),
        EdgeOrder(dst, src, nets.backward, nets.node_bounds, nets.backward_bounds, descending=True),
    )


def embed(x: Floats, edges: Floats, layers: Layers, order: EdgeOrder) -> tuple[Floats, Messages]:
    """Return ``[N, F]`` embeddings, as :func:`placeit.learning.agents.giph.message_passing.pass_by_level`, and the messages.

    All arrays are contiguous and have the same type: float32 or float64.
    """
    nodes, hidden = len(x), len(layers.node_bias)
    embedding = x.copy()
    messages = Messages(np.empty((nodes, hidden), x.dtype), np.zeros((nodes, hidden), x.dtype), np.zeros(nodes, x.dtype))
    _FORWARD[x.dtype.name](order, layers, edges, embedding, messages)
    return embedding, messages
