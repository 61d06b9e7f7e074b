"""Plans of segments in a row, which run nothing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from placeit.core.problem import Problem
from placeit.planning.segments import Plan
from placeit.simulator.simulate import schedule


def chain(*seconds: float) -> Plan:
    """Make a chain of segments, each on a different device."""
    return in_a_row(seconds, range(len(seconds)))


def alternating(*seconds: float) -> Plan:
    """Segments one after the other, on two devices in turns."""
    return in_a_row(seconds, [i % 2 for i in range(len(seconds))])


def in_a_row(seconds: Sequence[float], where: Sequence[int]) -> Plan:
    count, devices = len(seconds), max(where) + 1
    compute = np.full((count, devices), np.inf)
    compute[np.arange(count), where] = seconds
    edges = np.stack([np.arange(count - 1), np.arange(1, count)], axis=1)
    links = np.full((devices, devices), np.inf), np.zeros((devices, devices))
    problem = Problem.from_arrays(compute, edges, np.zeros(count - 1), *links)
    placement = np.array(where, np.int32)
    made = schedule(problem, placement)
    plan = Plan((), problem, (), made)
    vars(plan)["placement"] = placement
    return plan
