"""Convert the caches of a model from inputs and outputs to state (``ReadValue`` and ``Assign``), and back."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from placeit.backends.openvino.last_logits import TOKENS
from placeit.backends.openvino.view import fuse_in_place
from placeit.core.errors import UsageError
from placeit.core.telemetry import import_openvino

__all__ = [
    "Kinds",
    "StateOption",
    "cache_pairs",
    "expose_growing_states",
    "fix_initial_states",
    "fuse_with_attention",
    "keep_caches",
    "make_state",
    "number_of",
]

openvino = import_openvino()

StateOption: TypeAlias = Mapping[str, str] | Literal["none"] | None
"""Outputs that hold the next value of an input, by input; ``none`` for no state, None to find such pairs by name."""

Kinds: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Element type and ``PartialShape`` of tensors, by name."""


def cache_pairs(inputs: Kinds, outputs: Kinds, requested: StateOption, path: Path) -> dict[str, str]:
    """Return the outputs of a model that hold the next value of a cache, by the input with its previous value.

    Exporters call them ``past_key_values.0.key`` and ``present.0.key``, ``past_key_0`` and ``present_key_0``,
    ``cache_params.past.conv.0`` and ``cache_params.present.conv.0``, or ``past_key_0_in`` and ``past_key_0_out``. Both have the
    same type and compatible shapes.

    Args:
        inputs: inputs that may be caches.
        outputs: outputs of the model.
        requested: pairs from the user.
        path: the file, for messages.

    Raises:
        UsageError: a requested pair does not exist, does not fit, or shares its output with another one.
    """
    if requested == "none":
        return {}
    if requested is None:
        found = {name: next((other for other in _next_names(name) if other in outputs), None) for name in inputs}
        return {name: other for name, other in found.items() if other is not None and _fits(inputs[name], outputs[other])}
    for what, names, known in (("input", requested, inputs), ("output", requested.values(), outputs)):
        for name in names:
            if name not in known:
                raise UsageError(f"{path} has no {what} '{name}' to keep as state; its {what}s are {', '.join(known)}.")
    for name, other in requested.items():
        sharers = [f"'{sharer}'" for sharer, output in requested.items() if output == other]
        if len(sharers) > 1:
            raise UsageError(f"{path}: the output '{other}' cannot be the state of {' and '.join(sharers)} at once.")
        _check_fit(path, name, inputs[name], other, outputs[other])
    return dict(requested)


def _next_names(name: str) -> list[str]:
    """Return the names that exporters give the next value of an input; empty if the input's name is not of a cache."""
    if "past" not in name:
        return []
    suffixed = [name.removesuffix("in") + "out"] if name.endswith(("_in", ".in")) else []
    return [name.replace("past_key_values", "present"), name.replace("past", "present"), *suffixed]


def _fits(previous: tuple[Any, Any], following: tuple[Any, Any]) -> bool:
    """Return whether an input and an output, given by types and shapes, can be one state."""
    return bool(previous[0] == following[0] and previous[1].rank.is_static and previous[1].compatible(following[1]))


def _check_fit(path: Path, name: str, previous: tuple[Any, Any], other: str, following: tuple[Any, Any]) -> None:
    """Raise UsageError if an input and an output cannot be one state."""
    if not _fits(previous, following):
        kinds = (f"{kind.get_type_name()} {shape}" for kind, shape in (previous, following))
        what = f"the input '{name}' is {next(kinds)} and the output '{other}' {next(kinds)}"
        raise UsageError(
            f"{path}: {what}, so they cannot be one state, which keeps its type and all sizes but an open one that grows: "
            "export the model with an open size there, or leave them inputs and outputs with --state none."
        )


