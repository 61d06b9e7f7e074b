"""Floating-point operations of ATen ops, by the conventions of :mod:`placeit.backends.openvino.flops`.

A multiplication and an addition are two operations, integer arithmetic counts like floating-point, and moving data counts as
zero. The figures rank ops and describe devices that exist in simulation only; real devices are measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

__all__ = ["node_flops", "written_outputs"]

_Shape = tuple[int, ...]

# fmt: off
_MOVES_DATA = frozenset((
    "_to_copy", "_unsafe_view", "alias", "arange", "as_strided", "broadcast_to", "cat", "chunk", "clone", "concat",
    "constant_pad_nd", "contiguous", "copy", "detach", "embedding", "empty", "expand", "expand_as", "eye", "flatten",
    "flip", "full", "full_like", "gather", "index", "index_put", "index_select", "lift_fresh_copy", "linspace",
    "movedim", "narrow", "new_empty", "new_full", "new_ones", "new_zeros", "one_hot", "ones", "ones_like", "pad",
    "permute", "pixel_shuffle", "pixel_unshuffle", "reflection_pad1d", "reflection_pad2d", "repeat",
    "repeat_interleave", "replication_pad1d", "replication_pad2d", "reshape", "roll", "scatter", "select",
    "select_copy", "select_scatter", "slice", "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "t",
    "tile", "to", "transpose", "tril", "triu", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as", "zeros",
    "zeros_like",
))
_PER_OUTPUT_ELEMENT = {
    "_native_batch_norm_legit_no_training": 4, "_softmax": 5, "_log_softmax": 5, "batch_norm": 4, "gelu": 5,
    "group_norm": 7, "hardsigmoid": 4, "hardswish": 5, "instance_norm": 6, "layer_norm": 6,
    "local_response_norm": 4, "log_softmax": 5, "mish": 4, "native_group_norm": 7, "native_layer_norm": 6,
    "prelu": 2, "rms_norm": 4, "sigmoid": 3, "silu": 4, "softmax": 5, "softplus": 3, "upsample_bicubic2d": 32,
    "upsample_bilinear2d": 8,
}
"""Steps per output element; an op that is not listed anywhere takes one."""
_OVER_INPUT = frozenset((
    "adaptive_avg_pool2d", "adaptive_max_pool2d", "all", "amax", "amin", "any", "argmax", "argmin", "cumprod", "cumsum",
    "linalg_vector_norm", "logsumexp", "max", "mean", "min", "norm", "prod", "sort", "std", "sum", "topk", "var",
))
# fmt: on


def node_flops(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> float:
    """Return the operations of one call of an op.

    Args:
        target: a ``torch._ops.OpOverload``.
        args: positional arguments; a tensor may be any object with a shape.
        kwargs: keyword arguments.
        output: result of the call: a tensor, or a list or tuple of tensors.
    """
    kind = target._schema.name.partition("::")[2]
    if kind in _MOVES_DATA:
        return 0.0
    first = output[0] if isinstance(output, list | tuple) else output
    if target.overloadpacket in flop_registry:
        return float(flop_registry[target.overloadpacket](*args, **kwargs, out_val=output))
    named = dict(zip((argument.name for argument in target._schema.arguments), args, strict=False)) | dict(kwargs)
    rule = _RULES.get(kind)
    if rule is not None:
        return float(rule(named, tuple(first.shape)))
    if kind in _OVER_INPUT:
        return float(math.prod(_shape(named, "self")))
    return float(_PER_OUTPUT_ELEMENT.get(kind, 1) * math.prod(first.shape))


def written_outputs(value: Any) -> list[tuple[tuple[int, ...], torch.Tensor]]:
    """Return the output tensors of an op, each with its position: ``()``, or the indices in a list or tuple."""
    if isinstance(value, torch.Tensor):
        return [((), value)]
    if isinstance(value, list | tuple):
        return [((i, *place), tensor) for i, item in enumerate(value) for place, tensor in written_outputs(item)]
    return []


def _shape(named: Mapping[str, Any], *names: str) -> _Shape:
    return next(tuple(named[name].shape) for name in names if name in named)


def _convolution(named: Mapping[str, Any], output: _Shape) -> float:
    # every output element is a sum over input channels and kernel
    return 2.0 * math.prod(output) * math.prod(_shape(named, "weight")[1:])


def _transposed_convolution(named: Mapping[str, Any], _: _Shape) -> float:
    # every input element is scattered
    return 2.0 * math.prod(_shape(named, "input")) * math.prod(_shape(named, "weight")[1:])


def _product(named: Mapping[str, Any], output: _Shape) -> float:
    return float(2 * math.prod(output) * _shape(named, "input", "mat", "self")[-1])


def _attention(named: Mapping[str, Any], output: _Shape) -> float:
    query, key = _shape(named, "query"), _shape(named, "key")
    scores = math.prod(query[:-1]) * key[-2]
    return 2.0 * scores * query[-1] + 7.0 * scores + 2.0 * math.prod(output) * key[-2]


def _recurrent(named: Mapping[str, Any], _: _Shape) -> float:
    # every weight is applied to every sample of every step
    return float(2 * math.prod(_shape(named, "input")[:-1]) * sum(math.prod(weight.shape) for weight in named["params"]))


def _pooling(named: Mapping[str, Any], output: _Shape) -> float:
    kernel = named["kernel_size"]
    sides = len(output) - 2 if len(kernel) == 1 else 1  # one size stands for all sides
    return float(math.prod(output) * math.prod(kernel) ** sides)


_RULES: dict[str, Callable[[Mapping[str, Any], _Shape], float]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _transposed_convolution),
    **dict.fromkeys(("linear", "matmul", "mv", "dot", "addmv"), _product),
    **dict.fromkeys(("lstm", "gru", "rnn_tanh", "rnn_relu"), _recurrent),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d", "max_pool1d", "max_pool2d", "max_pool3d"), _pooling),
    "max_pool2d_with_indices": _pooling,
    "scaled_dot_product_attention": _attention,
}
