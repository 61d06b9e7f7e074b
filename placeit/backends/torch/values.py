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
    """Return the positions along an axis of an op's first input."""
    shape = _made(node.args[0]).shape
    return ValueRange(0, shape[axis]) if len(shape) > axis else None


def _places(node: Node) -> ValueRange | None:
    """Return the positions along the axis that is an argument of an op."""
    shape, axis = _made(node.args[0]).shape, node.args[1]
    return ValueRange(0, shape[axis]) if isinstance(axis, int) and len(shape) else None


def _places_apart(node: Node) -> ValueRange | None:
    places, axis = _places(node), node.args[1]
    return None if places is None or not isinstance(axis, int) else ValueRange(0, places.end, axis % _made(node.args[0]).dim())


def _classes(node: Node) -> ValueRange | None:
    return _rows(node, 1 if _made(node.args[0]).dim() > 1 else 0)


def _hot(node: Node) -> ValueRange | None:
    classes = node.args[1] if len(node.args) > 1 else None
    return ValueRange(0, classes) if isinstance(classes, int) else None


def _made(arg: Any) -> torch.Tensor:
    tensor: torch.Tensor = arg.meta["val"]
    return tensor


_READERS: dict[tuple[str, int], Callable[[Node], ValueRange | None]] = {
    ("embedding", 1): _rows,
    ("_embedding_bag", 1): _rows,
    ("_embedding_bag", 2): lambda _: ValueRange(0, 1),
    ("_embedding_bag_forward_only", 1): _rows,
    ("_embedding_bag_forward_only", 2): lambda _: ValueRange(0, 1),
    ("cross_entropy_loss", 1): _classes,
    ("embedding_bag", 1): _rows,
    ("embedding_bag", 2): lambda _: ValueRange(0, 1),
    ("gather", 2): _places,
    ("index_select", 2): _places,
    ("index_add", 2): _places_apart,
    ("index_copy", 2): _places_apart,
    ("index_fill", 2): _places,
    ("index_reduce", 2): _places_apart,
    ("nll_loss", 1): _classes,
    ("nll_loss_forward", 1): _classes,
    ("nll_loss2d_forward", 1): _classes,
    ("nll_loss_nd", 1): _classes,
    ("one_hot", 0): _hot,
    ("scatter", 2): _places_apart,
    ("scatter_add", 2): _places_apart,
    ("scatter_reduce", 2): _places_apart,
    ("take", 1): lambda node: ValueRange(0, _made(node.args[0]).numel()),
}
"""Ranges of the arguments of ATen ops, by name of the op and argument number."""

_INDEXING = frozenset(("index", "index_put", "_unsafe_index", "_unsafe_index_put", "_unsafe_masked_index"))
_PASSED_ON = frozenset(
    (
        "_to_copy",
        "_unsafe_view",
        "broadcast_to",
        "cat",
        "chunk",
        "clamp",
        "clamp_max",
        "clamp_min",
        "clone",
        "constant_pad_nd",
        "contiguous",
        "diagonal",
        "expand",
        "expand_as",
        "flatten",
        "flip",
        "maximum",
        "minimum",
        "movedim",
        "narrow",
        "permute",
        "repeat",
        "reshape",
        "roll",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "stack",
        "t",
        "tile",
        "to",
        "transpose",
        "type_as",
        "unbind",
        "unflatten",
        "unfold",
        "unsqueeze",
        "view",
    )
)
_PASSED_FIRST = frozenset(("gather", "index", "index_select", "masked_fill"))
"""Ops whose output has the values of its inputs, or of its first input, at other positions or in another type."""


def allowed_values(placeholder: Node) -> ValueRange | None:
    """Return the values that all readers of an input allow; None if unknown.

    Readers of ops that only convert or move values are included.
    """
    found: list[ValueRange] = []
    waiting, seen = [placeholder], {placeholder}
    while waiting:
        node = waiting.pop()
        for reader in node.users:
            kind, passed = _kind(reader), reader.target is operator.getitem
            for number in _positions(reader, node):
                one = _READERS.get((kind, number))
                if one is not None:
                    found += [allowed for allowed in (one(reader),) if allowed is not None and allowed.low < allowed.end]
                elif kind in _INDEXING and number == 1:
                    found += _indices(reader, node)
                else:
                    passed |= kind in _PASSED_ON or (kind in _PASSED_FIRST and number == 0) or (kind == "where" and number > 0)
            if passed and reader not in seen:
                seen.add(reader)
                waiting.append(reader)
    allowed = common(found)
    if allowed is not None and len(seen) > 1:  # the axis of the input that ``distinct_axis`` refers to is not traced
        return ValueRange(allowed.low, allowed.end)
    return allowed


def _kind(node: Node) -> str:
    schema = getattr(node.target, "_schema", None)
    return "" if schema is None else str(schema.name).removeprefix("aten::")


def _positions(reader: Node, node: Node) -> list[int]:
    return [
        number
        for number, arg in enumerate(reader.args)
        if arg is node or (isinstance(arg, list | tuple) and any(part is node for part in arg))
    ]


def _indices(reader: Node, node: Node) -> Iterator[ValueRange]:
    """Yield the ranges of a list of index tensors: each indexes one axis, or is a mask of as many axes as it has."""
    axis, indices = 0, reader.args[1]
    shape = _made(reader.args[0]).shape
    for index in indices if isinstance(indices, list | tuple) else ():
        masks = isinstance(index, Node) and _made(index).dtype in (torch.bool, torch.uint8)
        if index is node and not masks and shape[axis] > 0:
            yield ValueRange(0, shape[axis])
        axis += _made(index).dim() if masks else 1
