"""Sizes that stay open in a PyTorch program: how it is exported for them, and what its values are at the typical ones."""

from __future__ import annotations

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

__all__ = ["SIZE", "Dimensions", "OpenSizes", "dimensions", "is_size", "read_size", "sizes_read"]

Dimensions = tuple[Any, ...]
"""Sizes of a tensor: numbers, and expressions of SymPy."""

SIZE = torch.ops.aten.sym_size.int
"""The op that reads a size of a tensor."""

_SYMBOLIC = torch.SymInt, torch.SymFloat, torch.SymBool


def is_size(node: Node) -> bool:
    """Return whether a node computes with sizes: the size of a tensor, or arithmetic."""
    return node.op == "call_function" and isinstance(node.meta.get("val"), (*_SYMBOLIC, int, float, bool))


def dimensions(node: Node, place: tuple[int, ...] = ()) -> Dimensions:
    """Return the sizes of a tensor that a node makes, as expressions where they are open."""
    value, sizes = node.meta["val"], node.meta.get("dimensions")
    for index in place:
        value, sizes = value[index], None if sizes is None else sizes[index]
    return tuple(value.shape) if sizes is None else sizes


def read_size(node: Node) -> tuple[Node, int]:
    """Return the node of whose result the node of :data:`SIZE` reads a size, and the axis."""
    of, axis = cast("tuple[Node, int]", node.args)
    return of, axis


def sizes_read(node: Node) -> Iterator[Node]:
    """Yield the nodes that read the size of a tensor, on whose results the arguments of an op depend."""
    for read in node.all_input_nodes:
        if is_size(read):
            yield from (read,) if read.target is SIZE else sizes_read(read)


class OpenSizes:
    """Sizes of inputs that a user gives, some of them ranges.

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
        self._shown: dict[str, tuple[int, ...]] = {}  # typical shapes, by input name
        self._ranges: dict[Any, tuple[int, int]] = {}
        self._typical: dict[Any, int] = {}

    def examples(
        self, program: ExportedProgram, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], ShapesCollection]:
        """Return the arguments for which a module is exported with these sizes, and the sizes that stay open.

        Args:
            program: the same module, exported for other sizes.
            args: positional arguments of the module.
            kwargs: keyword arguments.

        Raises:
            ModelError: the program does not have these inputs.
        """
        leaves, spec = pytree.tree_flatten((args, dict(kwargs)))
        given = [one.arg for one in program.graph_signature.input_specs if one.kind is InputKind.USER_INPUT]
        known = [arg.name for arg in given if isinstance(arg, TensorArgument)]
        for name in self.shapes:
            if name not in known:
                raise ModelError(
                    f"{self.name} has no input '{name}', for which a shape is given; its inputs are {', '.join(known)}."
                )
        marks = ShapesCollection()  # type: ignore[no-untyped-call]
        for place, arg in enumerate(given):
            if isinstance(arg, TensorArgument) and arg.name in self.shapes:
                leaves[place] = self._example(arg.name, leaves[place])
                marks[leaves[place]] = {
                    axis: Dim.DYNAMIC(min=size.least, max=size.most)
                    for axis, size in enumerate(self.shapes[arg.name])
                    if isinstance(size, SizeRange)
                }
        args, named = pytree.tree_unflatten(leaves, spec)
        return args, named, marks

    def _example(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return the example of an input at sizes of which PyTorch makes no constants: it does so of one, even in a range."""
        shape = self.shapes[name]
        if len(shape) != tensor.dim():
            raise ModelError(
                f"{self.name}: the shape for input '{name}' has {len(shape)} dimensions where the model has {tensor.dim()}."
            )
        self._shown[name] = tuple(map(_typical, shape, tensor.shape))
        sizes = [
            size if isinstance(size, int) else min(size.most, max(2, typical))
            for size, typical in zip(shape, self._shown[name], strict=True)
        ]
        count = torch.Size(sizes).numel()
        return tensor.reshape(-1)[torch.arange(count) % max(1, tensor.numel())].reshape(sizes)

    def close(self, program: ExportedProgram) -> None:
        """Give each value of a program its typical sizes, and keep the expressions of its sizes beside it.

        Args:
            program: exported for :meth:`examples`, and lowered.

        Raises:
            ModelError: the program takes some of the sizes in range only.
        """
        inputs = {node.name: node for node in program.graph.find_nodes(op="placeholder") if node.name in self.shapes}
        for name, node in inputs.items():
            for size, symbol, typical in zip(self.shapes[name], node.meta["val"].shape, self._shown[name], strict=True):
                if isinstance(size, SizeRange) and isinstance(symbol, torch.SymInt):
                    self._take(name, size, symbol.node.expr, typical, program.range_constraints)
        for node in program.graph.nodes:
            value = node.meta.get("val")
            if any(isinstance(leaf, (torch.Tensor, *_SYMBOLIC)) for leaf in pytree.tree_leaves(value)):
                node.meta["dimensions"] = pytree.tree_map(_dimensions, value)
                node.meta["val"] = pytree.tree_map(self._at_typical_sizes, value)

    def _take(self, name: str, size: SizeRange, expression: Any, typical: int, known: Mapping[Any, ValueRanges[Any]]) -> None:
        if not expression.is_Symbol:
            raise ModelError(f"{self.name}: the input '{name}' takes only sizes {expression}, which is not supported.")
        least, most = _ends(known[expression])
        if (least > max(2, size.least)) or most < size.most:  # PyTorch takes any size for at least two, and runs one
            raise ModelError(
                f"{self.name}: the input '{name}' may have sizes from {least} to {most} only, as the model does something else "
                f"at other sizes in {size}: give a range within these."
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
            shape = [int(_at(size, self._typical)) for size in _dimensions(value)]
            return torch.empty(shape, dtype=value.dtype, device="meta")
        return _at(value.node.expr, self._typical) if isinstance(value, _SYMBOLIC) else value

    def limits(self, sizes: Dimensions) -> Limits | None:
        """Return the least and the largest sizes of a tensor with some dimensions; None if all are fixed."""
        if all(isinstance(size, int) for size in sizes):
            return None
        ranges = {symbol: ValueRanges(*ends) for symbol, ends in self._ranges.items()}
        return tuple((size, size) if isinstance(size, int) else _ends(bound_sympy(size, ranges)) for size in sizes)


def _typical(size: int | SizeRange, there: int) -> int:
    """Return the typical size in a range: the given one, or else the example's, or else the largest one."""
    if isinstance(size, int):
        return size
    return size.typical[0] if size.typical else there if size.least <= there <= size.most else size.most


def _dimensions(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return None
    sizes: list[Any] = list(value.shape)
    return tuple(size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes)


def _at(expression: Any, sizes: Mapping[Any, int]) -> Any:
    if isinstance(expression, int):
        return expression
    value = expression.xreplace(sizes)
    if isinstance(value, int):
        return value
    return bool(value) if value.is_Boolean else int(value) if value.is_integer else float(value)


def _ends(values: ValueRanges[Any]) -> tuple[int, int]:
    return max(0, int(values.lower)), int(values.upper) if values.upper.is_finite and values.upper < LARGEST else LARGEST
