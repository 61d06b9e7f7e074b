"""Digests of the computation of OpenVINO models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from placeit.backends.digest import constant_digest, digest
from placeit.backends.openvino.flops import bodies

__all__ = ["openvino_digest"]


def openvino_digest(model: Any, constant: Callable[[Any], str] | None = None) -> str:
    """Return a hash of a model's computation: ops with versions, attributes and inputs; constants; models inside ops.

    Names are left out, since a converter invents some of them.

    Args:
        model: an ``openvino.Model``.
        constant: returns a text for a ``Constant`` node; None for :func:`~placeit.backends.digest.constant_digest`.
    """
    constant = constant or _openvino_constant
    nodes = model.get_ordered_ops()
    number = {node.get_name(): i for i, node in enumerate(nodes)}

    def described(node: Any) -> object:
        if node.get_type_name() == "Constant":
            return constant(node)
        return (
            (node.get_type_name(), node.get_type_info().version_id),
            sorted((name, str(value)) for name, value in node.get_attributes().items()),
            [(number[value.get_node().get_name()], value.get_index()) for value in node.input_values()],
            [(str(output.get_element_type()), str(output.get_partial_shape())) for output in node.outputs()],
            [openvino_digest(body, constant) for body in bodies(node)],
            _ports(node),
        )

    ends = [[number[node.get_name()] for node in ends] for ends in (model.get_parameters(), model.get_results())]
    return digest((*map(described, nodes), ends))


def _openvino_constant(node: Any) -> str:
    kind = node.get_element_type()
    name = str(kind.get_type_name())
    if name == "string":
        return f"string{list(node.get_output_shape(0))}"
    spelled = {"i": "int", "u": "uint"}.get(name[0], "") + name[1:] if name[1:].isdigit() else name
    return constant_digest(spelled, list(node.get_output_shape(0)), lambda: bytes(node.data.tobytes()))


def _ports(node: Any) -> object:
    """Return how the inputs and outputs of an op are connected to inputs and outputs of the models inside it."""
    match node.get_type_name():
        case "If":
            connections = [*map(node.get_input_descriptions, (0, 1)), *map(node.get_output_descriptions, (0, 1))]
        case "Loop" | "TensorIterator":
            connections = [node.get_input_descriptions(), node.get_output_descriptions()]
        case _:
            return ()
    described = [list(map(_fields, descriptions)) for descriptions in connections]
    return described, list(node.get_special_body_ports()) if node.get_type_name() == "Loop" else []


def _fields(description: Any) -> list[tuple[str, object]]:
    names = (name for name in dir(description) if not name.startswith("_"))
    return [(type(description).__name__, ""), *((n, v) for n in names if isinstance(v := getattr(description, n), int))]
