"""Predict the times of ops on a device from the history of that device: a regression over the ops of other models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.graph import OpGraph, unique_rows
from placeit.core.lines import nonnegative_fit
from placeit.profiler.kernel_history import Beyond, Profiled
from placeit.profiler.op_traits import OpTraits
from placeit.runtime.devices.kernels import Kernel

__all__ = ["Error", "KernelTimes", "profiled"]

_MAX_SORTS = 1500  # sorts of ops that are learned from, the newest: the work grows with the third power
_SHORTEST_S = 1e-6  # seconds below which times cannot be told apart
_COUNTS_S = 2e-5  # seconds above which an op counts for the rates in inverse proportion to its time
# covariance of the logarithms of two ops' times beyond the rates: any two, one kind, alike sizes, both, and fed by one kind
_ALL, _KIND, _SIZE, _KIND_SIZE, _FED_SIZE = 0.2, 0.3, 0.2, 0.4, 0.1
_NOISE, _NOISY_S = 0.02, 5e-6  # variance of the logarithm of a long time, and the seconds at which it has doubled
# doublings within which sizes are alike: operations, weights, bytes read and written, channels, operations per byte written
_DOUBLINGS = np.array([3.0, 4.0, 8.0, 8.0, 8.0, 3.0])
_SMALLEST = np.array([1e3, 1e2, 1e2, 1e2, 1.0])  # added to sizes before their logarithms are taken


@dataclass(frozen=True)
class Error:
    """Errors of predicted times of whole models, each predicted from the history without it.

    Attributes:
        models: number of models.
        median: median of the absolute errors, as shares of the measured time.
        worst: the largest of them.
    """

    models: int
    median: float
    worst: float


def profiled(identity: str, name: str, graph: OpGraph, kernels: Sequence[Kernel], seconds: float, beyond: Beyond) -> Profiled:
    """Divide a model's time on a device among its ops.

    A kernel's time goes to its op with the most operations; its other ops were fused, and take no time. A runtime may name a
    kernel after the last of its ops. So an op without a time gets the time of the op that it alone feeds, unless the latter has
    more operations.

    Args:
        identity: identity of the model.
        name: name of its file.
        graph: its task graph.
        kernels: the kernels of a pass over it.
        seconds: time of the whole pass.
        beyond: costs of its groups beyond that.
    """
    taken, flops = np.zeros(len(graph)), graph.flops
    for kernel in kernels:
        taken[max(kernel.ops, key=lambda op: (flops[op], -op))] += kernel.seconds
    feeders: list[list[int]] = [[] for _ in range(len(graph))]
    for u, v in graph.edges.tolist():
        feeders[v].append(u)
    readers = np.bincount(unique_rows(graph.edges)[0][:, 0], minlength=len(graph))
    for v in range(len(graph) - 1, -1, -1):
        if taken[v] > 0 and feeders[v]:
            u = max(feeders[v], key=lambda op: flops[op])
            if taken[u] == 0 and readers[u] == 1 and flops[u] >= flops[v]:
                taken[u], taken[v] = taken[v], 0.0
    taken *= seconds / max(taken.sum(), 1e-30)
    traits, of = OpTraits.of_graph(graph).distinct()
    count = len(traits)
    ops, fused = np.bincount(of, minlength=count), np.bincount(of[taken == 0], minlength=count)
    sums = np.bincount(of, taken, count)
    return Profiled(
        identity, name, seconds, beyond, traits, ops.astype(float), fused.astype(float), sums / np.maximum(ops - fused, 1)
    )


class KernelTimes:
    """A regression over the times of some models' ops on one device.

    Rates (seconds per op, per operation, per byte of weights, per byte read or written) give a first figure. The deviation of
    the logarithm of an op's time from it is a Gaussian process over its kind, its neighbours and its sizes (Rasmussen and
    Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1; Matern covariance with nu = 3/2, fixed parameters).
    The chance that an op is fused into another one, and so takes no time, is counted for its kind and its neighbours.

    Args:
        models: the models, at least one.
    """

    def __init__(self, models: Sequence[Profiled]) -> None:
        self._models = tuple(models)
        of = np.concatenate([np.full(len(model.ops), i) for i, model in enumerate(models)])
        traits = _joined([model.traits for model in models])
        self._fusing = _Fusing.of(models)
        alone = np.concatenate([model.ops > model.fused for model in models])
        these = np.flatnonzero(alone)[-_MAX_SORTS:]
        self._traits, self._of = _some(traits, these), of[these]
        self._taken = np.concatenate([model.taken for model in models])[these]
        noise = _NOISE * (1 + _NOISY_S / np.maximum(self._taken, _SHORTEST_S))
        self._inverse = np.linalg.inv(_covariance(self._traits, self._traits) + np.diag(noise))
        self._fit(np.ones(len(these), bool))

    def _fit(self, known: NDArray[np.bool_]) -> None:
        """Fit to some of the sorts, ``bool[N]``. The inverse of their covariance follows from the inverse of all, by blocks."""
        self._known, out = known, ~known
        rows, weights = _loads(self._traits), 1 / np.sqrt(np.maximum(self._taken, _COUNTS_S))
        self._rates = nonnegative_fit((rows * weights[:, None])[known], (self._taken * weights)[known])
        beyond = np.log((self._taken + _SHORTEST_S) / (rows @ self._rates + _SHORTEST_S))
        found = self._inverse @ beyond
        among, between = self._inverse[np.ix_(out, out)], self._inverse[np.ix_(known, out)]
        self._weights = found[known] - between @ np.linalg.solve(among, found[out])

    def seconds(self, traits: OpTraits) -> NDArray[np.float64]:
        """Predict the seconds of ops inside a whole model: ``float64[N]``."""
        rates = _loads(traits) @ self._rates
        beyond = _covariance(traits, _some(self._traits, np.flatnonzero(self._known))) @ self._weights
        alone = np.maximum((rates + _SHORTEST_S) * np.exp(beyond) - _SHORTEST_S, 0.0)
        return np.asarray(alone * (1 - self._fusing.chance(traits)), np.float64)

    def error(self) -> Error | None:
        """Return the errors of predicting each model from the others; None if there are no others."""
        if len(self._models) < 2:
            return None
        found, fusing = [], self._fusing
        for i, model in enumerate(self._models):
            others = [other for j, other in enumerate(self._models) if j != i]
            self._fusing = _Fusing.of(others)
            self._fit(self._of != i)
            found.append(abs(float(self.seconds(model.traits) @ model.ops) / model.seconds - 1))
        self._fusing = fusing
        self._fit(np.ones(len(self._of), bool))
        return Error(len(found), float(np.median(found)), max(found))


class _Fusing:
    """Frequencies of ops that take no time, since they are fused into others: by kind, and also by kind and neighbours."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, ...], tuple[float, float]] = {}

    @classmethod
    def of(cls, models: Sequence[Profiled]) -> _Fusing:
        """Count over all ops of some models."""
        made = cls()
        for model in models:
            counts = zip(model.ops.tolist(), model.fused.tolist(), strict=True)
            for (kind, fed, read_by, _), (ops, fused) in zip(model.traits.sorts(), counts, strict=True):
                for key in ((kind,), (kind, fed), (kind, fed, read_by)):
                    before = made._counts.get(key, (0.0, 0.0))
                    made._counts[key] = before[0] + ops, before[1] + fused
        return made

    def chance(self, traits: OpTraits) -> NDArray[np.float64]:
        """Return the share of fused ops among equal neighbours, ``float64[N]``; if these are few, drawn to the kind's share."""
        chances = np.empty(len(traits))
        for i, (kind, fed, read_by, _) in enumerate(traits.sorts()):
            chance = 0.5
            for key in ((kind,), (kind, fed), (kind, fed, read_by)):
                count, gone = self._counts.get(key, (0.0, 0.0))
                chance = (gone + chance / 2) / (count + 0.5)
            chances[i] = chance
        return chances


