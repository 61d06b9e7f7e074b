"""Weights of OpenVINO models: which ops read which, and one copy in memory of equal ones."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from typing import Any

from placeit.backends.openvino.flops import bodies
from placeit.backends.openvino.graph import KEEPS_WEIGHT, constant_nodes, constants, swaps
from placeit.backends.openvino.view import View
from placeit.core.graph import OpGraph
from placeit.core.telemetry import import_openvino

__all__ = ["LARGE", "distinct", "has_address", "own_weights", "read_by_ops", "share_equal", "without_weights"]

openvino = import_openvino()

LARGE = 1 << 16
"""Least bytes of a weight that is identified by its address, not by its constant."""


def read_by_ops(model: Any, graph: OpGraph, view: View) -> list[dict[Hashable, float]]:
    """Return the bytes of the weights that each op reads, also in the models inside of it, by a key of each weight.

    Constants whose values are in the same memory are one weight, because OpenVINO keeps them once.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        graph: its task graph.
        view: nodes of the model for the ops of the graph.
    """
    leaves = constant_nodes(model)
    nodes = {node.get_friendly_name(): node for node in model.get_ops()}
    key = {name: _key(node) for name, node in nodes.items() if node.get_type_name() == "Constant"}
    found: list[dict[Hashable, float]] = [{} for _ in graph.names]
    for name, node in nodes.items():
        op = view.op_of.get(name)
        if op is None or name in leaves:
            continue
        read = {leaf for value in node.input_values() for leaf in leaves.get(value.get_node().get_friendly_name(), ())}
        weights = found[graph.index[op]]
        weights.update((key[leaf], nodes[leaf].get_byte_size()) for leaf in read if leaf in key)
        for body in bodies(node):
            weights.update((_key(constant), constant.get_byte_size()) for constant in constants(body))
    return found


def distinct(model: Any) -> list[Any]:
    """Return the ``Constant`` nodes of a model and of the models inside its ops, one for each weight."""
    return list({_key(constant): constant for constant in constants(model)}.values())


def _key(constant: Any) -> Hashable:
    if constant.get_byte_size() < LARGE or not has_address(constant):
        return str(constant.get_name())  # a name that no other constant has
    return constant.data.ctypes.data, constant.get_byte_size()


def has_address(constant: Any) -> bool:
    """Return whether the values of a constant are numbers in memory, and not strings."""
    return bool(constant.get_element_type().get_type_name() != "string")


def share_equal(model: Any) -> None:
    """Let weights be in memory once that are equal and read in the same way, if the model has models inside its ops.

    The converter copies a weight of an ONNX file into each branch of an ``If`` that reads it. Constants that are in the same
    memory take it once, and compiled once: OpenVINO's CPU plugin finds a weight that it has reordered by its address and shape.
    It confuses a matrix with its transpose, so weights that are read in another way are in memory once each.

    Args:
        model: an ``openvino.Model``; it is changed.
    """
    if not any(True for node in model.get_ops() for _ in bodies(node)):
        return
    equal: dict[Hashable, list[Any]] = {}
    for constant in constants(model):
        if constant.get_byte_size() >= LARGE and has_address(constant):
            about = str(constant.get_element_type()), str(constant.get_output_shape(0)), frozenset(_uses(constant))
            digest = hashlib.sha256(constant.data.data).digest()
            equal.setdefault((about, digest), []).append(constant)
    while equal:
        _, same = equal.popitem()
        if len({constant.data.ctypes.data for constant in same}) == 1:
            continue
        tensor = openvino.Tensor(same[0].get_element_type(), same[0].get_output_shape(0))
        tensor.data[...] = same[0].data
        for constant in same:
            _replace(constant, openvino.op.Constant(tensor))


def own_weights(model: Any) -> None:
    """Copy the large weights of a model, which is changed, from a file that is mapped into memory, and may change."""
    copies: dict[Hashable, Any] = {}
    for constant in constants(model):
        if constant.get_byte_size() >= LARGE and has_address(constant):
            key = _key(constant), str(constant.get_element_type()), str(constant.get_output_shape(0))
            if key not in copies:
                copies[key] = openvino.Tensor(constant.get_element_type(), constant.get_output_shape(0))
                copies[key].data[...] = constant.data
            _replace(constant, openvino.op.Constant(copies[key]))


def without_weights(model: Any) -> Any:
    """Return a copy of a model whose large weights have no values: their memory is never written, so the system gives none."""
    copy = model.clone()
    for constant in constants(copy):
        if constant.get_byte_size() >= LARGE and has_address(constant):
            tensor = openvino.Tensor(constant.get_element_type(), constant.get_output_shape(0))
            _replace(constant, openvino.op.Constant(tensor))
    return copy


def _replace(constant: Any, other: Any) -> None:
    other.set_friendly_name(constant.get_friendly_name())
    other.output(0).get_tensor().set_names(constant.output(0).get_names())
    for reader in constant.output(0).get_target_inputs():
        reader.replace_source_output(other.output(0))


def _uses(node: Any, *, turned: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Yield how the value of a node is read: kind of op, number of its input, and whether it is read transposed."""
    for reader in node.output(0).get_target_inputs():
        by, port = reader.get_node(), reader.get_index()
        kind = by.get_type_name()
        if kind in KEEPS_WEIGHT:
            yield from _uses(by, turned=turned != swaps(by))
        else:
            yield kind, port, turned != (kind == "MatMul" and by.get_attributes()[f"transpose_{'ab'[port]}"])
