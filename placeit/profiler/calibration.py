"""Calibration of costs by the measured times of segments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.planning.segments import Costs, Plan

__all__ = ["calibrated"]


def calibrated(costs: Costs, runs: Sequence[tuple[Plan, NDArray[np.float64]]]) -> Costs:
    """Correct costs for effects that sums of parts miss: contention between devices that compute at once, other fusion.

    Each device's costs are multiplied by the ratio of measured to predicted time of all segments that ran there. Then each
    group's costs are multiplied by the mean ratio of the segments it was in, shrunk half-way towards 1 for a group seen once,
    less for one seen often.

    Args:
        costs: as profiled.
        runs: plans at these costs (see ``Segmenter.priced``), and the seconds that each of their segments took,
            ``float64[S]``.

    Returns:
        Costs with corrected ``core``, ``cut`` and ``load``.
    """
    groups, devices = costs.core.shape
    spent, predicted = np.zeros(devices), np.zeros(devices)
    parts: list[tuple[int, tuple[int, ...], float, float]] = []
    for plan, seconds in runs:
        for s, segment in enumerate(plan.segments):
            said, took = float(plan.problem.compute[s, segment.device]), float(seconds[s])
            if not segment.passthrough and said > 0 and took > 0:
                spent[segment.device] += took
                predicted[segment.device] += said
                parts.append((segment.device, segment.groups, said, took))
    overall = np.divide(spent, predicted, out=np.ones(devices), where=predicted > 0)
    total, seen = np.zeros((groups, devices)), np.zeros((groups, devices))
    for d, members, said, took in parts:
        total[list(members), d] += np.log(took / (said * overall[d]))
        seen[list(members), d] += 1
    factor = overall * np.exp(total / (seen + 1))
    return replace(costs, core=costs.core * factor, cut=costs.cut * factor, load=costs.load * factor)
