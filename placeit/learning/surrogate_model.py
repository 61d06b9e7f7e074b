"""Predicts measured times of placements: the simulated time times a learned factor, with the uncertainty of that factor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.planning.segments import Plan, Segmenter

__all__ = ["Surrogate", "expected_gain", "features", "worked"]

# standard deviations to choose from, of log(measured / simulated): of a feature's weight, of a placement's part, of the noise
_WEIGHTS, _OWN, _NOISE = (0.02, 0.1, 0.4), (0.01, 0.03, 0.1), (0.01, 0.03)
_ALIKE = 0.15  # correlation length of placements, as the share of the work that runs on other devices


def features(segmenter: Segmenter, plan: Plan) -> NDArray[np.float64]:
    """Describe the simulated run of a plan, by shares of its makespan: ``float64[D + 4]``.

    In this order: 1 (the constant); busy time of each device; transfers; time added by cuts, dispatches and load; programs
    per group.
    """
    schedule, costs = plan.schedule, segmenter.costs
    whole = max(schedule.makespan, 1e-12)
    devices = plan.group_devices
    core = float(costs.core[np.arange(len(devices)), devices].sum())
    moved = float((schedule.transfers.finish - schedule.transfers.start).sum())
    added = max(0.0, float(schedule.busy.sum()) - core)
    rest = [moved / whole, added / whole, len(plan.programs) / len(devices)]
    return np.array([1.0, *(schedule.busy / whole), *rest])


@dataclass(frozen=True, eq=False)
class Surrogate:
    """Bayesian ridge regression over features of plans, plus a part for each placement that similar placements share.

    It is computed as a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1).
    Its three standard deviations are the most likely ones among a few given values.

    Attributes:
        features: ``float64[N, F]`` of measured plans.
        work: ``float64[N, W]``, share of the work of each group on each device; the distance of two placements is half the
            sum of absolute differences.
        known: ``float64[N]``, logarithms of measured over simulated values.
        deviations: standard deviations of weights, of placements' parts and of measurements.
    """

    features: NDArray[np.float64]
    work: NDArray[np.float64]
    known: NDArray[np.float64]
    deviations: tuple[float, float, float]

    @classmethod
    def fitted(cls, features: NDArray[np.float64], work: NDArray[np.float64], known: NDArray[np.float64]) -> Surrogate:
        """Fit to measurements, at least one."""
        made = [cls(features, work, known, each) for each in itertools.product(_WEIGHTS, _OWN, _NOISE)]
        return max(made, key=Surrogate._likelihood)

    def predict(
        self, features: NDArray[np.float64], work: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of the logarithm of measured over simulated values: ``float64[M]`` twice."""
        factor = np.linalg.cholesky(self._noisy())
        across = self._covariance(self.features, self.work, features, work)
        solved = np.linalg.solve(factor, across)
        weights, own, _ = self.deviations
        variance = (weights * features) ** 2 @ np.ones(features.shape[1]) + own**2 - (solved**2).sum(axis=0)
        return solved.T @ np.linalg.solve(factor, self.known), np.sqrt(np.maximum(variance, 1e-12))

    def and_one(self, features: NDArray[np.float64], work: NDArray[np.float64], known: float) -> Surrogate:
        """Return the surrogate with one more measurement."""
        rows = np.vstack([self.features, features]), np.vstack([self.work, work])
        return Surrogate(*rows, np.append(self.known, known), self.deviations)

    def _noisy(self) -> NDArray[np.float64]:
        covariance = self._covariance(self.features, self.work, self.features, self.work)
        return covariance + self.deviations[2] ** 2 * np.eye(len(self.known))

    def _covariance(
        self,
        these: NDArray[np.float64],
        of_these: NDArray[np.float64],
        those: NDArray[np.float64],
        of_those: NDArray[np.float64],
    ) -> NDArray[np.float64]:
        weights, own, _ = self.deviations
        apart = np.abs(of_these[:, None] - of_those[None]).sum(axis=2) / 2
        return np.asarray(weights**2 * these @ those.T + own**2 * np.exp(-apart / _ALIKE), np.float64)

    def _likelihood(self) -> float:
        factor = np.linalg.cholesky(self._noisy())
        return -float((np.linalg.solve(factor, self.known) ** 2).sum()) / 2 - float(np.log(np.diag(factor)).sum())


def expected_gain(mean: NDArray[np.float64], deviation: NDArray[np.float64], best: float) -> NDArray[np.float64]:
    """Return the expected improvement on ``best``: the mean of max(0, best - x) over the normal variable x.

    Jones et al., Efficient Global Optimization of Expensive Black-Box Functions, 1998, equation 15.
    """
    z = (best - mean) / deviation
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in z.tolist()])
    return np.asarray((best - mean) * below + deviation * density, np.float64)


def worked(segmenter: Segmenter, placements: Sequence[NDArray[np.int32]]) -> NDArray[np.float64]:
    """Return the share of the work of each group on each device: ``float64[N, G * D]``, zero where a group does not run."""
    core = segmenter.costs.core
    weight = np.where(np.isfinite(core), core, np.inf).min(axis=1)
    share = weight / max(float(weight.sum()), 1e-12)
    rows = np.zeros((len(placements), *core.shape))
    for i, devices in enumerate(placements):
        rows[i, np.arange(len(devices)), devices] = share
    return rows.reshape(len(placements), -1)
