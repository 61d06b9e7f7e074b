"""Open sizes of a PyTorch program: how it is exported for them, and which shapes its tensors have at the typical sizes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch.export import Dim, ExportedProgram, ShapesCollection
from torch.export.graph_signature import InputKind, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree
from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

from placeit.core.errors import ModelError
from placeit.core.sizes import LARGEST, Limits, SizeRange, parsed_size

__all__ = ["SIZE", "Dimensions", "OpenSizes", "dimensions", "is_size", "read_size", "sizes_read", "user_inputs"]

Dimensions = tuple[Any, ...]
"""Sizes of a tensor: numbers, and expressions of SymPy."""

SIZE = torch.ops.aten.sym_size.int
"""The op that reads a size of a tensor."""

_SYMBOLIC = torch.SymInt, torch.SymFloat, torch.SymBool


def user_inputs(program: ExportedProgram) -> list[Any]:
    """Return the arguments of a program that its caller gives, in order: tensors, and constants of the export."""
    return [spec.arg for spec in program.graph_signature.input_specs if spec.kind is InputKind.USER_INPUT]


def is_size(node: Node) -> bool:
    """Return whether a node computes with sizes: the size of a tensor, or arithmetic."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), (*_SYMBOLIC, int, float, bool))


def dimensions(node: Node, place: tuple[int, ...] = ()) -> Dimensions:
    """Return the sizes of a tensor that a node makes: numbers, or expressions of SymPy for open sizes."""
    value, sizes = node.meta["val"], node.meta.get("dimensions")
    for index in place:
        value, sizes = value[index], None if sizes is None else sizes[index]
    return tuple(value.shape) if sizes is None else sizes


def read_size(node: Node) -> tuple[Node, int]:
    """Return the arguments of a node of :data:`SIZE`: the node of the tensor, and the axis."""
    return cast("tuple[Node, int]", node.args)


def sizes_read(node: Node) -> Iterator[Node]:
    """Yield the nodes of :data:`SIZE` on whose results the arguments of an op depend."""
    for read in node.all_input_nodes:
        if is_size(read):
            yield from (read,) if read.target is SIZE else sizes_read(read)


