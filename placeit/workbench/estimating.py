"""Estimates of the time of a model on devices, from the history of kernel times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from placeit.backends.base import Model
from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.errors import InfeasibleError, UsageError
from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Placement
from placeit.core.units import milliseconds
from placeit.core.views import Shown
from placeit.placers.heft import Heft
from placeit.planning.placing import Placing
from placeit.planning.segments import Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.profiler.from_history import predicted_costs
from placeit.profiler.kernel_times import Error
from placeit.runtime.compiling import Compiling
from placeit.simulator.simulate import schedule

__all__ = ["Answer", "Estimate", "estimate"]

_SEARCH_S, _STEPS = 0.5, 2000  # time limit, and number of steps, of the search for a split


@dataclass(frozen=True)
class Answer:
    """A placement, with its predicted time and memory.

    Attributes:
        name: name of the device, or ``split``.
        seconds: seconds of a single request; None if the model does not run or fit there.
        memory: peak bytes of weights and tensors on each device that it uses.
        placement: the device of each op; None if the model cannot run there.
    """

    name: str
    seconds: float | None
    memory: Mapping[str, float]
    placement: Placement | None


@dataclass(frozen=True)
class Estimate(Shown):
    """Predicted times of a model on each device, and on several.

    Attributes:
        model: path of the model.
        precision: inference precision of the devices.
        devices: the model on each single device.
        split: the best placement on several devices that a short search found; None if the search found none.
        errors: for each device, the error of such predictions for the models that were profiled there; None if only one model
            was profiled there.
    """

    model: str
    precision: str
    devices: tuple[Answer, ...]
    split: Answer | None
    errors: Mapping[str, Error | None]

    def __repr__(self) -> str:
        times = ", ".join(f"{answer.name} {milliseconds(answer.seconds or 0.0)}" for answer in self._possible)
        return f"<Estimate of {self.model}: {times or 'no device can run it'}>"

    @property
    def best(self) -> Answer:
        """The answer that takes the least time."""
        return min(self._possible, key=lambda answer: answer.seconds or 0.0)

    @property
    def _possible(self) -> list[Answer]:
        return [answer for answer in (*self.devices, self.split) if answer is not None and answer.seconds is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate for JSON, as ``placeit estimate --json`` prints it."""

        def row(answer: Answer | None) -> dict[str, Any] | None:
            if answer is None:
                return None
            return {
                "name": answer.name,
                "predicted_s": answer.seconds,
                "memory_bytes": answer.memory,
                "devices": None if answer.placement is None else answer.placement.counts(),
            }

        return jsonable_dict(
            {
                "model": self.model,
                "precision": self.precision,
                "devices": [row(answer) for answer in self.devices],
                "split": row(self.split),
                "best": self.best.name,
                "errors": {name: None if error is None else vars(error) for name, error in self.errors.items()},
            }
        )


def estimate(
    model: Model, placing: Placing, cluster: Cluster, cache: Cache | None, precision: str, compiling: Compiling
) -> Estimate:
    """Predict the time of a model on each device, and the best placement on several that a short search finds.

    Args:
        model: the model; it is not run.
        placing: its ops in groups.
        cluster: the devices.
        cache: the cache of costs, which also has the history of kernel times.
        precision: inference precision of the devices.
        compiling: counts the programs that are compiled.

    Raises:
        DeviceError: no model was profiled on some device, or the device exists in simulation only.
        UsageError: there is no cache.
        InfeasibleError: the model runs on no device, or fits nowhere.
    """
    if cache is None:
        raise UsageError("Times are estimated from the cost cache, and this session has none: open one with a cache.")
    costs, errors = predicted_costs(model, placing.grouping, cluster, cache, precision=precision, compiling=compiling)
    segmenter = Segmenter(placing.grouping, placing.held(costs))
    problem, names = segmenter.problem(), cluster.names
    usable = problem.single_devices
    if not usable and len(names) == 1:
        raise InfeasibleError(f"The model does not run on {names[0]}, or does not fit there.")
    singles = [np.full(len(problem), d, np.int32) for d in range(len(names))]

    def answer(name: str, plan: Plan) -> Answer:
        groups = plan.placement[plan.segment_of]
        used = schedule(problem, groups).peak_memory
        memory = {name: float(used[d]) for d, name in enumerate(names) if used[d] > 0}
        return Answer(name, plan.schedule.makespan, memory, placing.placement(groups, plan))

    alone = [
        answer(name, segmenter.plan(singles[d])) if d in usable else Answer(name, None, {}, None)
        for d, name in enumerate(names)
    ]
    split = None
    if len(names) > 1:
        starts = [singles[d] for d in usable]
        starts.append(Heft().plan(problem).placement)
        begin = starts[int(segmenter.seconds(np.stack(starts)).argmin())]
        found = segmenter.search(begin, problem, steps=_STEPS, seed=0, deadline=clock.now() + _SEARCH_S)
        if len(np.unique(found)) > 1:
            split = answer("split", segmenter.plan(found))
    return Estimate(str(model.path), precision, tuple(alone), split, errors)
