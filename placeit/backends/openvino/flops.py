"""Floating-point operations of an OpenVINO op, computed from its shapes.

Conventions: a multiply-add is two operations; a comparison, a transcendental function and any other step of an element-wise
op count as one each; moving data (reshaping, gathering, concatenating, converting) counts as zero. Integer arithmetic counts
like floating-point. The figures rank ops and describe devices that exist in simulation only; real devices are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

__all__ = ["bodies", "bounded_shape", "node_flops"]

_UNBOUNDED = 1 << 40
"""A dimension at least this large is OpenVINO's way to say "no bound is known"."""

# fmt: off
_MOVES_DATA = frozenset((
    "Assign", "BatchToSpace", "Broadcast", "Bucketize", "Concat", "Constant", "Convert", "ConvertLike", "DepthToSpace",
    "ExtractImagePatches", "Gather", "GatherElements", "GatherND", "GatherTree", "Identity", "NonZero", "OneHot", "Pad",
    "Parameter", "Range", "ReadValue", "Reshape", "Result", "Reverse", "ReverseSequence", "Roll",
    "ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate", "ShapeOf", "ShuffleChannels", "Slice", "SliceScatter",
    "SpaceToBatch", "SpaceToDepth", "Split", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unsqueeze",
    "VariadicSplit",
))
# fmt: on

_PER_OUTPUT_ELEMENT = {
    "PRelu": 2,
    **dict.fromkeys(("NormalizeL2", "Sigmoid", "SoftPlus", "SoftSign"), 3),
    **dict.fromkeys(("BatchNormInference", "HSigmoid", "HardSigmoid", "LRN", "Mish", "RMS", "Swish"), 4),
    **dict.fromkeys(("FakeQuantize", "Gelu", "HSwish", "LogSoftmax", "Softmax"), 5),
    "MVN": 6,
    "GroupNormalization": 7,
    "Interpolate": 8,
}
"""Operations per output element; an op that is listed nowhere takes one."""


def bounded_shape(shape: Any) -> tuple[int, ...] | None:
    """Return an OpenVINO ``PartialShape`` as sizes, open ones at their upper bounds; None if a bound is missing."""
    if shape.rank.is_dynamic:
        return None
    sizes = tuple(shape[i].max_length for i in range(len(shape)))  # iterating ends with a C++ exception, which is slower
    return None if any(size < 0 or size >= _UNBOUNDED for size in sizes) else sizes


def bodies(node: Any) -> list[Any]:
    """Return the models inside an ``If``, ``Loop`` or ``TensorIterator`` node; empty for any other node."""
    match node.get_type_name():
        case "If":
            return [node.get_then_body(), node.get_else_body()]
        case "Loop":
            return [node.get_function()]
        case "TensorIterator":
            return [node.get_body()]
        case _:
            return []


def node_flops(node: Any) -> float:
    """Return the operations of one execution of an OpenVINO node; zero if a shape is unknown.

    A ``Loop`` or ``TensorIterator`` counts its body once per iteration, or once if the number of iterations is unknown. An
    ``If`` counts its more expensive branch.
    """
    kind = node.get_type_name()
    if kind in _MOVES_DATA:
        return 0.0
    if inner := [sum(map(node_flops, body.get_ordered_ops())) for body in bodies(node)]:
        return max(inner) if kind == "If" else max(1, node.get_num_iterations()) * inner[0]
    inputs = [bounded_shape(value.get_partial_shape()) for value in node.input_values()]
    output = bounded_shape(node.get_output_partial_shape(0)) if node.get_output_size() else None
    if output is None or None in inputs:
        return 0.0
    shapes = [shape for shape in inputs if shape is not None]
    rule = _RULES.get(kind)
    if rule is None:
        return float(_PER_OUTPUT_ELEMENT.get(kind, 1) * math.prod(output))
    return float(rule(node.get_attributes(), shapes, output))


_Shapes = list[tuple[int, ...]]


def _convolution(weights: int, groups: bool, transposed: bool) -> Callable[[Any, _Shapes, tuple[int, ...]], float]:
    """Return the rule for a convolution, whose weights are (groups,) output, input, kernel; transposed, input comes first."""

    def rule(_: Any, inputs: _Shapes, output: tuple[int, ...]) -> float:
        # every output element is a sum over input channels and kernel; transposed, every input element is scattered
        kernel = inputs[weights][2:] if groups else inputs[weights][1:]
        return 2.0 * math.prod(inputs[0] if transposed else output) * math.prod(kernel)

    return rule


def _matmul(attributes: Any, inputs: _Shapes, output: tuple[int, ...]) -> float:
    left = inputs[0]
    depth = left[-2] if attributes["transpose_a"] and len(left) > 1 else left[-1]
    return 2.0 * math.prod(output) * depth


def _einsum(attributes: Any, inputs: _Shapes, output: tuple[int, ...]) -> float:
    left, _, right = attributes["equation"].replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    for term, shape in zip(left.split(","), inputs, strict=True):
        head, _, tail = term.partition("...")
        sizes.update(zip(head, shape, strict=False))
        sizes.update(zip(reversed(tail), reversed(shape), strict=False))
    summed = [size for label, size in sizes.items() if label not in right]
    return 2.0 * math.prod(output) * math.prod(summed)


def _attention(_: Any, inputs: _Shapes, output: tuple[int, ...]) -> float:
    query, key = inputs[0], inputs[1]
    scores = math.prod(query[:-1]) * key[-2]
    return 2.0 * scores * query[-1] + 7.0 * scores + 2.0 * math.prod(output) * key[-2]


def _recurrent(first_weight: int) -> Callable[[Any, _Shapes, tuple[int, ...]], float]:
    """Return the rule for a recurrent cell or sequence: both weight matrices are applied to every sample of every step."""

    def rule(_: Any, inputs: _Shapes, __: tuple[int, ...]) -> float:
        weights = math.prod(inputs[first_weight]) + math.prod(inputs[first_weight + 1])
        return 2.0 * math.prod(inputs[0][:-1]) * weights

    return rule


def _pooling(attributes: Any, _: _Shapes, output: tuple[int, ...]) -> float:
    return float(math.prod(output) * math.prod(attributes["kernel"]))


def _over_input(_: Any, inputs: _Shapes, __: tuple[int, ...]) -> float:
    return float(math.prod(inputs[0]))


_RULES: dict[str, Callable[[Any, _Shapes, tuple[int, ...]], float]] = {
    **dict.fromkeys(("Convolution", "BinaryConvolution"), _convolution(1, groups=False, transposed=False)),
    "GroupConvolution": _convolution(1, groups=True, transposed=False),
    "DeformableConvolution": _convolution(2, groups=False, transposed=False),
    "ConvolutionBackpropData": _convolution(1, groups=False, transposed=True),
    "GroupConvolutionBackpropData": _convolution(1, groups=True, transposed=True),
    "MatMul": _matmul,
    "Einsum": _einsum,
    "ScaledDotProductAttention": _attention,
    "LSTMSequence": _recurrent(4),
    **dict.fromkeys(("GRUSequence", "RNNSequence", "LSTMCell"), _recurrent(3)),
    **dict.fromkeys(("GRUCell", "RNNCell"), _recurrent(2)),
    **dict.fromkeys(("AvgPool", "MaxPool"), _pooling),
    **dict.fromkeys(("AdaptiveAvgPool", "AdaptiveMaxPool", "CumSum", "TopK"), _over_input),
    **{f"Reduce{how}": _over_input for how in ("L1", "L2", "LogicalAnd", "LogicalOr", "Max", "Mean", "Min", "Prod", "Sum")},
}
