"""Grouping the ops of a task graph into fewer, larger ones that are placed together."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placeit.errors import GraphError, UsageError
from placeit.graph import OpGraph, topological_order

__all__ = ["Grouping", "coarsen"]


@dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of a task graph's ops whose graph of groups has no cycle.

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
        """Group nothing: every op is a group of its own."""
        return _grouping(graph, list(range(len(graph))))

    @cached_property
    def op_tensor(self) -> NDArray[np.int32]:
        """``int32[T']``, for each tensor of ``groups`` its number in ``graph``."""
        ends = self.group_of[self.graph.edges]
        return np.unique(self.graph.edge_tensor[ends[:, 0] != ends[:, 1]])

    def members(self, group: int) -> tuple[str, ...]:
        """Names of a group's ops, in topological order."""
        return tuple(self.graph.names[v] for v in np.flatnonzero(self.group_of == group))


def coarsen(graph: OpGraph, *, max_groups: int | None = None, keep_together: Iterable[Iterable[str]] = ()) -> Grouping:
    """Group ops that are never worth separating, then more of them until at most ``max_groups`` are left.

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

    Raises:
        UsageError: ``max_groups`` is not positive.
        GraphError: ``keep_together`` names an unknown op.
    """
    if max_groups is not None and max_groups < 1:
        raise UsageError(f"The number of groups must be at least 1; got {max_groups}.")
    merger = _Merger(graph)
    for names in map(list, keep_together):
        unknown = [name for name in names if name not in graph.index]
        if unknown:
            raise GraphError(f"Op '{unknown[0]}' is to be kept together with others, but the graph has no such op.")
        merger.join_convex({graph.index[name] for name in names})
    merger.co_locate()
    if max_groups is not None:
        merger.bound(max_groups)
    return _grouping(graph, merger.owner())


class _Merger:
    """Groups under construction; each is known by one of its ops.

    ``below[g]`` is a bit set (a Python integer) of the groups that g reaches, which makes "would this merge close a cycle?"
    a few machine operations.
    """

    def __init__(self, graph: OpGraph) -> None:
        ops = len(graph)
        self.leader = list(range(ops))
        self.live = dict.fromkeys(range(ops))
        self.flops = graph.flops.tolist()
        self.children: list[dict[int, float]] = [{} for _ in range(ops)]
        self.parents: list[dict[int, float]] = [{} for _ in range(ops)]
        sizes = graph.tensor_bytes[graph.edge_tensor].tolist()
        for (u, v), size in zip(graph.edges.tolist(), sizes, strict=True):
            self.children[u][v] = self.children[u].get(v, 0.0) + size
            self.parents[v][u] = self.children[u][v]
        self.below = [0] * ops
        for u in reversed(range(ops)):
            for v in self.children[u]:
                self.below[u] |= self.below[v] | 1 << v

    def owner(self) -> list[int]:
        """Return the group of every op."""
        return [self.find(v) for v in range(len(self.leader))]

    def find(self, op: int) -> int:
        while self.leader[op] != op:
            self.leader[op] = self.leader[self.leader[op]]
            op = self.leader[op]
        return op

    def merge(self, u: int, v: int) -> None:
        """Merge group v into group u; there must be no path between them other than an edge."""
        self.leader[v] = u
        del self.live[v]
        self.flops[u] += self.flops[v]
        for near, far in ((self.children, self.parents), (self.parents, self.children)):
            near[u].pop(v, None)
            near[v].pop(u, None)
            for other, size in near[v].items():
                del far[other][v]
                near[u][other] = far[other][u] = near[u].get(other, 0.0) + size
        bit_u, bit_v = 1 << u, 1 << v
        self.below[u] = (self.below[u] | self.below[v]) & ~(bit_u | bit_v)
        for g in self.live:
            if self.below[g] & (bit_u | bit_v):
                self.below[g] = (self.below[g] | bit_u | self.below[u]) & ~bit_v

    def join_convex(self, ops: set[int]) -> None:
        """Merge ops and everything between them."""
        members = {self.find(op) for op in ops}
        if len(members) < 2:
            return
        mask = sum(1 << g for g in members)
        reached = 0
        for g in members:
            reached |= self.below[g]
        between = {g for g in self.live if reached >> g & 1 and self.below[g] & mask}
        # in topological order each merge adds only what the group already reaches directly or is unrelated to
        first, *rest = sorted(members | between, key=lambda g: (-self.below[g].bit_count(), g))
        for g in rest:
            self.merge(first, g)

    def co_locate(self) -> None:
        """Apply the rule of HSDAG, Appendix G."""
        for u in list(self.live):
            while u in self.live and len(self.children[u]) == 1:
                (v,) = self.children[u]
                if len(self.parents[v]) != 1:
                    break
                self.merge(u, v)

    def bound(self, limit: int) -> None:
        """Merge the cheapest pairs until at most ``limit`` groups are left."""
        heap = [self._entry(u, v) for u in self.live for v in self.children[u]]
        heapq.heapify(heap)
        while len(self.live) > limit and heap:
            entry = heapq.heappop(heap)
            u, v = entry[2:]
            # an entry is out of date if either group has grown since
            if u not in self.live or v not in self.children[u] or entry != self._entry(u, v):
                continue
            if any(self.below[w] >> v & 1 for w in self.children[u]):
                continue  # another path; gone only when u or v is merged with a group on it, which enters the pair again
            self.merge(u, v)
            for w in self.children[u]:
                heapq.heappush(heap, self._entry(u, w))
            for w in self.parents[u]:
                heapq.heappush(heap, self._entry(w, u))
        if len(self.live) > limit:
            self._merge_unrelated(limit)

    def _entry(self, u: int, v: int) -> tuple[float, float, int, int]:
        return self.flops[u] + self.flops[v], -self.children[u][v], u, v

    def _merge_unrelated(self, limit: int) -> None:
        islands = [(self.flops[g], g) for g in self.live]
        heapq.heapify(islands)
        while len(self.live) > limit:
            (_, u), (_, v) = heapq.heappop(islands), heapq.heappop(islands)
            self.merge(u, v)
            heapq.heappush(islands, (self.flops[u], u))


def _grouping(graph: OpGraph, owner: list[int]) -> Grouping:
    leaders, first, dense = np.unique(np.array(owner), return_index=True, return_inverse=True)
    # number groups by their first op, then topologically
    rank = np.argsort(np.argsort(first))[dense.reshape(-1)]
    edges = rank[graph.edges]
    crossing = np.unique(edges[edges[:, 0] != edges[:, 1]], axis=0).astype(np.int32).reshape(-1, 2)
    order = topological_order(crossing, len(leaders))
    assert order is not None  # merges keep the graph acyclic  # noqa: S101
    number = np.empty(len(leaders), np.int32)
    number[order] = np.arange(len(leaders), dtype=np.int32)
    group_of = number[rank]
    return Grouping(graph, group_of, _group_graph(graph, group_of, len(leaders)))


def _group_graph(graph: OpGraph, group_of: NDArray[np.int32], count: int) -> OpGraph:
    ops = range(len(graph))
    produced = _sum_by(graph.tensor_op, graph.tensor_bytes, len(graph))
    first: dict[int, int] = {}
    heaviest: dict[int, int] = {}
    for v in ops:
        group = int(group_of[v])
        first.setdefault(group, v)
        best = heaviest.setdefault(group, v)
        if (graph.flops[v], produced[v]) > (graph.flops[best], produced[best]):
            heaviest[group] = v
    moves = sorted(
        {
            (int(tensor), int(group_of[v]))
            for (u, v), tensor in zip(graph.edges, graph.edge_tensor, strict=True)
            if group_of[u] != group_of[v]
        }
    )
    tensors = sorted({tensor for tensor, _ in moves})
    index = {tensor: i for i, tensor in enumerate(tensors)}
    tensor_op = group_of[graph.tensor_op[tensors]] if tensors else np.zeros(0, np.int32)
    ports: dict[int, int] = {}
    tensor_port = []
    for group in tensor_op.tolist():
        tensor_port.append(ports.get(group, 0))
        ports[group] = tensor_port[-1] + 1
    return OpGraph(
        names=tuple(graph.names[first[g]] for g in range(count)),
        kinds=tuple(graph.kinds[heaviest[g]] for g in range(count)),
        flops=_sum_by(group_of, graph.flops, count),
        param_bytes=_sum_by(group_of, graph.param_bytes, count),
        tensor_op=tensor_op,
        tensor_port=np.array(tensor_port, np.int32),
        tensor_bytes=graph.tensor_bytes[tensors],
        tensor_shapes=tuple(graph.tensor_shapes[t] for t in tensors),
        tensor_dtypes=tuple(graph.tensor_dtypes[t] for t in tensors),
        edges=np.array([(group_of[graph.tensor_op[t]], g) for t, g in moves], np.int32).reshape(-1, 2),
        edge_tensor=np.array([index[t] for t, _ in moves], np.int32),
    ).verify()


def _sum_by(keys: NDArray[np.int32], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return np.bincount(keys, weights=values, minlength=count).astype(np.float64)
