"""Cutting an expression into ops on blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.learning.workloads.tensors.nodes import Crop, IndexRange, Input, Kernel, Op, Reduction, TensorNode, in_order
from placeit.learning.workloads.tensors.partition import PartCounts, Partition, bounds, overlapping, plan
from placeit.learning.workloads.tensors.program import Block, BlockProgram, BlockTensor, MetaOp, ProgramOp, WholeTensor

__all__ = ["shard"]

_COMBINE: Mapping[Reduction, Callable[..., Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "product": torch.mul,
}


def shard(outputs: Sequence[TensorNode], shards: int, partition: Partition | None = None) -> BlockProgram:
    """Cut an expression into a program.

    Each op becomes one op for each combination of parts of its indices. If a reduced index is cut, a ``formation`` op for each
    block of the result combines the partial results. If a tensor is read in another layout than it was made in, a ``select`` op
    for each block copies the parts that overlap it.

    Args:
        outputs: the results of the program.
        shards: how many parts an op is cut into, at least 1; see :func:`~placeit.learning.workloads.tensors.partition.plan`.
        partition: how to cut some ops, by name; the others are cut automatically.

    Raises:
        UsageError: fewer than one shard, no outputs, a name twice, or a partition that does not fit.
    """
    if shards < 1:
        raise UsageError(f"An expression cannot be cut into {shards} shards; 1 leaves it whole.")
    nodes = in_order(outputs)
    parts, layouts = plan(nodes, shards, partition or {})
    if not parts:
        raise UsageError("The expression computes nothing: it needs an op.")
    cutter = _Cutter(parts, layouts)
    for op in parts:
        cutter.cut(op)
    results = {node.name: cutter.whole(node) for node in outputs}
    inputs = {node.name: cutter.whole(node) for node in nodes if isinstance(node, Input)}
    return BlockProgram(tuple(cutter.tensors), tuple(cutter.ops), inputs, results, tuple(cutter.meta_ops))


class _Cutter:
    """Collects tensors and ops; blocks of a tensor are in row-major order."""

    def __init__(self, parts: Mapping[Op, Mapping[str, int]], layouts: Mapping[TensorNode, PartCounts]) -> None:
        self.tensors: list[BlockTensor] = []
        self.ops: list[ProgramOp] = []
        self.meta_ops: list[MetaOp] = []
        self._parts = parts
        self._layouts = layouts
        self._blocks: dict[tuple[TensorNode, PartCounts], list[int]] = {}

    def cut(self, op: Op) -> None:
        """Add the ops of one op, and before them the selects that it needs."""
        parts = self._parts[op]
        operands = [
            self._in_layout(operand, tuple(parts[index] for index in term))
            for operand, term in zip(op.operands, op.terms, strict=True)
        ]
        ranges = {index: bounds(op.sizes[index], count) for index, count in parts.items()}
        made: dict[tuple[int, ...], list[int]] = {}
        shards, formations = [], []
        for where in itertools.product(*(range(count) for count in parts.values())):
            part = dict(zip(parts, where, strict=True))
            region = {index: ranges[index][number] for index, number in part.items()}
            reads = [
                blocks[_flat([part[index] for index in term], [parts[index] for index in term])]
                for blocks, term in zip(operands, op.terms, strict=True)
            ]
            points = math.prod(last - first for first, last in region.values())
            shape = tuple(region[index][1] - region[index][0] for index in op.output)
            cuts = ",".join(f"{index}{number}" for index, number in part.items() if parts[index] > 1)
            name = f"{op.name}[{cuts}]" if cuts else op.name
            tensor = self._emit(name, op.kind, op.kernel(region), reads, shape, op.dtype, op.flops * points)
            shards.append(name)
            made.setdefault(tuple(part[index] for index in op.output), []).append(tensor)
        blocks = []
        for where in sorted(made):
            partial = made[where]
            if len(partial) > 1:
                first = self.tensors[partial[0]]
                name = f"{op.name}{_coordinates(where)} formation"
                flops = float((len(partial) - 1) * math.prod(first.shape))
                tensor = self._emit(name, "formation", _combination(op.combine), partial, first.shape, first.dtype, flops)
                formations.append(name)
                blocks.append(tensor)
            else:
                blocks += partial
        self.meta_ops.append(MetaOp(op.name, tuple(shards), tuple(formations)))
        self._blocks[op, self._layouts[op]] = blocks

    def whole(self, node: TensorNode) -> WholeTensor:
        """Return an input or a result, in its own layout."""
        layout = self._layouts[node]
        blocks = zip(self._in_layout(node, layout), _regions(node.shape, layout), strict=True)
        return WholeTensor(
            node.shape,
            node.dtype,
            tuple(Block(tensor, tuple(slice(*span) for span in region)) for tensor, region in blocks),
            node.sample if isinstance(node, Input) else None,
        )

    def _in_layout(self, node: TensorNode, layout: PartCounts) -> list[int]:
        if (node, layout) not in self._blocks:
            self._blocks[node, layout] = self._laid_out(node, layout)
        return self._blocks[node, layout]

    def _laid_out(self, node: TensorNode, layout: PartCounts) -> list[int]:
        regions = list(_regions(node.shape, layout))
        names = [f"{node.name}{_coordinates(where)}" for where in itertools.product(*map(range, layout))]
        if isinstance(node, Input) and layout == self._layouts[node]:
            return [self._tensor(name, _shape(region), node.dtype) for name, region in zip(names, regions, strict=True)]
        source, starts = (node.operands[0], node.starts) if isinstance(node, Crop) else (node, (0,) * len(node.shape))
        have = self._layouts[source]
        blocks = self._in_layout(source, have)
        cuts = [bounds(size, count) for size, count in zip(source.shape, have, strict=True)]
        label = f"{node.name} in {'x'.join(map(str, layout))}"
        found, selects = [], []
        for where, region in zip(itertools.product(*map(range, layout)), regions, strict=True):
            wanted = [(first + start, last + start) for (first, last), start in zip(region, starts, strict=True)]
            reached = list(itertools.product(*(overlapping(cut, span) for cut, span in zip(cuts, wanted, strict=True))))
            theirs = [tuple(cut[number] for cut, number in zip(cuts, at, strict=True)) for at in reached]
            reads = [blocks[_flat(at, have)] for at in reached]
            if theirs == [tuple(wanted)]:
                found += reads
                continue
            name = f"{label}{_coordinates(where)}"
            found.append(self._emit(name, "select", _selection(wanted, theirs), reads, _shape(region), node.dtype, 0.0))
            selects.append(name)
        if selects:
            self.meta_ops.append(MetaOp(label, (), tuple(selects)))
        return found

    def _tensor(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> int:
        self.tensors.append(BlockTensor(name, shape, dtype))
        return len(self.tensors) - 1

    def _emit(
        self,
        name: str,
        kind: str,
        run: Kernel,
        reads: Sequence[int],
        shape: tuple[int, ...],
        dtype: torch.dtype,
        flops: float,
    ) -> int:
        output = self._tensor(name, shape, dtype)
        written = self.tensors[output].nbytes
        # a select reads what it writes, the other ops all of their inputs
        read = written if kind == "select" else sum(self.tensors[tensor].nbytes for tensor in reads)
        self.ops.append(ProgramOp(name, kind, run, tuple(reads), output, flops, float(read + written)))
        return output


def _regions(shape: Sequence[int], layout: PartCounts) -> Iterator[tuple[IndexRange, ...]]:
    return itertools.product(*(bounds(size, parts) for size, parts in zip(shape, layout, strict=True)))


def _shape(region: Sequence[IndexRange]) -> tuple[int, ...]:
    return tuple(last - first for first, last in region)


def _flat(where: Sequence[int], layout: Sequence[int]) -> int:
    number = 0
    for at, parts in zip(where, layout, strict=True):
        number = number * parts + at
    return number


def _coordinates(where: Sequence[int]) -> str:
    return f"[{','.join(map(str, where))}]"


def _combination(how: Reduction) -> Kernel:
    combine = _COMBINE[how]

    def run(*partial: Tensor) -> Tensor:
        total = combine(partial[0], partial[1])
        for more in partial[2:]:
            combine(total, more, out=total)
        return total

    return run


def _selection(wanted: Sequence[IndexRange], theirs: Sequence[Sequence[IndexRange]]) -> Kernel:
    """Return the kernel that copies the parts of some blocks inside a region to their places in the region."""
    pieces = []
    for region in theirs:
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(wanted, region, strict=True)]
        pieces.append(
            (
                tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(common, wanted, strict=True)),
                tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(common, region, strict=True)),
            )
        )
    shape = _shape(wanted)

    def run(*blocks: Tensor) -> Tensor:
        result = blocks[0].new_empty(shape)
        for block, (place, part) in zip(blocks, pieces, strict=True):
            result[place] = block[part]
        return result

    return run