def keep_caches(model: Any, pairs: Mapping[str, str], path: Path, *, batch: int | None = None) -> None:
    """Convert inputs and outputs to state. Its initial value is empty along the dimension that grows, else all zeros.

    Args:
        model: an ``openvino.Model`` whose other inputs have their final shapes; it is changed.
        pairs: outputs by input, by tensor names.
        path: the file, for messages.
        batch: size of dimensions that are open and do not grow; None for 1. They stay open if a step may have any number of
            texts.

    Raises:
        UsageError: a pair does not fit, or several dimensions may be the one that grows.
    """
    if not pairs:
        return
    inputs = {name: port.get_node() for port in model.inputs for name in port.get_names()}
    outputs = {name: port.get_node() for port in model.outputs for name in port.get_names()}
    lost = [name for name in pairs if name not in inputs] + [name for name in pairs.values() if name not in outputs]
    if lost:
        raise UsageError(f"{path}: OpenVINO leaves '{lost[0]}' out when it reads the model: give --state without it, or none.")
    caches = [_Cache(name, inputs[name], other, outputs[other]) for name, other in pairs.items()]
    for cache in caches:
        cache.check(path)
    rows = _open_tokens(model) is not None
    _find_growing(model, caches, batch or 1, rows=rows)
    for cache in caches:
        if len(cache.growing) > 1:
            raise UsageError(
                f"{path}: more than one dimension of the input '{cache.input}' may grow from call to call: give the sizes of "
                "the others when you export the model, or leave it an input with --state none."
            )
        if rows:
            cache.resize(-1, -1)
        cache.convert(model)
    model.validate_nodes_and_infer_types()
    kinds = {node.get_type_name() for node in model.get_ops()}
    if "Softmax" in kinds and "ScaledDotProductAttention" not in kinds:
        fuse_in_place(model)  # joins products and a softmax to an attention
    fuse_with_attention(model)


class _Cache:
    """An input of a model with the output that holds its next value.

    Attributes:
        input: name of the input.
        output: name of the output.
        sizes: the dimensions of the input.
        growing: numbers of its open dimensions or, once it is known, of the dimension that grows.
    """

    def __init__(self, input_name: str, parameter: Any, output_name: str, result: Any) -> None:
        self.input, self._parameter, self.output, self._result = input_name, parameter, output_name, result
        past, present = self._shapes()
        others = present if present.rank == past.rank else past
        self.sizes = [mine if mine.is_static else other for mine, other in zip(past, others, strict=True)]
        for reader in (value.get_node() for value in parameter.output(0).get_target_inputs()):
            if reader.get_type_name() == "GroupQueryAttention" and self.sizes[-1].is_dynamic:
                self.sizes[-1] = reader.get_input_partial_shape(0)[-1]  # heads of queries and keys have the same size
        self.growing = [axis for axis, size in enumerate(self.sizes) if size.is_dynamic]

    def check(self, path: Path) -> None:
        """Raise UsageError if input and output cannot be one state."""
        types = (node.get_element_type() for node in (self._parameter, self._result))
        previous, following = zip(types, self._shapes(), strict=True)
        _check_fit(path, self.input, previous, self.output, following)

    def _shapes(self) -> tuple[Any, Any]:
        return self._parameter.get_partial_shape(), self._result.get_input_partial_shape(0)

    def concat_axis(self) -> int | None:
        """Return the dimension along which the next value is concatenated; None if it is not a concatenation."""
        producer = self._result.input_value(0).get_node()
        return producer.get_axis() % len(self.sizes) if producer.get_type_name() == "Concat" else None

    def learn(self, next_value: Any) -> None:
        """Set sizes from the shape of the next value, except of the first dimension and of the concatenated one."""
        axis = self.concat_axis()
        if axis in self.growing and next_value.rank.is_static:
            self.sizes = [mine if k in (0, axis) else next_value[k] for k, mine in enumerate(self.sizes)]

    def resize(self, batch: int, growing: int) -> None:
        """Set the size of open dimensions that grow to ``growing`` and of the others to ``batch``; -1 leaves them open."""
        sizes = [
            size if size.is_static else openvino.Dimension(growing if axis in self.growing else batch)
            for axis, size in enumerate(self.sizes)
        ]
        self._parameter.set_partial_shape(openvino.PartialShape(sizes))

    def keeps_size(self, axis: int) -> bool:
        """Return whether output and input have the same size along a dimension."""
        past, present = self._shapes()
        return bool(present.rank.is_static and present[axis] == past[axis])

    def convert(self, model: Any) -> None:
        """Replace input and output by ``ReadValue`` and ``Assign``."""
        sizes = enumerate(self._parameter.get_partial_shape())
        shape = [int(axis not in self.growing) if size.is_dynamic else size.get_length() for axis, size in sizes]
        initial = openvino.op.Constant(self._parameter.get_element_type(), openvino.Shape(shape), [0])
        make_state(model, self.input, self._parameter, self._result, initial)


