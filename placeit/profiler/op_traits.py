"""Traits of ops that determine their times, independent of the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph

__all__ = ["OpTraits", "Row"]

Row = tuple[str, str, str, list[float]]
"""Traits of one op: its kind, the kinds of the op that feeds it and of the op that reads it, and its sizes."""

_CONVOLUTIONS = ("Convolution", "GroupConvolution", "Conv")
_PRODUCTS = ("MatMul", "Gemm")
_DENSE = 8.0  # operations per element of its output above which an op is assumed to multiply by weights


@dataclass(frozen=True, eq=False)
class OpTraits:
    """Traits of N ops.

    Attributes:
        kind: ``str[N]``.
        fed: ``str[N]``, kind of the op that makes its largest input; empty for an op without inputs.
        read_by: ``str[N]``, kind of the only op that reads it; ``*`` for several readers, and empty for no reader.
        size: ``float64[N, 5]``: floating-point operations, bytes of weights, bytes read, bytes written, and channels.
    """

    kind: NDArray[np.str_]
    fed: NDArray[np.str_]
    read_by: NDArray[np.str_]
    size: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.kind)

    @classmethod
    def of_graph(cls, graph: OpGraph) -> OpTraits:
        """Return the traits of all ops of a task graph, in its order.

        If ops compute the weights, as in files of some exporters and in the small test models of ONNX, there are no constants.
        The bytes of such weights are estimated from the operations.
        """
        count = len(graph)
        moved = graph.tensor_bytes[graph.edge_tensor]
        written = np.bincount(graph.tensor_op, graph.tensor_bytes, count).astype(np.float64)
        entering = np.bincount(graph.edges[:, 1], moved, count).astype(np.float64)
        fed, largest = [""] * count, np.zeros(count)
        readers: list[set[int]] = [set() for _ in range(count)]
        inputs = np.zeros(count, int)
        for (u, v), nbytes in zip(graph.edges.tolist(), moved.tolist(), strict=True):
            if nbytes > largest[v]:
                fed[v], largest[v] = graph.kinds[u], nbytes
            readers[u].add(v)
            inputs[v] += 1
        read_by = ["" if not ops else graph.kinds[min(ops)] if len(ops) == 1 else "*" for ops in readers]
        weights, channels = graph.param_bytes.copy(), np.ones(count)
        for v, shape in enumerate(graph.output_shapes):
            if not shape:
                continue
            channels[v] = shape[1] if len(shape) == 4 else shape[-1]
            elements = float(np.prod(shape))
            multiplies = graph.kinds[v] in _CONVOLUTIONS or (graph.kinds[v] in _PRODUCTS and inputs[v] < 2)
            if multiplies and elements > 0 and graph.flops[v] > _DENSE * elements:
                weights[v] = max(weights[v], 2 * graph.flops[v] / elements * channels[v])
        size = np.stack([graph.flops, weights, entering, written, channels], axis=1)
        return cls(np.array(graph.kinds), np.array(fed), np.array(read_by), size)

    @classmethod
    def from_rows(cls, rows: Sequence[Row]) -> OpTraits:
        """Create the traits of ops from one row for each op."""
        kind, fed, read_by, size = zip(*rows, strict=True)
        return cls(np.array(kind), np.array(fed), np.array(read_by), np.array(size, float))

    def rows(self) -> list[Row]:
        """Return the traits as a list of one row for each op."""
        return list(zip(self.kind.tolist(), self.fed.tolist(), self.read_by.tolist(), self.size.tolist(), strict=True))

    def distinct(self) -> tuple[OpTraits, NDArray[np.int64]]:
        """Return the distinct traits, and for each op the index of its traits among them: ``int64[N]``."""
        number: dict[tuple[str, str, str, tuple[float, ...]], int] = {}
        of = [number.setdefault((kind, fed, read_by, tuple(size)), len(number)) for kind, fed, read_by, size in self.rows()]
        return OpTraits.from_rows([(*rest, list(size)) for *rest, size in number]), np.array(of)  # type: ignore[misc]
