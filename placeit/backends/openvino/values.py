"""Values that are valid for an input of an OpenVINO model, derived from the ops that read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from placeit.backends.openvino.flops import bounded_shape
from placeit.backends.values import ValueRange, common

__all__ = ["allowed_values"]


def _axis(node: Any, port: int) -> int | None:
    """Return the value of an input if it is a constant number, else None."""
    maker = node.input_value(port).get_node()
    return int(np.ravel(maker.get_data())[0]) if maker.get_type_name() == "Constant" else None


def _shape(node: Any, port: int = 0) -> tuple[int, ...]:
    return bounded_shape(node.get_input_partial_shape(port)) or ()


def _index_into(node: Any, axis: int | None, distinct_axis: int | None = None) -> ValueRange | None:
    """Return the positions along an axis of a node's first input; if the axis is unknown, the positions that all axes have."""
    shape = _shape(node)
    size = shape[axis] if axis is not None and -len(shape) <= axis < len(shape) else min(shape, default=0)
    return ValueRange(0, size, None if distinct_axis is None else distinct_axis % len(shape)) if shape else None


def _indices_into(node: Any, skipped: int = 0, distinct_axis: int | None = None) -> ValueRange | None:
    """Return the positions in a node's first input that its second input may hold, as rows with an index for each axis."""
    rows, shape = _shape(node, 1), _shape(node)
    sizes = shape[skipped : skipped + rows[-1]] if rows else ()
    return ValueRange(0, min(sizes), distinct_axis) if sizes else None


def _axes(node: Any) -> ValueRange | None:
    rank = len(_shape(node))
    return ValueRange(0, rank, 0) if rank else None


def _lengths(node: Any, axis: int) -> ValueRange | None:
    shape = _shape(node)
    return ValueRange(1, shape[axis] + 1) if len(shape) > axis >= -len(shape) else None


def _slice_end(node: Any) -> ValueRange | None:
    """Return the largest size of a node's first input, which as the end of a slice includes everything."""
    largest = max(_shape(node), default=0)
    return ValueRange(largest, largest + 1)


_ROWS_OF_TABLES = (
    *(("EmbeddingBagOffsets", 1), ("EmbeddingBagOffsetsSum", 1), ("EmbeddingBagPacked", 1), ("EmbeddingBagPackedSum", 1)),
    *(("EmbeddingSegmentsSum", 1), ("ROIAlign", 2), ("ROIAlignRotated", 2)),
)
_OFFSETS = (
    *(("EmbeddingBagOffsets", 2), ("EmbeddingBagOffsetsSum", 2), ("EmbeddingSegmentsSum", 2)),
    *(("Slice", 1), ("StridedSlice", 1)),
)
_STEPS = (("RNNSequence", 2), ("GRUSequence", 2), ("LSTMSequence", 3), ("CTCGreedyDecoderSeqLen", 1))
_READERS: dict[tuple[str, int], Callable[[Any], ValueRange | None]] = {
    ("Gather", 1): lambda node: _index_into(node, _axis(node, 2)),
    ("GatherElements", 1): lambda node: _index_into(node, node.get_attributes()["axis"]),
    ("GatherND", 1): lambda node: _indices_into(node, node.get_attributes()["batch_dims"]),
    ("ScatterUpdate", 1): lambda node: _index_into(node, _axis(node, 3), 0),
    ("ScatterElementsUpdate", 1): lambda node: _index_into(node, axis := _axis(node, 3), axis or 0),
    ("ScatterNDUpdate", 1): lambda node: _indices_into(node, 0, 0),
    **dict.fromkeys((("Gather", 2), ("ScatterUpdate", 3), ("ScatterElementsUpdate", 3), ("CumSum", 1), ("Roll", 2)), _axes),
    **dict.fromkeys(_ROWS_OF_TABLES, lambda node: _index_into(node, 0)),
    **dict.fromkeys(_OFFSETS, lambda _: ValueRange(0, 1)),
    ("OneHot", 0): lambda node: None if (depth := _axis(node, 1)) is None else ValueRange(0, depth),
    ("ReverseSequence", 1): lambda node: _lengths(node, node.get_attributes()["seq_axis"]),
    **dict.fromkeys(_STEPS, lambda node: _lengths(node, 1)),
    ("TopK", 1): lambda node: _lengths(node, node.get_attributes()["axis"]),
    **dict.fromkeys((("Slice", 2), ("StridedSlice", 2)), _slice_end),
    **dict.fromkeys((("Slice", 3), ("StridedSlice", 3)), lambda _: ValueRange(1, 2)),
    ("Slice", 4): _axes,
}
"""Functions that return the range of an input of an op, by kind of op and input number.

Inputs that would make the size of an output unbounded are missing, since such models cannot be placed."""

_ELEMENT_WISE = frozenset(("Clamp", "Convert", "Identity", "Maximum", "Minimum"))
_MOVES_FIRST = frozenset(
    (
        *("BatchToSpace", "Broadcast", "DepthToSpace", "Gather", "GatherElements", "GatherND", "Pad", "Reshape"),
        *("ReverseSequence", "Roll", "ShuffleChannels", "Slice", "SpaceToBatch", "SpaceToDepth", "Split", "Squeeze"),
        *("StridedSlice", "Tile", "Transpose", "Unsqueeze", "VariadicSplit"),
    )
)
_SCATTERS = frozenset(("ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate"))


def _passes(kind: str, port: int) -> bool:
    """Return whether an op's output consists of the values of one of its inputs, at other positions or in another type."""
    return (
        kind in _ELEMENT_WISE
        or kind == "Concat"
        or (kind in _MOVES_FIRST and port == 0)
        or (kind == "Select" and port > 0)
        or (kind in _SCATTERS and port in (0, 2))
    )


def allowed_values(parameter: Any) -> ValueRange | None:
    """Return the values that all readers of an input allow; None if unknown.

    Ops that only convert or move values are followed to their readers.

    Args:
        parameter: a ``Parameter`` of an ``openvino.Model``.
    """
    found: list[ValueRange] = []
    stack, seen = [(parameter.output(0), True)], set()
    while stack:
        output, in_place = stack.pop()
        for port in output.get_target_inputs():
            node, kind, number = port.get_node(), port.get_node().get_type_name(), port.get_index()
            reader = _READERS.get((kind, number))
            allowed = None if reader is None else reader(node)
            if allowed is not None and allowed.low < allowed.end:
                found.append(allowed if in_place else ValueRange(allowed.low, allowed.end))
            if reader is None and _passes(kind, number) and node.get_friendly_name() not in seen:
                seen.add(node.get_friendly_name())
                stack += [(out, in_place and kind in _ELEMENT_WISE) for out in node.outputs()]
    return common(found)
