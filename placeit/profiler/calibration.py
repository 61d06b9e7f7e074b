"""Calibration of costs by the measured times of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.planning.segments import Costs, Plan

__all__ = ["calibrated"]


def calibrated(costs: Costs, runs: Sequence[tuple[Plan, NDArray[np.float64]]]) -> Costs:
    """Correct the costs of groups by the measured times of segments.

    This accounts for effects that a sum over groups misses: contention between devices that compute at the same time, and
    fusion across groups. Each device's costs are multiplied by the ratio of the measured to the predicted time of all segments
    that ran there. Then each group's costs are multiplied by the geometric mean of the remaining ratios of its segments. This
    mean is shrunk towards 1: half-way if the group ran once, less if it ran more often.

    Args:
        costs: profiled costs.
        runs: plans with these costs (see ``Segmenter.priced``), and the measured seconds of their segments,
            ``float64[S]``.

    Returns:
        Costs with corrected ``core``, ``cut`` and ``load``.
    """
    groups, devices = costs.core.shape
    measured, predicted = np.zeros(devices), np.zeros(devices)
    segments: list[tuple[int, tuple[int, ...], float, float]] = []
    for plan, seconds in runs:
        for s, segment in enumerate(plan.segments):
            predicted_s, measured_s = float(plan.problem.compute[s, segment.device]), float(seconds[s])
            if not segment.passthrough and predicted_s > 0 and measured_s > 0:
                measured[segment.device] += measured_s
                predicted[segment.device] += predicted_s
                segments.append((segment.device, segment.groups, predicted_s, measured_s))
    device_ratio = np.divide(measured, predicted, out=np.ones(devices), where=predicted > 0)
    logs, count = np.zeros((groups, devices)), np.zeros((groups, devices))
    for d, members, predicted_s, measured_s in segments:
        logs[list(members), d] += np.log(measured_s / (predicted_s * device_ratio[d]))
        count[list(members), d] += 1
    factor = device_ratio * np.exp(logs / (count + 1))
    return replace(costs, core=costs.core * factor, cut=costs.cut * factor, load=costs.load * factor)
