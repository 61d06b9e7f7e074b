"""Attention of decoders to caches in blocks, which OpenVINO calls paged: a run computes any tokens of several texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.backends.openvino.last_logits import LAST, LOGITS
from placeit.backends.openvino.segment import RUNTIME_OPTIONS, name_new_nodes
from placeit.backends.openvino.state import number_of
from placeit.core.telemetry import import_openvino

__all__ = ["ENDS", "Paging", "variable_of"]

openvino = import_openvino()

_TEXTS, _LONGEST = ("past_lens", "subsequence_begins", "block_indices", "block_indices_begins"), "max_context_len"
ENDS = "text_ends"
"""Input of a segment that selects the last tokens: the place of the last token of each text."""
_CACHE = "blocks of "
_PAGED, _FIRST, _SCALE_AT, _LONGEST_AT = "PagedAttentionExtension", 9, 9, 12  # OpenVINO's op; its constant inputs
_BEFORE_ATTENTION = ("Broadcast", "Convert", "Reshape", "Unsqueeze")  # ops that copy the keys and values of groups of heads
_MASKED, _NO_PAST = "attention_mask", "no past of "
_SHORT, _HIDDEN = 8, -1e4  # tokens of a short text; mask values below this hide a token

_Constant: TypeAlias = tuple[Any, list[int], Any]


def variable_of(name: str) -> str | None:
    """Return the variable of the model whose blocks are an input of a segment; None if the input is not a cache."""
    return name.removeprefix(_CACHE) if name.startswith(_CACHE) else None


@dataclass(frozen=True)
class _Attention:
    """An attention to a cache.

    Attributes:
        op: computes it.
        joins: concatenate earlier keys and new ones, and values.
        reads: read the state of keys, and of values.
        between: ops between the reads and ``op``.
    """

    op: Any
    joins: tuple[Any, Any]
    reads: tuple[Any, Any]
    between: tuple[Any, ...]

    @property
    def ops(self) -> tuple[Any, ...]:
        """All of its ops."""
        return (*self.reads, *self.joins, *self.between, self.op)

    @property
    def new(self) -> tuple[Any, ...]:
        """Queries, keys and values of new tokens."""
        return (self.op.input_value(0), *(join.input_value(1) for join in self.joins))


@dataclass(frozen=True)
class Paging:
    """Rewrites the attentions of a decoder to use caches in blocks.

    Attributes:
        inputs: number of inputs of OpenVINO's op.
        constants: type, shape and value of those inputs that are equal in all runs, by index.
        together: names of the ops of each attention, which a cut must not separate.
        heads: number of heads and size of each, of queries, keys and values, by the attention's name: a segment may leave
            them open.
        live: names of the ops whose values the model then uses; empty if they are not known.
    """

    inputs: int
    constants: Mapping[int, _Constant]
    together: tuple[tuple[str, ...], ...]
    heads: Mapping[str, Sequence[tuple[int, int]]]
    live: frozenset[str] = frozenset()

    @classmethod
    def of(cls, model: Any) -> Paging | None:
        """Return the paging of a whole model; None if it has none.

        It has none if OpenVINO refuses the model; if it has other outputs than logits, or other states than caches of
        attentions to all earlier tokens; or if it reads the attention mask or the length of the state for more than a mask.
        """
        try:
            found = _attentions(model)
            return cls._of(model, found) if found and _see_all(model) else None
        except (RuntimeError, ValueError, LookupError, ImportError, AttributeError, TypeError):
            return None

    @classmethod
    def _of(cls, model: Any, found: Sequence[_Attention]) -> Paging | None:
        from openvino._offline_transformations import paged_attention_transformation  # noqa: TID251

        last = any(node.get_friendly_name() == LAST for node in model.get_ops())
        if len(model.outputs) > 1 or not (last or model.output(LOGITS).get_partial_shape()[1].is_dynamic):
            return None
        copy = model.clone()
        paged_attention_transformation(copy)
        made = [node for node in copy.get_ops() if node.get_type_name() == _PAGED]
        if len(made) != len(found) or not all(map(_is_plain, made)):
            return None
        size, first = made[0].get_input_size(), made[0]
        ends = {index: first.input_value(index).get_node() for index in range(_FIRST, size) if index != _LONGEST_AT}
        constants = {
            index: (end.get_element_type(), [*end.get_output_shape(0)], None if index == _SCALE_AT else end.data.copy())
            for index, end in ends.items()
        }
        together = tuple(tuple(dict.fromkeys(op.get_friendly_name() for op in one.ops)) for one in found)
        heads = {one.op.get_friendly_name(): [_heads(value) for value in one.new] for one in found}
        paging = cls(size, constants, together, heads)
        whole: Any = paging.page(model.clone())
        read = {value.get_node().get_friendly_name() for op in whole.get_ops() for value in op.input_values()}
        if whole.input(_MASKED).get_node().get_friendly_name() in read or any(name.startswith(_NO_PAST) for name in read):
            return None
        return replace(paging, live=frozenset(op.get_friendly_name() for op in whole.get_ops()))

    def page(self, segment: Any) -> Any | None:
        """Change a segment to use caches in blocks, and return it; None if there is nothing to change.

        Inputs for the texts of a run follow its own inputs, and then caches. A run has the tokens of several texts one after
        the other, ``[1, tokens]``, or texts of equal lengths as rows. Of several texts, the last tokens are rows.

        Raises:
            ValueError: a cut separates an attention from its cache.
        """
        ops, found = openvino.opset13, _attentions(segment)
        last = [node for node in segment.get_ops() if node.get_friendly_name() == LAST]
        ends = [(result, result.input_value(0).get_node()) for result in segment.get_results()] if self.live else []
        dead = [(result, maker) for result, maker in ends if maker.get_friendly_name() not in self.live]
        if not (found or last or dead):
            return None
        known = {node.get_friendly_name() for node in segment.get_ops()}
        given = {name: _parameter(name, [-1], openvino.Type.i32) for name in _TEXTS} if found else {}
        if found:
            given[_LONGEST] = _parameter(_LONGEST, [], openvino.Type.i32)
        caches = list[Any]()
        for one in found:
            names = [f"{_CACHE}{read.get_variable_id()}" for read in one.reads]
            caches += [_parameter(name, [-1] * 4, openvino.Type.dynamic) for name in names]
            self._write(one, caches[-2:], given)
        for sink in segment.get_sinks():
            segment.remove_sink(sink)
        for one in found:
            for read in one.reads:  # other readers, such as the size of a mask
                known.add(f"{_NO_PAST}{read.get_friendly_name()}")
                _replace(read, _empty(read, 0), f"{_NO_PAST}{read.get_friendly_name()}")
        for node in last:
            given[ENDS] = _parameter(ENDS, [-1], openvino.Type.i32)
            value = node.input_value(0)
            width = ops.gather(ops.shape_of(value, "i64"), _numbers([2]), ops.constant(0, openvino.Type.i64))
            flat = ops.reshape(value, ops.concat([_numbers([-1]), width], 0), special_zero=False)
            chosen = ops.gather(flat, given[ENDS], ops.constant(0, openvino.Type.i64))
            _replace(node, ops.unsqueeze(chosen, ops.constant(1, openvino.Type.i64)), LAST)
        for result, maker in dead:  # such as a mask for other segments
            result.input(0).replace_source_output(_empty(maker, 1).output(0))
        made = openvino.Model(segment.get_results(), [*segment.get_parameters(), *given.values(), *caches], "segment")
        if segment.has_rt_info(RUNTIME_OPTIONS):
            made.set_rt_info(segment.get_rt_info(RUNTIME_OPTIONS).value, RUNTIME_OPTIONS)
        name_new_nodes(made, known | {LAST}, "paged")
        return made

    def _write(self, one: _Attention, caches: Sequence[Any], given: Mapping[str, Any]) -> None:
        ops, (query, *new) = openvino.opset13, one.new
        (heads, head), *sizes = self.heads[one.op.get_friendly_name()]
        by_token = _turned(query)
        ends = [_flat(by_token, heads * head)]
        ends += [_flat(_turned(value), count * size) for value, (count, size) in zip(new, sizes, strict=True)]
        ends += [*caches, *(given[name] for name in _TEXTS)]
        for index in range(_FIRST, self.inputs):
            if index == _LONGEST_AT:
                ends.append(given[_LONGEST])
                continue
            kind, shape, value = self.constants[index]
            scale = [_scale(one.op, head)] if index == _SCALE_AT else np.ravel(value).tolist()
            ends.append(openvino.op.Constant(kind, openvino.Shape(shape), scale))
        made = openvino.op._PagedAttentionExtension([end.output(0) for end in ends])
        info = made.get_rt_info()
        for kind, (count, size) in zip("kv", sizes, strict=True):
            info[f"num_{kind}_heads"], info[f"{kind}_head_size"] = count, size
        rows = ops.gather(ops.shape_of(by_token, "i64"), _numbers([0, 1]), ops.constant(0, openvino.Type.i64))
        shape = ops.concat([rows, _numbers([heads, sizes[1][1]])], 0)
        _replace(one.op, _turned(ops.reshape(made.output(0), shape, special_zero=False)), one.op.get_friendly_name())


def _attentions(model: Any) -> list[_Attention]:
    """Return the attentions to caches of a model, in topological order.

    Raises ValueError if one has another form, or a state is not a cache of one.
    """
    found = []
    for node in model.get_ordered_ops():
        if node.get_type_name() == "ScaledDotProductAttention":
            (keys, first, one), (values, second, other) = (_cache_of(node.input_value(index)) for index in (1, 2))
            found.append(_Attention(node, (keys, values), (first, second), (*one, *other)))
    reads = {node.get_friendly_name() for node in model.get_ops() if node.get_type_name() == "ReadValue"}
    if reads != {read.get_friendly_name() for one in found for read in one.reads} or len(reads) != 2 * len(found):
        raise ValueError("a state is not a cache of an attention")
    return found


def _cache_of(value: Any) -> tuple[Any, Any, list[Any]]:
    """Return the concatenation and the read of the state behind keys or values, and the ops between. Raises ValueError."""
    node, between = value.get_node(), []
    while node.get_type_name() in _BEFORE_ATTENTION:
        between.append(node)
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Concat" or node.get_axis() % 4 != 2 or node.get_input_size() != 2:
        raise ValueError("keys or values are not concatenated")
    past = node.input_value(0).get_node()
    while past.get_type_name() in ("Convert", "Gather"):
        between.append(past)
        past = past.input_value(0).get_node()
    if past.get_type_name() != "ReadValue":
        raise ValueError("keys or values are not concatenated to a state")
    return node, past, between


def _heads(value: Any) -> tuple[int, int]:
    """Return the number of heads and the size of each, of ``[batch, heads, tokens, size]``. Raises ValueError."""
    shape = value.get_partial_shape()
    if shape.rank.is_dynamic or len(shape) != 4 or shape[1].is_dynamic or shape[3].is_dynamic:
        raise ValueError("the number of heads or their size is not known")
    return int(shape[1].get_length()), int(shape[3].get_length())


def _is_plain(node: Any) -> bool:
    """Return whether OpenVINO's op has no options but the scale: no window, slopes or sinks."""
    ends = [node.input_value(index).get_node() for index in range(_SCALE_AT + 1, node.get_input_size()) if index != _LONGEST_AT]
    return all(end.get_type_name() == "Constant" and not np.any(end.data) for end in ends)


