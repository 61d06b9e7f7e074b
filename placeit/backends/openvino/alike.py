"""Find parts of a model that compute the same function with the same weights, so that one compiled program serves them all."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from placeit.backends.openvino.digest import openvino_digest
from placeit.backends.openvino.view import View
from placeit.backends.openvino.weights import LARGE, has_address, read_by_ops
from placeit.core.graph import OpGraph

__all__ = ["function_digest", "weight_readers"]

_RANDOM = frozenset(("Multinomial", "RandomUniform"))


def weight_readers(model: Any, graph: OpGraph, view: View) -> tuple[frozenset[int], frozenset[int]]:
    """Return the numbers of the ops that read weights: ops with shared weights, and ops with exclusive weights.

    Args:
        model: an ``openvino.Model``.
        graph: its task graph.
        view: nodes of the model for the ops and tensors of the task graph.

    Returns:
        The ops that share a weight with another op, and the ops that read a weight which no other op reads. An op may be in
        both sets.
    """
    readers: dict[Hashable, list[int]] = {}
    for op, weights in enumerate(read_by_ops(model, graph, view)):
        for key, size in weights.items():
            if size >= LARGE:
                readers.setdefault(key, []).append(op)
    shared = frozenset().union(*(ops for ops in readers.values() if len(ops) > 1))
    return shared, frozenset().union(*(ops for ops in readers.values() if len(ops) == 1))


def function_digest(part: Any) -> str | None:
    """Return a hash of a part's computation, including the values of all its constants.

    Args:
        part: an ``openvino.Model`` whose weights are in the memory of the whole model, which is never reused.

    Returns:
        Equal hashes for parts that one program can serve. None for a part that draws random numbers, since each node draws
        from a separate sequence, so that no other part can use its program.
    """
    if any(node.get_type_name() in _RANDOM for node in part.get_ops()):
        return None
    return openvino_digest(part, _value)


def _value(constant: Any) -> str:
    about = f"{constant.get_element_type().get_type_name()} {list(constant.get_output_shape(0))}"
    if not has_address(constant):
        return f"{about} {constant.get_name()}"  # a name that no other constant has
    data = constant.data
    return f"{about} at {data.ctypes.data}" if data.nbytes >= LARGE else f"{about} {data.tobytes().hex()}"