def _loads(traits: OpTraits) -> NDArray[np.float64]:
    """Return the loads that rates apply to, ``float64[N, 4]``: 1, operations, bytes of weights, bytes read and written."""
    flops, weights, entering, written, _ = traits.size.T
    return np.stack([np.ones(len(flops)), flops, weights, entering + written], axis=1)


def _covariance(these: OpTraits, those: OpTraits) -> NDArray[np.float64]:
    """Return the covariances of the logarithms of times beyond the rates: ``float64[N, M]``."""
    kind = _equal(these.kind, those.kind)
    fed = kind & _equal(these.fed, those.fed)
    place, there = _place(these), _place(those)
    square = (place**2).sum(axis=1)[:, None] + (there**2).sum(axis=1) - 2 * place @ there.T
    distance = np.sqrt(3 * np.maximum(square, 0.0))
    alike = (1 + distance) * np.exp(-distance)
    return np.asarray(_ALL + _KIND * kind + (_SIZE + _KIND_SIZE * kind + _FED_SIZE * fed) * alike, np.float64)


def _equal(these: NDArray[np.str_], those: NDArray[np.str_]) -> NDArray[np.bool_]:
    """Return which pairs are equal, ``bool[N, M]``; comparing numbers is much faster than comparing texts."""
    number = np.unique(np.concatenate([these, those]), return_inverse=True)[1].ravel()
    return np.asarray(number[: len(these), None] == number[len(these) :], np.bool_)


def _place(traits: OpTraits) -> NDArray[np.float64]:
    """Return sizes in doublings, divided by the doublings within which they are alike: ``float64[N, 6]``."""
    flops, written = traits.size[:, 0], traits.size[:, 3]
    logs = np.log2(traits.size + _SMALLEST)
    return np.asarray(np.column_stack([logs, np.log2((flops + 1) / (written + 1))]) / _DOUBLINGS, np.float64)


def _joined(traits: Sequence[OpTraits]) -> OpTraits:
    return OpTraits(*(np.concatenate([getattr(each, what) for each in traits]) for what in ("kind", "fed", "read_by", "size")))


def _some(traits: OpTraits, these: NDArray[np.int64]) -> OpTraits:
    return OpTraits(traits.kind[these], traits.fed[these], traits.read_by[these], traits.size[these])
