"""Grouping the ops of a task graph into groups that are placed together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import GraphError, UsageError
from placeit.core.graph import Csr, OpGraph, csr, topological_order, unique_rows
from placeit.planning.merging import Merger

__all__ = ["Grouping", "coarsen"]


@dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of a task graph's ops into groups, such that the graph of groups has no cycle.

    Attributes:
        graph: the graph that was grouped.
        group_of: ``int32[V]``, the group of each op; groups are numbered in topological order.
        groups: the graph of groups. A group is named after its first op and has the kind of its most expensive one; its
            tensors are those read outside of it, and each reading group has one edge for each tensor.
    """

    graph: OpGraph
    group_of: NDArray[np.int32]
    groups: OpGraph

    @classmethod
    def singletons(cls, graph: OpGraph) -> Grouping:
        """Make every op a group of its own."""
        return _grouping(graph, list(range(len(graph))))

    @classmethod
    def of(cls, graph: OpGraph, owner: list[int]) -> Grouping:
        """Group ops by the owner of each; the graph of groups must have no cycle."""
        return _grouping(graph, owner)

    @cached_property
    def op_tensor(self) -> NDArray[np.int32]:
        """``int32[T']``, for each tensor of ``groups`` its number in ``graph``."""
        ends = self.group_of[self.graph.edges]
        return np.unique(self.graph.edge_tensor[ends[:, 0] != ends[:, 1]])

    def members(self, group: int) -> tuple[str, ...]:
        """Names of a group's ops, in topological order."""
        members = self._members
        return tuple(self.graph.names[v] for v in members.edge[members.ptr[group] : members.ptr[group + 1]].tolist())

    @cached_property
    def _members(self) -> Csr:
        return csr(self.group_of, len(self.groups))


def coarsen(
    graph: OpGraph,
    *,
    max_groups: int | None = None,
    keep_together: Iterable[Iterable[str]] = (),
    co_locate: bool = True,
) -> Grouping:
    """Group ops that are not worth separating, then merge further until at most ``max_groups`` groups are left.

    First the co-location rule: v joins u if v is u's only child and u is v's only parent. Source: HSDAG, Appendix G.
    Differs from the paper: children are distinct ops, however many tensors connect them; a group has the kind of its most
    expensive op, not the mean of one-hot kinds.

    Then, to keep the bound, groups joined by an edge are merged two at a time: the pair with the fewest operations together
    first, and among equals the one with the most bytes between them; never a pair with another path from one to the other,
    which would close a cycle. Groups without any edge left are merged by the same measure.

    Args:
        graph: the task graph.
        max_groups: most groups allowed; None for no bound.
        keep_together: sets of op names that need one device. Each becomes one group, with every op that lies on a path
            between two of its members.
        co_locate: whether to apply the co-location rule; without it and a bound, only what must stay together is grouped.

    Raises:
        UsageError: ``max_groups`` is not positive.
        GraphError: ``keep_together`` names an unknown op.
    """
    if max_groups is not None and max_groups < 1:
        raise UsageError(f"The number of groups must be at least 1; got {max_groups}.")
    merger = Merger(graph)
    for names in map(list, keep_together):
        unknown = [name for name in names if name not in graph.index]
        if unknown:
            raise GraphError(f"Op '{unknown[0]}' is to be kept together with others, but the graph has no such op.")
        merger.join_convex({graph.index[name] for name in names})
    if co_locate:
        merger.co_locate()
    if max_groups is not None:
        merger.bound(max_groups)
    return _grouping(graph, merger.owner())


def _grouping(graph: OpGraph, owner: list[int]) -> Grouping:
    leaders, first, dense = np.unique(np.array(owner), return_index=True, return_inverse=True)
    # number groups by their first op, then topologically
    rank = np.argsort(np.argsort(first))[dense.reshape(-1)]
    edges = rank[graph.edges]
    crossing = unique_rows(edges[edges[:, 0] != edges[:, 1]])[0].astype(np.int32)
    order = topological_order(crossing, len(leaders))
    assert order is not None  # merges keep the graph acyclic  # noqa: S101
    number = np.empty(len(leaders), np.int32)
    number[order] = np.arange(len(leaders), dtype=np.int32)
    group_of = number[rank]
    return Grouping(graph, group_of, _group_graph(graph, group_of, len(leaders)))


def _group_graph(graph: OpGraph, group_of: NDArray[np.int32], count: int) -> OpGraph:
    produced = _sum_by(graph.tensor_op, graph.tensor_bytes, len(graph))
    by_weight = np.lexsort((-produced, -graph.flops))
    first = np.unique(group_of, return_index=True)[1]
    heaviest = by_weight[np.unique(group_of[by_weight], return_index=True)[1]]
    ends = group_of[graph.edges]
    moves = np.column_stack([graph.edge_tensor, ends[:, 1]])[ends[:, 0] != ends[:, 1]]
    moves, _ = unique_rows(moves)
    tensors, index = np.unique(moves[:, 0], return_inverse=True)
    tensor_op = np.ascontiguousarray(group_of[graph.tensor_op[tensors]])
    made = csr(tensor_op, count)
    tensor_port = np.empty(len(tensors), np.int32)
    tensor_port[made.edge] = np.arange(len(tensors)) - made.ptr[tensor_op[made.edge]]
    return OpGraph(
        names=tuple(graph.names[v] for v in first.tolist()),
        kinds=tuple(graph.kinds[v] for v in heaviest.tolist()),
        flops=_sum_by(group_of, graph.flops, count),
        param_bytes=_sum_by(group_of, graph.param_bytes, count),
        tensor_op=tensor_op,
        tensor_port=tensor_port,
        tensor_bytes=graph.tensor_bytes[tensors],
        tensor_shapes=tuple(graph.tensor_shapes[t] for t in tensors.tolist()),
        tensor_dtypes=tuple(graph.tensor_dtypes[t] for t in tensors.tolist()),
        edges=np.column_stack([tensor_op[index], moves[:, 1]]).astype(np.int32),
        edge_tensor=index.reshape(-1).astype(np.int32),
    ).verify()


def _sum_by(keys: NDArray[np.int32], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return np.bincount(keys, weights=values, minlength=count).astype(np.float64)
