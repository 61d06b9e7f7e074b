"""Find the ops of a quantised OpenVINO model that round, their steps, and the ops that a runtime fuses into one integer op."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from placeit.backends.openvino.graph import constant_nodes
from placeit.core.graph import OpGraph
from placeit.devices.openvino import DYNAMIC_QUANTIZATION

__all__ = ["quantized_pairs", "rounding_steps"]

_DEQUANTIZING = frozenset(("Convert", "Subtract", "Multiply"))
_MAX_BITS = 8  # most bits of the types of quantised values
_DYNAMIC_STEP = 1 / 127  # step of activations that a runtime quantises to int8, for compressed weights


def rounding_steps(model: Any, graph: OpGraph, stand_ins: Collection[str] = ()) -> dict[str, float]:
    """Return the relative rounding step of each op that rounds its outputs or inputs.

    A ``FakeQuantize`` states its step. If the model asks for dynamic quantisation, the runtime rounds the activations of a
    ``MatMul`` with quantised weights to int8.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        graph: its task graph.
        stand_ins: friendly names of parameters that replace weights.

    Returns:
        By op name, the largest step of any channel, divided by the largest absolute value that the channel can have.
    """
    constant = constant_nodes(model, stand_ins)
    nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
    option = ["runtime_options", DYNAMIC_QUANTIZATION]
    dynamic = model.has_rt_info(option) and str(model.get_rt_info(option).value) != "0"
    steps: dict[str, float] = {}
    for name in graph.names:
        node = nodes[name]
        if node.get_type_name() == "FakeQuantize":
            steps[name] = _step(node)
        elif dynamic and node.get_type_name() == "MatMul":
            producers = [value.get_node() for value in node.input_values()]
            activations = [producer for producer in producers if producer.get_friendly_name() not in constant]
            leaves = [nodes[leaf] for producer in producers for leaf in constant.get(producer.get_friendly_name(), ())]
            narrow = any(_is_narrow(leaf.get_element_type()) and math.prod(leaf.get_output_shape(0)) > 1 for leaf in leaves)
            if narrow and not any(map(_dequantizes, activations)):
                steps[name] = _DYNAMIC_STEP
    return {name: step for name, step in steps.items() if step > 0}


def quantized_pairs(model: Any, graph: OpGraph) -> tuple[tuple[str, ...], ...]:
    """Return sets of ops that a runtime fuses into one integer op.

    Each has an op that rounds, or converts quantised values, with its readers up to the first that computes with the values. A
    tensor that several ops read ends such a set.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        graph: its task graph.
    """
    nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
    readers: dict[int, set[int]] = {}
    for u, v in graph.edges.tolist():
        readers.setdefault(u, set()).add(v)
    pairs = []
    for first, name in enumerate(graph.names):
        if not _rounds_or_converts(nodes[name]):
            continue
        members, last = [first], first
        while len(next_ops := readers.get(last, set())) == 1:
            (last,) = next_ops
            if graph.kinds[last] == "Result":
                break
            members.append(last)
            if graph.kinds[last] not in _DEQUANTIZING:
                break
        if len(members) > 1:
            pairs.append(tuple(graph.names[v] for v in members))
    return tuple(pairs)


def _rounds_or_converts(node: Any) -> bool:
    kind = node.get_type_name()
    return bool(kind == "FakeQuantize" or (kind == "Convert" and _is_narrow(node.get_input_element_type(0))))


def _dequantizes(node: Any) -> bool:
    """Return whether a node's output has been quantised, and since then only been converted, shifted or scaled."""
    while node.get_type_name() in _DEQUANTIZING:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "FakeQuantize" or _is_narrow(node.get_output_element_type(0)))


def _is_narrow(kind: Any) -> bool:
    return bool(kind.is_integral_number() and kind.bitwidth <= _MAX_BITS)


def _step(node: Any) -> float:
    """Return the largest relative step of a ``FakeQuantize``, as for :func:`rounding_steps`."""
    ends, levels = [node.input_value(i).get_node() for i in (3, 4)], int(node.get_attributes()["levels"])
    if levels < 2 or any(end.get_type_name() != "Constant" for end in ends):
        return 2 / max(levels - 1, 1)
    low, high = (np.asarray(end.data, np.float64) for end in ends)
    largest = np.maximum(np.abs(low), np.abs(high))
    width = np.abs(high - low)
    return float(np.divide(width, largest * (levels - 1), out=np.zeros_like(width), where=largest > 0).max(initial=0.0))