def _see_all(model: Any) -> bool:
    """Return whether the masks let each token see itself and all earlier ones, and no others.

    OpenVINO's transformation drops masks, since it assumes this. So they are computed here for a short text, and for the last
    token of the longest one, where a window or a slope has an effect.
    """
    copy, masks, states = model.clone(), dict[str, Any](), list[Any]()
    for one in _attentions(copy):
        if not 4 <= one.op.get_input_size() <= 5 or one.op.get_attributes().get("causal"):
            return False
        mask = one.op.input_value(3)
        masks[f"{mask.get_node().get_friendly_name()} {mask.get_index()}"] = mask
        for read, join in zip(one.reads, one.joins, strict=True):
            past = join.input_value(0)
            for value, new in ((read.output(0), False), (past, False), (join.output(0), True)):
                states.append((openvino.opset13.parameter(value.get_partial_shape(), value.get_element_type()), new))
                for reader in value.get_target_inputs():
                    reader.replace_source_output(states[-1][0].output(0))
    results, parameters = [openvino.opset13.result(mask) for mask in masks.values()], copy.get_parameters()
    longest = copy.input(_MASKED).get_partial_shape()[1].get_max_length()
    step = copy.input("input_ids").get_partial_shape()[1].get_max_length()
    if longest < 2:  # it has no bound
        return False
    from placeit.devices.openvino import openvino_core

    part = openvino.Model(results, [*parameters, *(state for state, _ in states)], "masks")
    request = openvino_core().compile_model(part, "CPU").create_infer_request()
    for tokens, past in ((min(_SHORT, longest, step), 0), (1, longest - 1)):
        values = {name: np.zeros((1, tokens)) for name in ("input_ids", "token_type_ids")}
        values |= {"position_ids": np.arange(past, past + tokens)[None], "beam_idx": np.zeros(1)}
        values[_MASKED] = np.ones((1, past + tokens))
        named = [values[min(port.get_names() & values.keys())] for port in copy.inputs]
        kinds = [port.get_element_type().to_dtype() for port in parameters]
        given = [np.ascontiguousarray(value, kind) for value, kind in zip(named, kinds, strict=True)]
        given += [_zeros(state, past + tokens * new) for state, new in states]
        for mask in request.infer([openvino.Tensor(value, shared_memory=True) for value in given]).values():
            if not _is_causal(mask, tokens, past):
                return False
    return True


