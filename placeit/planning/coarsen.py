"""Group the ops of a task graph; the ops of a group are placed together."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import GraphError, UsageError
from placeit.core.graph import Csr, OpGraph, csr, topological_order, unique_rows
from placeit.core.weights import merged
from placeit.planning.merging import Merger

__all__ = ["LARGEST", "Grouping", "coarsen"]

LARGEST = 1 / 16  # share of a model's work and weights that a group may have, so that a few devices can divide a chain
_EXTRA_WORK = 1 / 3  # of ops fused with a group's heaviest op (bias, activation, normalization), as a share of its work
_EXTRA_WEIGHTS = 1 / 16  # of ops fused with a group's largest op, as a share of its weights


@dataclass(frozen=True, eq=False)
class Grouping:
    """A partition of a task graph's ops into groups, such that the graph of groups has no cycle.

    Attributes:
        graph: the graph that was grouped.
        group_of: ``int32[V]``, the group of each op; groups are numbered in topological order.
        groups: the graph of groups. A group is named after its first op and has the kind of its most expensive one. Its
            tensors are those that other groups read; a group that reads a tensor has one edge for it.
    """

    graph: OpGraph
    group_of: NDArray[np.int32]
    groups: OpGraph

    def __repr__(self) -> str:
        return f"<Grouping of {len(self.graph)} ops in {len(self.groups)} groups>"

    @classmethod
    def singletons(cls, graph: OpGraph) -> Grouping:
        """Put every op into a separate group."""
        return _grouping(graph, list(range(len(graph))))

    @classmethod
    def of(cls, graph: OpGraph, owner: list[int]) -> Grouping:
        """Group the ops that have the same owner. The graph of groups must not have a cycle."""
        return _grouping(graph, owner)

    @cached_property
    def op_tensor(self) -> NDArray[np.int32]:
        """``int32[T']``, the number in ``graph`` of each tensor of ``groups``."""
        ends = self.group_of[self.graph.edges]
        return np.unique(self.graph.edge_tensor[ends[:, 0] != ends[:, 1]])

    def members(self, group: int) -> tuple[str, ...]:
        """Return the names of a group's ops, in topological order."""
        return tuple(self.graph.names[v] for v in self._members.row(group).tolist())

    def tensor_name(self, tensor: int) -> str:
        """Return the name of a tensor of the group graph: the op that produces it."""
        return self.graph.names[int(self.graph.tensor_op[self.op_tensor[tensor]])]

    @cached_property
    def _members(self) -> Csr:
        return csr(self.group_of, len(self.groups))


def coarsen(
    graph: OpGraph,
    *,
    max_groups: int | None = None,
    keep_together: Iterable[Iterable[str]] = (),
    pairs: Iterable[Iterable[str]] = (),
    co_locate: bool = True,
    largest: float | None = None,
    memory: Sequence[float] = (),
) -> Grouping:
    """Group ops that are not worth separating, then merge groups until at most ``max_groups`` are left.

    First the co-location rule: v joins u if v is u's only child and u is v's only parent. Source: HSDAG, Appendix G.
    Differs from the paper: children are distinct ops, however many tensors connect them; a group has the kind of its most
    expensive op, not the mean of one-hot kinds.

    By this rule alone a chain of layers is one group, which no two devices can share. ``largest`` bounds what the rule makes. A
    group takes at most this share of the model's work, or 4/3 of the work of its heaviest op. It takes at most this share of
    the weights (or of the smallest device's memory, if that is less), or 17/16 of the weights of its largest op. The work of
    an op is its floating-point operations and the bytes that it writes. Two groups are not joined either if a device's
    ``memory`` holds the largest op of both but not all their weights, or if each holds a set that stays together. If the
    weights and the states do not all fit into the smallest memory, states count as weights.

    Then, to keep the bound, groups joined by an edge are merged two at a time: first the pair with the fewest operations
    together (with ``largest``, the smallest share of work and of weights, added up), and among equals the one with the most
    bytes between them. A pair with another path from one to the other is never merged, since that would close a cycle. When
    no edge is left, groups are merged by the same measure.

    Args:
        graph: the task graph.
        max_groups: largest number of groups; None for no bound.
        keep_together: sets of op names that need one device. Each becomes one group, with every op that lies on a path
            between two of its members.
        pairs: further sets of op names that are in one group; unlike ``keep_together``, two of them may become one group.
        co_locate: whether to apply the co-location rule. Without it and without a bound, only ``keep_together`` and ``pairs``
            are grouped.
        largest: largest share, above 0, of the model that the co-location rule merges; None for no bound.
        memory: bytes that devices hold.

    Raises:
        UsageError: ``max_groups`` or ``largest`` is not positive.
        GraphError: ``keep_together`` or ``pairs`` names an unknown op.
    """
    if max_groups is not None and max_groups < 1:
        raise UsageError(f"The number of groups must be at least 1; got {max_groups}.")
    if largest is not None and not largest > 0:
        raise UsageError(f"The largest share of a group must be above 0; got {largest}.")
    work = graph.flops + _sum_by(graph.tensor_op, graph.tensor_bytes, len(graph))
    held = graph.param_bytes
    if graph.state_bytes is not None and graph.held_once.sum() > min(memory, default=np.inf):
        held = held + graph.state_bytes
    merger = Merger(graph, None if largest is None else _share(work) + _share(held))
    sets = [list(names) for names in keep_together]
    for names in (*sets, *map(list, pairs)):
        unknown = [name for name in names if name not in graph.index]
        if unknown:
            raise GraphError(f"Op '{unknown[0]}' is to be kept together with others, but the graph has no such op.")
        merger.join_convex({graph.index[name] for name in names})
    if co_locate and largest is not None:
        inseparable = [merger.find(graph.index[names[0]]) for names in sets if names]
        merger.co_locate(_Limits(merger.owner(), inseparable, work, held, largest, memory).join)
    elif co_locate:
        merger.co_locate()
    if max_groups is not None:
        merger.bound(max_groups)
    return _grouping(graph, merger.owner())


def _share(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values / (values.sum() or 1.0)


class _Limits:
    """Bounds on the size of groups under the co-location rule of :func:`coarsen`.

    Args:
        owner: the group of each op before the rule is applied. Ops that are already in one group count as one op.
        inseparable: groups that hold a set of ops that stays together.
        work: ``float64[V]``.
        weights: ``float64[V]``, bytes.
        largest: share of work and of weights that a group may take.
        memory: bytes that devices hold.
    """

    def __init__(
        self,
        owner: Sequence[int],
        inseparable: Sequence[int],
        work: NDArray[np.float64],
        weights: NDArray[np.float64],
        largest: float,
        memory: Sequence[float],
    ) -> None:
        owners = np.array(owner, np.int32)
        self._work = _sum_by(owners, work, len(owners)).tolist()
        self._weights = _sum_by(owners, weights, len(owners)).tolist()
        self._max_work, self._max_weights = self._work[:], self._weights[:]  # largest of any op in the group
        self._work_limit = largest * float(work.sum())
        self._weights_limit = largest * min([float(weights.sum()), *memory])
        self._memory = sorted(memory)
        self._inseparable = np.isin(np.arange(len(owners)), inseparable).tolist()

    def join(self, u: int, v: int) -> bool:
        """Join two groups and record their sizes under both numbers. Returns False, without a change, if they are too large."""
        work, weights = self._work[u] + self._work[v], self._weights[u] + self._weights[v]
        max_work = max(self._max_work[u], self._max_work[v])
        max_weights = max(self._max_weights[u], self._max_weights[v])
        if self._inseparable[u] and self._inseparable[v]:
            return False
        if work > max(self._work_limit, (1 + _EXTRA_WORK) * max_work):
            return False
        if weights > max(self._weights_limit, (1 + _EXTRA_WEIGHTS) * max_weights):
            return False
        if bisect.bisect_left(self._memory, weights) > bisect.bisect_left(self._memory, max_weights):
            return False
        self._work[u] = self._work[v] = work
        self._weights[u] = self._weights[v] = weights
        self._inseparable[u] = self._inseparable[v] = self._inseparable[u] or self._inseparable[v]
        self._max_work[u] = self._max_work[v] = max_work
        self._max_weights[u] = self._max_weights[v] = max_weights
        return True


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
    by_flops = np.lexsort((-produced, -graph.flops))
    first = np.unique(group_of, return_index=True)[1]
    heaviest = by_flops[np.unique(group_of[by_flops], return_index=True)[1]]
    ends = group_of[graph.edges]
    moves = np.column_stack([graph.edge_tensor, ends[:, 1]])[ends[:, 0] != ends[:, 1]]
    moves, _ = unique_rows(moves)
    tensors, index = np.unique(moves[:, 0], return_inverse=True)
    tensor_op = np.ascontiguousarray(group_of[graph.tensor_op[tensors]])
    outputs = csr(tensor_op, count)
    tensor_port = np.empty(len(tensors), np.int32)
    tensor_port[outputs.edge] = np.arange(len(tensors)) - outputs.ptr[tensor_op[outputs.edge]]
    param_bytes, shared = merged(graph.param_bytes, graph.shared, group_of, count)
    states = graph.state_bytes
    return OpGraph(
        names=tuple(graph.names[v] for v in first.tolist()),
        kinds=tuple(graph.kinds[v] for v in heaviest.tolist()),
        flops=_sum_by(group_of, graph.flops, count),
        param_bytes=param_bytes,
        tensor_op=tensor_op,
        tensor_port=tensor_port,
        tensor_bytes=graph.tensor_bytes[tensors],
        tensor_shapes=tuple(graph.tensor_shapes[t] for t in tensors.tolist()),
        tensor_dtypes=tuple(graph.tensor_dtypes[t] for t in tensors.tolist()),
        edges=np.column_stack([tensor_op[index], moves[:, 1]]).astype(np.int32),
        edge_tensor=index.reshape(-1).astype(np.int32),
        shared=shared,
        state_bytes=None if states is None else _sum_by(group_of, states, count),
    ).verify()


def _sum_by(keys: NDArray[np.int32], values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    return np.bincount(keys, weights=values, minlength=count).astype(np.float64)
