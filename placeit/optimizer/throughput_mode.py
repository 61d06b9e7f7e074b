"""The CPU in OpenVINO's throughput mode, as a candidate of a search for throughput."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeit.core.problem import Problem
from placeit.devices.kinds import driven_by_openvino
from placeit.devices.plain import in_throughput_mode
from placeit.optimizer.candidates import Candidate, OtherDevices
from placeit.optimizer.wholes import alone_on
from placeit.workbench import Workbench

__all__ = ["MODE", "throughput_mode"]

MODE = "throughput mode"
"""Name of the placer of this candidate."""


def throughput_mode(session: Workbench, problem: Problem) -> tuple[Candidate, OtherDevices] | None:
    """Return the candidate: the session's cores, divided among streams by OpenVINO itself.

    None if the session has pins, or if the cores cannot run all ops or may not hold all weights.
    """
    device = None if session.pins else in_throughput_mode(session.cluster)
    if device is None or problem.param_bytes.sum() > device.memory_bytes:
        return None
    like = [d for d, one in enumerate(session.cluster.devices) if one.core_set and driven_by_openvino(one)]
    if not problem.feasible[:, like].all():
        return None
    candidate = alone_on(session.alone(device), f"{replace(device.where, runtime='')} in {MODE}", placer=MODE)
    return candidate, OtherDevices(session.alone(device), np.zeros(len(session.cluster)))
