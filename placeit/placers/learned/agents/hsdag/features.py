"""What HSDAG's policy sees of an op (section 2.3 of *A structure-aware framework for learning device placements*)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.graph import csr, unique_rows
from placeit.core.kernels import jit
from placeit.core.problem import Problem

__all__ = ["FeatureLayout", "degrees", "fractal_dimensions", "node_features", "positions"]

_BASE = 10000.0


@dataclass(frozen=True)
class FeatureLayout:
    """Which columns features have, so that those of several problems fit one policy.

    Attributes:
        kinds: what ops compute, a column for each.
        in_degrees: numbers of producers, a column for each.
        out_degrees: numbers of consumers, a column for each.
        dimensions: of output shapes, a column for each.
        encoding: columns of the positional encoding; even.
    """

    kinds: tuple[str, ...]
    in_degrees: tuple[int, ...]
    out_degrees: tuple[int, ...]
    dimensions: int
    encoding: int = 16

    @classmethod
    def of(cls, problems: Iterable[Problem], *, encoding: int = 16) -> FeatureLayout:
        """Give every kind, degree and dimension of some problems a column.

        Raises:
            UsageError: the encoding is odd or negative.
        """
        if encoding < 0 or encoding % 2:
            raise UsageError(f"A positional encoding has an even number of columns, a sine and a cosine each; got {encoding}.")
        kinds, incoming, outgoing, dimensions = set[str](), set[int](), set[int](), 0
        for problem in problems:
            producers, consumers = degrees(problem)
            kinds.update(problem.kinds)
            incoming.update(producers.tolist())
            outgoing.update(consumers.tolist())
            dimensions = max(dimensions, *(len(shape or ()) for shape in problem.output_shapes))
        return cls(tuple(sorted(kinds)), tuple(sorted(incoming)), tuple(sorted(outgoing)), dimensions, encoding)

    @property
    def columns(self) -> Mapping[str, slice]:
        """Which columns a feature has, in the order of the paper: for ablations, which leave some out."""
        widths = {
            "kind": len(self.kinds),
            "output shape": self.dimensions,
            "in-degree": len(self.in_degrees),
            "out-degree": len(self.out_degrees),
            "fractal dimension": 1,
            "position": self.encoding,
        }
        ends = np.cumsum(list(widths.values())).tolist()
        return {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}

    @property
    def width(self) -> int:
        """Number of columns."""
        return int(self.columns["position"].stop)


def node_features(problem: Problem, layout: FeatureLayout) -> NDArray[np.float32]:
    """Compute all features of all ops.

    A kind or degree that the layout does not have is all zero, as is a shape that is not known; dimensions that it does not
    have are left out.

    Differs from the paper: of sizes of the output the logarithm is taken, ``log(1 + size)``, as they go into the thousands
    where everything else is around one.

    Returns:
        ``float32[V, layout.width]``.
    """
    producers, consumers = degrees(problem)
    shape = np.zeros((len(problem), layout.dimensions))
    for v, sizes in enumerate(problem.output_shapes):
        known = (sizes or ())[: layout.dimensions]
        shape[v, : len(known)] = known
    parts = (
        np.array(problem.kinds)[:, None] == np.array(layout.kinds or ("",))[None, : len(layout.kinds)],
        np.log1p(shape),
        producers[:, None] == np.array(layout.in_degrees),
        consumers[:, None] == np.array(layout.out_degrees),
        fractal_dimensions(problem)[:, None],
        positions(problem, layout.encoding),
    )
    return np.concatenate(parts, axis=1).astype(np.float32)


def degrees(problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the different producers and the different consumers of each op: ``int64[V]`` each."""
    pairs = _pairs(problem)
    producers, consumers = (np.bincount(pairs[:, end], minlength=len(problem)) for end in (1, 0))
    return producers, consumers


def fractal_dimensions(problem: Problem) -> NDArray[np.float64]:
    """Compute the fractal dimension of each op (Eq. 4): ``float64[V]``.

    That is the slope of the straight line through ``log N(r)`` over ``log r``, where ``N(r)`` counts the other ops that are at
    most ``r`` edges away, in whichever direction, for every distance that there is. It is zero where there are fewer than two.
    """
    pairs = _pairs(problem)
    ends = np.concatenate([pairs, pairs[:, ::-1]]).astype(np.int32)
    around = csr(np.ascontiguousarray(ends[:, 0]), len(problem))
    dimensions = np.zeros(len(problem))
    _slopes(dimensions, around.ptr.copy(), ends[around.edge, 1].astype(np.int32))
    return dimensions


def positions(problem: Problem, columns: int) -> NDArray[np.float64]:
    """Encode the place of each op in topological order, which counts from 1 (Eq. 5): ``float64[V, columns]``."""
    place = np.empty(len(problem))
    place[problem.order] = np.arange(1, len(problem) + 1)
    angle = place[:, None] / _BASE ** (np.arange(0, columns, 2) / max(1, columns))
    encoded: NDArray[np.float64] = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(len(problem), columns)
    return encoded


def _pairs(problem: Problem) -> NDArray[np.int32]:
    return unique_rows(problem.edges)[0]


@jit
def _slopes(dimensions: NDArray[np.float64], ptr: NDArray[np.int32], others: NDArray[np.int32]) -> None:
    ops = len(dimensions)
    queue = np.empty(ops, np.int64)
    distance = np.empty(ops, np.int64)
    for v in range(ops):
        distance[:] = -1
        distance[v] = 0
        queue[0], size, at = v, 1, 0
        while at < size:
            u = queue[at]
            at += 1
            for k in range(ptr[u], ptr[u + 1]):
                w = others[k]
                if distance[w] < 0:
                    distance[w] = distance[u] + 1
                    queue[size] = w
                    size += 1
        farthest = distance[queue[size - 1]]
        if farthest < 2:
            continue
        mean_r, mean_n = 0.0, 0.0
        for turn in range(2):
            above, below = 0.0, 0.0
            for i in range(1, size):
                r = distance[queue[i]]
                if i + 1 < size and distance[queue[i + 1]] == r:
                    continue
                x, y = np.log(r), np.log(i)  # so many others are at most so far away
                if turn == 0:
                    mean_r += x / farthest
                    mean_n += y / farthest
                else:
                    above += (x - mean_r) * (y - mean_n)
                    below += (x - mean_r) ** 2
            if turn == 1:
                dimensions[v] = above / below
