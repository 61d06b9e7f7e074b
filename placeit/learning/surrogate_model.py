"""Predicts measured times of placements: the simulated time multiplied by a learned factor with an uncertainty."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.planning.segments import Plan, Segmenter

__all__ = ["Surrogate", "expected_gain", "features", "work_shares"]

# candidate standard deviations of log(measured / simulated): of feature weights, of placement terms, of noise
_WEIGHT_DEVIATIONS, _PLACEMENT_DEVIATIONS, _NOISE_DEVIATIONS = (0.02, 0.1, 0.4), (0.01, 0.03, 0.1), (0.01, 0.03)
_CORRELATION_LENGTH = 0.15  # of placements, as the share of the work that runs on other devices


def features(segmenter: Segmenter, plan: Plan) -> NDArray[np.float64]:
    """Return features of the simulated run of a plan, as shares of its makespan: ``float64[D + 4]``.

    In this order: 1 (the constant); busy time of each device; transfer time; time added by cuts, dispatches and load; programs
    per group.
    """
    schedule, costs = plan.schedule, segmenter.costs
    makespan = max(schedule.makespan, 1e-12)
    devices = plan.group_devices
    core = float(costs.core[np.arange(len(devices)), devices].sum())
    transfers = float((schedule.transfers.finish - schedule.transfers.start).sum())
    added = max(0.0, float(schedule.busy.sum()) - core)
    return np.array(
        [1.0, *(schedule.busy / makespan), transfers / makespan, added / makespan, len(plan.programs) / len(devices)]
    )


@dataclass(frozen=True, eq=False)
class Surrogate:
    """Bayesian ridge regression over features of plans, plus a term for each placement that correlates with similar placements.

    It is computed as a Gaussian process (Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, algorithm 2.1).
    The three standard deviations are the most likely ones among a few given values.

    Attributes:
        features: ``float64[N, F]``, features of the measured plans.
        work: ``float64[N, W]``, share of the work of each group on each device; the distance of two placements is half the
            sum of absolute differences.
        log_ratios: ``float64[N]``, logarithms of measured over simulated values.
        deviations: standard deviations of feature weights, of placement terms and of measurements.
    """

    features: NDArray[np.float64]
    work: NDArray[np.float64]
    log_ratios: NDArray[np.float64]
    deviations: tuple[float, float, float]

    @classmethod
    def fit(cls, features: NDArray[np.float64], work: NDArray[np.float64], log_ratios: NDArray[np.float64]) -> Surrogate:
        """Fit a surrogate to one or more measurements."""
        deviations = itertools.product(_WEIGHT_DEVIATIONS, _PLACEMENT_DEVIATIONS, _NOISE_DEVIATIONS)
        return max((cls(features, work, log_ratios, each) for each in deviations), key=Surrogate._log_likelihood)

    def predict(
        self, features: NDArray[np.float64], work: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation of the logarithm of measured over simulated values: ``float64[M]`` twice."""
        factor = np.linalg.cholesky(self._noisy_covariance())
        solved = np.linalg.solve(factor, self._covariance(features, work))
        weight, placement, _ = self.deviations
        variance = ((weight * features) ** 2).sum(axis=1) + placement**2 - (solved**2).sum(axis=0)
        return solved.T @ np.linalg.solve(factor, self.log_ratios), np.sqrt(np.maximum(variance, 1e-12))

    def with_measurement(self, features: NDArray[np.float64], work: NDArray[np.float64], log_ratio: float) -> Surrogate:
        """Return a surrogate with one more measurement, and the same standard deviations."""
        rows = np.vstack([self.features, features]), np.vstack([self.work, work])
        return Surrogate(*rows, np.append(self.log_ratios, log_ratio), self.deviations)

    def _noisy_covariance(self) -> NDArray[np.float64]:
        """Return the covariance of the measurements, noise included: ``float64[N, N]``."""
        return self._covariance(self.features, self.work) + self.deviations[2] ** 2 * np.eye(len(self.log_ratios))

    def _covariance(self, features: NDArray[np.float64], work: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the covariance of the measured placements with others, ``float64[N, M]``."""
        weight, placement, _ = self.deviations
        distance = np.abs(self.work[:, None] - work[None]).sum(axis=2) / 2
        similarity = np.exp(-distance / _CORRELATION_LENGTH)
        return np.asarray(weight**2 * self.features @ features.T + placement**2 * similarity, np.float64)

    def _log_likelihood(self) -> float:
        """Return the logarithm of the marginal likelihood, up to a constant."""
        factor = np.linalg.cholesky(self._noisy_covariance())
        return -float((np.linalg.solve(factor, self.log_ratios) ** 2).sum()) / 2 - float(np.log(np.diag(factor)).sum())


def expected_gain(mean: NDArray[np.float64], deviation: NDArray[np.float64], best: float) -> NDArray[np.float64]:
    """Return the expected improvement on ``best``: the mean of max(0, best - x) over the normal variable x.

    Jones et al., Efficient Global Optimization of Expensive Black-Box Functions, 1998, equation 15.
    """
    z = (best - mean) / deviation
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    probability = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in z.tolist()])
    return np.asarray((best - mean) * probability + deviation * density, np.float64)


def work_shares(segmenter: Segmenter, placements: Sequence[NDArray[np.int32]]) -> NDArray[np.float64]:
    """Return each group's share of the work on each device: ``float64[N, G * D]``, zero where a group does not run."""
    core = segmenter.costs.core
    weight = np.where(np.isfinite(core), core, np.inf).min(axis=1)
    share = weight / max(float(weight.sum()), 1e-12)
    rows = np.zeros((len(placements), *core.shape))
    for i, devices in enumerate(placements):
        rows[i, np.arange(len(devices)), devices] = share
    return rows.reshape(len(placements), -1)
