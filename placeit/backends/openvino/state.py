"""Turn caches, which a model has as inputs and outputs, into its state (``ReadValue`` and ``Assign``); and back."""

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
]

openvino = import_openvino()

StateOption: TypeAlias = Mapping[str, str] | Literal["none"] | None
"""Outputs that are the next values of inputs, by input; ``none`` for no state, None for pairs that are found by name."""

Kinds: TypeAlias = Mapping[str, tuple[Any, Any]]
"""Element type and ``PartialShape`` of tensors, by name."""


def cache_pairs(inputs: Kinds, outputs: Kinds, asked: StateOption, path: Path) -> dict[str, str]:
    """Return the inputs of a model that are caches, with the outputs that have their next values.

    Exporters call them ``past_key_values.0.key`` and ``present.0.key``, ``past_key_0`` and ``present_key_0``,
    ``cache_params.past.conv.0`` and ``cache_params.present.conv.0``, or ``past_key_0_in`` and ``past_key_0_out``. Both have one
    type and equal shapes, as far as these are known.

    Args:
        inputs: inputs that may be caches.
        outputs: outputs of the model.
        asked: pairs from the user.
        path: the file, for messages.

    Raises:
        UsageError: a requested pair does not exist, does not fit, or shares its output with another one.
    """
    if asked == "none":
        return {}
    if asked is None:
        found = {name: next((other for other in _next_names(name) if other in outputs), None) for name in inputs}
        return {name: other for name, other in found.items() if other is not None and _fits(inputs[name], outputs[other])}
    for what, names, known in (("input", asked, inputs), ("output", asked.values(), outputs)):
        for name in names:
            if name not in known:
                raise UsageError(f"{path} has no {what} '{name}' to keep as state; its {what}s are {', '.join(known)}.")
    for name, other in asked.items():
        takers = [f"'{taker}'" for taker, output in asked.items() if output == other]
        if len(takers) > 1:
            raise UsageError(f"{path}: the output '{other}' cannot be the state of {' and '.join(takers)} at once.")
        if not _fits(inputs[name], outputs[other]):
            raise _misfit(path, name, inputs[name], other, outputs[other])
    return dict(asked)


def _next_names(name: str) -> list[str]:
    if "past" not in name:
        return []
    ends = [name.removesuffix("in") + "out"] if name.endswith(("_in", ".in")) else []
    return [name.replace("past_key_values", "present"), name.replace("past", "present"), *ends]


def _fits(taken: tuple[Any, Any], given: tuple[Any, Any]) -> bool:
    return bool(taken[0] == given[0] and taken[1].rank.is_static and taken[1].compatible(given[1]))


def _misfit(path: Path, name: str, taken: tuple[Any, Any], other: str, given: tuple[Any, Any]) -> UsageError:
    kinds = (f"{kind.get_type_name()} {shape}" for kind, shape in (taken, given))
    what = f"the input '{name}' is {next(kinds)} and the output '{other}' {next(kinds)}"
    return UsageError(
        f"{path}: {what}, so they cannot be one state, which keeps its type and all sizes but an open one that grows: export "
        "the model with an open size there, or leave them inputs and outputs with --state none."
    )


def keep_caches(model: Any, pairs: Mapping[str, str], path: Path, *, batch: int | None = None) -> None:
    """Turn inputs and outputs into state, which is at first empty along the dimension that grows, or else all zeros.

    Args:
        model: an ``openvino.Model`` whose other inputs have their final shapes; it is changed.
        pairs: outputs by input, by tensor names.
        path: the file, for messages.
        batch: size of dimensions that are open and do not grow; None for 1. If any number of texts may be in a step, they stay
            open.

    Raises:
        UsageError: a pair does not fit, or the dimension that grows cannot be distinguished from others.
    """
    if not pairs:
        return
    inputs = {name: port.get_node() for port in model.inputs for name in port.get_names()}
    outputs = {name: port.get_node() for port in model.outputs for name in port.get_names()}
    lost = [name for name in pairs if name not in inputs] + [name for name in pairs.values() if name not in outputs]
    if lost:
        raise UsageError(f"{path}: OpenVINO leaves '{lost[0]}' out when it reads the model: give --state without it, or none.")
    caches = [_Cache(taken, inputs[taken], given, outputs[given]) for taken, given in pairs.items()]
    for cache in caches:
        cache.check(path)
    rows = _open_tokens(model) is not None
    _find_growing(model, caches, batch or 1, rows=rows)
    for cache in caches:
        if len(cache.growing) > 1:
            raise UsageError(
                f"{path}: more than one dimension of the input '{cache.taken}' may grow from call to call: give the sizes of "
                "the others when you export the model, or leave it an input with --state none."
            )
        if rows:
            cache.resize(-1, -1)
        cache.convert(model)
    model.validate_nodes_and_infer_types()
    kinds = {node.get_type_name() for node in model.get_ops()}
    if "Softmax" in kinds and "ScaledDotProductAttention" not in kinds:
        fuse_in_place(model)  # which makes attention of products and a softmax
    fuse_with_attention(model)


