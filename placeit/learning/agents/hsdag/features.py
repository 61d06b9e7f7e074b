"""Features of ops for HSDAG's policy (section 2.3 of *A structure-aware framework for learning device placements*)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from placeit import _core
from placeit.core.graph import csr, unique_rows
from placeit.core.problem import Problem

__all__ = ["COLUMNS", "KINDS", "WIDTH", "degrees", "fractal_dimensions", "node_features", "pairs", "positions"]

_NAMES = (
    "Add AvgPool BatchNormInference Broadcast Clamp Concat Convert Convolution ConvolutionBackpropData Divide Elu Equal Exp "
    "Gather Gelu GroupConvolution GRUSequence HSwish Interpolate LRN LSTMSequence MatMul Maximum MaxPool Multiply MVN "
    "NormalizeL2 Pad Parameter Power PRelu ReduceMax ReduceMean ReduceSum Relu Reshape Result Select Sigmoid Slice Softmax "
    "Split SquaredDifference Sqrt Squeeze StridedSlice Subtract Swish Tanh Tile Transpose Unsqueeze VariadicSplit"
)
KINDS = tuple(_NAMES.split())
"""Kinds of OpenVINO's ops that have a column each. All other kinds share 16 columns."""

_OTHER_KINDS = 16  # columns of all other kinds
_DEGREES = 9  # columns: degrees 0 to 7, and 8 or more
_DIMENSIONS = 6  # of an output shape
_ENCODING = 16  # columns of the position
_BASE = 10000.0  # of the wavelengths of the position's encoding
_COLUMN = {kind: column for column, kind in enumerate(KINDS)}


def _columns() -> Mapping[str, slice]:
    widths = {
        "kind": len(KINDS) + _OTHER_KINDS,
        "output shape": _DIMENSIONS,
        "in-degree": _DEGREES,
        "out-degree": _DEGREES,
        "fractal dimension": 1,
        "position": _ENCODING,
    }
    ends = np.cumsum(list(widths.values())).tolist()
    return {name: slice(end - width, end) for (name, width), end in zip(widths.items(), ends, strict=True)}


COLUMNS = _columns()
"""Columns of each feature, in the order of the paper."""

WIDTH = int(COLUMNS["position"].stop)
"""Number of columns."""


def node_features(problem: Problem, without: Collection[str] = ()) -> NDArray[np.float32]:
    """Return all features of all ops.

    Columns are the same for all problems, so that a policy can be used for any problem. A kind that is not among :data:`KINDS`
    is hashed by name to one of the shared columns. If a kind or a shape is unknown, its columns are zero. Only the first six
    dimensions of a shape are used.

    Differs from the paper, whose columns are the kinds, degrees and dimensions that occur in its models: degrees of eight and
    more share a column. Output sizes are given as ``log(1 + size)``, since they go into the thousands while all other features
    are around one.

    Args:
        problem: the problem; its kinds and output shapes are used as far as they are known.
        without: names in :data:`COLUMNS` of features that are set to zero, for the ablations of Table 3.

    Returns:
        ``float32[V, WIDTH]``.
    """
    features = np.zeros((len(problem), WIDTH), np.float32)
    of_kind, of_shape = features[:, COLUMNS["kind"]], features[:, COLUMNS["output shape"]]
    for v, (kind, sizes) in enumerate(zip(problem.kinds, problem.output_shapes, strict=True)):
        if kind:
            of_kind[v, _COLUMN.get(kind, len(KINDS) + crc32(kind.encode()) % _OTHER_KINDS)] = 1.0
        known = (sizes or ())[:_DIMENSIONS]
        of_shape[v, : len(known)] = np.log1p(known)
    for name, degree in zip(("in-degree", "out-degree"), degrees(problem), strict=True):
        features[np.arange(len(problem)), COLUMNS[name].start + np.minimum(degree, _DEGREES - 1)] = 1.0
    features[:, COLUMNS["fractal dimension"]] = fractal_dimensions(problem)[:, None]
    features[:, COLUMNS["position"]] = positions(problem, _ENCODING)
    for name in without:
        features[:, COLUMNS[name]] = 0.0
    return features


def pairs(problem: Problem) -> NDArray[np.int32]:
    """Return the distinct pairs of a producer and a consumer, ``int32[E, 2]``."""
    return unique_rows(problem.edges)[0].astype(np.int32)


def degrees(problem: Problem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of distinct producers and of distinct consumers of each op: ``int64[V]`` twice."""
    edges = pairs(problem)
    producers, consumers = (np.bincount(edges[:, end], minlength=len(problem)) for end in (1, 0))
    return producers, consumers


def fractal_dimensions(problem: Problem) -> NDArray[np.float64]:
    """Return the fractal dimension of each op (Eq. 4): ``float64[V]``.

    It is the slope of the regression line of ``log N(r)`` over ``log r``, where ``N(r)`` is the number of other ops at most
    ``r`` edges away in either direction, for every distance that occurs. It is zero for ops with fewer than two distances.
    """
    edges = pairs(problem)
    ends = np.concatenate([edges, edges[:, ::-1]]).astype(np.int32)
    around = csr(np.ascontiguousarray(ends[:, 0]), len(problem))
    dimensions = np.zeros(len(problem))
    _core.fractal_dimensions(around.ptr, ends[around.edge, 1], dimensions)
    return dimensions


def positions(problem: Problem, columns: int) -> NDArray[np.float64]:
    """Return the sinusoidal encoding of each op's position in topological order, from 1 (Eq. 5): ``float64[V, columns]``.

    The number of columns must be even, since sines and cosines make pairs.
    """
    position = np.argsort(problem.order) + 1
    angle = position[:, None] / _BASE ** (np.arange(0, columns, 2) / columns)
    encoded: NDArray[np.float64] = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(len(problem), columns)
    return encoded
