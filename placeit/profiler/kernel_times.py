"""Predict the times of ops on a device by a regression over the times of other models' ops on that device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph, unique_rows
from placeit.core.lines import nonnegative_fit
from placeit.profiler.kernel_history import Overheads, ProfiledModel
from placeit.profiler.op_traits import OpTraits
from placeit.runtime.devices.kernels import Kernel

__all__ = ["Error", "KernelTimes", "profiled_model"]

_MAX_OPS = 1500  # maximum number of distinct ops to fit to, the newest ones: the work is cubic in it
_MIN_SECONDS = 1e-6  # resolution of measured times
_SHORT_S = 2e-5  # in the fit of the rates, longer ops have a weight of the inverse of their time, shorter ones of this time
# covariance of the log deviations of any two ops, plus: of one kind; of similar sizes; both; and both with inputs of one kind
_ANY, _KIND, _SIZE, _KIND_SIZE, _FED_SIZE = 0.2, 0.3, 0.2, 0.4, 0.1
_NOISE, _NOISY_S = 0.02, 5e-6  # variance of the logarithm of a long time, and the seconds at which it is twice as large
# length scales in log2: operations, bytes of weights, bytes read, bytes written, channels, operations per byte written
_DOUBLINGS = np.array([3.0, 4.0, 8.0, 8.0, 8.0, 3.0])
_OFFSETS = np.array([1e3, 1e2, 1e2, 1e2, 1.0])  # added to sizes before taking logarithms


@dataclass(frozen=True)
class Error:
    """Errors of the predicted times of whole models, by leave-one-out cross-validation.

    Attributes:
        models: number of models.
        median: median of the absolute errors, as shares of the measured time.
        worst: largest absolute error.
    """

    models: int
    median: float
    worst: float


def profiled_model(
    identity: str, name: str, graph: OpGraph, kernels: Sequence[Kernel], seconds: float, overheads: Overheads
) -> ProfiledModel:
    """Divide the time of a model on a device among its ops.

    The time of a kernel is assigned to its op with the most operations; its other ops were fused, and take no time. Some
    runtimes name a kernel after its last op. Therefore, an op without a time gets the time of its only reader, unless the
    reader has more operations.

    Args:
        identity: identity of the model.
        name: name of its file.
        graph: its task graph.
        kernels: the kernels of a run of the whole model.
        seconds: time of the run.
        overheads: additional costs of its groups.
    """
    seconds_of_op, flops = np.zeros(len(graph)), graph.flops
    for kernel in kernels:
        seconds_of_op[max(kernel.ops, key=lambda op: (flops[op], -op))] += kernel.seconds
    feeders: list[list[int]] = [[] for _ in range(len(graph))]
    for u, v in graph.edges.tolist():
        feeders[v].append(u)
    readers = np.bincount(unique_rows(graph.edges)[0][:, 0], minlength=len(graph))
    for v in range(len(graph) - 1, -1, -1):
        if seconds_of_op[v] > 0 and feeders[v]:
            u = max(feeders[v], key=lambda op: flops[op])
            if seconds_of_op[u] == 0 and readers[u] == 1 and flops[u] >= flops[v]:
                seconds_of_op[u], seconds_of_op[v] = seconds_of_op[v], 0.0
    seconds_of_op *= seconds / max(seconds_of_op.sum(), 1e-30)
    traits, of = OpTraits.of_graph(graph).distinct()
    count = len(traits)
    ops, fused = np.bincount(of, minlength=count), np.bincount(of[seconds_of_op == 0], minlength=count)
    sums = np.bincount(of, seconds_of_op, count)
    return ProfiledModel(
        identity, name, seconds, overheads, traits, ops.astype(float), fused.astype(float), sums / np.maximum(ops - fused, 1)
    )


class KernelTimes:
    """A regression over the times of ops on one device.

    A linear model with non-negative rates (seconds per op, per operation, per byte of weights, per byte read or written) gives
    a first estimate. The logarithm of an op's time deviates from it by a Gaussian process over its kind, its neighbours and its
    sizes (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1; Matern covariance with nu = 3/2
    and fixed parameters). The probability that an op is fused into another one, and so takes no time, is its frequency among
    ops of the same kind with the same neighbours.

    Args:
        models: the models, at least one.
    """

    def __init__(self, models: Sequence[ProfiledModel]) -> None:
        self._models = tuple(models)
        of = np.concatenate([np.full(len(model.ops), i) for i, model in enumerate(models)])
        traits = OpTraits.from_rows([row for model in models for row in model.traits.rows()])
        self._fusion_rates = _FusionRates(models)
        timed = np.concatenate([model.ops > model.fused for model in models])
        newest = np.flatnonzero(timed)[-_MAX_OPS:]
        self._traits, self._of = _subset(traits, newest), of[newest]
        self._taken = np.concatenate([model.taken for model in models])[newest]
        noise = _NOISE * (1 + _NOISY_S / np.maximum(self._taken, _MIN_SECONDS))
        self._inverse = np.linalg.inv(_covariance(self._traits, self._traits) + np.diag(noise))
        self._fit(np.ones(len(newest), bool))

    def _fit(self, known: NDArray[np.bool_]) -> None:
        """Fit to the ops in a mask, ``bool[N]``, by block inversion of the covariance of all ops."""
        self._known, out = known, ~known
        factors, weights = _rate_factors(self._traits), 1 / np.sqrt(np.maximum(self._taken, _SHORT_S))
        self._rates = nonnegative_fit((factors * weights[:, None])[known], (self._taken * weights)[known])
        deviation = np.log((self._taken + _MIN_SECONDS) / (factors @ self._rates + _MIN_SECONDS))
        found = self._inverse @ deviation
        among, between = self._inverse[np.ix_(out, out)], self._inverse[np.ix_(known, out)]
        self._weights = found[known] - between @ np.linalg.solve(among, found[out])

    def seconds(self, traits: OpTraits) -> NDArray[np.float64]:
        """Predict the seconds of ops inside a whole model: ``float64[N]``."""
        rates = _rate_factors(traits) @ self._rates
        deviation = _covariance(traits, _subset(self._traits, np.flatnonzero(self._known))) @ self._weights
        seconds = np.maximum((rates + _MIN_SECONDS) * np.exp(deviation) - _MIN_SECONDS, 0.0)
        return np.asarray(seconds * (1 - self._fusion_rates.probability(traits)), np.float64)

    def error(self) -> Error | None:
        """Return the errors of predicting each model from the others; None if there is only one model."""
        if len(self._models) < 2:
            return None
        found, fusing = [], self._fusion_rates
        for i, model in enumerate(self._models):
            others = [other for j, other in enumerate(self._models) if j != i]
            self._fusion_rates = _FusionRates(others)
            self._fit(self._of != i)
            found.append(abs(float(self.seconds(model.traits) @ model.ops) / model.seconds - 1))
        self._fusion_rates = fusing
        self._fit(np.ones(len(self._of), bool))
        return Error(len(found), float(np.median(found)), max(found))


class _FusionRates:
    """Frequencies of ops in some models that are fused into others and take no time, by kind, and by kind and neighbours."""

    def __init__(self, models: Sequence[ProfiledModel]) -> None:
        self._counts: dict[tuple[str, ...], tuple[float, float]] = {}
        for model in models:
            counts = zip(model.ops.tolist(), model.fused.tolist(), strict=True)
            for (kind, fed, read_by, _), (ops, fused) in zip(model.traits.rows(), counts, strict=True):
                for key in ((kind,), (kind, fed), (kind, fed, read_by)):
                    before = self._counts.get(key, (0.0, 0.0))
                    self._counts[key] = before[0] + ops, before[1] + fused

    def probability(self, traits: OpTraits) -> NDArray[np.float64]:
        """Return the share of fused ops of one kind with the same neighbours, ``float64[N]``, shrunk to the kind's share."""
        probabilities = np.empty(len(traits))
        for i, (kind, fed, read_by, _) in enumerate(traits.rows()):
            probability = 0.5
            for key in ((kind,), (kind, fed), (kind, fed, read_by)):
                count, fused = self._counts.get(key, (0.0, 0.0))
                probability = (fused + probability / 2) / (count + 0.5)
            probabilities[i] = probability
        return probabilities