class _Cache:
    """An input, and the output that has its next value.

    Attributes:
        taken: name of the input.
        given: name of the output.
        sizes: its dimensions.
        growing: its open dimensions or, if known, the one that grows.
    """

    def __init__(self, taken: str, parameter: Any, given: str, result: Any) -> None:
        self.taken, self._parameter, self.given, self._result = taken, parameter, given, result
        past, present = self._shapes()
        others = present if present.rank == past.rank else past
        self.sizes = [mine if mine.is_static else other for mine, other in zip(past, others, strict=True)]
        for reader in (value.get_node() for value in parameter.output(0).get_target_inputs()):
            if reader.get_type_name() == "GroupQueryAttention" and self.sizes[-1].is_dynamic:
                self.sizes[-1] = reader.get_input_partial_shape(0)[-1]  # a head has this size in queries, too
        self.growing = [axis for axis, size in enumerate(self.sizes) if size.is_dynamic]

    def check(self, path: Path) -> None:
        """Raise UsageError if input and output cannot be one state."""
        kinds = (node.get_element_type() for node in (self._parameter, self._result))
        taken, given = zip(kinds, self._shapes(), strict=True)
        if not _fits(taken, given):
            raise _misfit(path, self.taken, taken, self.given, given)

    def _shapes(self) -> tuple[Any, Any]:
        return self._parameter.get_partial_shape(), self._result.get_input_partial_shape(0)

    def joined_along(self) -> int | None:
        """Return the dimension along which the next value is concatenated; None if it is not a concatenation."""
        maker = self._result.input_value(0).get_node()
        return maker.get_axis() % len(self.sizes) if maker.get_type_name() == "Concat" else None

    def learn(self, next_value: Any) -> None:
        """Take sizes from the shape of the next value, except of the first dimension and the one of the concatenation."""
        axis = self.joined_along()
        if axis in self.growing and next_value.rank.is_static:
            self.sizes = [mine if k in (0, axis) else next_value[k] for k, mine in enumerate(self.sizes)]

    def resize(self, batch: int, growing: int) -> None:
        """Set the sizes of open dimensions: of the ones that grow, and of the others."""
        sizes = [
            size if size.is_static else openvino.Dimension(growing if axis in self.growing else batch)
            for axis, size in enumerate(self.sizes)
        ]
        self._parameter.set_partial_shape(openvino.PartialShape(sizes))

    def stays(self, axis: int) -> bool:
        """Return whether output and input have equal sizes along a dimension."""
        past, present = self._shapes()
        return bool(present.rank.is_static and present[axis] == past[axis])

    def convert(self, model: Any) -> None:
        """Replace input and output by ``ReadValue`` and ``Assign``."""
        shape = self._parameter.get_partial_shape()
        begin = openvino.Shape(
            [int(axis not in self.growing) if size.is_dynamic else size.get_length() for axis, size in enumerate(shape)]
        )
        initial = openvino.op.Constant(self._parameter.get_element_type(), begin, [0])
        make_state(model, self.taken, self._parameter, self._result, initial)


def make_state(model: Any, name: str, parameter: Any, result: Any, initial: Any) -> None:
    """Replace an input and an output of a model, which is changed, by state with an initial value, a constant."""
    ops = openvino.opset13
    own = parameter.get_element_type()
    kind = _KEPT_AS.get(own.get_type_name(), own)
    about = openvino.op.util.VariableInfo()
    about.variable_id = name
    about.data_shape, about.data_type = parameter.get_partial_shape(), kind
    variable = openvino.op.util.Variable(about)
    read = openvino.op.read_value(initial if kind == own else ops.constant(initial.data, kind), variable)
    value = read if kind == own else ops.convert(read, own)
    for reader in parameter.output(0).get_target_inputs():
        reader.replace_source_output(value.output(0))
    following = _not_of_input(result.input_value(0))
    write = openvino.op.assign(read, variable)  # its constructor takes the first output of a node
    write.input(0).replace_source_output(following if kind == own else ops.convert(following, kind).output(0))
    read.set_friendly_name(name)
    read.output(0).set_names(parameter.output(0).get_names())
    write.set_friendly_name(f"{name}/write")
    model.add_sinks([write])
    model.remove_result(result)
    model.remove_parameter(parameter)


