"""Inputs of a model: their shapes, and values that make sense for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from placeit.backends.flops import bounded_shape
from placeit.errors import ModelError

__all__ = ["resolve_shapes", "rows_indexed_by"]

_LARGEST = 2**31 - 1


def resolve_shapes(
    path: Path, partial: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], batch: int | None
) -> dict[str, Any]:
    """Return a static ``PartialShape`` for every input.

    Raises:
        ModelError: a size is left open, or an option does not fit the model.
    """
    if batch is not None and not 1 <= batch <= _LARGEST:
        raise ModelError(f"{path}: a batch of {batch} makes no sense; it is the number of samples in one inference.")
    for name in shapes:
        if name not in partial:
            raise ModelError(f"{path} has no input '{name}', for which a shape is given; its inputs are {', '.join(partial)}.")
    resolved: dict[str, Any] = {}
    takes_batch = False
    for name, shape in partial.items():
        if name in shapes:
            if any(not 1 <= size <= _LARGEST for size in shapes[name]):
                raise ModelError(
                    f"{path}: the shape given for input '{name}', {list(shapes[name])}, holds a size that is not from 1 to "
                    f"{_LARGEST}."
                )
            if not shape.compatible(openvino.PartialShape([-1] * len(shapes[name]))):
                raise ModelError(
                    f"{path}: the shape given for input '{name}', {list(shapes[name])}, has {len(shapes[name])} dimensions "
                    f"where the model has {shape}."
                )
            resolved[name] = openvino.PartialShape(list(shapes[name]))
            continue
        if batch is not None and shape.rank.is_static and len(shape) > 0:
            takes_batch = takes_batch or shape[0].compatible(openvino.Dimension(batch))
            if shape[0].is_dynamic:
                shape = openvino.PartialShape([openvino.Dimension(batch), *list(shape)[1:]])
        if shape.is_dynamic:
            sizes = "1" if shape.rank.is_dynamic else ",".join("1" if d.is_dynamic else str(d.get_length()) for d in shape)
            only_batch = shape.rank.is_static and not any(d.is_dynamic for d in list(shape)[1:])
            option = " or --batch 1" if only_batch else ""
            raise ModelError(
                f"{path}: input '{name}' has the open shape {shape}, and a placement is for one shape: give all its sizes, "
                f"for example --input-shape {name}:{sizes}{option}."
            )
        resolved[name] = shape
    if batch is not None and not takes_batch and not shapes:
        listing = ", ".join(f"'{name}' {shape}" for name, shape in partial.items())
        raise ModelError(f"{path}: no input takes a batch of {batch} (inputs: {listing}); give shapes with --input-shape.")
    return resolved


_KEEPS_VALUES = frozenset(("Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Slice", "StridedSlice", "Split", "Tile"))


def rows_indexed_by(parameter: Any) -> int | None:
    """Return the number of rows of the smallest table that an input indexes, or None if it indexes none."""
    rows: list[int] = []
    waiting = [parameter.output(0)]
    while waiting:
        for port in waiting.pop().get_target_inputs():
            node = port.get_node()
            kind = node.get_type_name()
            if port.get_index() == 0 and kind in _KEEPS_VALUES:
                waiting.extend(node.outputs())
            elif port.get_index() == 1 and kind == "Gather":
                axis = node.input_value(2).get_node()
                table = bounded_shape(node.get_input_partial_shape(0))
                if axis.get_type_name() == "Constant" and table is not None:
                    rows.append(table[int(np.ravel(axis.get_data())[0])])
            elif port.get_index() == 0 and kind == "OneHot":
                depth = node.input_value(1).get_node()
                if depth.get_type_name() == "Constant":
                    rows.append(int(np.ravel(depth.get_data())[0]))
    return min((count for count in rows if count > 0), default=None)