def _is_causal(mask: NDArray[Any], tokens: int, past: int) -> bool:
    seen, hidden = (mask, ~mask) if mask.dtype == bool else (mask == 0, mask < _HIDDEN)
    wanted = np.arange(past + tokens) <= past + np.arange(tokens)[:, None]
    shape = np.broadcast_shapes(mask.shape, wanted.shape)
    both = (seen, wanted), (hidden, ~wanted)
    return all(np.array_equal(np.broadcast_to(found, shape), np.broadcast_to(right, shape)) for found, right in both)


def _zeros(state: Any, length: int) -> NDArray[Any]:
    """Return a state of some tokens. Its memory is not used where only its size is read, if no copy is made of it."""
    sizes = state.get_partial_shape()
    shape = [size.get_length() if size.is_static else (1, 1, length, 1)[axis] for axis, size in enumerate(sizes)]
    return np.zeros(shape, state.get_element_type().to_dtype())


def _scale(node: Any, head: int) -> float:
    if node.get_input_size() <= 4:
        return float(head**-0.5)
    scale = number_of(node.input_value(4).get_node())
    if scale is None:
        raise ValueError("the scale of scores is not known")
    return float(scale)


def _turned(value: Any) -> Any:
    """Exchange heads and tokens."""
    return openvino.opset13.transpose(value, _numbers([0, 2, 1, 3]))


def _flat(value: Any, width: int) -> Any:
    return openvino.opset13.reshape(value, _numbers([-1, width]), special_zero=False)


def _numbers(values: Sequence[int]) -> Any:
    return openvino.opset13.constant([*values], openvino.Type.i64)


def _parameter(name: str, shape: Sequence[int], kind: Any) -> Any:
    made = openvino.opset13.parameter(openvino.PartialShape([*shape]), kind, name=name)
    made.output(0).get_tensor().set_names({name})
    return made


def _empty(node: Any, size: int) -> Any:
    """Return zeros of a node's type and shape, whose open sizes are ``size``; the first is 1."""
    sizes = enumerate(node.get_output_partial_shape(0))
    shape = [one.get_length() if one.is_static else max(size, int(axis == 0)) for axis, one in sizes]
    return openvino.op.Constant(node.get_output_element_type(0), openvino.Shape(shape), [0] * int(np.prod(shape)))


def _replace(node: Any, by: Any, name: str) -> None:
    """Have the readers of a node read another one, which gets a name."""
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(by.output(0))
    by.set_friendly_name(name)
