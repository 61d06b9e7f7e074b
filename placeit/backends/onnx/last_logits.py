"""Have an ONNX decoder compute the logits of the last token alone, as :mod:`placeit.backends.openvino.last_logits` does."""

from __future__ import annotations

from collections import Counter
from itertools import chain

import numpy as np
import onnx
from onnx import helper, numpy_helper

from placeit.backends.openvino.last_logits import LAST, LOGITS

__all__ = ["keep_last_logits"]

_AFTER_MATMUL = frozenset(("Add", "Cast", "Div", "Mul", "Tanh"))
_PRODUCTS = frozenset(("MatMul", "MatMulNBits"))


def keep_last_logits(proto: onnx.ModelProto) -> None:
    """Select the last token before the product that makes the logits, or behind whatever else makes them; changes the model."""
    graph = proto.graph
    product = _product_before(graph)
    graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), f"{LAST}/place"))
    if product is not None:
        taken, made = product.input[0], LAST
        graph.node.insert([*graph.node].index(product), _last(taken, made))
        product.input[0] = made
        return
    every = f"{LOGITS}/all"
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [every if name == LOGITS else name for name in names]
    graph.node.append(_last(every, LOGITS))


def _last(taken: str, made: str) -> onnx.NodeProto:
    return helper.make_node("Gather", [taken, f"{LAST}/place"], [made], name=LAST, axis=1)


def _product_before(graph: onnx.GraphProto) -> onnx.NodeProto | None:
    """Return the product of tokens and weights that makes the logits alone; None if there is no such product."""
    makers: dict[str, onnx.NodeProto] = {name: node for node in graph.node for name in node.output}
    constants = _constants(graph)
    uses = Counter(chain((name for node in graph.node for name in node.input), (output.name for output in graph.output)))
    name = LOGITS
    while uses[name] == 1 and name in makers:
        node = makers[name]
        varying = [given for given in node.input if given and given not in constants]
        if node.op_type in _PRODUCTS and varying == [node.input[0]]:
            return node
        if node.op_type not in _AFTER_MATMUL or len(varying) != 1:
            return None
        name = varying[0]
    return None


def _constants(graph: onnx.GraphProto) -> set[str]:
    """Return the names of tensors that do not depend on inputs: weights, and what is computed of them."""
    found = {tensor.name for tensor in graph.initializer}
    for node in graph.node:
        if (node.input and all(name in found for name in node.input if name)) or node.op_type == "Constant":
            found.update(node.output)
    return found
