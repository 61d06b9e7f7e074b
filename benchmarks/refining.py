"""A server that refines its placement: the cost for its requests, and the result.

Inception-V3 is served on the slower of two one-core devices, one of which is slowed two times, at half of the rate that this
placement sustains, and requests arrive at random. So there is a better placement, and some requests are alone on the server and
others are not. The server may look for it all the time; the benchmark ends when the server expects no better one, or after a
time limit.

Times include all requests, also requests that tried a candidate: from begin to end, as the limits of the server define it, and
from arrival. They are divided by when requests ended: *before* the first change, outside of trials; in a *trial* until then,
which begins with the check of the candidate; *after* the change, later trials included. Every answer is compared with the uncut
model's. The quick form serves a smaller model.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, PACKAGED, load_model, progress, two_cores
from placeit.backends.base import Arrays
from placeit.core.cluster import Cluster
from placeit.core.errors import PlaceitError
from placeit.devices.clusterfile import discover
from placeit.measuring.check import OutputDifference
from placeit.serving.refinement import Refinement
from placeit.serving.server import Answer, Server
from placeit.session import Session
from placeit.simulator.load import poisson_arrivals

_SLOWDOWN, _LOAD, _INPUTS = 2.0, 0.5, 3
_SECONDS, _QUICK = 1200.0, 60.0  # time limits in seconds, in full and quick
_MORE = 200  # requests after the last trial
_MAX_REQUESTS = 1_000_000  # maximum number of requests


@dataclass(frozen=True)
class _Ended:
    """A request that ended without an error: when it ended, and its time from begin to end and from arrival."""

    phase: str
    seconds: float
    since_arrival: float


def run(args: Args, report: Report) -> None:
    (name,) = args.models[:1] or ("file_type" if args.quick else "inception_v3",)
    one, other = discover([f"CPU@{core}" for core in two_cores()]).devices
    slow = replace(other, name="slowed", slowdown=_SLOWDOWN)
    with Session(load_model(name), Cluster((one, slow), {}), cache=None) as session:
        progress("profiling")
        session.profile(budget_s=5.0 if args.quick else 30.0)
        placement = session.placement(np.ones(len(session.grouping.groups), int))
        batches = [session.model.random_inputs(seed) for seed in range(_INPUTS)]
        expected = [session.reference(batch) for batch in batches]
        with session.serve(placement) as server:
            alone = [_once(server, batches[0]) for _ in range(11)]
        rate = _LOAD / float(np.median(alone[1:]))
        with session.serve(placement, refine=True) as server:
            load = _Load(server, batches, expected, session.tolerance)
            load.offer(poisson_arrivals(rate, _MAX_REQUESTS, seed=args.seed), _QUICK if args.quick else _SECONDS)
            found, seconds = load.refinement, time.perf_counter() - load.start
    _tell(name, rate, load, found, seconds, report)


def _once(server: Server, inputs: Arrays) -> float:
    answer = server.submit(inputs)
    answer.result(60)
    return answer.ended - answer.begun


class _Load:
    """Requests that arrive at a server, and their outcomes.

    Attributes:
        start: start of the first one.
        ended: requests that have ended without an error.
        trials: the last report of the server about each trial, by number.
        submitted, failed, wrong: numbers of requests.
    """

    def __init__(self, server: Server, batches: Sequence[Arrays], expected: Sequence[Arrays], tolerance: float) -> None:
        self._server, self._batches, self._expected, self._tolerance = server, batches, expected, tolerance
        self._under_way: deque[tuple[Answer, float, int]] = deque()
        self._trying, self._trial = False, 0
        self.ended: list[_Ended] = []
        self.trials: dict[int, Refinement] = {}
        self.submitted = self.failed = self.wrong = 0
        self.start = time.perf_counter()

    @property
    def refinement(self) -> Refinement:
        """The server's present report."""
        found = self._server.refinement
        assert found is not None
        return found

    def offer(self, arrivals: NDArray[np.float64], seconds: float) -> None:
        """Submit requests as they are due, until nothing is left to try, or for some seconds; then wait for all of them."""
        left = _MORE
        for number, due in enumerate(arrivals.tolist()):
            while (now := time.perf_counter() - self.start) < due:
                self._look()
                time.sleep(min(due - now, 0.005))
            which = number % len(self._batches)
            self._under_way.append((self._server.submit(self._batches[which]), self.start + due, which))
            self.submitted += 1
            left -= self.refinement.doing.startswith("waiting: no other")
            if left == 0 or due > seconds:
                break
        while self._under_way:
            self._look()
            time.sleep(0.005)

    def _look(self) -> None:
        """Record requests that have ended, and the server's report."""
        while self._under_way and self._under_way[0][0].done():
            answer, due, which = self._under_way.popleft()
            try:
                outputs = answer.result()
            except PlaceitError:
                self.failed += 1
                continue
            self.wrong += OutputDifference.between(outputs, self._expected[which]).wrong(self._tolerance) is not None
            phase = "after" if self.refinement.switches else "trial" if self._trying else "before"
            self.ended.append(_Ended(phase, answer.ended - answer.begun, answer.ended - due))
        found = self.refinement
        trying = found.doing in ("checking a candidate", "requests try a candidate")
        if trying and not self._trying:
            self._trial += 1
        if trying or self._trying:
            self.trials[self._trial] = found
        self._trying = trying
        progress(f"{found.doing}; {found.reason}")


