"""Weights of OpenVINO models: their readers, and copies that share memory or own it."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterator
from typing import Any

from placeit.backends.openvino.flops import bodies
from placeit.backends.openvino.graph import KEEPS_WEIGHT, constant_nodes, copied, nodes_of, swaps
from placeit.backends.openvino.view import View
from placeit.core.graph import OpGraph
from placeit.core.telemetry import import_openvino

__all__ = ["LARGE", "distinct", "has_address", "own_weights", "read_by_ops", "share_equal", "without_weights"]

openvino = import_openvino()

LARGE = 1 << 16
"""Least bytes of a weight that is identified by its address; smaller ones are identified by their constant."""


def read_by_ops(model: Any, graph: OpGraph, view: View) -> list[dict[Hashable, float]]:
    """Return the bytes of the weights that each op reads, including models inside the op, by a key of each weight.

    Constants whose values are in the same memory are one weight, because OpenVINO stores it once.

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
            weights.update((_key(constant), constant.get_byte_size()) for constant in nodes_of(body, "Constant"))
    return found


def distinct(model: Any) -> list[Any]:
    """Return the ``Constant`` nodes of a model and of the models inside its ops, one for each weight."""
    return list({_key(constant): constant for constant in nodes_of(model, "Constant")}.values())


def _large(model: Any) -> list[Any]:
    """Return the ``Constant`` nodes of a model, and of the models inside its ops, that are large weights."""
    found = nodes_of(model, "Constant")
    return [constant for constant in found if constant.get_byte_size() >= LARGE and has_address(constant)]


def _key(constant: Any) -> Hashable:
    if constant.get_byte_size() < LARGE or not has_address(constant):
        return str(constant.get_name())  # a name that no other constant has
    return constant.data.ctypes.data, constant.get_byte_size()


def has_address(constant: Any) -> bool:
    """Return whether the values of a constant are numbers in memory, and not strings."""
    return bool(constant.get_element_type().get_type_name() != "string")


def share_equal(model: Any) -> None:
    """Store equal weights that are read in the same way once, if the model has models inside its ops.

    The converter copies a weight of an ONNX file into each branch of an ``If`` that reads it. Constants in the same memory take
    it once, also when they are compiled: OpenVINO's CPU plugin identifies a weight that it has reordered by address and shape.
    It confuses a matrix with its transpose, so weights that are read in different ways are stored once for each way.

    Args:
        model: an ``openvino.Model``; it is changed.
    """
    if not any(map(bodies, model.get_ops())):
        return
    equal: dict[Hashable, list[Any]] = {}
    for constant in _large(model):
        about = str(constant.get_element_type()), str(constant.get_output_shape(0)), frozenset(_uses(constant))
        digest = hashlib.sha256(constant.data.data).digest()
        equal.setdefault((about, digest), []).append(constant)
    while equal:
        _, same = equal.popitem()
        if len({constant.data.ctypes.data for constant in same}) > 1:
            tensor = copied(same[0])
            for constant in same:
                _replace(constant, openvino.op.Constant(tensor))


def own_weights(model: Any) -> None:
    """Copy the large weights of a model out of a file that is mapped into memory, since the file may change.

    Args:
        model: an ``openvino.Model``; it is changed.
    """
    copies: dict[Hashable, Any] = {}
    for constant in _large(model):
        key = _key(constant), str(constant.get_element_type()), str(constant.get_output_shape(0))
        if key not in copies:
            copies[key] = copied(constant)
        _replace(constant, openvino.op.Constant(copies[key]))


def without_weights(model: Any) -> Any:
    """Return a copy of a model whose large weights have no values: their memory is never written, so it is never allocated."""
    copy = model.clone()
    for constant in _large(copy):
        tensor = openvino.Tensor(constant.get_element_type(), constant.get_output_shape(0))
        _replace(constant, openvino.op.Constant(tensor))
    return copy


def _replace(constant: Any, other: Any) -> None:
    other.set_friendly_name(constant.get_friendly_name())
    other.output(0).get_tensor().set_names(constant.output(0).get_names())
    for reader in constant.output(0).get_target_inputs():
        reader.replace_source_output(other.output(0))


def _uses(node: Any, *, transposed: bool = False) -> Iterator[tuple[str, int, bool]]:
    """Yield the kind of each op that reads the value of a node, its input number, and whether it reads the value transposed."""
    for port in node.output(0).get_target_inputs():
        reader, number = port.get_node(), port.get_index()
        kind = reader.get_type_name()
        if kind in KEEPS_WEIGHT:
            yield from _uses(reader, transposed=transposed != swaps(reader))
        else:
            yield kind, number, transposed != (kind == "MatMul" and reader.get_attributes()[f"transpose_{'ab'[number]}"])