def make_state(model: Any, name: str, parameter: Any, result: Any, initial: Any) -> None:
    """Replace an input and an output of a model by state.

    Args:
        model: an ``openvino.Model``; it is changed.
        name: name of the state.
        parameter: node of the input.
        result: node of the output.
        initial: ``Constant`` with the initial value.
    """
    ops = openvino.opset13
    dtype = parameter.get_element_type()
    state_dtype = _STATE_TYPES.get(dtype.get_type_name(), dtype)
    info = openvino.op.util.VariableInfo()
    info.variable_id, info.data_shape, info.data_type = name, parameter.get_partial_shape(), state_dtype
    variable = openvino.op.util.Variable(info)
    read = openvino.op.read_value(initial if state_dtype == dtype else ops.constant(initial.data, state_dtype), variable)
    value = read if state_dtype == dtype else ops.convert(read, dtype)
    for reader in parameter.output(0).get_target_inputs():
        reader.replace_source_output(value.output(0))
    following = _copied_input(result.input_value(0))
    write = openvino.op.assign(read, variable)  # its constructor takes the first output of a node
    converted = following if state_dtype == dtype else ops.convert(following, state_dtype).output(0)
    write.input(0).replace_source_output(converted)
    read.set_friendly_name(name)
    read.output(0).set_names(parameter.output(0).get_names())
    write.set_friendly_name(f"{name}/write")
    model.add_sinks([write])
    model.remove_result(result)
    model.remove_parameter(parameter)


def _copied_input(value: Any) -> Any:
    """Return a value, or a copy of an input: OpenVINO's CPU plugin (2026.4) would keep the state in the input's memory."""
    source = value.get_node()
    while source.get_type_name() in ("Convert", "Reshape", "Squeeze", "Unsqueeze"):
        source = source.input_value(0).get_node()
    if source.get_type_name() != "Parameter":
        return value
    is_boolean = value.get_element_type() == openvino.Type.boolean
    # an op that returns its input, and that OpenVINO does not remove
    return (openvino.opset13.logical_or if is_boolean else openvino.opset13.maximum)(value, value).output(0)


_STATE_TYPES = {"i64": openvino.Type.i32, "i16": openvino.Type.i32, "f64": openvino.Type.f32}
"""Types in which OpenVINO's CPU plugin (2026.4) computes with types of which it keeps no state."""


def _find_growing(model: Any, caches: list[_Cache], batch: int, *, rows: bool) -> None:
    """Find the open dimension of each cache that grows, and set the shapes of the inputs.

    Args:
        model: the model.
        caches: its caches.
        batch: size of open dimensions that do not grow.
        rows: whether the first dimension, if it is open, has a row for each text and does not grow.
    """
    others = []
    if any(len(cache.growing) > 1 + rows for cache in caches):
        _learn_sizes(model, caches)
    for cache in caches:
        if rows:
            cache.growing = [axis for axis in cache.growing if axis > 0]
        axis = cache.concat_axis()
        if axis in cache.growing:
            cache.growing = [axis]
        elif cache.growing:
            others.append(cache)
        cache.resize(batch, -1)
    for cache in others:  # to infer the sizes after one step
        cache.resize(batch, batch)
    with contextlib.suppress(RuntimeError):  # the other inputs may have sizes for states of another length
        model.validate_nodes_and_infer_types()
        for cache in others:
            cache.growing = [axis for axis in cache.growing if not cache.keeps_size(axis)]
    for cache in others:
        cache.resize(batch, -1)


