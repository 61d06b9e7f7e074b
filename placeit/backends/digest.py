"""Digests of what a model computes: attributes, models inside ops, and the constants that affect running times."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from placeit.backends.openvino.flops import bodies

if TYPE_CHECKING:
    import onnx

__all__ = ["constant_digest", "digest", "onnx_digest", "openvino_digest"]

_MOST = 1024
_WHOLE = frozenset(("bool", "boolean", "int16", "int32", "int64", "uint16", "uint32", "uint64"))


def digest(parts: Iterable[object]) -> str:
    """Hash objects by their printed form."""
    found = hashlib.sha256()
    for part in parts:
        found.update(repr(part).encode(errors="replace"))
        found.update(b"\n")
    return found.hexdigest()[:16]


def constant_digest(dtype: str, shape: Sequence[int], value: Callable[[], bytes]) -> str:
    """Describe a constant by type and shape, and by value if it may be a number of steps, a size, an axis or a bound.

    Those are single numbers, and whole numbers or truth values up to 1,024 of them. Weights are told apart by type and shape
    only: a model that has been trained further takes the same time, and can be placed in the same way.

    Args:
        dtype: element type, NumPy spelling.
        shape: its sizes.
        value: reads the bytes of the value.
    """
    size = math.prod(shape)
    matters = size == 1 or (size <= _MOST and dtype in _WHOLE)
    return f"{dtype}{list(shape)}{value().hex() if matters else ''}"


def openvino_digest(model: Any, constant: Callable[[Any], str] | None = None) -> str:
    """Hash what an ``openvino.Model`` computes: ops with versions, attributes and inputs, constants, models inside ops.

    Names do not count, since a converter makes some of them up.

    Args:
        model: the model.
        constant: describes a ``Constant`` node; None to describe it as :func:`constant_digest` does.
    """
    constant = constant or _openvino_constant
    nodes = model.get_ordered_ops()
    place = {node.get_name(): number for number, node in enumerate(nodes)}

    def described(node: Any) -> object:
        if node.get_type_name() == "Constant":
            return constant(node)
        return (
            (node.get_type_name(), node.get_type_info().version_id),
            sorted((name, str(value)) for name, value in node.get_attributes().items()),
            [(place[value.get_node().get_name()], value.get_index()) for value in node.input_values()],
            [(str(output.get_element_type()), str(output.get_partial_shape())) for output in node.outputs()],
            [openvino_digest(body, constant) for body in bodies(node)],
            _ports(node),
        )

    ends = [[place[node.get_name()] for node in ends] for ends in (model.get_parameters(), model.get_results())]
    return digest((*map(described, nodes), ends))


def _openvino_constant(node: Any) -> str:
    kind = node.get_element_type()
    name = str(kind.get_type_name())
    if name == "string":
        return f"string{list(node.get_output_shape(0))}"
    spelled = {"i": "int", "u": "uint"}.get(name[0], "") + name[1:] if name[1:].isdigit() else name
    return constant_digest(spelled, list(node.get_output_shape(0)), lambda: bytes(node.data.tobytes()))


def _ports(node: Any) -> object:
    """Say how the inputs and outputs of an op are tied to those of the models inside it."""
    match node.get_type_name():
        case "If":
            tied = [*map(node.get_input_descriptions, (0, 1)), *map(node.get_output_descriptions, (0, 1))]
        case "Loop" | "TensorIterator":
            tied = [node.get_input_descriptions(), node.get_output_descriptions()]
        case _:
            return ()
    said = [[_fields(description) for description in descriptions] for descriptions in tied]
    return said, list(node.get_special_body_ports()) if node.get_type_name() == "Loop" else []


def _fields(description: Any) -> list[tuple[str, object]]:
    names = (name for name in dir(description) if not name.startswith("_"))
    return [(type(description).__name__, ""), *((n, v) for n in names if isinstance(v := getattr(description, n), int))]


def onnx_digest(model: onnx.ModelProto) -> str:
    """Hash what an ONNX model computes: nodes with attributes and the names of inputs and outputs, constants, functions."""
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
            [(node.domain, node.op_type, list(node.input), list(node.output), _onnx_attributes(node)) for node in graph.node],
            [(tensor.name, _onnx_constant(tensor)) for tensor in graph.initializer],
            [(tensor.values.name, list(tensor.dims)) for tensor in graph.sparse_initializer],
            [value.SerializeToString(deterministic=True) for value in (*graph.input, *graph.output)],
        )
    )


def _onnx_attributes(node: onnx.NodeProto) -> list[tuple[str, object]]:
    return sorted((attribute.name, _onnx_attribute(attribute)) for attribute in node.attribute)


def _onnx_attribute(attribute: onnx.AttributeProto) -> str:
    if attribute.HasField("t"):
        return _onnx_constant(attribute.t)
    if attribute.HasField("g"):
        return _onnx_graph(attribute.g)
    return digest([attribute.SerializeToString(deterministic=True)])


def _onnx_constant(tensor: onnx.TensorProto) -> str:
    from onnx import TensorProto, helper, numpy_helper

    if tensor.data_type == TensorProto.STRING:
        return f"string{list(tensor.dims)}"
    dtype = str(helper.tensor_dtype_to_np_dtype(tensor.data_type))
    return constant_digest(dtype, list(tensor.dims), lambda: numpy_helper.to_array(tensor).tobytes())
