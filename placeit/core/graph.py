"""Task graphs: ops, the tensors they produce, and the readers of these tensors."""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import GraphError
from placeit.core.weights import Shared, counted_once

__all__ = ["Csr", "OpGraph", "csr", "topological_order", "unique_rows"]


_Row = TypeVar("_Row", bound=np.generic)


@dataclass(frozen=True, eq=False)
class Csr:
    """Adjacency in compressed sparse rows: row ``v`` holds edge numbers ``edge[ptr[v]:ptr[v + 1]]``, in edge order."""

    ptr: NDArray[np.int32]
    edge: NDArray[np.int32]

    def row(self, v: int) -> list[int]:
        """Return the edge numbers in row ``v``."""
        numbers: list[int] = self.edge[self.ptr[v] : self.ptr[v + 1]].tolist()
        return numbers


def csr(keys: NDArray[np.int32], rows: int) -> Csr:
    """Group edge numbers by key, keeping edge order within each row.

    Args:
        keys: ``int32[E]``, the row of each edge.
        rows: number of rows.
    """
    ptr = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(keys, minlength=rows), out=ptr[1:])
    return Csr(ptr, np.argsort(keys, kind="stable").astype(np.int32))


def unique_rows(rows: NDArray[_Row]) -> tuple[NDArray[_Row], NDArray[np.int64]]:
    """Return the distinct rows of a table in lexicographic order, and the number of each row among them.

    This equals ``np.unique(rows, axis=0, return_inverse=True)``, which compares rows in Python: an interrupt that arrives there
    becomes a TypeError of NumPy.

    Args:
        rows: ``[N, K]``, of numbers or truth values, without NaN.

    Returns:
        The rows ``[U, K]``, and ``int64[N]``.
    """
    order = np.lexsort(rows.T[::-1]) if rows.shape[1] else np.zeros(len(rows), np.int64)
    ascending = rows[order]
    first = np.ones(len(rows), bool)
    first[1:] = (ascending[1:] != ascending[:-1]).any(axis=1)
    number = np.empty(len(rows), np.int64)
    number[order] = np.cumsum(first) - 1
    return ascending[first], number


def topological_order(edges: NDArray[np.int32], nodes: int) -> NDArray[np.int32] | None:
    """Return a topological order of the nodes (smallest number first among equals), or None if there is a cycle."""
    out = csr(np.ascontiguousarray(edges[:, 0]), nodes)
    in_degree = np.bincount(edges[:, 1], minlength=nodes).tolist()  # without edges from nodes that are in the order already
    heads = edges[:, 1].tolist()
    ready = [v for v in range(nodes) if in_degree[v] == 0]
    order: list[int] = []
    while ready:
        v = heapq.heappop(ready)
        order.append(v)
        for e in out.row(v):
            w = heads[e]
            in_degree[w] -= 1
            if in_degree[w] == 0:
                heapq.heappush(ready, w)
    return np.array(order, np.int32) if len(order) == nodes else None


def _digest(*parts: object) -> str:
    return hashlib.sha256("".join(map(repr, parts)).encode()).hexdigest()[:16]


@dataclass(frozen=True, eq=False)
class OpGraph:
    """An immutable task graph with ``V`` ops in topological order, ``T`` tensors and ``E`` edges.

    Names are the key everywhere: two lists are never matched by position. An edge carries a *tensor*, so that two consumers of
    one tensor on one other device need one transfer. Weight constants belong to the op that reads them and are not ops.

    Attributes:
        names: unique op names, in topological order.
        kinds: op types, such as ``Convolution``.
        flops: ``float64[V]``, floating-point operations of one inference.
        param_bytes: ``float64[V]``, bytes of the constants an op reads, each once.
        tensor_op: ``int32[T]``, the op that produces each tensor.
        tensor_port: ``int32[T]``, the number of that output of the op.
        tensor_bytes: ``float64[T]``.
        tensor_shapes: shape of each tensor.
        tensor_dtypes: element type of each tensor, NumPy spelling (``float32``, ``int64``).
        edges: ``int32[E, 2]``, producer and consumer op; always ``producer < consumer``.
        edge_tensor: ``int32[E]``, the tensor that moves along each edge.
        content: digest of the ops' computations (:mod:`placeit.backends.digest`); empty if only the kinds are known.
        shared: weights that several ops read. Each of these ops counts them in ``param_bytes``.
        state_bytes: ``float64[V]``, memory that the states which an op reads take beside weights; None if there are none. It
            depends on the texts that are to be kept, and is no part of the graph's identity.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    flops: NDArray[np.float64]
    param_bytes: NDArray[np.float64]
    tensor_op: NDArray[np.int32]
    tensor_port: NDArray[np.int32]
    tensor_bytes: NDArray[np.float64]
    tensor_shapes: tuple[tuple[int, ...], ...]
    tensor_dtypes: tuple[str, ...]
    edges: NDArray[np.int32]
    edge_tensor: NDArray[np.int32]
    content: str = ""
    shared: Shared = ()
    state_bytes: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.flags.writeable = False

    def __repr__(self) -> str:
        return f"<OpGraph: {len(self)} ops, {len(self.edges)} edges>"

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def index(self) -> dict[str, int]:
        """Op number by name."""
        return {name: v for v, name in enumerate(self.names)}

    @cached_property
    def successors(self) -> Csr:
        """Out-edges of each op, in edge order."""
        return csr(np.ascontiguousarray(self.edges[:, 0]), len(self))

    @cached_property
    def predecessors(self) -> Csr:
        """In-edges of each op, in edge order."""
        return csr(np.ascontiguousarray(self.edges[:, 1]), len(self))

    @cached_property
    def bytes_once(self) -> NDArray[np.float64]:
        """``float64[V]``, ``param_bytes`` with each shared weight counted only for the first op that reads it."""
        return counted_once(self.param_bytes, self.shared)

    @cached_property
    def held_once(self) -> NDArray[np.float64]:
        """``float64[V]``, memory that ops take where they are placed: :attr:`bytes_once` and ``state_bytes``."""
        return self.bytes_once if self.state_bytes is None else self.bytes_once + self.state_bytes

    @cached_property
    def output_shapes(self) -> tuple[tuple[int, ...] | None, ...]:
        """Shape of each op's largest tensor in bytes, the first of equals; None for an op without tensors."""
        shapes: list[tuple[int, ...] | None] = [None] * len(self)
        for t in np.lexsort((-np.arange(len(self.tensor_op)), self.tensor_bytes)).tolist():  # the largest comes last and stays
            shapes[self.tensor_op[t]] = self.tensor_shapes[t]
        return tuple(shapes)

    @cached_property
    def hash(self) -> str:
        """Identity of the graph: names, kinds, shapes, edges and the ops' computations, without the values of weights."""
        return _digest(self.structure, self.tensor_shapes, self.param_bytes.tolist(), self.content)

    @cached_property
    def structure(self) -> str:
        """Identity of the graph at any sizes, as placements keep it: names, kinds, types of tensors, and edges."""
        return _digest(
            self.names,
            self.kinds,
            self.tensor_op.tolist(),
            self.tensor_port.tolist(),
            self.tensor_dtypes,
            self.edges.tolist(),
            self.edge_tensor.tolist(),
        )

    def verify(self) -> OpGraph:
        """Check every rule of a task graph and return the graph.

        Raises:
            GraphError: names the broken rule, the op and its neighbours.
        """
        for rule, broken in _RULES.items():
            where = broken(self)
            if where is not None:
                raise GraphError(f"Task graph breaks the rule '{rule}': {where}.")
        return self


