"""Floating-point operations of ONNX nodes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx

__all__ = ["node_flops"]

_PRODUCTS = frozenset(
    (
        *("DynamicQuantizeMatMul", "FusedMatMul", "Gemm", "MatMul", "MatMulInteger", "MatMulIntegerToFloat", "MatMulNBits"),
        "QLinearMatMul",
    )
)
_CONVOLUTIONS = frozenset(("Conv", "ConvInteger", "ConvTranspose", "FusedConv", "NhwcConv"))
_RECURRENT = frozenset(("GRU", "LSTM", "RNN", "DynamicQuantizeLSTM"))
_MOVES = frozenset(
    (
        *("Cast", "Concat", "Constant", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Pad"),
        *("Reshape", "Shape", "Size", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    )
)


def node_flops(node: onnx.NodeProto, shapes: Mapping[str, tuple[int, ...]]) -> float:
    """Return the operations of a node: a multiply-add is two; other nodes have one operation per output element.

    Args:
        node: a node of the model.
        shapes: known shapes of tensors, by name.
    """
    made = float(sum(math.prod(shapes.get(name, ())) for name in node.output if name))
    read = [shapes.get(name, ()) for name in node.input]
    if node.op_type in _MOVES:
        return 0.0
    if node.op_type in _PRODUCTS and read and read[0]:
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        return 2.0 * made * read[0][-2 if transposed and len(read[0]) > 1 else -1]
    if node.op_type in _CONVOLUTIONS and len(read) > 1 and len(read[1]) > 1:
        return 2.0 * math.prod(read[1][1:]) * (math.prod(read[0]) if node.op_type == "ConvTranspose" else made)
    if node.op_type == "QLinearConv" and len(read) > 3 and len(read[3]) > 1:
        return 2.0 * math.prod(read[3][1:]) * made
    if node.op_type in _RECURRENT and len(read) > 2 and len(read[0]) == 3:
        return 2.0 * (math.prod(read[1]) + math.prod(read[2])) * read[0][0] * read[0][1]
    return made
