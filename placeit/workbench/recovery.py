"""Another placement for a model that is being served, when devices are lost, come back or become slow."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, PlaceitError
from placeit.placers.best_list import BestList
from placeit.placers.local_search import starts
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.plan_executor import PlanExecutor, failure_of, to_serve
from placeit.runtime.runtime import SERVING_PRIORITY, Runtime
from placeit.serving.replica import Replacement

__all__ = ["Better", "Recovery", "Said"]

_LOG = logging.getLogger("placeit")

_DECIDES_S, _STEPS = 0.5, 600
_TRIES, _TRIES_S = 5, 60.0  # runs of what is to serve, before it does
_LEAST_PRICE_S = 1.0


@dataclass(frozen=True, eq=False)
class Better:
    """A placement that may be better than the one that serves.

    Attributes:
        plan: that could run instead.
        devices: that it uses.
        saved: share of what a request takes now that it would not take then, as predicted.
        price: seconds that compiling and loading what is missing is expected to take.
        decided_s: seconds that it took to find.
    """

    plan: Plan
    devices: tuple[str, ...]
    saved: float
    price: float
    decided_s: float


Said: TypeAlias = Sequence[tuple[str, float]]
"""Of each segment of a plan, the device and the seconds that it takes there by the costs."""


class Recovery:
    """Makes executors in place of those whose devices are lost, and finds what would be better when devices change.

    The new placement is the best of list schedulers and single devices, annealed by the simulated seconds of its plan.
    It uses devices that are left, and that no other executor of the server uses. Of two that have lost their link, it uses one.
    A decision takes half a second; if a device then turns out not to be able to load its part, it is left out of another one.

    Args:
        runtime: of the model.
        costs: of its groups on all devices.
        in_flight: how many requests may be in flight at once; None for as many as a plan needs.

    Attributes:
        slow: how many times as long as by its costs a device takes, by name; read by any thread.
    """

    def __init__(self, runtime: Runtime, costs: Costs, in_flight: int | None) -> None:
        self._runtime, self._costs, self._in_flight = runtime, costs, in_flight
        self.slow: Mapping[str, float] = {}
        self._deciding = threading.Lock()
        self._plan(set(), hurry=False)  # what it loads and compiles to decide is there when it is needed

    def __call__(
        self, lost: PlanExecutor, others: Sequence[PlanExecutor], why: PlaceitError
    ) -> tuple[PlanExecutor, Replacement]:
        """Return an executor in place of a lost one, and what it took; see :data:`placeit.serving.server.Replace`.

        Raises:
            PlaceitError: no device is left that the model could run on, or none was lost.
        """
        if lost.gone is None:
            raise why
        pairs = zip(self._runtime.cluster.names, self._runtime.devices, strict=True)
        silent = max(getattr(device, "silent_s", 0.0) for name, device in pairs if name in _devices(lost.plan))
        taken = {name for other in others for name in _devices(other.plan)}
        unable = dict[str, DeviceError]()
        while True:
            gone = self._runtime.pool.lost()
            begin = perf_counter()
            try:
                plan = self._plan(_without(taken | unable.keys(), gone))
                decided = perf_counter()
                executor = self._executor(plan)
            except PlaceitError as error:
                if isinstance(error, DeviceError):
                    if self._runtime.pool.lost().keys() != gone.keys():
                        continue  # one more meanwhile
                    if error.device and error.device not in unable:
                        _LOG.warning("%s is left out: %s", error.device, error)
                        unable[error.device] = error
                        continue
                reasons = " ".join(map(str, (why, *unable.values())))
                raise failure_of(f"{reasons} The model cannot be placed on what is left", error) from why
            return executor, Replacement(str(why), _devices(plan), silent, decided - begin, perf_counter() - decided)

    def _executor(self, plan: Plan) -> PlanExecutor:
        return to_serve(functools.partial(self._runtime.executor, priority=SERVING_PRIORITY), plan, self._in_flight)

    def _plan(self, without: set[str], *, here: NDArray[np.int32] | None = None, hurry: bool = True) -> Plan:
        """Place the model on the other devices. Raises InfeasibleError if they cannot run it.

        ``here`` is a placement to start from as well. Without ``hurry``, it is searched by one step.
        """
        with self._deciding:
            begin, costs = perf_counter(), self._scaled()
            able = np.array([name not in without for name in costs.cluster.names])
            segmenter = Segmenter(self._runtime.grouping, costs.where(np.isfinite(costs.core) & able))
            problem = segmenter.problem()
            found = BestList().place(problem, segmenter.seconds, seed=0, evaluations=None, deadline=begin + _DECIDES_S / 2)
            first = [found, *starts(problem), *([] if here is None else [here])]
            best, steps = first[int(np.argmin(segmenter.seconds(np.stack(first))))], _STEPS if hurry else 1
            return segmenter.plan(segmenter.search(best, problem, steps=steps, seed=0, deadline=begin + _DECIDES_S))

    # -- for the adapter, placeit.workbench.adapting ----------------------------------------------------------------------

    def _scaled(self) -> Costs:
        """The costs, with slow devices as slow as they are."""
        costs = self._costs
        factor = np.array([self.slow.get(name, 1.0) for name in costs.cluster.names])
        scaled = {what: getattr(costs, what) * factor for what in ("core", "cut", "dispatch", "load")}
        return replace(costs, **scaled)

    def lost(self) -> Collection[frozenset[str]]:
        """Devices that are lost, and pairs of them whose link is."""
        return self._runtime.pool.lost().keys()

    def reopen(self) -> list[frozenset[str]]:
        """Open those of them anew that are there again; return which. May take minutes. Raises PlaceitError."""
        return self._runtime.pool.reopen()

    def said(self, plan: Plan) -> Said:
        """Return each segment's device and expected seconds; an empty list if the costs are not about these devices."""
        names = self._costs.cluster.names
        if plan.problem.device_names != names:
            return []  # on a device that stands for several of them
        seconds = Segmenter(self._runtime.grouping, self._costs).priced(plan).problem.compute
        return [(names[segment.device], float(seconds[s, segment.device])) for s, segment in enumerate(plan.segments)]

    def better(self, executor: PlanExecutor | None, others: Sequence[PlanExecutor]) -> Better | None:
        """Place anew what an executor runs, or if there is none, what could run beside others. Raises PlaceitError."""
        begin, saved, here = perf_counter(), 1.0, None
        if executor is not None:
            if executor.gone is not None or executor.plan.problem.device_names != self._costs.cluster.names:
                return None
            here = executor.plan.group_devices
        taken = {name for other in others for name in _devices(other.plan)}
        plan = self._plan(_without(taken, self._runtime.pool.lost()), here=here)
        if executor is not None:
            now = Segmenter(self._runtime.grouping, self._scaled()).priced(executor.plan).schedule.makespan
            saved = 1 - plan.schedule.makespan / now if now > 0 else 0.0
        price = max(_LEAST_PRICE_S, self._runtime.compiler.takes([plan]))
        return Better(plan, _devices(plan), saved, price, perf_counter() - begin)

    def open(self, plan: Plan) -> PlanExecutor:
        """Compile a plan, and run it a few times. Raises PlaceitError."""
        executor, inputs = self._executor(plan), self._runtime.model.sample_inputs()
        with contextlib.ExitStack() as stack:
            stack.callback(executor.close)
            for request in range(executor.in_flight):
                executor.set_inputs(inputs, request=request)
            executor.times(_TRIES * executor.in_flight, timeout=_TRIES_S)
            stack.pop_all()
        return executor


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
