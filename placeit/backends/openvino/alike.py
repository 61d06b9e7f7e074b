"""Parts of a model that compute the same function with the same weights, so that one compiled program serves all of them."""

from __future__ import annotations

from typing import Any

from placeit.backends.openvino.digest import openvino_digest
from placeit.backends.openvino.graph import constant_nodes
from placeit.backends.openvino.view import View
from placeit.core.graph import OpGraph

__all__ = ["function_digest", "weight_readers"]

_LARGE = 1 << 16  # bytes of a constant from which on it is a weight: it is compared by where it lies, and not by its value
_RANDOM = frozenset(("Multinomial", "RandomUniform"))


def weight_readers(model: Any, graph: OpGraph, view: View) -> tuple[frozenset[int], frozenset[int]]:
    """Find the ops that read weights, by their numbers.

    Args:
        model: an ``openvino.Model``.
        graph: its task graph.
        view: what the task graph stands for in the model.

    Returns:
        The ops that share a weight with another op, and those that have one to themselves; an op may be in both.
    """
    fixed = constant_nodes(model)
    address: dict[str, int] = {}
    readers: dict[int, set[int]] = {}
    nodes = model.get_ordered_ops()
    for node in nodes:
        if node.get_type_name() == "Constant" and node.get_byte_size() >= _LARGE and _has_address(node):
            address[node.get_friendly_name()] = node.data.ctypes.data
    for node in nodes:
        op = view.op_of.get(node.get_friendly_name())
        if op is None or node.get_friendly_name() in fixed:
            continue
        for value in node.input_values():
            for leaf in fixed.get(value.get_node().get_friendly_name(), ()):
                if leaf in address:
                    readers.setdefault(address[leaf], set()).add(graph.index[op])
    shared = frozenset().union(*(ops for ops in readers.values() if len(ops) > 1))
    return shared, frozenset().union(*(ops for ops in readers.values() if len(ops) == 1))


def function_digest(part: Any) -> str | None:
    """Hash what a part computes, with the values of all its constants.

    Args:
        part: an ``openvino.Model`` whose weights lie in the memory of the whole model's, where nothing else will ever lie.

    Returns:
        Equal for parts that one program can serve; None if no other part can be served by the program of this one, because it
        draws random numbers: each of its nodes draws from a sequence of its own.
    """
    if any(node.get_type_name() in _RANDOM for node in part.get_ops()):
        return None
    return openvino_digest(part, _value)


def _value(constant: Any) -> str:
    about = f"{constant.get_element_type().get_type_name()} {list(constant.get_output_shape(0))}"
    if not _has_address(constant):
        return f"{about} {constant.get_name()}"  # a name that no other constant has
    data = constant.data
    return f"{about} at {data.ctypes.data}" if data.nbytes >= _LARGE else f"{about} {data.tobytes().hex()}"


def _has_address(constant: Any) -> bool:
    return bool(constant.get_element_type().get_type_name() != "string")
