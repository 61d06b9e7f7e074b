"""The best single device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import InfeasibleError
from placeit.core.problem import CostFunction, Problem
from placeit.core.units import about_bytes
from placeit.placers.base import best

__all__ = ["Single"]


@dataclass(frozen=True)
class Single:
    """The best single-device placement by cost: the baseline for every other placement."""

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the best single-device placement; devices with the shortest compute times are evaluated first.

        Raises:
            InfeasibleError: no device can run every op and hold all weights.
        """
        devices = np.array(problem.single_devices, np.int32)
        if not len(devices):
            raise InfeasibleError(
                f"None of the devices {', '.join(problem.device_names)} can run all {len(problem)} ops and hold the "
                f"{about_bytes(problem.param_bytes.sum())} of weights and states; place the graph on several devices."
            )
        devices = devices[np.argsort(problem.compute.sum(axis=0)[devices], kind="stable")]
        return best(cost, np.repeat(devices[:, None], len(problem), axis=1), evaluations, deadline)
