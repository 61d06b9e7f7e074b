"""Contract a task graph to the parts that none of several plans divides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph
from placeit.core.weights import merged

__all__ = ["Contracted", "contract"]


@dataclass(frozen=True, eq=False)
class Contracted:
    """A task graph whose ops are parts of another task graph.

    Attributes:
        graph: an op of kind ``Segment`` for each part that computes something, named after its first op. Ops of kind
            ``Parameter`` and ``Result`` are taken over from the other graph.
        part_of: ``int32[V]``, for each op of the other graph the number of its part.
        tensor_of: for each tensor of the other graph that leaves its part, its number in ``graph``.
        bodies: for each ``Result`` of a constant, which reads no op, the number of the part that writes it.
    """

    graph: OpGraph
    part_of: NDArray[np.int32]
    tensor_of: Mapping[int, int]
    bodies: Mapping[int, int]


def contract(graph: OpGraph, segments: Sequence[NDArray[np.int32]]) -> Contracted:
    """Merge ops that are in one segment in every one of several plans, so that each set of them becomes one op.

    Args:
        graph: the task graph.
        segments: ``int32[V]`` for each plan, the segment of each op. No segment reads from one with a higher number.
    """
    rank = {"Parameter": 0, "Result": 2}
    reading = set(graph.edges[:, 1].tolist())
    rows = [tuple(int(of[v]) for of in segments) for v in range(len(graph))]
    key: list[tuple[int, ...]] = [
        (rank[kind], v) if kind in rank else (1, *row) for v, (kind, row) in enumerate(zip(graph.kinds, rows, strict=True))
    ]
    constant = {v: (1, *rows[v]) for v, kind in enumerate(graph.kinds) if kind == "Result" and v not in reading}
    number = {part: i for i, part in enumerate(sorted({*key, *constant.values()}))}
    part_of = np.array([number[part] for part in key], np.int32)
    first: dict[int, int] = {}
    for v, part in enumerate(part_of.tolist()):
        first.setdefault(part, v)
    bodies = {v: number[part] for v, part in constant.items()}
    names = {part: f"constant {graph.names[v]}" for v, part in bodies.items()}
    names |= {part: graph.names[v] for part, v in first.items()}
    ends = part_of[graph.edges]
    moves = sorted(
        {
            (u, w, t)
            for (u, w), t in zip(ends.tolist(), graph.edge_tensor.tolist(), strict=True)
            if u != w
        }
    )  # fmt: skip
    tensors = sorted({(u, t) for u, _, t in moves})
    tensor_of = {t: i for i, (_, t) in enumerate(tensors)}
    edges = [(u, w, tensor_of[t]) for u, w, t in moves]
    producers = [u for u, _ in tensors] + list(bodies.values())
    edges += [(part, int(part_of[v]), len(tensors) + i) for i, (v, part) in enumerate(bodies.items())]
    table = np.array(edges, np.int32).reshape(-1, 3)
    kinds = {0: "Parameter", 1: "Segment", 2: "Result"}
    own = [t for _, t in tensors]
    param_bytes, shared = merged(graph.param_bytes, graph.shared, part_of, len(number))
    return Contracted(
        OpGraph(
            names=tuple(names[part] for part in range(len(number))),
            kinds=tuple(kinds[part[0]] for part in number),
            flops=np.bincount(part_of, graph.flops, len(number)).astype(np.float64),
            param_bytes=param_bytes,
            shared=shared,
            tensor_op=np.array(producers, np.int32),
            tensor_port=np.array([producers[:i].count(u) for i, u in enumerate(producers)], np.int32),
            tensor_bytes=np.array([*graph.tensor_bytes[own].tolist(), *[0.0] * len(bodies)]),
            tensor_shapes=(*(graph.tensor_shapes[t] for t in own), *[()] * len(bodies)),
            tensor_dtypes=(*(graph.tensor_dtypes[t] for t in own), *["float32"] * len(bodies)),
            edges=np.ascontiguousarray(table[:, :2]),
            edge_tensor=np.ascontiguousarray(table[:, 2]),
        ).verify(),
        part_of,
        tensor_of,
        bodies,
    )
