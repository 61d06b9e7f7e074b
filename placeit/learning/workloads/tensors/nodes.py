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
"""A range of indices: the first one, and one past the last."""

Reduction: TypeAlias = Literal["sum", "max", "min", "product"]

Kernel: TypeAlias = Callable[..., Tensor]
"""Maps input blocks to one output block, a new contiguous tensor on the inputs' device. Inputs are not changed."""


@dataclass(frozen=True, eq=False)
class TensorNode:
    """A whole tensor of an expression; compared by identity.

    Attributes:
        name: unique in its expression.
        shape: its dimensions.
        dtype: its element type.
        operands: the nodes that it is computed from.
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
    """A part of its operand, which starts at the indices ``starts``."""

    starts: tuple[int, ...] = field(kw_only=True)


@dataclass(frozen=True, eq=False, kw_only=True)
class Op(TensorNode):
    """A tensor that is computed.

    Attributes:
        kind: kind of op.
        terms: one letter per dimension, for each operand.
        output: one letter per dimension of the result.
        sizes: extent of each index.
        kernel: returns the function that computes one block, given the range of each index in it.
        combine: reduction that combines partial results if a reduced index is cut.
        flops: floating-point operations for each point of the index space.
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
        """All indices: first the indices of the result, then the reduced indices in the order of the terms."""
        return "".join(dict.fromkeys(self.output + "".join(self.terms)))


def in_order(outputs: Sequence[TensorNode]) -> list[TensorNode]:
    """Return all nodes that the given outputs need, each after its operands.

    Raises:
        UsageError: two nodes have the same name.
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
