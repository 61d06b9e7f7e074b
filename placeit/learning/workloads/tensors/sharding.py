"""Cut an expression into ops on blocks."""

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
    """Cut an expression into a program of ops on blocks.

    Each op becomes one op for each combination of parts of its indices. If a reduced index is cut, a ``formation`` op for each
    block of the result combines the partial results. If a tensor is read in another layout than it was computed in, a
    ``select`` op for each block copies the overlapping parts.

    Args:
        outputs: the results of the program.
        shards: number of parts into which an op is cut, at least 1; see
            :func:`~placeit.learning.workloads.tensors.partition.plan`.
        partition: partitions of some ops, by name; the others are cut automatically.

    Raises:
        UsageError: ``shards`` is less than one, there are no ops, a name occurs twice, or a partition does not fit.
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
    """Collects the tensors and ops of a program; blocks of a tensor are in row-major order."""

    def __init__(self, parts: Mapping[Op, Mapping[str, int]], layouts: Mapping[TensorNode, PartCounts]) -> None:
        self.tensors: list[BlockTensor] = []
        self.ops: list[ProgramOp] = []
        self.meta_ops: list[MetaOp] = []
        self._parts = parts
        self._layouts = layouts
        self._blocks: dict[tuple[TensorNode, PartCounts], list[int]] = {}

    def cut(self, op: Op) -> None:
        """Add the ops into which an op is cut, and before them the selects that they need."""
        parts = self._parts[op]
        operands = [
            self._in_layout(operand, tuple(parts[index] for index in term))
            for operand, term in zip(op.operands, op.terms, strict=True)
        ]
        ranges = {index: bounds(op.sizes[index], count) for index, count in parts.items()}
        results: dict[tuple[int, ...], list[int]] = {}  # partial results of each block
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
            results.setdefault(tuple(part[index] for index in op.output), []).append(tensor)
        blocks = []
        for where in sorted(results):
            partial = results[where]
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
        """Return an input or a result in its layout."""
        layout = self._layouts[node]
        blocks = zip(self._in_layout(node, layout), _regions(node.shape, layout), strict=True)
        return WholeTensor(
            node.shape,
            node.dtype,
            tuple(Block(tensor, tuple(slice(*span) for span in region)) for tensor, region in blocks),
            node.sample if isinstance(node, Input) else None,
        )

    def _in_layout(self, node: TensorNode, layout: PartCounts) -> list[int]:
        """Return the blocks of a tensor in a layout; add selects on first use if the tensor has another layout."""
        if (node, layout) not in self._blocks:
            self._blocks[node, layout] = self._lay_out(node, layout)
        return self._blocks[node, layout]

    def _lay_out(self, node: TensorNode, layout: PartCounts) -> list[int]:
        regions = list(_regions(node.shape, layout))
        names = [f"{node.name}{_coordinates(where)}" for where in itertools.product(*map(range, layout))]
        if isinstance(node, Input) and layout == self._layouts[node]:
            return [self._tensor(name, _shape(region), node.dtype) for name, region in zip(names, regions, strict=True)]
        source, starts = (node.operands[0], node.starts) if isinstance(node, Crop) else (node, (0,) * len(node.shape))
        source_layout = self._layouts[source]
        source_blocks = self._in_layout(source, source_layout)
        cuts = [bounds(size, count) for size, count in zip(source.shape, source_layout, strict=True)]
        label = f"{node.name} in {'x'.join(map(str, layout))}"
        blocks, selects = [], []
        for where, region in zip(itertools.product(*map(range, layout)), regions, strict=True):
            target = [(first + start, last + start) for (first, last), start in zip(region, starts, strict=True)]
            positions = list(itertools.product(*(overlapping(cut, span) for cut, span in zip(cuts, target, strict=True))))
            sources = [tuple(cut[number] for cut, number in zip(cuts, position, strict=True)) for position in positions]
            reads = [source_blocks[_flat(position, source_layout)] for position in positions]
            if sources == [tuple(target)]:
                blocks += reads
                continue
            name = f"{label}{_coordinates(where)}"
            blocks.append(self._emit(name, "select", _selection(target, sources), reads, _shape(region), node.dtype, 0.0))
            selects.append(name)
        if selects:
            self.meta_ops.append(MetaOp(label, (), tuple(selects)))
        return blocks

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
        """Add an op and its output; return the number of the output."""
        output = self._tensor(name, shape, dtype)
        written = self.tensors[output].nbytes
        # a select reads as many bytes as it writes, the other ops all of their inputs
        read = written if kind == "select" else sum(self.tensors[tensor].nbytes for tensor in reads)
        self.ops.append(ProgramOp(name, kind, run, tuple(reads), output, flops, float(read + written)))
        return output


def _regions(shape: Sequence[int], layout: PartCounts) -> Iterator[tuple[IndexRange, ...]]:
    """Yield the region of each block in row-major order."""
    return itertools.product(*(bounds(size, parts) for size, parts in zip(shape, layout, strict=True)))


def _shape(region: Sequence[IndexRange]) -> tuple[int, ...]:
    return tuple(last - first for first, last in region)


def _flat(position: Sequence[int], layout: Sequence[int]) -> int:
    """Return the row-major number of a block."""
    number = 0
    for coordinate, parts in zip(position, layout, strict=True):
        number = number * parts + coordinate
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


def _selection(target: Sequence[IndexRange], sources: Sequence[Sequence[IndexRange]]) -> Kernel:
    """Return the kernel that assembles the ``target`` region from the blocks of the ``sources`` regions, which cover it."""
    pieces = []
    for source in sources:
        common = [(max(a, c), min(b, d)) for (a, b), (c, d) in zip(target, source, strict=True)]
        pieces.append(
            (
                tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(common, target, strict=True)),
                tuple(slice(a - first, b - first) for (a, b), (first, _) in zip(common, source, strict=True)),
            )
        )
    shape = _shape(target)

    def run(*blocks: Tensor) -> Tensor:
        result = blocks[0].new_empty(shape)
        for block, (place, part) in zip(blocks, pieces, strict=True):
            result[place] = block[part]
        return result

    return run
