"""Export an ``nn.Module``, and lower an exported program to ATen ops without control flow or mutation."""

from __future__ import annotations

import functools
import logging
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ConstantArgument,
    InputKind,
    InputSpec,
    OutputKind,
    SymBoolArgument,
    SymFloatArgument,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from placeit.backends.torch.border import convert_border
from placeit.backends.torch.export_checks import check_dense, check_device, check_exportable
from placeit.backends.torch.open_sizes import OpenSizes, dimensions, is_size, read_size, sizes_read
from placeit.backends.torch.state import STATE_UPDATE
from placeit.backends.torch.structure import leaf_names, plain_structure
from placeit.backends.torch.tracing import as_model_error, exported, line_of
from placeit.core.errors import ModelError

__all__ = ["Lowered", "Value", "export", "indexed_value", "is_random", "lower", "meta_tensor", "op_name", "reads", "specialize"]

_log = logging.getLogger("placeit")

Value = tuple[Node, tuple[int, ...]]
"""A tensor: the node that makes it, and the indices of the tensor in the node's result; ``()`` for the whole result."""

_STATE_OUTPUTS = {kind for kind in OutputKind if kind.name in ("BUFFER_MUTATION", "PARAMETER_MUTATION")}
_COPIES = {torch.ops.aten.clone.default, torch.ops.aten.alias.default, torch.ops.aten.detach.default}
_ALTERNATIVES = {
    "cond": "compute both sides and choose with torch.where",
    "while_loop": "write out a fixed number of steps",
    "scan": "write out the steps in a Python loop",
    "flex_attention": "use torch.nn.functional.scaled_dot_product_attention with a mask",
}
"""Advice for ops that call other programs."""
_QUANTIZED_OPS = ("aten::quantize_per", "aten::_make_per", "quantized::")
_SAME_TYPE_OPS = frozenset(("linear", "matmul", "mm", "mv", "addmm", "layer_norm", "group_norm", "batch_norm", "grid_sampler"))
_NORM_TYPES = {torch.float32, torch.float16, torch.bfloat16}  # types of a norm whose weights are float32
_ASSERTIONS = {torch.ops.aten._assert_tensor_metadata.default}  # assertions about properties that are fixed here


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program of ATen ops with fixed shapes and without in-place changes.

    Attributes:
        inputs: placeholders of the model's inputs, by name.
        outputs: values that the model returns, by name.
        ops: calls of ATen ops that the outputs need, in topological order. They read inputs, each other, and constants.
        constants: weights, buffers, and values computed only from these, if ``ops`` or ``outputs`` read them.
        state: for each buffer that the program changes, the ops that read it; the last of them stands for the change.
    """

    inputs: dict[str, Node]
    outputs: dict[str, Value]
    ops: tuple[Node, ...]
    constants: dict[Value, torch.Tensor]
    state: dict[str, tuple[Node, ...]]


def op_name(node: Node) -> str:
    """Return the name of an op: the path of the calling module and the name of the node, as in ``layers.0.attn/linear_3``."""
    modules = list((node.meta.get("nn_module_stack") or {}).values())
    path = modules[-1][0] if modules else ""
    return f"{path}/{node.name}" if path else str(node.name)


def export(
    module: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str, sizes: OpenSizes | None = None
) -> ExportedProgram:
    """Export a module in evaluation mode with the shapes of the arguments, or with open sizes. Its mode is restored.

    Raises:
        ModelError: the module cannot be exported, for example because its control flow depends on data, or the arguments do not
            fit.
    """
    check_exportable(module, args, kwargs, name)
    training = [part for part in module.modules() if part.training]
    # without gradients, code that the module runs under no_grad does not differ from the rest, and stays in one graph
    advice = "Call the module with the example, without placeit: if it fails there, too, mend the module or the example."
    with as_model_error(f"Cannot export {name}", advice), torch.no_grad(), torch.autocast("cpu", enabled=False):
        try:
            for part in training:
                part.training = False
            program = exported(module, args, kwargs)
            return program if sizes is None else exported(module, *sizes.examples(program, args, kwargs))
        finally:
            for part in training:
                part.training = True


def specialize(
    program: ExportedProgram, args: tuple[Any, ...] | None, kwargs: Mapping[str, Any], name: str, sizes: OpenSizes | None = None
) -> ExportedProgram:
    """Return the program if its sizes are fixed, or else export it anew for example inputs or given sizes.

    Args:
        program: the program.
        args: positional example inputs; None for those in the program.
        kwargs: keyword example inputs.
        name: name of the model, for messages.
        sizes: sizes to export the program for; None for the sizes of the example inputs.

    Raises:
        ModelError: the program has dynamic sizes, and there are no example inputs; or ``sizes`` are given, and are fixed in it.
    """
    values = [node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")]
    input_sizes = [size for value in values for size in (value.shape if isinstance(value, torch.Tensor) else [value])]
    if not any(isinstance(size, torch.SymInt) for size in input_sizes):
        if sizes is not None:
            raise ModelError(
                f"{name}: the sizes of this program are fixed by the example inputs that it was exported for: export it with "
                "dynamic_shapes=..., or give its module."
            )
        return program
    if args is None and program.example_inputs is not None:
        args, kwargs = program.example_inputs
    if args is None:
        raise ModelError(f"{name} has dynamic sizes, and a placement is for one shape: give example inputs.")
    if sizes is None:
        _log.warning("%s has open sizes, and is placed for the sizes of its example inputs only: give ranges of sizes.", name)
    what = "the given sizes" if sizes else "the sizes of its example inputs"
    with as_model_error(f"Cannot export {name} for {what}"), torch.no_grad():
        module = program.module()
        return exported(module, args, kwargs) if sizes is None else exported(module, *sizes.examples(program, args, kwargs))


def lower(program: ExportedProgram, name: str, sizes: OpenSizes | None = None) -> Lowered:
    """Lower a program to ATen ops without mutation, and separate its inputs, ops, constants and outputs.

    Values that are computed only from constants are evaluated here, once. Buffers that the program changes are ordinary values:
    every run starts from their present content. Assertions are left out.

    Raises:
        ModelError: control flow or sizes depend on data, an input is changed in place, or a value cannot be moved between
            devices; the message names the op.
    """
    sources = dict(zip(program.graph.find_nodes(op="placeholder"), program.graph_signature.input_specs, strict=True))
    for node in program.graph.nodes:
        spec = sources.get(node)
        what = f"what op '{op_name(node)}' ({node.target}) makes"
        if spec is not None:
            what = f"the input '{node.name}'" if spec.kind is InputKind.USER_INPUT else f"the weight '{spec.target}'"
        check_device(f"{name}: {what}", node.meta.get("val"))
        _check_types(node, sources, name)
    names = leaf_names(program.call_spec.out_spec, "output")
    with as_model_error(f"Cannot lower {name} to ATen ops"), torch.no_grad():
        with plain_structure(program):
            lowered = program.run_decompositions({})
        _drop_copies(lowered)
        convert_border(lowered)
        return _Lowering(lowered, name, names, sizes).result()


def _check_types(node: Node, sources: Mapping[Node, InputSpec], name: str) -> None:
    """Raise ModelError for an op whose tensors need to have one type and do not. PyTorch does not check that in an export."""
    op = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
    if op not in _SAME_TYPE_OPS:
        return
    read = [one for one in node.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]  # others are open sizes
    types = dict.fromkeys(one.meta["val"].dtype for one in read)
    if len(types) < 2 or (op.endswith("_norm") and types.keys() <= _NORM_TYPES):
        return
    needed = _needed([node])
    given = [one for one, spec in sources.items() if spec.kind is InputKind.USER_INPUT and one in needed]
    fixed_types = {one.meta["val"].dtype for one in read if one in sources and one not in given}
    named = [(one.name, one.meta["val"].dtype) for one in given if fixed_types or one in read]
    wrong = [f"the input '{called}' is {dtype}" for called, dtype in named if dtype in types.keys() - fixed_types]
    advice = f"{' and '.join(wrong)}. Convert the example (x.to) or the module (module.to)" if wrong else "convert them (x.to)"
    raise ModelError(
        f"{name}: op '{op_name(node)}' ({node.target}){_called_at(node)} computes with {' and '.join(map(str, types))}, and "
        f"takes tensors of one type: {advice}."
    )


def _drop_copies(program: ExportedProgram) -> None:
    """Remove copies that only protect a tensor from changes in place, since the lowered program has none.

    Dropout in evaluation mode becomes such a copy.
    """
    for node in program.graph.nodes:
        if node.target in _COPIES and node.kwargs.get("memory_format") in (None, torch.preserve_format):
            node.replace_all_uses_with(node.args[0])


class _Lowering:
    """Separates the inputs, ops, constants and outputs of a program of functional ATen ops."""

    def __init__(self, program: ExportedProgram, name: str, outputs: list[str], sizes: OpenSizes | None) -> None:
        self.program, self.name, self.output_names, self.sizes = program, name, outputs, sizes
        self.inputs: dict[str, Node] = {}
        self.buffers: dict[str, Node] = {}  # buffers that the program changes
        self.constants: dict[Node, Any] = {}  # weights, buffers, and results of ops that read only these

    def result(self) -> Lowered:
        self._take_inputs()
        calls = [
            node
            for node in self.program.graph.nodes
            if node.op == "call_function" and node.target is not operator.getitem and node.target not in _ASSERTIONS
        ]
        for node in calls:
            self._check(node)
        outputs, written = self._take_outputs()
        if self.sizes is not None:
            self.sizes.set_typical(self.program)
        calls += self._add_state_updates(written)
        needed = _needed([*(node for node, _ in outputs.values()), *calls[len(calls) - len(written) :]])
        state = set(self.buffers.values())
        ops: list[Node] = []
        for node in calls:
            if node not in needed or is_size(node):
                continue
            makers = [maker for maker, _ in reads(node)]
            if not is_random(node) and all(maker in self.constants and maker not in state for maker in makers):
                args, kwargs = map_arg((node.args, node.kwargs), lambda read: self._constant(indexed_value(read)))
                self.constants[node] = node.target(*args, **kwargs)
            else:
                ops.append(node)
        wanted = [value for op in ops for value in reads(op)] + list(outputs.values())
        constants = {value: self._constant(value) for value in wanted if value[0] in self.constants}
        state_ops = {name: tuple(op for op in ops if node in op.all_input_nodes) for name, node in self.buffers.items()}
        return Lowered(self.inputs, outputs, tuple(ops), constants, state_ops)

    def _add_state_updates(self, written: dict[str, Node]) -> list[Node]:
        """Add an op for each change of a buffer."""
        graph, added = self.program.graph, []
        (end,) = graph.find_nodes(op="output")
        for name, value in written.items():
            with graph.inserting_before(end):
                call = graph.create_node(
                    "call_function", STATE_UPDATE, (self.buffers[name], value), name=f"{self.buffers[name].name}_kept"
                )
            call.meta["val"] = self.buffers[name].meta["val"]
            added.append(call)
        return added

    def _constant(self, value: Value) -> Any:
        return functools.reduce(operator.getitem, value[1], self.constants[value[0]])

    def _take_inputs(self) -> None:
        signature = self.program.graph_signature
        changed = {spec.target for spec in signature.output_specs if spec.kind in _STATE_OUTPUTS}
        placeholders = self.program.graph.find_nodes(op="placeholder")
        for node, spec in zip(placeholders, signature.input_specs, strict=True):
            if isinstance(spec.arg, ConstantArgument):
                continue  # a number or a truth value for which the program was exported, and which is fixed in it
            if not isinstance(spec.arg, TensorArgument):
                reader = next(iter(node.users), node)
                raise ModelError(
                    f"{self.name}: op '{op_name(reader)}'{_called_at(reader)} reads '{spec.target or node.name}', which is no "
                    "tensor, and only tensors can be moved between devices: have it read a tensor, such as random numbers in "
                    "place of their generator."
                )
            check_dense(f"{self.name}: '{spec.target or node.name}'", node.meta["val"])
            if spec.kind is InputKind.USER_INPUT:
                self.inputs[node.name] = node
                continue
            tensor = self._stored_tensor(spec)
            # the module may have been moved since it was exported
            check_device(f"{self.name}: the weight '{spec.target}'", tensor)
            if spec.target in changed:
                self.buffers[spec.target], tensor = node, tensor.clone()
            self.constants[node] = tensor

    def _stored_tensor(self, spec: InputSpec) -> torch.Tensor:
        target = spec.target or ""
        stored = self.program.state_dict.get(target, self.program.constants.get(target))
        if not isinstance(stored, torch.Tensor):
            raise ModelError(f"{self.name}: '{target}' is a {type(stored).__name__}, and only tensors can be moved to devices.")
        return stored.detach()

    def _take_outputs(self) -> tuple[dict[str, Value], dict[str, Node]]:
        """Return the model's results, and the new values of the buffers that it changes, by name."""
        (end,) = self.program.graph.find_nodes(op="output")
        specs = self.program.graph_signature.output_specs
        returned: list[Node | None] = []
        written: dict[str, Node] = {}
        for node, spec in zip(end.args[0], specs, strict=True):
            if spec.kind is OutputKind.USER_OUTPUT:
                if isinstance(spec.arg, SymIntArgument | SymFloatArgument | SymBoolArgument):
                    raise ModelError(f"{self.name} returns a size, which is open, as a number: return tensors only.")
                returned.append(node if isinstance(spec.arg, TensorArgument) else None)
            elif spec.kind in _STATE_OUTPUTS:
                written[spec.target] = node
            elif spec.kind is OutputKind.USER_INPUT_MUTATION:
                where = f", at{line}" if (line := line_of(node)) else ""
                raise ModelError(
                    f"{self.name} changes its input '{spec.target}' in place{where}, which the caller would not see: "
                    f"change a copy ({spec.target} = {spec.target}.clone())."
                )
            else:
                raise ModelError(f"{self.name} has an output of kind {spec.kind.name}, and a placement is for inference only.")
        if not any(returned):
            raise ModelError(f"{self.name} returns no tensor, so there is nothing to compute: return the result.")
        pairs = zip(self.output_names, returned, strict=True)
        return {name: indexed_value(node) for name, node in pairs if node is not None}, written

    def _check(self, node: Node) -> None:
        """Raise ModelError for an op that cannot be in a fixed program of tensors."""
        if is_size(node) and not free_unbacked_symbols(node.meta["val"]):
            return
        op = f"{self.name}: op '{op_name(node)}' ({node.target}){_called_at(node)}"
        if not isinstance(node.target, torch._ops.OpOverload):
            custom = next((arg for arg in node.args if isinstance(arg, torch._ops.OpOverload)), None)
            if custom is not None:
                raise ModelError(_changes_in_place(f"{self.name}: op '{op_name(node)}' ({custom})"))
            kind = getattr(node.target, "__name__", str(node.target))
            instead = _ALTERNATIVES.get(kind, "write it with ordinary ops of tensors")
            raise ModelError(
                f"{op} calls other programs: control flow that depends on data, or a part in another mode. A placement is for "
                f"one fixed program: {instead}, or export the parts separately."
            )
        for leaf in pytree.tree_leaves(node.meta.get("val")):
            if isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool) and free_unbacked_symbols(leaf):
                raise ModelError(
                    f"{op} makes a Python number of a tensor's value, so that what follows depends on the data. A placement "
                    "is for one fixed program: keep the value in a tensor, without .item(), int() or float()."
                )
            if isinstance(leaf, torch.Tensor) and free_unbacked_symbols(leaf):
                raise ModelError(
                    f"{op} makes a tensor of shape {list(leaf.shape)}, whose size depends on the data, and a placement is for "
                    "fixed sizes: use a mask, torch.where or torch.topk in its place, or cut the model there."
                )
            if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
                raise ModelError(
                    f"{op} makes a tensor of layout {leaf.layout}, which cannot be moved between devices: keep it dense."
                )
        if node.target._schema.name.startswith(_QUANTIZED_OPS):
            raise ModelError(
                f"{op} makes a quantised tensor, which cannot be moved between devices: keep its integers and scales in "
                "ordinary tensors, or quantise the ONNX file that placeit export writes."
            )
        if node.target._schema.is_mutable:
            raise ModelError(_changes_in_place(op))
        if node.target.overloadpacket is torch.ops.aten.as_strided:
            raise ModelError(
                f"{op} reads memory by strides, which a tensor does not keep when it moves to another device: write it with "
                "slices, reshape or unfold."
            )


