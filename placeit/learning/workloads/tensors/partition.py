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
"""Number of parts by index, by op: ``{"AB": {"i": 4, "j": 2}}``; an index that is not mentioned is not cut."""


def bounds(size: int, parts: int) -> list[IndexRange]:
    """Return the ranges of ``parts`` parts of ``range(size)``, whose sizes differ by at most one."""
    return [(part * size // parts, (part + 1) * size // parts) for part in range(parts)]


def overlapping(ranges: Sequence[IndexRange], span: IndexRange) -> list[int]:
    """Return the numbers of the ranges that overlap ``span``."""
    return [part for part, (first, last) in enumerate(ranges) if first < span[1] and span[0] < last]


def plan(
    nodes: Sequence[TensorNode], shards: int, given: Partition
) -> tuple[dict[Op, dict[str, int]], dict[TensorNode, PartCounts]]:
    """Choose a partition for every op, one by one, and a layout for every tensor.

    A contraction is cut into ``shards`` parts, or fewer if it has too few points. Any other op is cut into the same number of
    parts, or like one of its operands. Among these partitions, the one with the lowest cost in bytes is chosen, after EinDecomp
    (Bourgeois et al., VLDB 2025). The cost is the sum of three terms: bytes that the shards of a contraction read; bytes that
    move because an operand has another layout, or to combine partial results; and bytes that cheap ops read and write, times
    ``shards`` over the number of these ops, because other devices may wait for them. Cheap ops are ``select``, ``formation``,
    and every op that is not a contraction. In a tie, the partition that cuts the first indices of the result most is chosen. An
    input has the layout that its first reader requires.

    Differs from EinDecomp, which looks ahead: here the choice for an op does not consider the ops that read its result.

    Args:
        nodes: all nodes, each after its operands.
        shards: number of parts.
        given: partitions of some ops, which are used instead.

    Returns:
        Number of parts by index for each op, and the layout of each tensor.

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
            candidates = _candidates(op, shards, layouts)
            costs = [_cost(op, candidate, shards, layouts) for candidate in candidates]
            chosen = candidates[int(np.argmin(costs))]  # the first in a tie
        parts[op] = chosen
        layouts[op] = tuple(chosen[index] for index in op.output)
        for operand, term in zip(op.operands, op.terms, strict=True):
            layouts.setdefault(operand, tuple(chosen[index] for index in term))
    for node in nodes:  # inputs and crops that no op reads
        layouts.setdefault(node, (1,) * len(node.shape))
    return parts, layouts


def _checked(op: Op, given: Mapping[str, int]) -> dict[str, int]:
    """Return a given partition, completed with the indices that are not cut. Raises UsageError."""
    for index, count in given.items():
        if index not in op.sizes:
            raise UsageError(f"The partition of '{op.name}' names an index '{index}'; the op has '{op.indices}'.")
        limit = 1 if index in op.whole else op.sizes[index]
        if not 1 <= count <= limit:
            raise UsageError(f"Index '{index}' of '{op.name}' can be cut into 1 to {limit} parts, not {count}.")
    return {index: given.get(index, 1) for index in op.indices}


def _candidates(op: Op, shards: int, layouts: Mapping[TensorNode, PartCounts]) -> list[dict[str, int]]:
    """Return partitions of an op to choose from; the ones that cut the first indices most come first."""

    def extend(indices: str, limit: int) -> Iterator[dict[str, int]]:
        """Yield partitions of the indices into at most ``limit`` parts in total."""
        if not indices:
            yield {}
            return
        max_count = 1 if indices[0] in op.whole else min(limit, op.sizes[indices[0]])
        for count in range(max_count, 0, -1):
            for rest in extend(indices[1:], limit // count):
                yield {indices[0]: count, **rest}

    partitions = list(extend(op.indices, shards))
    parts = [math.prod(partition.values()) for partition in partitions]
    candidates = [partition for partition, count in zip(partitions, parts, strict=True) if count == max(parts)]
    if op.kind != "matmul":
        for operand, term in zip(op.operands, op.terms, strict=True):
            layout = dict(zip(term, layouts.get(operand, ()), strict=False))
            candidates.append({index: 1 if index in op.whole else layout.get(index, 1) for index in op.indices})
    return candidates


def _cost(op: Op, partition: Mapping[str, int], shards: int, layouts: Mapping[TensorNode, PartCounts]) -> float:
    """Return the cost of a partition in bytes, as defined in :func:`plan`."""
    parts = math.prod(partition.values())
    partial = parts // math.prod(partition[index] for index in op.output)
    touched, cost = float(op.nbytes), 0.0
    for operand, term in zip(op.operands, op.terms, strict=True):
        required = tuple(partition[index] for index in term)
        touched += operand.nbytes
        if layouts.get(operand, required) != required:
            cost += _moved(operand, layouts[operand], required) + operand.nbytes * shards / math.prod(required)
        if op.kind == "matmul":
            cost += operand.nbytes * parts / math.prod(required)
    if partial > 1:
        cost += op.nbytes * (partial + (partial + 1) * shards * partial / parts)
    return cost if op.kind == "matmul" else cost + touched * shards / parts


def _moved(operand: TensorNode, layout: PartCounts, required: PartCounts) -> float:
    """Return the bytes of all blocks that are read to convert a tensor from one layout to another."""
    blocks = 1.0
    for size, source, target in zip(operand.shape, layout, required, strict=True):
        ranges = bounds(size, source)
        blocks *= sum(len(overlapping(ranges, block)) for block in bounds(size, target))
    return operand.nbytes * blocks / math.prod(layout)