class OpenSizes:
    """Shapes that a user gives for inputs, with ranges for open sizes.

    Args:
        shapes: shapes by input name, as for :func:`placeit.backends.load`.
        name: name of the model, for messages.

    Raises:
        ModelError: an input has several typical sizes.
        UsageError: a text is no range.
    """

    def __init__(self, shapes: Mapping[str, Sequence[int | str | SizeRange]], name: str) -> None:
        self.name = name
        self.shapes = {name: tuple(map(parsed_size, shape)) for name, shape in shapes.items()}
        if any(len(size.typical) > 1 for shape in self.shapes.values() for size in shape if isinstance(size, SizeRange)):
            raise ModelError(f"{name}: a PyTorch program has one typical size: write 1..512@128.")
        self._typical_shapes: dict[str, tuple[int, ...]] = {}  # by input name
        self._ranges: dict[Any, tuple[int, int]] = {}  # by symbol
        self._typical: dict[Any, int] = {}  # by symbol

    def examples(
        self, program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], ShapesCollection]:
        """Return the arguments with which a module is exported for these sizes, and the dimensions that stay open.

        Args:
            program: the same module, exported for other sizes.
            args: positional arguments of the module.
            kwargs: keyword arguments.

        Raises:
            ModelError: the program does not have these inputs.
        """
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        given = user_inputs(program)
        names = [arg.name for arg in given if isinstance(arg, TensorArgument)]
        for name in self.shapes:
            if name not in names:
                raise ModelError(
                    f"{self.name} has no input '{name}', for which a shape is given; its inputs are {', '.join(names)}."
                )
        dynamic = ShapesCollection()  # type: ignore[no-untyped-call]
        for place, arg in enumerate(given):
            if isinstance(arg, TensorArgument) and arg.name in self.shapes:
                leaves[place] = self._example(arg.name, leaves[place])
                dynamic[leaves[place]] = {
                    axis: Dim.DYNAMIC(min=size.least, max=size.most)
                    for axis, size in enumerate(self.shapes[arg.name])
                    if isinstance(size, SizeRange)
                }
        args, named = pytree.tree_unflatten(leaves, spec)
        return args, named, dynamic

    def _example(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the example of an input at sizes that PyTorch keeps open. It treats the size 1 as a constant."""
        shape = self.shapes[name]
        if len(shape) != tensor.dim():
            raise ModelError(
                f"{self.name}: the shape for input '{name}' has {len(shape)} dimensions where the model has {tensor.dim()}."
            )
        self._typical_shapes[name] = tuple(map(_typical_size, shape, tensor.shape))
        sizes = [
            size if isinstance(size, int) else min(size.most, max(2, typical))
            for size, typical in zip(shape, self._typical_shapes[name], strict=True)
        ]
        if not tensor.numel():
            return torch.zeros(sizes, dtype=tensor.dtype)
        return tensor.reshape(-1)[torch.arange(math.prod(sizes)) % tensor.numel()].reshape(sizes)

    def set_typical(self, program: ExportedProgram) -> None:
        """Give the tensors of a program their typical shapes; their expressions go to ``meta["dimensions"]`` of the nodes.

        Args:
            program: exported for :meth:`examples`, and lowered.

        Raises:
            ModelError: the program takes some of the sizes in range only.
        """
        inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder") if node.name in self.shapes}
        for name, node in inputs.items():
            sizes = node.meta["val"].shape
            for size, symbol, typical in zip(self.shapes[name], sizes, self._typical_shapes[name], strict=True):
                if isinstance(size, SizeRange) and isinstance(symbol, torch.SymInt):
                    self._add_range(name, size, symbol.node.expr, typical, program.range_constraints)
        for node in program.graph.nodes:
            value = node.meta.get("val")
            if any(isinstance(leaf, (torch.Tensor, *_SYMBOLIC)) for leaf in pytree.tree_leaves(value)):
                node.meta["dimensions"] = pytree.tree_map(_dimensions, value)
                node.meta["val"] = pytree.tree_map(self._at_typical_sizes, value)

    def _add_range(
        self, name: str, size: SizeRange, expression: Any, typical: int, ranges: Mapping[Any, ValueRanges[Any]]
    ) -> None:
        """Record the range and the typical size of an open size. Raises ModelError if the program does not take them all."""
        if not expression.is_Symbol:
            raise ModelError(f"{self.name}: the input '{name}' takes only sizes {expression}, which is not supported.")
        lower, upper = _bounds(ranges[expression])
        if lower > max(2, size.least) or upper < size.most:  # PyTorch exports an open size as at least 2, and also runs 1
            raise ModelError(
                f"{self.name}: the input '{name}' may have sizes from {lower} to {upper} only, as the model does something "
                f"else at other sizes in {size}: give a range within these."
            )
        low, high = self._ranges.get(expression, (1, LARGEST))
        self._ranges[expression] = max(low, size.least), min(high, size.most)
        if self._typical.setdefault(expression, typical) != typical:
            raise ModelError(
                f"{self.name}: a size of the input '{name}' is the same as one of another input, and their typical sizes, "
                f"{typical} and {self._typical[expression]}, differ."
            )

    def _at_typical_sizes(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shape = [int(_evaluated(size, self._typical)) for size in _dimensions(value)]
            return torch.empty(shape, dtype=value.dtype, device="meta")
        return _evaluated(value.node.expr, self._typical) if isinstance(value, _SYMBOLIC) else value

    def limits(self, sizes: Dimensions) -> Limits | None:
        """Return the minimum and maximum size of each dimension of a tensor; None if all are fixed."""
        if all(isinstance(size, int) for size in sizes):
            return None
        ranges = {symbol: ValueRanges(*ends) for symbol, ends in self._ranges.items()}
        return tuple((size, size) if isinstance(size, int) else _bounds(bound_sympy(size, ranges)) for size in sizes)


def _typical_size(size: int | SizeRange, example: int) -> int:
    """Return the typical size of a range: the given one, or else the size of the example, or else the largest one."""
    if isinstance(size, int):
        return size
    return size.typical[0] if size.typical else example if size.least <= example <= size.most else size.most


def _dimensions(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    sizes: list[Any] = list(value.shape)
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)


def _evaluated(expression: Any, sizes: Mapping[Any, int]) -> Any:
    if isinstance(expression, int):
        return expression
    value = expression.xreplace(sizes)
    if isinstance(value, int):
        return value
    return bool(value) if value.is_Boolean else int(value) if value.is_integer else float(value)


def _bounds(values: ValueRanges[Any]) -> tuple[int, int]:
    return max(0, int(values.lower)), int(values.upper) if values.upper.is_finite and values.upper < LARGEST else LARGEST
