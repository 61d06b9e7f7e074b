"""Another placement for a model that is being served, when devices are lost."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Sequence
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, InfeasibleError, PlaceitError
from placeit.core.problem import Problem
from placeit.placers.local_search import starts
from placeit.placers.registry import get_placer
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.plan_executor import PlanExecutor, failure_of
from placeit.runtime.runtime import Runtime
from placeit.runtime.serving import Replacement
from placeit.simulator.simulate import SimulatedCost

__all__ = ["Recovery"]

_DECIDES_S, _STEPS = 0.5, 600
_POLICY_S = 0.3  # of which the policy may take so many


class Recovery:
    """Makes executors in place of those whose devices are lost.

    The new placement is the best of HEFT's, the single devices', and that of the GiPH policy that ships with placeit, annealed
    by the simulated seconds of its plan. It uses devices that are left, and that no other executor of the server uses. Of two
    that have lost their link, it uses one. A decision takes half a second.

    Args:
        runtime: of the model.
        costs: of its groups on all devices.
        requests: in flight at once; None for one more than the devices of a placement.
    """

    def __init__(self, runtime: Runtime, costs: Costs, requests: int | None) -> None:
        self._runtime, self._costs, self._requests = runtime, costs, requests
        self._policy = get_placer("giph")
        self._plan(set(), hurry=False)  # what it compiles to decide is there when it is needed

    def __call__(
        self, lost: PlanExecutor, others: Sequence[PlanExecutor], why: PlaceitError
    ) -> tuple[PlanExecutor, Replacement]:
        """Return an executor in place of a lost one, and what it took; see :data:`placeit.runtime.serving.Replace`.

        Raises:
            PlaceitError: no device is left that the model could run on, or none was lost.
        """
        if lost.gone is None:
            raise why
        pairs = zip(self._runtime.cluster.names, self._runtime.devices, strict=True)
        silent = max(getattr(device, "silent_s", 0.0) for name, device in pairs if name in _devices(lost.plan))
        taken = {name for other in others for name in _devices(other.plan)}
        while True:
            gone = self._runtime.lost()
            begin = perf_counter()
            try:
                plan = self._plan(_without(taken, gone))
                decided = perf_counter()
                devices = _devices(plan)
                requests = len(devices) + 1 if self._requests is None else self._requests
                executor = self._runtime.executor(plan, requests=requests)
            except PlaceitError as error:
                if isinstance(error, DeviceError) and self._runtime.lost().keys() != gone.keys():
                    continue  # one more meanwhile
                raise failure_of(f"{why} The model cannot be placed on what is left", error) from why
            return executor, Replacement(str(why), devices, silent, decided - begin, perf_counter() - decided)

    def _plan(self, without: set[str], *, hurry: bool = True) -> Plan:
        """Place the model on the other devices. Raises InfeasibleError if they cannot run it.

        Without ``hurry``, the policy takes its time, and the search none.
        """
        begin = perf_counter()
        able = np.array([name not in without for name in self._costs.cluster.names])
        segmenter = Segmenter(self._runtime.grouping, self._costs.where(np.isfinite(self._costs.core) & able))
        problem = segmenter.problem()
        first = [*starts(problem), *self._of_policy(problem, begin + _POLICY_S if hurry else math.inf)]
        best, steps = first[int(np.argmin(segmenter.seconds(np.stack(first))))], _STEPS if hurry else 1
        return segmenter.plan(segmenter.search(best, problem, steps=steps, seed=0, deadline=begin + _DECIDES_S))

    def _of_policy(self, problem: Problem, deadline: float) -> list[NDArray[np.int32]]:
        """What the policy proposes, if it finds anything that fits."""
        with contextlib.suppress(InfeasibleError):
            return [self._policy.place(problem, SimulatedCost(problem), seed=0, evaluations=None, deadline=deadline)]
        return []


def _without(taken: set[str], gone: Collection[frozenset[str]]) -> set[str]:
    """Names of devices not to use: those that are taken or lost, and one of each two that have lost their link."""
    without = set(taken)
    for names in sorted(gone, key=len):
        if without.isdisjoint(names):
            without.add(max(names))
    return without


def _devices(plan: Plan) -> tuple[str, ...]:
    names = plan.problem.device_names
    return tuple(names[d] for d in sorted({segment.device for segment in plan.segments}))