def _learn_sizes(model: Any, caches: list[_Cache]) -> None:
    """Infer sizes of caches from inputs of the smallest sizes, such as the number of heads of keys."""
    small, names = model.clone(), {cache.input for cache in caches}
    shapes = {}
    for number, port in enumerate(model.inputs):
        if port.get_partial_shape().rank.is_static:
            sizes = list(port.get_partial_shape())
            fixed = len(sizes) if port.get_names().isdisjoint(names) else 1
            least = [openvino.Dimension(max(1, size.get_min_length())) for size in sizes[:fixed]]
            shapes[number] = openvino.PartialShape([*least, *sizes[fixed:]])
    with contextlib.suppress(RuntimeError):
        small.reshape(shapes)
        for cache in caches:
            cache.learn(small.output(cache.output).get_partial_shape())


def fix_initial_states(model: Any) -> None:
    """Replace initial values of states by constants where all their elements are the same number.

    optimum-intel computes initial values from the inputs. A segment without these inputs would need the shape from another
    segment, and OpenVINO compiles no state whose initial shape has more open sizes than the state. If only the batch is open,
    the initial value has a row for each text of the step: for each beam of the list that selects rows of the state, or else
    for each row of tokens, which then are an input of the same segment. (OpenVINO's CPU plugin, 2026.4, crashes if the state
    has fewer rows.)

    Args:
        model: an ``openvino.Model`` whose inputs have their final shapes; it is changed.
    """
    ops, tokens = openvino.opset13, _open_tokens(model)
    for read in model.get_ordered_ops():
        if read.get_type_name() != "ReadValue" or not read.get_input_size():
            continue
        value = read.input_value(0)
        sizes = list(value.get_partial_shape()) if value.get_partial_shape().rank.is_static else []
        beams, rows = _beams(read), None
        one_row = tokens is not None and sizes[:1] == [1] and read.get_output_partial_shape(0)[0].is_dynamic
        if (one_row or (sizes and sizes[0].is_dynamic)) and (beams is not None or tokens is not None):
            rows = _rows(tokens) if beams is None else ops.shape_of(beams, "i64")
            sizes[0] = openvino.Dimension(1)
        if not sizes or any(size.is_dynamic for size in sizes):
            continue
        number = number_of(value.get_node())
        if number is None or (rows is None and value.get_node().get_type_name() != "Broadcast"):
            continue
        shape = [size.get_length() for size in sizes]
        known = openvino.op.Constant(value.get_element_type(), openvino.Shape(shape), [number])
        known.set_friendly_name(f"{read.get_friendly_name()}/initial")
        if rows is not None:
            known = ops.broadcast(known, ops.concat([rows, ops.constant(np.array(shape[1:], np.int64))], 0))
        read.input(0).replace_source_output(known.output(0))
    model.validate_nodes_and_infer_types()


def number_of(node: Any) -> Any:
    """Return the number that all elements of a value equal; None if they differ or are not known."""
    while node.get_type_name() in ("Broadcast", "Convert"):
        node = node.input_value(0).get_node()
    numbers = np.unique(node.data) if node.get_type_name() == "Constant" else None
    if numbers is None or numbers.size > 1:
        return None
    return numbers[0].item() if numbers.size else 0


def _open_tokens(model: Any) -> Any:
    """Return the input with the tokens of a step if it has an open number of texts, else None."""
    for port in model.inputs:
        shape = port.get_partial_shape()
        if not port.get_names().isdisjoint(TOKENS) and shape.rank.is_static and len(shape) and shape[0].is_dynamic:
            return port.get_node()
    return None


def _rows(tokens: Any) -> Any:
    """Return new ops that compute the number of texts in a step, ``int64[1]``. Each state has its own, to keep them near."""
    ops = openvino.opset13
    return ops.gather(ops.shape_of(tokens, "i64"), ops.constant([0]), ops.constant(0))


