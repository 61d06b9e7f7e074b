"""The tensor programs of the DOPPLER paper (Appendix C), of any size, cut into any number of shards.

Default sizes are small enough for two CPU cores; :data:`PAPER_SIZES` has the paper's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.core.nearest import nearest
from placeit.learning.workloads.tensors import BlockProgram, shard
from placeit.learning.workloads.tensors.expression import (
    causal,
    crop,
    einsum,
    elementwise,
    reduction,
    softmax,
    tensor,
    to_complex,
    to_real,
)
from placeit.learning.workloads.tensors.nodes import TensorNode
from placeit.learning.workloads.tensors.partition import Partition

__all__ = ["PAPER_SIZES", "TENSOR_GRAPHS", "chain_mm", "ffnn", "find_builder", "llama_block", "llama_layer", "tensor_graph"]

_EPSILON = 1e-5
_ROTARY_BASE = 10000.0


def chain_mm(*, size: int = 2048, shards: int = 2, partition: Partition | None = None) -> BlockProgram:
    """Build ChainMM (C.1): ``(A B) + (C (D E))``, of square matrices.

    Args:
        size: rows and columns of each matrix.
        shards: number of parts into which an op is cut; see :func:`placeit.learning.workloads.tensors.shard`.
        partition: partitions of some ops (``AB``, ``DE``, ``CDE``, ``sum``); the others are cut automatically.

    Raises:
        UsageError: an argument is out of range.
    """
    _check(size=size)
    a, b, c, d, e = (tensor(name, size, size, scale=size**-0.5) for name in "ABCDE")
    ab = einsum("AB", "ik,kj->ij", a, b)
    de = einsum("DE", "ik,kj->ij", d, e)
    cde = einsum("CDE", "ik,kj->ij", c, de)
    return shard([elementwise("sum", "ij,ij->ij", torch.add, ab, cde)], shards, partition)


def ffnn(
    *, batch: int = 4096, features: int = 32, hidden: int = 8192, shards: int = 2, partition: Partition | None = None
) -> BlockProgram:
    """Build FFNN (C.2): ``softmax(relu(X W1 + b1) W2 + b2)``, with as many results as features.

    Args:
        batch: rows of X.
        features: columns of X.
        hidden: width of the hidden layer.
        shards: number of parts into which an op is cut; see :func:`placeit.learning.workloads.tensors.shard`.
        partition: partitions of some ops (``XW1``, ``bias1``, ``relu``, ``HW2``, ``bias2``, ``Y.max`` ... ``Y.div``).

    Raises:
        UsageError: an argument is out of range.
    """
    _check(batch=batch, features=features, hidden=hidden)
    x = tensor("X", batch, features)
    w1, b1 = tensor("W1", features, hidden, scale=features**-0.5), tensor("b1", hidden)
    w2, b2 = tensor("W2", hidden, features, scale=hidden**-0.5), tensor("b2", features)
    inner = elementwise("bias1", "bh,h->bh", torch.add, einsum("XW1", "bf,fh->bh", x, w1), b1)
    active = elementwise("relu", "bh->bh", torch.relu, inner)
    logits = elementwise("bias2", "by,y->by", torch.add, einsum("HW2", "bh,hy->by", active, w2), b2)
    return shard([softmax("Y", "by", "y", logits)], shards, partition)


def llama_block(
    *,
    tokens: int = 1024,
    width: int = 1024,
    heads: int = 8,
    hidden: int = 2752,
    shards: int = 2,
    partition: Partition | None = None,
) -> BlockProgram:
    """Build a Llama-block (C.3): a transformer block for one sequence, of attention and feed-forward, each with a residual.

    It has root-mean-square normalisation, rotary embedding of queries and keys, causal attention, and SwiGLU.

    Args:
        tokens: length of the sequence.
        width: width of the embedding.
        heads: number of attention heads, each with an equal and even share of the width.
        hidden: width of the feed-forward part.
        shards: number of parts into which an op is cut; see :func:`placeit.learning.workloads.tensors.shard`.
        partition: partitions of some ops, by name.

    Raises:
        UsageError: an argument is out of range, or the heads do not divide the width into even shares.
    """
    _check(tokens=tokens, width=width, heads=heads, hidden=hidden)
    return shard([_block(tokens, width, heads, hidden)], shards, partition)


def llama_layer(
    *,
    tokens: int = 1024,
    width: int = 1024,
    heads: int = 8,
    hidden: int = 2752,
    vocabulary: int = 8000,
    shards: int = 2,
    partition: Partition | None = None,
) -> BlockProgram:
    """Build a Llama-layer (C.3): a Llama-block, the last normalisation, and the logits of the next token.

    The paper does not say how a layer differs from a block. As in its authors' cost graph of a layer, a normalisation is added,
    and the product of the last token with a matrix of embedding by vocabulary.

    Args:
        tokens: length of the sequence.
        width: width of the embedding.
        heads: number of attention heads, each with an equal and even share of the width.
        hidden: width of the feed-forward part.
        vocabulary: number of tokens in the vocabulary.
        shards: number of parts into which an op is cut; see :func:`placeit.learning.workloads.tensors.shard`.
        partition: partitions of some ops, by name.

    Raises:
        UsageError: an argument is out of range, or the heads do not divide the width into even shares.
    """
    _check(tokens=tokens, width=width, heads=heads, hidden=hidden, vocabulary=vocabulary)
    block = _block(tokens, width, heads, hidden)
    final = _rms_norm("norm3", crop("last", block, (tokens - 1, tokens), (0, width)))
    unembedding = tensor("Wvocabulary", width, vocabulary, scale=width**-0.5)
    return shard([einsum("logits", "sd,dv->sv", final, unembedding)], shards, partition)


TENSOR_GRAPHS: Mapping[str, Callable[..., BlockProgram]] = MappingProxyType(
    {"chain-mm": chain_mm, "ffnn": ffnn, "llama-block": llama_block, "llama-layer": llama_layer}
)
"""Functions that build the programs, by name."""

_LLAMA_7B = {"tokens": 4096, "width": 4096, "heads": 32, "hidden": 11008}
PAPER_SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "chain-mm": {"size": 10_000},
        "ffnn": {"batch": 2**15, "features": 2**5, "hidden": 2**16},
        "llama-block": _LLAMA_7B,
        "llama-layer": {**_LLAMA_7B, "vocabulary": 32_000},
    }
)
"""Sizes of the paper's Appendix C; heads and the width of the feed-forward part are taken from Llama 7B."""