def _rate_factors(traits: OpTraits) -> NDArray[np.float64]:
    """Return the factors of the rates, ``float64[N, 4]``: 1, operations, bytes of weights, bytes read and written."""
    flops, weights, entering, written, _ = traits.size.T
    return np.stack([np.ones(len(flops)), flops, weights, entering + written], axis=1)


def _covariance(a: OpTraits, b: OpTraits) -> NDArray[np.float64]:
    """Return the covariances of the log deviations of two sets of ops: ``float64[N, M]``."""
    kind = _equal(a.kind, b.kind)
    fed = kind & _equal(a.fed, b.fed)
    x, y = _coordinates(a), _coordinates(b)
    square = (x**2).sum(axis=1)[:, None] + (y**2).sum(axis=1) - 2 * x @ y.T
    distance = np.sqrt(3 * np.maximum(square, 0.0))
    similar = (1 + distance) * np.exp(-distance)
    return np.asarray(_ANY + _KIND * kind + (_SIZE + _KIND_SIZE * kind + _FED_SIZE * fed) * similar, np.float64)


def _equal(a: NDArray[np.str_], b: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Compare all pairs of two arrays: ``bool[N, M]``. Comparing numbers is much faster than comparing strings."""
    number = np.unique(np.concatenate([a, b]), return_inverse=True)[1].ravel()
    return np.asarray(number[: len(a), None] == number[len(a) :], np.bool_)


def _coordinates(traits: OpTraits) -> NDArray[np.float64]:
    """Return the logarithms of the sizes, divided by the length scales of the covariance: ``float64[N, 6]``."""
    flops, written = traits.size[:, 0], traits.size[:, 3]
    logs = np.log2(traits.size + _OFFSETS)
    return np.asarray(np.column_stack([logs, np.log2((flops + 1) / (written + 1))]) / _DOUBLINGS, np.float64)


def _subset(traits: OpTraits, index: NDArray[np.int64]) -> OpTraits:
    return OpTraits(traits.kind[index], traits.fed[index], traits.read_by[index], traits.size[index])
