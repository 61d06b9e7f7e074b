"""Run a candidate's requests in a race, by executors of its plan or of each of its replicas."""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core.errors import ExecutionError
from placeit.core.threads import Job, Worker, finishes_within
from placeit.devices.energy import EnergyMeters
from placeit.measuring.check import Checkable
from placeit.planning.in_flight import bound, held
from placeit.planning.segments import Plan
from placeit.runtime.blank import blank_value, is_blank
from placeit.runtime.plan_executor import PlanExecutor

if TYPE_CHECKING:
    from placeit.backends.openvino.own_mode import OwnModeRunner

__all__ = ["Deployed", "ReferenceRun", "fewest_requests", "is_pipeline", "run_lengths"]

_T = TypeVar("_T")

_MIN_REQUESTS, _MAX_REQUESTS = 4, 10_000  # requests of a run with several in flight
_PER_HELD, _MIN_PIPELINED, _MAX_PIPELINED = 5, 8, 24  # requests of a pipeline's run: per request that it holds; limits
_TURNS = 2  # requests of a run per request in flight, for plans that are not pipelines
_ONE = 1.01  # a plan that holds more requests than this is a pipeline
_MIN_S = 0.02  # minimum seconds of a run with several requests in flight
_HURRY_S = 0.3  # seconds that replicas have to end after an interrupt
_POLL_S, _QUIET, _MAX_REST_S = 0.004, 0.25, 2.0  # seconds between polls; share of a core that counts as rest; timeout


def run_lengths(plans: Sequence[Plan]) -> list[int]:
    """Return how many requests each replica serves in a measured run, so that all are busy for about the same time."""
    fewest, seconds = [fewest_requests(plan) for plan in plans], [bound(plan) for plan in plans]
    return _as_long(fewest, seconds, [_MAX_REQUESTS] * len(plans))


def fewest_requests(plan: Plan) -> int:
    """Return the minimum number of requests that shows a plan's throughput, which grows with the requests that it holds."""
    return (
        int(np.clip(math.ceil(_PER_HELD * held(plan) - 1e-9), _MIN_PIPELINED, _MAX_PIPELINED))
        if is_pipeline(plan)
        else _MIN_REQUESTS
    )


def is_pipeline(plan: Plan) -> bool:
    """Return whether a plan holds several requests while its bottleneck is always busy."""
    return held(plan) > _ONE


def _as_long(fewest: Sequence[int], seconds: Sequence[float], most: Sequence[float]) -> list[int]:
    """Return numbers of requests, within bounds, that take equally long, by each replica's seconds per request."""
    length = max(_MIN_S, *(n * each for n, each in zip(fewest, seconds, strict=True)))
    return [
        int(min(top, max(n, round(length / each)))) if each > 0 else n
        for n, each, top in zip(fewest, seconds, most, strict=True)
    ]


def _rest() -> None:
    """Wait until the process uses hardly any CPU time, at most about 2 s."""
    for _ in range(math.ceil(_MAX_REST_S / _POLL_S)):
        before = time.process_time()
        time.sleep(_POLL_S)
        if time.process_time() - before < _QUIET * _POLL_S:
            return


