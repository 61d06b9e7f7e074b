"""Measure and simulate a placement at other input sizes than it was found for."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model, Sample
from placeit.core.errors import ExecutionError, UsageError
from placeit.measuring.run_report import AtSize
from placeit.planning.segments import Plan
from placeit.runtime.plan_executor import PlanExecutor
from placeit.simulator.simulate import schedule

__all__ = ["at_sizes"]

_RUNS = 5  # timed runs at each size
_MAX_RUN_S = 2.0  # timeout of a run; larger sizes are left out

Shapes: TypeAlias = dict[str, tuple[int, ...]]


def at_sizes(model: Model, executor: PlanExecutor, plan: Plan) -> list[AtSize]:
    """Measure a placement at its typical sizes and at the ends of their ranges, and compare it with the simulator between them.

    Between two sizes, the time of each segment is interpolated linearly in the number of elements of all inputs. So is the time
    of a request beyond its simulated time.

    Args:
        model: the model.
        executor: executor of the plan; its inputs are changed.
        plan: the plan.

    Returns:
        Times at each size, by ascending number of elements; empty if the model's sizes are fixed, or it keeps state.
    """
    if not model.has_open_sizes or model.states:
        return []
    measured: list[tuple[float, NDArray[np.float64], AtSize]] = []  # elements, seconds of segments, and of requests
    found: list[AtSize] = []
    for shapes in _measured_sizes(model):
        one = _measured(model, executor, shapes)
        if one is None:
            break
        measured.append((_elements(shapes), executor.segment_seconds(last=True), one))
    for low, high in itertools.pairwise(measured):
        found.append(low[2])
        if low[0] == high[0]:  # other shapes of as many elements: nothing lies between them
            continue
        shapes = {
            name: tuple(round(math.sqrt(a * b)) for a, b in zip(shape, high[2].shapes[name], strict=True))
            for name, shape in low[2].shapes.items()
        }
        one = None if shapes in (low[2].shapes, high[2].shapes) else _measured(model, executor, shapes)
        if one is not None:
            share = (_elements(shapes) - low[0]) / (high[0] - low[0])
            ends = [(_simulated(plan, seconds), at.measured_s) for _, seconds, at in (low, high)]
            beyond = [measured_s - simulated for simulated, measured_s in ends]
            simulated = _simulated(plan, low[1] + share * (high[1] - low[1])) + beyond[0] + share * (beyond[1] - beyond[0])
            found.append(replace(one, simulated_s=simulated))
    return [*found, *(one for _, _, one in measured[-1:])]


def _measured_sizes(model: Model) -> list[Shapes]:
    """Return the typical sizes and the ends of their ranges, each once, by ascending number of elements."""
    opened = {spec.name: spec for spec in model.inputs if spec.limits is not None}
    ends: list[Shapes] = [{name: tuple(end[i] for end in spec.limits or ()) for name, spec in opened.items()} for i in (0, 1)]
    several = len(next(iter(opened.values())).shapes or [()])
    typical: list[Shapes] = [{name: (spec.shapes or [spec.shape])[i] for name, spec in opened.items()} for i in range(several)]
    found = [*ends, *typical]
    return sorted((one for i, one in enumerate(found) if one not in found[:i]), key=_elements)


def _elements(shapes: Shapes) -> float:
    return float(sum(math.prod(shape) for shape in shapes.values()))


def _measured(model: Model, executor: PlanExecutor, shapes: Shapes) -> AtSize | None:
    """Measure requests of one size; None if the model does not run at it, takes too long, or needs too much memory."""
    try:
        executor.set_requests([Sample(model.inputs_at(shapes))])
        executor.time(timeout=_MAX_RUN_S)  # warm-up
        seconds = [executor.time() for _ in range(_RUNS)]
    except (ExecutionError, UsageError, MemoryError):
        return None
    return AtSize(shapes, float(np.median(seconds)), None)


def _simulated(plan: Plan, seconds: NDArray[np.float64]) -> float:
    """Return the simulated seconds of a request whose segments take ``seconds``, ``float64[S]``."""
    compute = np.array(plan.problem.compute)
    compute[np.arange(len(plan.segments)), plan.placement] = seconds
    return schedule(replace(plan.problem, compute=compute), plan.placement).makespan
