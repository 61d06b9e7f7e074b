"""Change a decoder to compute only the logits of the last token of a step, instead of the logits of all its tokens."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from placeit.core.telemetry import import_openvino

__all__ = ["LAST", "LOGITS", "TOKENS", "LogitsOption", "keep_last_logits"]

openvino = import_openvino()

LogitsOption: TypeAlias = Literal["last", "all"]
"""Tokens of a step whose logits a decoder with state computes."""

LOGITS = "logits"
"""Name that exporters give the output of a decoder."""
LAST = "logits/last"
"""Name of the op that selects the last token, and of its tensor."""
TOKENS = ("input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds")
"""Names that exporters give the input with the tokens of a step."""

_AFTER_MATMUL = frozenset(("Add", "Convert", "Divide", "Multiply", "Tanh"))  # a bias, a scale, a soft cap, a type


def keep_last_logits(model: Any) -> None:
    """Select the last token before the matrix product that computes the logits, which become ``[batch, 1, vocabulary]``.

    Only models that have state, take tokens and return logits of rank 3 are changed. If another op computes the logits, the
    last token is selected after it.

    Args:
        model: an ``openvino.Model``; it is changed.
    """
    inputs = {name for port in model.inputs for name in port.get_names()}
    outputs = [port for port in model.outputs if LOGITS in port.get_names()]
    if not model.get_sinks() or inputs.isdisjoint(TOKENS) or not outputs:
        return
    shape = outputs[0].get_partial_shape()
    if shape.rank.is_dynamic or len(shape) != 3 or shape[1] == openvino.Dimension(1):
        return
    reader = _last_product(outputs[0].get_node())
    ops, value = openvino.opset13, reader.input_value(0)
    last = ops.gather(value, ops.constant([-1], openvino.Type.i64), ops.constant(1, openvino.Type.i64), name=LAST)
    last.output(0).set_names({LAST})
    reader.input(0).replace_source_output(last.output(0))
    if reader.get_type_name() == "Result":  # so that the output keeps its name
        names = value.get_names()
        value.set_names({f"{name}/all" for name in names})
        last.output(0).set_names(names)
    model.validate_nodes_and_infer_types()


def _last_product(result: Any) -> Any:
    """Return the product of tokens and weights from which an output is computed, or else the output's ``Result``."""
    node = result.input_value(0).get_node()
    while node.get_type_name() in _AFTER_MATMUL and _readers(node) == 1:
        computed = [value.get_node() for value in node.input_values() if not _is_constant(value.get_node())]
        if len(computed) != 1:  # such as the sum of the products of a LoRA adapter
            return result
        node = computed[0]
    if node.get_type_name() != "MatMul" or _readers(node) != 1 or node.get_attributes()["transpose_a"]:
        return result
    tokens, weights = node.get_input_partial_shape(0), node.get_input_partial_shape(1)
    return node if tokens.rank.is_static and len(tokens) == 3 and weights.is_static and len(weights) == 2 else result


def _is_constant(node: Any) -> bool:
    while node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return bool(node.get_type_name() == "Constant")


def _readers(node: Any) -> int:
    return len(node.output(0).get_target_inputs())
