"""Place a served model again when devices are lost, come back or become slow."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, ExecutionError, NoRoomError, PlaceitError
from placeit.placers.best_list import BestList
from placeit.placers.feasibility import FEWER_STEPS, packed
from placeit.placers.local_search import starts
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.calls import failure_of
from placeit.runtime.plan_executor import PlanExecutor, to_serve
from placeit.runtime.reopening import Losable
from placeit.runtime.runtime import SERVING_PRIORITY, Runtime
from placeit.serving.replica import Replacement

__all__ = ["Better", "ExpectedTimes", "Recovery"]

_LOG = logging.getLogger("placeit")

_DECISION_S, _STEPS = 0.5, 600  # seconds of a decision, and steps of its search
_TRIAL_RUNS, _TRIAL_TIMEOUT_S = 5, 60.0  # runs of a new executor before it serves, and their common timeout
_MIN_PRICE_S = 1.0  # minimum seconds that a move is expected to take
_TIMEOUT_S, _TIMEOUT_FACTOR = 30.0, 100.0  # a segment hangs if it takes more seconds, and more times its expected seconds


@dataclass(frozen=True, eq=False)
class Better:
    """A placement that may be better than the current one of a server.

    Attributes:
        plan: the plan that could run instead.
        devices: devices that it uses.
        saved: predicted share of the time of a request that it would save.
        price: expected seconds to compile and load the segments that are missing.
        decided_s: seconds that the search took.
        priority: priority of the executor that it would replace, or of the executors beside it.
    """

    plan: Plan
    devices: tuple[str, ...]
    saved: float
    price: float
    decided_s: float
    priority: int


ExpectedTimes: TypeAlias = Sequence[tuple[str, float]]
"""For each segment of a plan, its device, and its seconds there by the costs."""


class Recovery:
    """Replaces executors whose devices are lost, and finds better placements when devices change.

    The new placement is the best of list schedulers and single devices, annealed by the simulated seconds of its plan. It uses
    only devices that are left and that no other executor of the server uses, and only one of two devices that have lost their
    link. A decision takes half a second. If a device then cannot load its part, a new decision is made without that device.

    Args:
        runtime: runtime of the model.
        costs: costs of its groups on all devices.
        in_flight: maximum number of requests in flight; None for as many as a plan needs.

    Attributes:
        slow: ratio of measured to expected seconds, by name of each slow device; any thread may read it.
    """

    def __init__(self, runtime: Runtime, costs: Costs, in_flight: int | None) -> None:
        self._runtime, self._costs, self._in_flight = runtime, costs, in_flight
        self.slow: Mapping[str, float] = {}
        self._deciding = threading.Lock()
        self._plan(set(), steps=1)  # a first decision, so that its code is loaded and compiled before a loss

    def __call__(
        self, lost: PlanExecutor, others: Sequence[PlanExecutor], why: PlaceitError
    ) -> tuple[PlanExecutor, Replacement]:
        """Replace a lost executor; return the new one, and a record of it, as :data:`placeit.serving.server.Replace` does.

        Raises:
            PlaceitError: no device is left that the model could run on, or none was lost.
        """
        if lost.gone is None:
            raise why
        pairs = zip(self._runtime.cluster.names, self._runtime.devices, strict=False)  # streams have no devices
        losable = (device for name, device in pairs if name in _devices(lost.plan) and isinstance(device, Losable))
        silent = max((device.silent_s for device in losable), default=0.0)
        used = {name for other in others for name in _devices(other.plan)}
        unable = dict[str, DeviceError]()
        while True:
            gone = self._runtime.pool.lost()
            begin = perf_counter()
            try:
                plan = self._plan(_without(used | unable.keys(), gone))
                decided = perf_counter()
                executor = self._executor(plan, lost.priority)
            except PlaceitError as error:
                if isinstance(error, DeviceError):
                    if self._runtime.pool.lost().keys() != gone.keys():
                        continue  # one more was lost during the decision
                    if error.device and error.device not in unable:
                        _LOG.warning("%s is left out: %s", error.device, error)
                        unable[error.device] = error
                        continue
                reasons = " ".join(map(str, (why, *unable.values())))
                raise failure_of(f"{reasons} The model cannot be placed on the remaining devices", error) from why
            return executor, Replacement(str(why), _devices(plan), silent, decided - begin, perf_counter() - decided)

    def _executor(self, plan: Plan, priority: int) -> PlanExecutor:
        return to_serve(functools.partial(self._runtime.executor, priority=priority), plan, self._in_flight)

    def _plan(self, without: set[str], *, here: NDArray[np.int32] | None = None, steps: int | None = None) -> Plan:
        """Plan the model on the devices that are not named in ``without``. Raises InfeasibleError if they cannot run it.

        Args:
            without: names of devices that are not used.
            here: a further placement to start from, ``int32[G]``.
            steps: steps of the search; None for as many as a decision has.
        """
        with self._deciding:
            begin, costs = perf_counter(), self._scaled()
            able = np.array([name not in without for name in costs.cluster.names])
            segmenter = Segmenter(self._runtime.grouping, costs.where(np.isfinite(costs.core) & able))
            problem = segmenter.problem()
            if packed(problem, FEWER_STEPS) is None:  # shorter texts are better than none
                problem = replace(problem, param_bytes=segmenter.graph.bytes_once)
            found = BestList().place(problem, segmenter.seconds, seed=0, evaluations=None, deadline=begin + _DECISION_S / 2)
            first = [found, *starts(problem), *([] if here is None else [here])]
            best = first[int(np.argmin(segmenter.seconds(np.stack(first))))]
            deadline = begin + _DECISION_S
            return segmenter.plan(segmenter.search(best, problem, steps=steps or _STEPS, seed=0, deadline=deadline))

    def _scaled(self) -> Costs:
        """Return the costs, with the times of slow devices multiplied by their factors."""
        costs = self._costs
        factor = np.array([self.slow.get(name, 1.0) for name in costs.cluster.names])
        scaled = {what: getattr(costs, what) * factor for what in ("core", "cut", "dispatch", "load")}
        return replace(costs, **scaled)

    def lost(self) -> Collection[frozenset[str]]:
        """Return the lost devices, and pairs of devices whose link is lost."""
        return self._runtime.pool.lost().keys()

    def reopen(self) -> list[frozenset[str]]:
        """Reopen lost devices and links that are available again, and return them; may take minutes. Raises PlaceitError."""
        return self._runtime.pool.reopen()

    def suspect(self, executor: PlanExecutor, error: PlaceitError) -> None:
        """Run sample inputs on the plan of a failed request; if they fail as well, declare the device lost."""
        if executor.gone is not None or not error.device:
            return
        trial = functools.partial(self._try, executor.plan, executor.priority)
        try:
            trial()
        except NoRoomError:
            return
        except (DeviceError, ExecutionError) as failure:
            if failure.device:
                executor.lose(self._runtime.pool.fail(failure.device, failure, trial))

    def timeout(self, name: str, seconds: float) -> float:
        """Return the seconds after which a segment on a device counts as hanging, given its expected ``seconds``.

        Devices of nodes have no such timeout: they have one for signs of life.
        """
        device: object = dict(zip(self._runtime.cluster.names, self._runtime.devices, strict=False)).get(name)
        if isinstance(device, Losable):
            return math.inf
        return max(_TIMEOUT_S, _TIMEOUT_FACTOR * seconds * self.slow.get(name, 1.0))

    def abandon(self, executor: PlanExecutor, name: str, seconds: float) -> None:
        """Declare a device lost because a segment has been running there for ``seconds``."""
        if executor.gone is None:
            why = ExecutionError(f"a segment has been running there for {seconds:.0f} s, far longer than it should take.")
            executor.lose(self._runtime.pool.fail(name, why, functools.partial(self._try, executor.plan, executor.priority)))

    def _try(self, plan: Plan, priority: int) -> None:
        self.open(plan, priority).close()

    def expected_times(self, plan: Plan) -> ExpectedTimes:
        """Return each segment's device and expected seconds; an empty list if the plan is on other devices than the costs."""
        names = self._costs.cluster.names
        if plan.problem.device_names != names:
            return []  # on a device that stands for several of them
        seconds = Segmenter(self._runtime.grouping, self._costs).priced(plan).problem.compute
        return [(names[segment.device], float(seconds[s, segment.device])) for s, segment in enumerate(plan.segments)]

    def better(self, executor: PlanExecutor | None, others: Sequence[PlanExecutor]) -> Better | None:
        """Search for a better placement than an executor's, or for one beside the others if ``executor`` is None.

        Returns None if the executor is lost, or runs on other devices than the costs are for.

        Raises:
            PlaceitError: the model cannot be placed on the free devices.
        """
        begin, saved, here = perf_counter(), 1.0, None
        if executor is not None:
            if executor.gone is not None or executor.plan.problem.device_names != self._costs.cluster.names:
                return None
            here = executor.plan.group_devices
        used = {name for other in others for name in _devices(other.plan)}
        plan = self._plan(_without(used, self._runtime.pool.lost()), here=here)
        if executor is not None:
            current_s = Segmenter(self._runtime.grouping, self._scaled()).priced(executor.plan).schedule.makespan
            saved = 1 - plan.schedule.makespan / current_s if current_s > 0 else 0.0
        price = max(_MIN_PRICE_S, self._runtime.compiler.expected_s([plan]))
        priority = next((one.priority for one in (executor, *others) if one is not None), SERVING_PRIORITY)
        return Better(plan, _devices(plan), saved, price, perf_counter() - begin, priority)

    def open(self, plan: Plan, priority: int) -> PlanExecutor:
        """Compile a plan, run it a few times, and return its executor. Raises PlaceitError."""
        executor, inputs = self._executor(plan, priority), self._runtime.model.sample_inputs()
        with contextlib.ExitStack() as stack:
            stack.callback(executor.close)
            for request in range(executor.in_flight):
                executor.set_inputs(inputs, request=request)
            executor.times(_TRIAL_RUNS * executor.in_flight, timeout=_TRIAL_TIMEOUT_S)
            stack.pop_all()
        return executor


def _without(taken: set[str], gone: Collection[frozenset[str]]) -> set[str]:
    """Return the devices that cannot be used: taken ones, lost ones, and one of each two that have lost their link."""
    without = set(taken)
    for names in sorted(gone, key=len):
        if without.isdisjoint(names):
            without.add(max(names))
    return without


def _devices(plan: Plan) -> tuple[str, ...]:
    names = plan.problem.device_names
    return tuple(names[d] for d in sorted({segment.device for segment in plan.segments}))
