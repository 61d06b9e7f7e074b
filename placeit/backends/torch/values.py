"""Values that are valid for an input of a PyTorch program, derived from the ops that read it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import Node

from placeit.backends.values import ValueRange, common

__all__ = ["allowed_values"]


def _rows(node: Node, axis: int = 0) -> ValueRange | None:
    """Return the indices of an axis of an op's first input."""
    shape = _value(node.args[0]).shape
    return ValueRange(0, shape[axis]) if len(shape) > axis else None


def _indices(node: Node) -> ValueRange | None:
    """Return the indices of the axis that an op's second argument names."""
    shape, axis = _value(node.args[0]).shape, node.args[1]
    return ValueRange(0, shape[axis]) if isinstance(axis, int) and len(shape) else None


def _distinct_indices(node: Node) -> ValueRange | None:
    """Return the indices of the axis that an op's second argument names, for an op that takes each of them once."""
    indices, axis = _indices(node), node.args[1]
    if indices is None or not isinstance(axis, int):
        return None
    return ValueRange(0, indices.end, axis % _value(node.args[0]).dim())


def _classes(node: Node) -> ValueRange | None:
    return _rows(node, 1 if _value(node.args[0]).dim() > 1 else 0)


def _one_hot_classes(node: Node) -> ValueRange | None:
    classes = node.args[1] if len(node.args) > 1 else None
    return ValueRange(0, classes) if isinstance(classes, int) else None


def _value(arg: Any) -> torch.Tensor:
    tensor: torch.Tensor = arg.meta["val"]
    return tensor


_EMBEDDINGS = ("embedding", "_embedding_bag", "_embedding_bag_forward_only", "embedding_bag")
_READERS: dict[tuple[str, int], Callable[[Node], ValueRange | None]] = {
    **{(op, 1): _rows for op in _EMBEDDINGS},
    **{(op, 2): lambda _: ValueRange(0, 1) for op in _EMBEDDINGS[1:]},
    **{(op, 1): _classes for op in ("cross_entropy_loss", "nll_loss", "nll_loss_forward", "nll_loss2d_forward", "nll_loss_nd")},
    **{(op, 2): _indices for op in ("gather", "index_select", "index_fill")},
    **{(op, 2): _distinct_indices for op in ("index_add", "index_copy", "index_reduce")},
    **{(op, 2): _distinct_indices for op in ("scatter", "scatter_add", "scatter_reduce")},
    ("one_hot", 0): _one_hot_classes,
    ("take", 1): lambda node: ValueRange(0, _value(node.args[0]).numel()),
}
"""Ranges of the arguments of ATen ops, by name of the op and argument number."""

_INDEXING = frozenset(("index", "index_put", "_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index"))
# fmt: off
_VALUES_KEPT = frozenset((
    "_to_copy", "_unsafe_view", "broadcast_to", "cat", "chunk", "clamp", "clamp_max", "clamp_min", "clone",
    "constant_pad_nd", "contiguous", "diagonal", "expand", "expand_as", "flatten", "flip", "maximum", "minimum",
    "movedim", "narrow", "permute", "repeat", "reshape", "roll", "select", "slice", "split", "split_with_sizes",
    "squeeze", "stack", "t", "tile", "to", "transpose", "type_as", "unbind", "unflatten", "unfold", "unsqueeze",
    "view",
))
# fmt: on
_FIRST_VALUES_KEPT = frozenset(("gather", "index", "index_select", "masked_fill"))
"""Ops whose output has the values of their inputs, or of their first input, at other positions or in another type."""


def allowed_values(placeholder: Node) -> ValueRange | None:
    """Return the values of an input that are valid for all ops that read it; None if no op limits them.

    Ops that read the input through ops that only convert or move values are included.
    """
    found: list[ValueRange] = []
    pending, seen = [placeholder], {placeholder}
    while pending:
        node = pending.pop()
        for reader in node.users:
            kind, keeps_values = _kind(reader), reader.target is operator.getitem
            for number in _argument_numbers(reader, node):
                rule = _READERS.get((kind, number))
                if rule is not None:
                    allowed = rule(reader)
                    found += [allowed] if allowed is not None and allowed.low < allowed.end else []
                elif kind in _INDEXING and number == 1:
                    found += _index_ranges(reader, node)
                else:
                    first = kind in _FIRST_VALUES_KEPT and number == 0
                    keeps_values |= kind in _VALUES_KEPT or first or (kind == "where" and number > 0)
            if keeps_values and reader not in seen:
                seen.add(reader)
                pending.append(reader)
    allowed = common(found)
    if allowed is not None and len(seen) > 1:  # which axis of the input has distinct values is not traced
        return ValueRange(allowed.low, allowed.end)
    return allowed


def _kind(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).removeprefix("aten::")


def _argument_numbers(reader: Node, node: Node) -> list[int]:
    return [
        number
        for number, arg in enumerate(reader.args)
        if arg is node or (isinstance(arg, list | tuple) and any(part is node for part in arg))
    ]


def _index_ranges(reader: Node, node: Node) -> Iterator[ValueRange]:
    """Yield the ranges of a list of index tensors: each indexes one axis, or is a mask of as many axes as it has."""
    axis, indices = 0, reader.args[1]
    shape = _value(reader.args[0]).shape
    for index in indices if isinstance(indices, list | tuple) else ():
        masks = isinstance(index, Node) and _value(index).dtype in (torch.bool, torch.uint8)
        if index is node and not masks and shape[axis] > 0:
            yield ValueRange(0, shape[axis])
        axis += _value(index).dim() if masks else 1