def _tell(name: str, rate: float, load: _Load, found: Refinement, seconds: float, report: Report) -> None:
    for trial, said in load.trials.items():
        report.row(
            trial=trial,
            before_p95_ms=said.before[0] * 1e3 if said.before else None,
            others_p95_ms=said.others[0] * 1e3 if said.others else None,
            before_p99_ms=said.before[1] * 1e3 if said.before else None,
            others_p99_ms=said.others[1] * 1e3 if said.others else None,
            ratio=said.ratio.ratio if said.ratio else None,
            low=said.ratio.ci_low if said.ratio else None,
            high=said.ratio.ci_high if said.ratio else None,
            outcome=said.reason,
        )
    took = {phase: [one for one in load.ended if one.phase == phase] for phase in ("before", "trial", "after")}
    p50, p95, p99 = (
        {phase: _percentile([one.seconds for one in some], of) for phase, some in took.items()} for of in (50, 95, 99)
    )
    for phase, some in took.items():
        since_arrival = [one.since_arrival * 1e3 for one in some]
        report.row(
            requests_per_s=rate,
            phase=phase,
            requests=len(some),
            p50_ms=p50[phase] * 1e3,
            p95_ms=p95[phase] * 1e3,
            p99_ms=p99[phase] * 1e3,
            from_arrival_p50_ms=_percentile(since_arrival, 50),
            from_arrival_p95_ms=_percentile(since_arrival, 95),
            from_arrival_p99_ms=_percentile(since_arrival, 99),
        )
    report.row(seconds=seconds, doing=found.doing, tried=found.tried, switches=found.switches, core_s=found.seconds)
    report.claim(f"{name}: requests that are not accounted for", load.submitted - len(load.ended) - load.failed, "", at_most=0)
    report.claim(f"{name}: requests that failed", load.failed, "", at_most=0)
    report.claim(f"{name}: requests with wrong outputs", load.wrong, "", at_most=0)
    report.claim(f"{name}: share of requests and runs that explore", found.share, "", at_most=0.05)
    report.claim(f"{name}: share of a core for searching and compiling", found.seconds / seconds, "", at_most=0.05)
    report.claim(f"{name}: p95 of requests in trials over before", p95["trial"] / p95["before"], "", at_most=1.1)
    report.claim(f"{name}: p99 of requests in trials over before", p99["trial"] / p99["before"], "")
    won = next((said.ratio for said in load.trials.values() if said.ratio is not None and said.ratio.faster), None)
    report.claim(f"{name}: seconds of the first candidate that won over the replaced placement's", won and won.ratio, "")
    report.claim(f"{name}: p50 of requests after the change over before", p50["after"] / p50["before"], "")


def _percentile(values: Sequence[float], percent: float) -> float:
    """Return NaN if there are no values."""
    return float(np.percentile(values, percent)) if values else math.nan


if __name__ == "__main__":
    main("refining", run, models=(*MODELS, *PACKAGED))
