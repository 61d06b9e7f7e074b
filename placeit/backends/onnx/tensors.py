"""Types, shapes and sizes of the tensors of an ONNX file."""

from __future__ import annotations

import math
import re

import onnx
from onnx import helper

__all__ = ["WEIGHTS", "dtype_of", "own_bytes", "sizes_of", "tensor_bytes", "width_of"]

WEIGHTS = frozenset(
    number
    for name, number in onnx.TensorProto.DataType.items()
    if name.startswith(("FLOAT", "DOUBLE", "BFLOAT")) or name in ("INT8", "UINT8", "INT4", "UINT4")
)
"""Element types of tensors that count as parameters."""


def dtype_of(number: int) -> str:
    """Return the name of an element type by its number: NumPy's name or, for types that NumPy does not have, ONNX's."""
    if number in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        return "string" if number else "unknown"
    declared = str(onnx.TensorProto.DataType.Name(number)).lower()
    narrow = declared == "bfloat16" or declared.startswith(("float4", "float8", "int4", "uint4"))
    return declared if narrow else str(helper.tensor_dtype_to_np_dtype(number))


def sizes_of(value: onnx.ValueInfoProto) -> tuple[int | None, ...]:
    """Return the declared shape of a tensor, with None for each open size."""
    dims = value.type.tensor_type.shape.dim
    return tuple(size.dim_value if size.WhichOneof("value") == "dim_value" else None for size in dims)


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Return the bytes of a constant."""
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    elements: int = math.prod(tensor.dims)
    return math.ceil(elements * width_of(dtype_of(tensor.data_type)))


def own_bytes(node: onnx.NodeProto) -> int:
    """Return the bytes of the constants inside a node: in attributes, in bodies, and in the tables of a tree ensemble."""
    size = 0
    for attribute in node.attribute:
        size += 4 * (len(attribute.floats) + len(attribute.ints))
        size += tensor_bytes(attribute.t) if attribute.HasField("t") else 0
        for body in (attribute.g, *attribute.graphs):
            size += sum(map(tensor_bytes, body.initializer)) + sum(map(own_bytes, body.node))
    return size


def width_of(dtype: str) -> float:
    """Return the bytes of an element, half a byte for ``int4``; 1 if the type's name does not state its bits."""
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) / 8 if bits else 1.0
