"""Digests of the computation of ONNX models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from placeit.backends.digest import constant_digest, digest

if TYPE_CHECKING:
    import onnx

__all__ = ["onnx_digest"]


def onnx_digest(model: onnx.ModelProto) -> str:
    """Return a hash of an ONNX model's computation: nodes with attributes, inputs and outputs; constants; functions."""
    return digest(
        (
            _onnx_graph(model.graph),
            sorted((opset.domain, opset.version) for opset in model.opset_import),
            [function.SerializeToString(deterministic=True) for function in model.functions],
        )
    )


def _onnx_graph(graph: onnx.GraphProto) -> str:
    return digest(
        (
            [
                (node.domain, node.op_type, list(node.input), list(node.output), sorted(map(_onnx_attribute, node.attribute)))
                for node in graph.node
            ],
            [(tensor.name, _onnx_constant(tensor)) for tensor in graph.initializer],
            [(tensor.values.name, list(tensor.dims)) for tensor in graph.sparse_initializer],
            [value.SerializeToString(deterministic=True) for value in (*graph.input, *graph.output)],
        )
    )


def _onnx_attribute(attribute: onnx.AttributeProto) -> tuple[str, str]:
    """Return an attribute's name, and a text or hash for its value."""
    if attribute.HasField("t"):
        return attribute.name, _onnx_constant(attribute.t)
    if attribute.HasField("g"):
        return attribute.name, _onnx_graph(attribute.g)
    return attribute.name, digest([attribute.SerializeToString(deterministic=True)])


def _onnx_constant(tensor: onnx.TensorProto) -> str:
    from onnx import TensorProto, helper, numpy_helper

    if tensor.data_type == TensorProto.STRING:
        return f"string{list(tensor.dims)}"
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return constant_digest(dtype, list(tensor.dims), lambda: numpy_helper.to_array(tensor).tobytes())