def _called_at(node: Node) -> str:
    return f", called at{line}," if (line := line_of(node)) else ""


def indexed_value(node: Node) -> Value:
    """Return the value that a node stands for, resolving indexing into an op's results."""
    place: tuple[int, ...] = ()
    while node.target is operator.getitem:
        node, index = cast("tuple[Node, int]", node.args)
        place = (index, *place)
    return node, place


def _changes_in_place(op: str) -> str:
    return f"{op} changes a tensor in place, and has no other form: write one that returns a new tensor."


def meta_tensor(value: Value) -> torch.Tensor:
    """Return a tensor without data that has a value's shape and type."""
    node, place = value
    tensor: torch.Tensor = functools.reduce(operator.getitem, place, node.meta["val"])
    return tensor


def is_random(node: Node) -> bool:
    """Return whether a node is a call of an op that draws random numbers.

    Attention and recurrent layers have a dropout option, so PyTorch counts them among such ops. With a probability of 0, or
    outside of training, they draw nothing.
    """
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    for place, argument in enumerate(node.target._schema.arguments):  # type: ignore[union-attr]
        given = node.args[place] if place < len(node.args) else node.kwargs.get(argument.name, argument.default_value)
        if argument.name in _DROPOUT and given == 0:  # no probability, or False
            return False
    return True


_DROPOUT = frozenset(("p", "dropout", "dropout_p", "train", "training"))
"""Names of the arguments that switch dropout off in PyTorch's schemas."""


def reads(node: Node) -> list[Value]:
    """Return the tensors that an op reads. A tensor of which it needs only a size counts if no other tensor has that size."""
    values = [indexed_value(read) for read in node.all_input_nodes if not is_size(read)]
    known = {size for value in values for size in dimensions(*value)}
    for size in sizes_read(node):
        source, axis = read_size(size)
        of = indexed_value(source)
        if dimensions(*of)[axis] not in known:
            values.append(of)
            known.update(dimensions(*of))
    return values


def _needed(ends: list[Node]) -> set[Node]:
    """Return nodes, and all nodes whose values they depend on."""
    needed: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting.extend(read for read, _ in reads(node))
    return needed