def _first_duplicate(graph: OpGraph) -> str | None:
    seen: set[str] = set()
    for name in graph.names:
        if name in seen:
            return f"two ops are named '{name}'"
        seen.add(name)
    return None


def _wrong_length(graph: OpGraph) -> str | None:
    ops, tensors, edges = len(graph.names), len(graph.tensor_op), len(graph.edge_tensor)
    sizes: Sequence[tuple[str, int, int]] = (
        ("kinds", len(graph.kinds), ops),
        ("flops", len(graph.flops), ops),
        ("param_bytes", len(graph.param_bytes), ops),
        ("tensor_port", len(graph.tensor_port), tensors),
        ("tensor_bytes", len(graph.tensor_bytes), tensors),
        ("tensor_shapes", len(graph.tensor_shapes), tensors),
        ("tensor_dtypes", len(graph.tensor_dtypes), tensors),
        ("edges", len(graph.edges), edges),
    )
    for field, length, expected in sizes:
        if length != expected:
            return f"'{field}' has {length} entries where {expected} are expected"
    return None


def _bad_cost(graph: OpGraph) -> str | None:
    for field, values, owner in (
        ("flops", graph.flops, np.arange(len(graph))),
        ("param_bytes", graph.param_bytes, np.arange(len(graph))),
        ("tensor_bytes", graph.tensor_bytes, graph.tensor_op),
    ):
        bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(bad):
            return f"'{field}' of op '{graph.names[int(owner[bad[0]])]}' is {values[bad[0]]}"
    return None


def _bad_order(graph: OpGraph) -> str | None:
    bad = np.flatnonzero(graph.edges[:, 0] >= graph.edges[:, 1])
    if len(bad):
        u, v = graph.edges[bad[0]]
        return f"op '{graph.names[v]}' reads from '{graph.names[u]}', which does not come before it"
    return None


def _bad_reference(graph: OpGraph) -> str | None:
    ops, tensors = len(graph), len(graph.tensor_op)
    for field, values, bound in (
        ("edges", graph.edges, ops),
        ("tensor_op", graph.tensor_op, ops),
        ("edge_tensor", graph.edge_tensor, tensors),
    ):
        if values.size and (values.min() < 0 or values.max() >= bound):
            return f"'{field}' refers to a number outside 0..{bound - 1}"
    return None


def _wrong_tensor(graph: OpGraph) -> str | None:
    bad = np.flatnonzero(graph.tensor_op[graph.edge_tensor] != graph.edges[:, 0])
    if len(bad):
        u, v = graph.edges[bad[0]]
        producer = graph.names[int(graph.tensor_op[graph.edge_tensor[bad[0]]])]
        return f"the edge '{graph.names[u]}' -> '{graph.names[v]}' moves a tensor that '{producer}' produces"
    return None


_RULES: dict[str, Callable[[OpGraph], str | None]] = {
    "there is at least one op": lambda graph: None if graph.names else "it is empty",
    "arrays agree in length": _wrong_length,
    "op names are unique": _first_duplicate,
    "references stay inside the graph": _bad_reference,
    "costs are finite and not negative": _bad_cost,
    "ops are in topological order": _bad_order,
    "an edge moves a tensor of its producer": _wrong_tensor,
}