def _beams(read: Any) -> Any:
    """Return the input with which ``Gather`` selects rows of a state; None without one, or if another op reads it."""
    readers = [value.get_node() for value in read.output(0).get_target_inputs()]
    if not {reader.get_type_name() for reader in readers} <= {"Gather", "ShapeOf"}:
        return None
    lists = (reader.input_value(1) for reader in readers if reader.get_type_name() == "Gather")
    return next((value for value in lists if value.get_node().get_type_name() == "Parameter"), None)


def fuse_with_attention(model: Any) -> None:
    """Rewrite states so that OpenVINO's CPU plugin fuses them with the attention that reads them.

    The plugin (2026.4) fuses a state of four dimensions if a ``Gather`` with a list of beams is between the state and the
    concatenation with the keys or values of new tokens. The list that is inserted here has all rows, in order.

    Args:
        model: an ``openvino.Model``; it is changed.
    """
    ops, tokens = openvino.opset13, _open_tokens(model)
    orders: dict[int, Any] = {}  # lists by batch: the plugin expects the same list for keys and values
    for node in model.get_ordered_ops():
        shape = node.get_output_partial_shape(0) if node.get_type_name() == "ReadValue" else None
        if shape is None or shape.rank.is_dynamic or len(shape) != 4 or (shape[0].is_dynamic and tokens is None):
            continue
        for reader in node.output(0).get_target_inputs():
            concat = reader.get_node()
            if concat.get_type_name() == "Concat" and concat.get_axis() % 4 != 0:
                if shape[0].is_static:
                    batch = shape[0].get_length()
                    order = orders.setdefault(batch, ops.constant(np.arange(batch, dtype=np.int32)))
                else:  # the plugin treats lists that are computed from one input as the same list
                    order = ops.range(ops.constant(0), ops.squeeze(_rows(tokens), ops.constant(0)), ops.constant(1), "i32")
                gather = ops.gather(node, order, ops.constant(0, openvino.Type.i64))
                gather.set_friendly_name(f"{node.get_friendly_name()}/beams")
                reader.replace_source_output(gather.output(0))
    model.validate_nodes_and_infer_types()


def expose_growing_states(model: Any) -> tuple[Any, dict[str, Any]]:
    """Return a copy of a model with its growing states as the last inputs and outputs, in the order of the initial values.

    Args:
        model: an ``openvino.Model``; it is not changed.

    Returns:
        The copy, and the initial value of each such state, an ``openvino.Tensor``, by name. States with fixed sizes, or with
            initial values that depend on inputs, are unchanged.
    """
    copy, initial = model.clone(), dict[str, Any]()
    ops = openvino.opset13
    writes = {node.get_variable_id(): node for node in copy.get_sinks() if node.get_type_name() == "Assign"}
    for read in copy.get_ordered_ops():
        if read.get_type_name() != "ReadValue" or read.get_output_partial_shape(0).is_static or not read.get_input_size():
            continue
        value, dtype = read.input_value(0), read.get_output_element_type(0)
        shape = value.get_partial_shape()
        if value.get_node().get_type_name() == "Constant":
            tensor = openvino.Tensor(value.get_node().data)
        elif shape.rank.is_static and openvino.Dimension(0) in shape:
            tensor = openvino.Tensor(dtype, [size.get_length() if size.is_static else 1 for size in shape])
        else:
            continue
        name = read.get_variable_id()
        write, parameter = writes[name], ops.parameter(read.get_output_partial_shape(0), dtype)
        for reader in read.output(0).get_target_inputs():
            reader.replace_source_output(parameter.output(0))
        copy.add_parameters([parameter])
        copy.add_results([ops.result(write.input_value(0))])
        copy.remove_sink(write)
        copy.remove_variable(copy.get_variable_by_id(name))
        initial[name.partition("/id=")[0]] = tensor  # the name in OpenVINO's requests
    copy.validate_nodes_and_infer_types()
    return copy, initial
