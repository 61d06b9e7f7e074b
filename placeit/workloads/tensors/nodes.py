"""Nodes of expressions of whole tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from placeit.core.errors import UsageError

__all__ = ["Crop", "IndexRange", "Input", "Kernel", "Op", "Reduction", "TensorNode", "in_order"]

IndexRange: TypeAlias = tuple[int, int]
"""First index, and one past the last."""

Reduction: TypeAlias = Literal["sum", "max", "min", "product"]

Kernel: TypeAlias = Callable[..., Tensor]
"""Blocks in, one block out: a fresh contiguous tensor on the device of its inputs, which it leaves alone."""


@dataclass(frozen=True, eq=False)
class TensorNode:
    """A whole tensor; compared by identity.

    Attributes:
        name: unique in its expression.
        shape: its dimensions.
        dtype: its element type.
        operands: what it is made of.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    operands: tuple[TensorNode, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, eq=False)
class Input(TensorNode):
    """An input tensor; ``sample`` draws a random value."""

    sample: Callable[[torch.Generator], Tensor] = field(kw_only=True)


@dataclass(frozen=True, eq=False)
class Crop(TensorNode):
    """A part of its operand, beginning at ``starts``."""

    starts: tuple[int, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Op(TensorNode):
    """A tensor that is computed.

    Attributes:
        kind: of op.
        terms: one letter per dimension, for each operand.
        output: one letter per dimension of the result.
        sizes: extent of each index.
        kernel: makes the function that computes one block, given the range of each index in it.
        combine: how partial results are combined if an index that is reduced is cut.
        flops: floating-point operations for each point of the space that the indices span.
        whole: indices that cannot be cut.
    """

    kind: str
    terms: tuple[str, ...]
    output: str
    sizes: Mapping[str, int]
    kernel: Callable[[Mapping[str, IndexRange]], Kernel]
    combine: Reduction = "sum"
    flops: float = 0.0
    whole: str = ""

    @property
    def indices(self) -> str:
        """All indices: those of the result, then those that are reduced, in the order in which they are read."""
        return "".join(dict.fromkeys(self.output + "".join(self.terms)))


def in_order(outputs: Sequence[TensorNode]) -> list[TensorNode]:
    """All nodes that the given outputs need, each after its operands.

    Raises:
        UsageError: two of them have one name.
    """
    order: dict[TensorNode, None] = {}
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, visited = stack.pop()
        if visited:
            order[node] = None
        elif node not in order:
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(node.operands))
    named: dict[str, TensorNode] = {}
    for node in order:
        if named.setdefault(node.name, node) is not node:
            raise UsageError(f"Two tensors of the expression are named '{node.name}'; names must be unique.")
    return list(order)