def tensor_graph(name: str, *, paper_sizes: bool = False, **options: Any) -> BlockProgram:
    """Build one of the programs by name.

    Args:
        name: a key of :data:`TENSOR_GRAPHS`.
        paper_sizes: whether to use the paper's sizes, rather than sizes that are small enough for two CPU cores.
        options: arguments of the function that builds the program: ``shards``, ``partition``, sizes.

    Raises:
        UsageError: the program does not exist, or an argument is out of range.
    """
    return find_builder(name)(**(dict(PAPER_SIZES[name]) if paper_sizes else {}) | options)


def find_builder(name: str) -> Callable[..., BlockProgram]:
    """Return the function that builds a program. Raises UsageError if the program does not exist."""
    if name not in TENSOR_GRAPHS:
        known = ", ".join(TENSOR_GRAPHS)
        raise UsageError(f"There is no tensor graph '{name}'; there are {known}{nearest(name, TENSOR_GRAPHS)}.")
    return TENSOR_GRAPHS[name]


def _block(tokens: int, width: int, heads: int, hidden: int) -> TensorNode:
    pairs, odd = divmod(width, 2 * heads)
    if odd:
        raise UsageError(f"A width of {width} cannot be divided among {heads} heads in even shares, which rotary pairs need.")
    # every weight is stored by head and, if it is rotated, by pair, so that no op is needed to change a shape
    x = tensor("X", tokens, width)
    turns = tensor("rotary", tokens, pairs, dtype=torch.complex64, sample=lambda _generator: _rotations(tokens, pairs))
    y = _rms_norm("norm1", x)
    query, key = (_rotated(name, y, turns, heads, pairs) for name in "QK")
    value = einsum("V", "sd,dhe->she", y, tensor("Wv", width, heads, 2 * pairs, scale=width**-0.5))
    scores = einsum("scores", "shcr,thcr->hst", query, key)
    scale = 1 / math.sqrt(2 * pairs)
    scaled = elementwise("scaled", "hst->hst", lambda block: block * scale, scores)
    weights = softmax("softmax", "hst", "t", causal("masked", "hst", scaled))
    attended = einsum("attended", "hst,the->she", weights, value)
    mixed = einsum("O", "she,hed->sd", attended, tensor("Wo", heads, 2 * pairs, width, scale=width**-0.5))
    x = elementwise("residual1", "sd,sd->sd", torch.add, x, mixed)
    y = _rms_norm("norm2", x)
    gate = einsum("gate", "sd,df->sf", y, tensor("Wgate", width, hidden, scale=width**-0.5))
    up = einsum("up", "sd,df->sf", y, tensor("Wup", width, hidden, scale=width**-0.5))
    silu = elementwise("silu", "sf->sf", torch.nn.functional.silu, gate, flops=3.0)
    gated = elementwise("gated", "sf,sf->sf", torch.mul, silu, up)
    down = einsum("down", "sf,fd->sd", gated, tensor("Wdown", hidden, width, scale=hidden**-0.5))
    return elementwise("residual2", "sd,sd->sd", torch.add, x, down)


def _rotated(name: str, y: TensorNode, turns: TensorNode, heads: int, pairs: int) -> TensorNode:
    width = y.shape[1]
    flat = einsum(name, "sd,dhcr->shcr", y, tensor(f"W{name.lower()}", width, heads, pairs, 2, scale=width**-0.5))
    points = to_complex(f"{name}.complex", "shcr->shc", flat)
    turned = elementwise(f"{name}.rotary", "shc,sc->shc", torch.mul, points, turns, flops=6.0)
    return to_real(f"{name}.real", "shc->shcr", turned)


def _rms_norm(name: str, x: TensorNode) -> TensorNode:
    width = x.shape[1]

    def inverse(total: Tensor) -> Tensor:
        return torch.rsqrt(total / width + _EPSILON)

    total = reduction(f"{name}.sum", "sd->s", "sum", elementwise(f"{name}.square", "sd->sd", torch.square, x))
    scale = elementwise(f"{name}.rsqrt", "s->s", inverse, total, flops=3.0)
    unit = elementwise(f"{name}.unit", "sd,s->sd", torch.mul, x, scale)
    return elementwise(f"{name}.gain", "sd,d->sd", torch.mul, unit, tensor(f"{name}.weight", width))


def _rotations(tokens: int, pairs: int) -> Tensor:
    """Return the rotations of rotary embedding as unit complex numbers, ``complex64[tokens, pairs]`` (Su et al. 2021, 3.2)."""
    frequency = _ROTARY_BASE ** -(torch.arange(pairs, dtype=torch.float64) / pairs)
    angle = torch.outer(torch.arange(tokens, dtype=torch.float64), frequency)
    return torch.polar(torch.ones_like(angle), angle).to(torch.complex64)


def _check(**sizes: int) -> None:
    for name, size in sizes.items():
        if size < 1:
            raise UsageError(f"'{name}' is {size}; it must be at least 1.")
