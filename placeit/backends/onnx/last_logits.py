"""Have an ONNX decoder compute the logits of the last token alone, as :mod:`placeit.backends.openvino.last_logits` does."""

from __future__ import annotations

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
    makers = {name: node for node in graph.node for name in node.output}
    constants = {tensor.name for tensor in graph.initializer}
    node = makers[LOGITS]
    while node.op_type in _AFTER_MATMUL:
        node = makers.get(next((name for name in node.input if name not in constants), ""), makers[LOGITS])
        if node is makers[LOGITS]:
            break
    graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), f"{LAST}/place"))
    place = [*graph.node].index(node)
    if node.op_type in _PRODUCTS:
        graph.node.insert(place, helper.make_node("Gather", [node.input[0], f"{LAST}/place"], [LAST], name=LAST, axis=1))
        node.input[0] = LAST
    else:
        makers[LOGITS].output[:] = [f"{LOGITS}/all" if name == LOGITS else name for name in makers[LOGITS].output]
        graph.node.append(helper.make_node("Gather", [f"{LOGITS}/all", f"{LAST}/place"], [LOGITS], name=LAST, axis=1))
