"""Find where a quantised OpenVINO model rounds, how coarsely, and which ops the runtime fuses into one integer op."""

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
_NARROW_BITS = 8  # most bits of the types of quantised values
_DYNAMIC_STEP = 1 / 127  # step of activations that a runtime quantises to int8, for compressed weights


def rounding_steps(model: Any, graph: OpGraph, stand_ins: Collection[str] = ()) -> dict[str, float]:
    """Return how coarsely ops round their outputs or inputs.

    A ``FakeQuantize`` states its step. If the model asks for dynamic quantisation, the runtime rounds the activations of a
    ``MatMul`` with quantised weights to int8.

    Args:
        model: an ``openvino.Model`` with unique friendly names.
        graph: its task graph.
        stand_ins: parameters that stand for weights.

    Returns:
        For each op by name, the largest step of any channel, divided by the largest absolute value that the channel can have.
    """
    constant = constant_nodes(model, stand_ins)
    nodes = {node.get_friendly_name(): node for node in model.get_ordered_ops()}
    asked = ["runtime_options", DYNAMIC_QUANTIZATION]
    dynamic = model.has_rt_info(asked) and str(model.get_rt_info(asked).value) != "0"
    steps: dict[str, float] = {}
    for name in graph.names:
        node = nodes[name]
        if node.get_type_name() == "FakeQuantize":
            steps[name] = _step(node)
        elif dynamic and node.get_type_name() == "MatMul":
            makers = [value.get_node() for value in node.input_values()]
            computed = [maker for maker in makers if maker.get_friendly_name() not in constant]
            leaves = [leaf for maker in makers for leaf in constant.get(maker.get_friendly_name(), ())]
            narrow = any(
                _is_narrow(nodes[leaf].get_element_type()) and math.prod(nodes[leaf].get_output_shape(0)) > 1 for leaf in leaves
            )
            if narrow and not any(_dequantizes(maker) for maker in computed):
                steps[name] = _DYNAMIC_STEP
    return {name: step for name, step in steps.items() if step > 0}


def quantized_pairs(model: Any, graph: OpGraph) -> tuple[tuple[str, ...], ...]:
    """Return sets of ops: each rounds or converts quantised values, with its readers up to the first that computes with them.

    A runtime makes one integer op of them. If several ops read a quantised tensor, none of them has to stay with it.

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
        if not _begins(nodes[name]):
            continue
        members, at = [first], first
        while len(behind := readers.get(at, set())) == 1:
            (at,) = behind
            if graph.kinds[at] == "Result":
                break
            members.append(at)
            if graph.kinds[at] not in _DEQUANTIZING:
                break
        if len(members) > 1:
            pairs.append(tuple(graph.names[v] for v in members))
    return tuple(pairs)


def _begins(node: Any) -> bool:
    kind = node.get_type_name()
    return bool(kind == "FakeQuantize" or (kind == "Convert" and _is_narrow(node.get_input_element_type(0))))


def _dequantizes(node: Any) -> bool:
    """Return whether a node's output has been rounded already, and at most been scaled since."""
    while node.get_type_name() in _DEQUANTIZING:
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "FakeQuantize" or _is_narrow(node.get_output_element_type(0)))


def _is_narrow(kind: Any) -> bool:
    return bool(kind.is_integral_number() and kind.bitwidth <= _NARROW_BITS)


def _step(node: Any) -> float:
    low, high = (_numbers(node.input_value(place)) for place in (3, 4))
    levels = int(node.get_attributes()["levels"])
    if low is None or high is None or levels < 2:
        return 2 / max(levels - 1, 1)
    largest = np.maximum(np.abs(low), np.abs(high))
    width = np.abs(high - low)
    return float(np.divide(width, largest * (levels - 1), out=np.zeros_like(width), where=largest > 0).max(initial=0.0))


def _numbers(value: Any) -> Any:
    node = value.get_node()
    return np.asarray(node.data, np.float64) if node.get_type_name() == "Constant" else None