class Deployed:
    """The open executors of a candidate, which run whole requests at the same time.

    Args:
        open_each: functions that open the executor of each replica. The executors are closed with this object.
        plans: the replicas' plans, for runs with many requests in flight; None for one request per run, by the only executor.
        spins: whether threads of the runtime keep cores busy for a while after a run, waiting for the next one. Runs are then
            timed as in a program that runs the model repeatedly, while these threads are awake: the first run after
            :meth:`rest` does not count.
    """

    def __init__(
        self, open_each: Sequence[Callable[[], PlanExecutor]], plans: Sequence[Plan] | None = None, *, spins: bool = False
    ) -> None:
        self._spins, self._rested = spins, True
        self._min_lengths = [] if plans is None else [fewest_requests(plan) for plan in plans]
        self._lengths = [] if plans is None else run_lengths(plans)
        self._pipelines = [] if plans is None else [i for i, plan in enumerate(plans) if is_pipeline(plan)]
        self._alone: list[list[float]] = [[] for _ in self._lengths]  # per replica: seconds of one request alone in a pipeline
        with contextlib.ExitStack() as stack:
            self.executors = [stack.enter_context(contextlib.closing(each())) for each in open_each]
            self._max_lengths = [float(_MAX_REQUESTS)] * len(self._min_lengths)
            for i, executor in enumerate(self.executors[: len(self._min_lengths)]):
                if i in self._pipelines:
                    self._max_lengths[i] = min(_MAX_REQUESTS, executor.max_overlapping)
                    self._lengths[i] = int(min(self._max_lengths[i], max(self._lengths[i], _TURNS * executor.in_flight)))
                else:
                    self._min_lengths[i] = max(self._min_lengths[i], _TURNS * executor.in_flight)
                    self._lengths[i] = max(self._lengths[i], self._min_lengths[i])
            self._workers = [stack.enter_context(contextlib.closing(Worker("placeit replica"))) for _ in self.executors[1:]]
            self._stack = stack.pop_all()

    @property
    def refused(self) -> Mapping[int, str]:
        """Why segments of the first plan run op by op (:attr:`placeit.runtime.plan_executor.PlanExecutor.refused`)."""
        return self.executors[0].refused if self.executors else {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all executors. A second call has no effect."""
        self._stack.close()

    def time(self) -> float:
        """Run once and return the seconds of the request, or with many requests in flight the seconds per request.

        Filling a pipeline is not part of its steady state. For a plan that holds several requests, the result is the time that
        each further request adds to the run of one request alone (the median over all such runs so far).

        For replicas, it is one over the sum of the requests per second that each serves while it is busy. The number of
        requests of each replica follows its earlier times, so that none is busy for much longer than the others.

        Raises:
            ExecutionError: a run failed.
        """
        self._wake()
        return self._time()

    def rest(self) -> None:
        """Wait until spinning threads are at rest, so that something else can run undisturbed."""
        if self._spins and not self._rested:
            _rest()
            self._rested = True

    def _wake(self) -> None:
        if self._spins and self._rested:
            self.executors[0].time()
            self._rested = False

    def metered(self, meters: EnergyMeters) -> tuple[list[float], float | None]:
        """Run one request after the other until all meters can be read.

        Returns:
            The seconds of each request, and the mean joules of a request (None if a meter was given up).
        """
        self._wake()
        return meters.over(self._time)

    def _time(self) -> float:
        if not self._lengths:
            return self.executors[0].time()
        for i, seconds in zip(self._pipelines, self._times(self._pipelines, [1] * len(self._pipelines)), strict=True):
            self._alone[i].append(seconds)
        run_seconds = self._times(range(len(self._lengths)), self._lengths)
        per_request = [seconds / n for seconds, n in zip(run_seconds, self._lengths, strict=True)]
        for i in self._pipelines:
            further = (run_seconds[i] - float(np.median(self._alone[i]))) / (self._lengths[i] - 1)
            per_request[i] = further if further > 0 else per_request[i]
        self._lengths = _as_long(self._min_lengths, per_request, self._max_lengths)
        return 1.0 / sum(1.0 / seconds for seconds in per_request)

    @property
    def uncounted(self) -> float:
        """Seconds of the last run over the seconds that it counted for; 1 unless requests have several sizes."""
        return max((executor.uncounted for executor in self.executors), default=1.0)

    @property
    def inner(self) -> float | None:
        """Seconds of the last request from the start of its lanes to the end of its last segment; None with many in flight."""
        return None if self._lengths or not self.executors else self.executors[0].inner

    @property
    def checkable(self) -> Sequence[Checkable]:
        """The executors, each of which has outputs to check."""
        return self.executors

    def segment_seconds(self) -> NDArray[np.float64]:
        """Return the median seconds of each segment, ``float64[S]``; for replicas, of the segments of the first."""
        return self.executors[0].segment_seconds()

    def _times(self, which: Sequence[int], counts: Sequence[int]) -> list[float]:
        """Return the seconds in which each executor of ``which`` serves its number of requests, all at the same time."""
        if not which:
            return []
        (first, count), *others = ((self.executors[i], count) for i, count in zip(which, counts, strict=True))
        jobs = [Job(functools.partial(executor.times, count)) for executor, count in others]
        try:
            for worker, job in zip(self._workers, jobs, strict=False):
                worker.submit(job)
            taken = first.times(count)
            for job in jobs:
                job.ended.wait()
        except BaseException:
            for executor, _ in others:
                executor.give_up("The run was given up: another replica failed, or the caller no longer waits for it.")
            for job in jobs:
                job.ended.wait(_HURRY_S)
            raise
        return [taken, *(job.result() for job in jobs)]


class ReferenceRun(Deployed):
    """A run of the model without placeit, for comparison, on a separate thread.

    The model is opened, run and closed on that thread. Ctrl-C therefore takes effect at any time, and a call that never returns
    is abandoned together with its thread.

    Args:
        open_it: compiles the model.
        timeout: returns the seconds that a run may take. Compiling has no timeout: if it went on in the background, it
            would disturb the next measurement.
    """

    def __init__(self, open_it: Callable[[], OwnModeRunner], timeout: Callable[[], float] = lambda: math.inf) -> None:
        super().__init__([])
        self._timeout = timeout
        self.blanked: int | None = None  # sentinel that the outputs were filled with; None once something has run
        with contextlib.ExitStack() as stack:
            self._worker, self._stuck = Worker("placeit reference"), False
            stack.callback(self._leave)
            self.serves = self.on_thread(open_it, math.inf)
            stack.callback(lambda: self._worker.submit(self.serves.close))
            self._answers = [_Answers(self, pick) for pick in (np.maximum, np.minimum)[: len(self.serves.written())]]
            self._stack = stack.pop_all()

    def _leave(self) -> None:
        if self._stuck:
            finishes_within(_HURRY_S, self._worker.close)
        else:
            self._worker.close()

    def on_thread(self, what: Callable[[], _T], timeout: float | None = None) -> _T:
        """Call ``what`` on the thread; return its result or raise its exception. Raises ExecutionError if it ends too late."""
        job = Job(what)
        timeout = self._timeout() if timeout is None else timeout
        self._stuck = True
        self._worker.submit(job)
        ended = job.ended.wait(timeout if timeout < math.inf else -1)
        self._stuck = not ended
        if not ended:
            raise ExecutionError(f"OpenVINO did not finish within {timeout:.0f} s, so the run was abandoned.")
        return job.result()

    @property
    def used(self) -> tuple[str, ...]:
        """Devices that OpenVINO reports as used."""
        return self.serves.used

    @property
    def checkable(self) -> Sequence[Checkable]:
        """Element-wise maximum and minimum of the outputs of all requests: if both are right, all outputs are."""
        return self._answers

    def time(self) -> float:
        """Run one request, or many at once, and return the seconds per request."""
        self.blanked = None
        return self.on_thread(self.serves.time)

    def segment_seconds(self) -> NDArray[np.float64]:
        """Return an empty array: nothing is known about segments."""
        return np.zeros(0)


class _Answers:
    """Outputs of all requests combined into one set, which can be checked like the outputs of an executor.

    Args:
        of: the run with the requests.
        pick: combines the outputs of two requests element by element: maximum or minimum.
    """

    def __init__(self, of: ReferenceRun, pick: Callable[..., Any]) -> None:
        self._of, self._serves, self._pick = of, of.serves, pick

    def run(self, inputs: Arrays) -> dict[str, NDArray[np.generic]]:
        """Run every request on the same inputs, all at the same time, and return the combined outputs by name."""
        self._of.blanked = None
        self._serves.set_inputs(inputs)
        self._of.on_thread(self._serves.run_all)
        return self.outputs()

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Return the combined outputs of the last run, by name."""
        first, *others = self._serves.written()
        return {
            name: functools.reduce(self._pick, (other[name] for other in others), np.array(value))
            for name, value in first.items()
        }

    def blank(self, sentinel: int) -> str | None:
        """Fill outputs with NaN, or ``sentinel`` in other types; return an error if one was written since they were filled."""
        arrays = [(name, value) for one in self._serves.written() for name, value in one.items()]
        before = self._of.blanked
        late = next((name for name, value in arrays if before is not None and not is_blank(value, before)), None)
        for _, value in arrays:
            value[...] = blank_value(value.dtype, sentinel)
        self._of.blanked = sentinel
        return None if late is None else f"the output '{late}' was written after the run had ended"