def _not_of_input(value: Any) -> Any:
    """Return a value, copied if it is an input: OpenVINO's CPU plugin (2026.4) would keep the state in the input's memory."""
    source = value.get_node()
    while source.get_type_name() in ("Convert", "Reshape", "Squeeze", "Unsqueeze"):
        source = source.input_value(0).get_node()
    if source.get_type_name() != "Parameter":
        return value
    truth = value.get_element_type() == openvino.Type.boolean
    copied = (openvino.opset13.logical_or if truth else openvino.opset13.maximum)(value, value)  # an op that is not left out
    return copied.output(0)


_KEPT_AS = {"i64": openvino.Type.i32, "i16": openvino.Type.i32, "f64": openvino.Type.f32}
"""Types of states for types of values that OpenVINO's CPU plugin (2026.4) keeps no state of; it computes in these ones."""


def _find_growing(model: Any, caches: list[_Cache], batch: int, *, rows: bool) -> None:
    """Find which open dimensions of caches grow, and set the shapes of the inputs; the first has the ``rows`` of texts."""
    others = []
    if any(len(cache.growing) > 1 + rows for cache in caches):
        _learn_sizes(model, caches)
    for cache in caches:
        if rows:
            cache.growing = [axis for axis in cache.growing if axis > 0]
        axis = cache.joined_along()
        if axis in cache.growing:
            cache.growing = [axis]
        elif cache.growing:
            others.append(cache)
        cache.resize(batch, -1)
    for cache in others:  # to find the sizes after one step
        cache.resize(batch, batch)
    with contextlib.suppress(RuntimeError):  # the other inputs' sizes are for states of another length
        model.validate_nodes_and_infer_types()
        for cache in others:
            cache.growing = [axis for axis in cache.growing if not cache.stays(axis)]
    for cache in others:
        cache.resize(batch, -1)


def _learn_sizes(model: Any, caches: list[_Cache]) -> None:
    """Find sizes of caches that follow from the sizes of one text, such as the number of heads of keys."""
    small, taken = model.clone(), {cache.taken for cache in caches}
    shapes = {}
    for number, port in enumerate(model.inputs):
        if port.get_partial_shape().rank.is_static:
            sizes = list(port.get_partial_shape())
            fixed = len(sizes) if port.get_names().isdisjoint(taken) else 1
            least = [openvino.Dimension(max(1, size.get_min_length())) for size in sizes[:fixed]]
            shapes[number] = openvino.PartialShape([*least, *sizes[fixed:]])
    with contextlib.suppress(RuntimeError):
        small.reshape(shapes)
        for cache in caches:
            cache.learn(small.output(cache.given).get_partial_shape())


