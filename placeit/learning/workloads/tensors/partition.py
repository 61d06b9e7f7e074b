"""Partitions: the number of parts into which each index of each op is cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from placeit.core.errors import UsageError
from placeit.learning.workloads.tensors.nodes import IndexRange, Op, TensorNode

__all__ = ["PartCounts", "Partition", "bounds", "overlapping", "plan"]

PartCounts: TypeAlias = tuple[int, ...]
"""Number of parts of each dimension of a tensor."""

Partition: TypeAlias = Mapping[str, Mapping[str, int]]
"""Number of parts by index, by op: ``{"AB": {"i": 4, "j": 2}}``; an index that is not mentioned stays whole."""


def bounds(size: int, parts: int) -> list[IndexRange]:
    """Cut ``size`` into parts that differ by at most one."""
    return [(part * size // parts, (part + 1) * size // parts) for part in range(parts)]


def overlapping(ranges: Sequence[IndexRange], wanted: IndexRange) -> list[int]:
    """Return the ranges that overlap a given range."""
    return [part for part, (first, last) in enumerate(ranges) if first < wanted[1] and wanted[0] < last]


def plan(
    nodes: Sequence[TensorNode], shards: int, given: Partition
) -> tuple[dict[Op, dict[str, int]], dict[TensorNode, PartCounts]]:
    """Choose a partition for every op, one by one, and a layout for every tensor.

    A contraction is cut into ``shards`` parts (fewer only if it has too few points), and any other op into the same number of
    parts or like one of its operands. Of these ways, the one that costs the fewest bytes is chosen, after EinDecomp (Bourgeois
    et al., VLDB 2025). The cost is the sum of: bytes that the shards of a contraction read; bytes that move because an operand
    has another layout, or to combine partial results; and bytes that cheap ops read and write (``select``, ``formation``, and
    every op that is not a contraction), times ``shards`` over the number of these ops, because other devices may wait for them.
    Of equal costs, the way that cuts the first indices of the result most is chosen. An input has the layout that its first
    reader wants.

    Differs from EinDecomp, which looks ahead: here no op knows which ops will read its result.

    Args:
        nodes: all nodes, each after its operands.
        shards: number of parts.
        given: partitions of some ops, which replace the choice.

    Returns:
        Parts by index for each op, and the layout of each tensor.

    Raises:
        UsageError: a given partition names an op or an index that does not exist, or a number of parts that is not possible.
    """
    ops = [node for node in nodes if isinstance(node, Op)]
    names = {op.name for op in ops}
    unknown = given.keys() - names
    if unknown:
        raise UsageError(f"The partition names an op '{min(unknown)}'; the expression has {', '.join(sorted(names))}.")
    parts: dict[Op, dict[str, int]] = {}
    layouts: dict[TensorNode, PartCounts] = {}
    for op in ops:
        if op.name in given:
            chosen = _checked(op, given[op.name])
        else:
            ways = _ways(op, shards, layouts)
            chosen = ways[int(np.argmin([_cost(op, way, shards, layouts) for way in ways]))]  # the first of equal ones
        parts[op] = chosen
        layouts[op] = tuple(chosen[index] for index in op.output)
        for operand, term in zip(op.operands, op.terms, strict=True):
            layouts.setdefault(operand, tuple(chosen[index] for index in term))
    for node in nodes:  # inputs and crops that no op reads
        layouts.setdefault(node, (1,) * len(node.shape))
    return parts, layouts


def _checked(op: Op, given: Mapping[str, int]) -> dict[str, int]:
    for index, count in given.items():
        if index not in op.sizes:
            raise UsageError(f"The partition of '{op.name}' names an index '{index}'; the op has '{op.indices}'.")
        most = 1 if index in op.whole else op.sizes[index]
        if not 1 <= count <= most:
            raise UsageError(f"Index '{index}' of '{op.name}' can be cut into 1 to {most} parts, not {count}.")
    return {index: given.get(index, 1) for index in op.indices}


def _ways(op: Op, shards: int, layouts: Mapping[TensorNode, PartCounts]) -> list[dict[str, int]]:
    """Return the ways to cut an op; the ways that cut the first indices most come first."""

    def extend(indices: str, room: int) -> Iterator[dict[str, int]]:
        if not indices:
            yield {}
            return
        most = 1 if indices[0] in op.whole else min(room, op.sizes[indices[0]])
        for count in range(most, 0, -1):
            for rest in extend(indices[1:], room // count):
                yield {indices[0]: count, **rest}

    ways = list(extend(op.indices, shards))
    most = max(math.prod(way.values()) for way in ways)
    ways = [way for way in ways if math.prod(way.values()) == most]
    if op.kind != "matmul":
        for operand, term in zip(op.operands, op.terms, strict=True):
            own = dict(zip(term, layouts.get(operand, ()), strict=False))
            ways.append({index: 1 if index in op.whole else own.get(index, 1) for index in op.indices})
    return ways


def _cost(op: Op, way: Mapping[str, int], shards: int, layouts: Mapping[TensorNode, PartCounts]) -> float:
    """Return the cost of a way to cut an op in bytes, as defined in :func:`plan`."""
    parts = math.prod(way.values())
    partial = parts // math.prod(way[index] for index in op.output)
    touched, cost = float(op.nbytes), 0.0
    for operand, term in zip(op.operands, op.terms, strict=True):
        wanted = tuple(way[index] for index in term)
        touched += operand.nbytes
        if layouts.get(operand, wanted) != wanted:
            cost += _moved(operand, layouts[operand], wanted) + operand.nbytes * shards / math.prod(wanted)
        if op.kind == "matmul":
            cost += operand.nbytes * parts / math.prod(wanted)
    if partial > 1:
        cost += op.nbytes * (partial + (partial + 1) * shards * partial / parts)
    return cost if op.kind == "matmul" else cost + touched * shards / parts


def _moved(operand: TensorNode, layout: PartCounts, wanted: PartCounts) -> float:
    """Return the bytes of all blocks that are read to lay a tensor out in another way."""
    blocks = 1.0
    for size, have, want in zip(operand.shape, layout, wanted, strict=True):
        ranges = bounds(size, have)
        blocks *= sum(len(overlapping(ranges, block)) for block in bounds(size, want))
    return operand.nbytes * blocks / math.prod(layout)