def fix_initial_states(model: Any) -> None:
    """Make initial values of states constants where they are one number, in a shape that does not depend on an input's size.

    optimum-intel computes initial values from the inputs. A segment without these inputs would have to be told the shape by
    another segment, and OpenVINO compiles no state whose initial shape is less known than its own. If only the batch is open,
    the initial value has a row for each text of the step: for each beam of the list that selects rows of the state, or for each
    row of tokens, which the same segment then has as an input. (OpenVINO's CPU plugin crashes if the state has fewer rows than
    that: 2026.4.)

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
        if one_row or (sizes and sizes[0].is_dynamic):
            if beams is not None:
                rows = ops.shape_of(beams, "i64")
            elif tokens is not None:
                rows = _rows(tokens)
        if rows is not None:
            sizes[0] = openvino.Dimension(1)
        if (
            (rows is None and value.get_node().get_type_name() != "Broadcast")
            or not sizes
            or any(size.is_dynamic for size in sizes)
        ):
            continue
        number = _number(value.get_node())
        if number is None:
            continue
        shape = [size.get_length() for size in sizes]
        known = openvino.op.Constant(value.get_element_type(), openvino.Shape(shape), [number])
        known.set_friendly_name(f"{read.get_friendly_name()}/initial")
        if rows is not None:
            known = ops.broadcast(known, ops.concat([rows, ops.constant(np.array(shape[1:], np.int64))], 0))
        read.input(0).replace_source_output(known.output(0))
    model.validate_nodes_and_infer_types()


def _number(made: Any) -> Any:
    """Return the number that all elements of an initial value are; None if it is not known."""
    while made.get_type_name() in ("Broadcast", "Convert"):
        made = made.input_value(0).get_node()
    if made.get_type_name() != "Constant":
        return None
    numbers = np.unique(made.data)
    if numbers.size > 1:
        return None
    return numbers[0].item() if numbers.size else 0


def _open_tokens(model: Any) -> Any:
    """Return the input with the tokens of a step of any number of texts; None if a model has no such input."""
    for port in model.inputs:
        shape = port.get_partial_shape()
        if not port.get_names().isdisjoint(TOKENS) and shape.rank.is_static and len(shape) and shape[0].is_dynamic:
            return port.get_node()
    return None


def _rows(tokens: Any) -> Any:
    """Return ops that compute the number of texts in a step, ``int64[1]``. Ops of several states would be far from some."""
    ops = openvino.opset13
    return ops.gather(ops.shape_of(tokens, "i64"), ops.constant([0]), ops.constant(0))


def _beams(read: Any) -> Any:
    """Return the input by which ``Gather`` selects rows of a state; None without one, or if another op reads the state."""
    readers = [value.get_node() for value in read.output(0).get_target_inputs()]
    if not {reader.get_type_name() for reader in readers} <= {"Gather", "ShapeOf"}:
        return None
    lists = (reader.input_value(1) for reader in readers if reader.get_type_name() == "Gather")
    return next((value for value in lists if value.get_node().get_type_name() == "Parameter"), None)


def fuse_with_attention(model: Any) -> None:
    """Rewrite states so that OpenVINO's CPU plugin fuses them with the attention that reads them.

    The plugin does so if a state of four dimensions is gathered, by a list of beams, before it is concatenated with the keys
    or values of new tokens (2026.4). Here the list has all rows, in order.

    Args:
        model: an ``openvino.Model``; it is changed.
    """
    ops, tokens = openvino.opset13, _open_tokens(model)
    orders: dict[int, Any] = {}  # the plugin expects one list for keys and values
    for node in model.get_ordered_ops():
        shape = node.get_output_partial_shape(0) if node.get_type_name() == "ReadValue" else None
        if shape is None or shape.rank.is_dynamic or len(shape) != 4 or (shape[0].is_dynamic and tokens is None):
            continue
        for reader in node.output(0).get_target_inputs():
            join = reader.get_node()
            if join.get_type_name() == "Concat" and join.get_axis() % 4 != 0:
                if shape[0].is_static:
                    batch = shape[0].get_length()
                    order = orders.setdefault(batch, ops.constant(np.arange(batch, dtype=np.int32)))
                else:  # lists of the same input count as one
                    order = ops.range(ops.constant(0), ops.squeeze(_rows(tokens), ops.constant(0)), ops.constant(1), "i32")
                gather = ops.gather(node, order, ops.constant(0, openvino.Type.i64))
                gather.set_friendly_name(f"{node.get_friendly_name()}/beams")
                reader.replace_source_output(gather.output(0))
    model.validate_nodes_and_infer_types()


def expose_growing_states(model: Any) -> tuple[Any, dict[str, Any]]:
    """Return a copy of a model with growing states as its last inputs and outputs, in the order of the initial values.

    Args:
        model: an ``openvino.Model``; it is not changed.

    Returns:
        The copy, and the initial value of each such state, an ``openvino.Tensor``, by name. States with fixed sizes, or with
            initial values that depend on inputs, are unchanged.
    """
    made, initial = model.clone(), dict[str, Any]()
    ops = openvino.opset13
    writes = {node.get_variable_id(): node for node in made.get_sinks() if node.get_type_name() == "Assign"}
    for read in made.get_ordered_ops():
        if read.get_type_name() != "ReadValue" or read.get_output_partial_shape(0).is_static or not read.get_input_size():
            continue
        begin, kind = read.input_value(0), read.get_output_element_type(0)
        if begin.get_node().get_type_name() == "Constant":
            value = openvino.Tensor(begin.get_node().data)
        elif begin.get_partial_shape().rank.is_static and openvino.Dimension(0) in begin.get_partial_shape():
            value = openvino.Tensor(kind, [size.get_length() if size.is_static else 1 for size in begin.get_partial_shape()])
        else:
            continue
        name = read.get_variable_id()
        write, parameter = writes[name], ops.parameter(read.get_output_partial_shape(0), kind)
        for reader in read.output(0).get_target_inputs():
            reader.replace_source_output(parameter.output(0))
        made.add_parameters([parameter])
        made.add_results([ops.result(write.input_value(0))])
        made.remove_sink(write)
        made.remove_variable(made.get_variable_by_id(name))
        initial[name.partition("/id=")[0]] = value  # the name in OpenVINO's requests
    made.validate_nodes_and_infer_types()
    return made, initial
