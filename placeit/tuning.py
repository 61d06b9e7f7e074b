"""Tune a server by measuring: its placement, precision, batch size and number of requests in flight.

Each configuration has a separate server. They take turns: in each turn, every server is offered requests at random times (a
Poisson process, open loop) at each of several rates. A configuration keeps a limit on latency up to the highest rate at which
the percentile of latencies (its median over turns) is within the limit and the server keeps up: in most turns it drops no
request, and holds no more requests at the last arrival than arrive within the limit, or are in flight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.errors import ExecutionError, PlaceitError
from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Placement, Serving
from placeit.measuring.statistics import FEWEST, median_error, median_interval
from placeit.optimizer.options import Budget
from placeit.profiler.costs import Progress
from placeit.serving.forecast import HostCosts, predicted_capacity
from placeit.serving.latency import LatencyLimit, OperatingPoint
from placeit.serving.load_run import offer, saturate
from placeit.serving.server import Server
from placeit.session import Session
from placeit.simulator.load import check_rate, poisson_arrivals
from placeit.workbench.options import Constraints

__all__ = ["Configuration", "Tuned", "tune"]

_SHARES = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)  # rates to try, over the rate at which requests that never pause are served
_SEARCH_SHARE = 0.4  # share of the budget for the search for placements
_PROFILE_SHARE = 0.3  # share of the remaining time for profiles in other precisions
_MAX_PLACEMENTS = 3  # placements of the search that are tried
_MAX_SATURATED, _MAX_CONFIGURATIONS = 16, 6  # configurations whose capacity is measured; configurations that get requests
_STOP_FACTOR = 2.0  # no higher rate is tried in a turn once the latency exceeds the limit by this factor
_SATURATION_SHARE = 0.15  # share of the remaining time in which capacities are measured
_TURN_S = (0.02, 2.0)  # minimum and maximum seconds of requests at one rate in one turn
_REQUESTS = (20, 4000)  # minimum and maximum number of requests of a turn
_MAX_TURN_S = 5.0  # seconds of a turn at a low rate, even if it then has fewer requests than the minimum


@dataclass(frozen=True, eq=False)
class Configuration:
    """A placement with settings for a server, and its measured throughput and latencies.

    Attributes:
        name: name of the placement and the settings.
        of: name of the placement.
        placement: the placement, with its settings for a server (:class:`placeit.core.placement.Serving`) and its precision.
        predicted: requests per second that it serves if requests never pause, by the simulator, from measured costs of ops and
            of batches, and ``host``; None if they are not known.
        capacity: requests per second that it serves if requests never pause, median over turns; 0 if it was not measured
            because others have higher predicted capacities.
        capacity_ci: 95 % confidence interval of this median.
        points: latencies at each rate, ascending; empty if they were not measured because others have higher capacities.
        failed: why it cannot serve; None if it can.
        host: CPU seconds of the host for each request, on one thread at a time: ``predicted`` is at most ``1 / host``. They are
            measured once for requests that run alone, and once for joined ones; None if the server did not start.
    """

    name: str
    of: str
    placement: Placement
    predicted: float | None = None
    capacity: float = 0.0
    capacity_ci: tuple[float, float] = (0.0, math.inf)
    points: tuple[OperatingPoint, ...] = ()
    failed: str | None = None
    host: float | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the predicted capacity, ``predicted / capacity - 1``; None unless both are known."""
        return None if self.predicted is None or not self.capacity else self.predicted / self.capacity - 1

    @property
    def best(self) -> OperatingPoint | None:
        """The point with the highest rate such that the limit is kept there and at all lower rates; None without one."""
        points_kept = [*takewhile(lambda point: point.kept, self.points)]
        return points_kept[-1] if points_kept else None

    def at(self, rate: float) -> OperatingPoint | None:
        """Return the point at a rate; None if the rate was not measured."""
        return next((point for point in self.points if point.rate == rate), None)


@dataclass(frozen=True, eq=False)
class Tuned:
    """The result of :func:`tune`.

    Attributes:
        model: path of the model.
        limit: the limit on latency.
        rate: requests per second that were to be served; None for as many as possible.
        configurations: all configurations, the best first: by the rate within the limit or, with a ``rate``, by the latency.
        turns: number of turns of each configuration.
        chosen: the best configuration that keeps the limit, at ``rate`` if that is given; None if none does.
        interrupted: whether Ctrl-C ended the measurement early.
    """

    model: str
    limit: LatencyLimit
    rate: float | None
    configurations: tuple[Configuration, ...]
    turns: int
    chosen: Configuration | None
    interrupted: bool

    def __repr__(self) -> str:
        return f"<Tuned {self.model}: {len(self.configurations)} configurations; {self.reason}>"

    @property
    def error(self) -> float | None:
        """Median absolute relative error of predicted capacities; None if no capacity was both predicted and measured."""
        return median_error(one.error for one in self.configurations)

    @property
    def reason(self) -> str:
        """The reason for the choice, or for no choice, as a sentence."""
        first = self.configurations[0]
        if self.chosen is not None and self.rate is not None and (at := self.chosen.at(self.rate)) is not None:
            return (
                f"of those that serve {self.rate:g} requests per second within {self.limit}, it has the least latency: "
                f"p{self.limit.percentile} is {self.limit.at(at) * 1e3:.3g} ms"
            )
        if self.chosen is not None and self.chosen.best is not None:
            return f"it serves {self.chosen.best.rate:.4g} requests per second within {self.limit}, the most of all"
        if self.rate is not None:
            return (
                f"none serves {self.rate:g} requests per second within {self.limit}; "
                f"{first.name} serves {0 if first.best is None else first.best.rate:.4g}"
            )
        least = min((self.limit.at(point) for one in self.configurations for point in one.points), default=math.inf)
        return f"none keeps {self.limit} at any rate that was tried; the least was {least * 1e3:.3g} ms"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, as ``placeit tune --json`` prints it."""

        def row(one: Configuration) -> dict[str, Any]:
            settings = one.placement.serving
            return {
                "name": one.name,
                "placement": one.of,
                "devices": one.placement.counts(),
                "replicas": len(one.placement.every),
                "in_flight": None if settings is None else settings.in_flight,
                "max_batch": None if settings is None else settings.max_batch,
                "precision": None if one.placement.conditions is None else one.placement.conditions.precision,
                "predicted_per_s": one.predicted,
                "prediction_error": one.error,
                "host_s": one.host,
                "capacity_per_s": one.capacity,
                "capacity_ci_per_s": list(one.capacity_ci),
                "rate_within_limit_per_s": None if one.best is None else one.best.rate,
                "points": [point.to_dict() for point in one.points],
                "failed": one.failed,
            }

        return jsonable_dict(
            {
                "model": self.model,
                "limit": {"percentile": self.limit.percentile, "seconds": self.limit.seconds},
                "rate_per_s": self.rate,
                "turns": self.turns,
                "chosen": None if self.chosen is None else self.chosen.name,
                "reason": self.reason,
                "prediction_error": self.error,
                "configurations": [row(one) for one in self.configurations],
                "interrupted": self.interrupted,
            }
        )


def tune(
    session: Session,
    limit: LatencyLimit | str,
    *,
    rate: float | None = None,
    placements: Mapping[str, Placement] | None = None,
    precisions: Sequence[str] = (),
    budget: float | str = 120.0,
    seed: int = 0,
    progress: Progress | None = None,
) -> Tuned:
    """Find the configuration of a server with the highest throughput within a limit on latency, by measuring.

    Args:
        session: the model on the devices.
        limit: the limit, or a text such as ``p95=20ms``.
        rate: requests per second to serve; the configuration with the least latency at that rate is the best. None for as many
            as possible.
        placements: placements to try, by name; None to search for them by throughput, in 0.4 of the budget, and to try the
            best three, and the best single device. Each is tried with one request in flight on a replica and with as many as
            its highest throughput needs, and, if the batch size is open, with batches of the size that is measured to be best,
            and of the largest size of which two runs take no longer than the limit.
        precisions: precisions in which each placement is tried besides the session's; it has to have right outputs in them.
        budget: seconds, or a text such as ``2m``.
        seed: seed of the search and the arrivals.
        progress: function that is called with the current activity and the share of it that is done.

    Raises:
        UsageError: the limit, the rate or the budget cannot be read, or is not positive.
        ExecutionError: no configuration can serve; the message gives the reason of each.
        PlaceitError: an error of :meth:`placeit.Session.optimize`.
        KeyboardInterrupt: Ctrl-C before every configuration had had its first turn; afterwards it ends the measurement.
    """
    limit = LatencyLimit.parse(limit) if isinstance(limit, str) else limit
    if rate is not None:
        check_rate(rate)
    seconds = Budget.of(budget).seconds
    begin = clock.now()
    if placements is None:
        placements = _search_placements(session, _SEARCH_SHARE * seconds, seed, progress)
    else:
        for name, placement in placements.items():
            if (wrong := session.run(placement, runs=1, warmup=0).failed) is not None:
                raise ExecutionError(f"{name}: {wrong}")
    with ExitStack() as stack:
        hosts = HostCosts(session.model.sample_inputs())
        trials = _start_servers(session, placements, limit, hosts, stack, checked=True)
        for precision in dict.fromkeys(precisions):
            if precision != session.precision:
                other = stack.enter_context(_in_precision(session, precision))
                other.profile(budget_s=max(0.0, begin + seconds - clock.now()) * _PROFILE_SHARE / len(precisions))
                trials += _start_servers(other, placements, limit, hosts, stack, checked=False)
        interrupted = _Turns(session, trials, limit, rate, np.random.default_rng(seed), progress).run(begin + seconds)
        done = [one.summed_up(limit) for one in trials]
    if all(one.failed is not None for one in done):
        raise ExecutionError(" ".join(["No configuration can serve.", *(f"{one.name}: {one.failed}" for one in done)]))
    ranked = tuple(sorted(done, key=lambda one: _rank(one, limit, rate)))
    first = ranked[0]
    point = first.best if rate is None else first.at(rate)
    chosen = first if point is not None and point.kept else None
    return Tuned(str(session.model.path), limit, rate, ranked, max(one.turns for one in trials), chosen, interrupted)


def _rank(one: Configuration, limit: LatencyLimit, rate: float | None) -> tuple[float, ...]:
    """Return a key by which the best configuration is the first."""
    highest = 0.0 if one.best is None else one.best.rate
    if rate is None or (at := one.at(rate)) is None:
        return (one.failed is not None, True, -highest, -one.capacity)
    return (one.failed is not None, not at.kept, limit.at(at) if at.kept else -highest, -one.capacity)


def _search_placements(session: Session, seconds: float, seed: int, progress: Progress | None) -> dict[str, Placement]:
    """Search for placements by throughput, and return the best of them by name, and the best single device."""
    found = session.optimize("throughput", budget=seconds, seed=seed, progress=progress)
    if found.interrupted:  # otherwise its placements would still be measured
        raise KeyboardInterrupt
    best = [one for one in found.candidates if one.failed is None and one.measured is not None][:_MAX_PLACEMENTS]
    chosen = [found.chosen, *best, *([] if found.best_single is None else [found.best_single])]
    return {one.name: replace(one.placement, conditions=found.conditions) for one in chosen}


@dataclass(eq=False)
class _Trial:
    """A configuration while it is measured."""

    name: str
    of: str
    placement: Placement
    server: Server | None = None
    predicted: float | None = None
    host: float | None = None
    failed: str | None = None
    capacities: list[float] = field(default_factory=list)
    served: dict[float, list[tuple[NDArray[np.float64], bool]]] = field(default_factory=dict)

    @property
    def turns(self) -> int:
        """Number of turns, which is the number at the lowest rate."""
        return max((len(one) for one in self.served.values()), default=0)

    def summed_up(self, limit: LatencyLimit) -> Configuration:
        """Return the configuration with its measurements."""
        one = Configuration(self.name, self.of, self.placement, self.predicted, failed=self.failed, host=self.host)
        if self.failed is not None or not self.capacities:
            return one
        points = [OperatingPoint.of(rate, turns, limit) for rate, turns in sorted(self.served.items()) if turns]
        capacity, interval = float(np.median(self.capacities)), median_interval(self.capacities)
        return replace(one, capacity=capacity, capacity_ci=interval, points=tuple(points))


def _in_precision(session: Session, precision: str) -> Session:
    """Return a session of the same model on the same devices in another precision."""
    names, setup = session.cluster.names, session.setup
    limits = Constraints(setup.pins, setup.memory, texts=1 if setup.texts is None else setup.texts.count)
    return Session(session.model, names, precision=precision, constraints=limits, cache=setup.cache, policy=setup.policy)


def _start_servers(
    session: Session, given: Mapping[str, Placement], limit: LatencyLimit, hosts: HostCosts, stack: ExitStack, *, checked: bool
) -> list[_Trial]:
    """Start a server for each configuration; the stack closes them."""
    trials: list[_Trial] = []
    for name, placement in given.items():
        of = name if checked else f"{name} in {session.precision}"
        placed = replace(placement, serving=None, result=None, conditions=session.setup.conditions)
        try:
            wrong = None if checked else session.run(placed, runs=1, warmup=0).failed
            failed = [_Trial(of, of, placed, failed=wrong)]
            trials += _servers_of(session, of, placed, limit, hosts, stack) if wrong is None else failed
        except PlaceitError as error:
            trials.append(_Trial(of, of, placed, failed=str(error)))
    return trials


def _servers_of(
    session: Session, of: str, placement: Placement, limit: LatencyLimit, hosts: HostCosts, stack: ExitStack
) -> list[_Trial]:
    """Start the servers of a placement; the first of them measures the sizes of batches."""
    trials: list[_Trial] = []

    def opened(in_flight: int | None, batch: int | Literal["auto"]) -> Server:
        server = session.serve(placement, in_flight=in_flight, max_batch=batch)
        stack.callback(server.close)
        return server

    def add(server: Server, rows: int) -> None:
        depth = max(executor.in_flight for executor in server.executors)
        words = [of, f"{depth} in flight", *([f"batches of {rows}"] if rows else [])]
        host = hosts.of(server)
        predicted = predicted_capacity(server.executors, measured.batches, rows, host)
        trials.append(_Trial(", ".join(words), of, replace(placement, serving=Serving(depth, rows)), server, predicted, host))

    measured = opened(1, "auto")
    best = max(one.most for one in measured.batches)
    in_limit = {rows for one in measured.batches for rows, taken in one.seconds.items() if 2 * taken <= limit.seconds}
    sizes = sorted({0, best, max((rows for rows in in_limit if rows <= best), default=0)} - {1})
    add(measured, best)
    for in_flight in (1, None):
        for rows in sizes:
            if (in_flight, rows) != (1, best):
                server = opened(in_flight, rows)
                if in_flight == 1 or max(executor.in_flight for executor in server.executors) > 1:
                    add(server, rows)
                else:
                    server.close()
    return trials


class _Turns:
    """The measurement of all configurations, in turns."""

    def __init__(
        self,
        session: Session,
        trials: Sequence[_Trial],
        limit: LatencyLimit,
        rate: float | None,
        rng: np.random.Generator,
        progress: Progress | None,
    ) -> None:
        self._inputs = session.model.sample_inputs()
        self._trials, self._limit, self._rate, self._rng = trials, limit, rate, rng
        self._report: Progress = progress or (lambda *_: None)

    def run(self, until: float) -> bool:
        """Measure turns until a time of :func:`placeit.core.clock.now`, at least one; return whether Ctrl-C ended it."""
        begin, self._until = clock.now(), until
        opened = [trial for trial in self._trials if trial.server is not None]
        remaining = _best(opened, lambda one: math.inf if one.predicted is None else one.predicted, _MAX_SATURATED)
        window = float(np.clip(_SATURATION_SHARE * (until - begin) / (FEWEST * max(1, len(remaining))), *_TURN_S))
        for turn in range(FEWEST):
            if not all(self._saturate(trial, window) for trial in self._shuffled(remaining)):
                raise KeyboardInterrupt
            self._report("saturating servers", (turn + 1) / FEWEST)
            if (late := clock.now() > (begin + until) / 2) or turn == FEWEST // 2 - 1:  # requests may take longer than planned
                remaining = _best(remaining, lambda one: float(np.median(one.capacities)), _MAX_CONFIGURATIONS)
            if late:
                break
        rates = {trial: self._rates(trial) for trial in remaining}
        left, count = until - clock.now(), max(1, sum(map(len, rates.values())))
        window = float(np.clip(left / (FEWEST * count), *_TURN_S))
        turns = max(FEWEST, int(left / (window * count)))
        for turn in range(turns):
            for trial in self._shuffled(remaining):
                if trial.failed is None and not self._climb(trial, rates[trial], window):
                    if turn == 0:
                        raise KeyboardInterrupt
                    return True
            self._report("offering requests", (turn + 1) / turns)
            if clock.now() > until:
                break
        return False

    def _saturate(self, trial: _Trial, seconds: float) -> bool:
        """Measure the capacity of a server by requests that never pause; return False if Ctrl-C ended that."""
        if trial.failed is not None:
            return True
        assert trial.server is not None  # noqa: S101
        served = saturate(trial.server, self._inputs, seconds=seconds)
        if served.error is not None or served.load is None:
            trial.failed = str(served.error or "no request ended")
        else:
            trial.capacities.append(served.load.requests / served.seconds)
        return not served.interrupted

    def _rates(self, trial: _Trial) -> list[float]:
        if trial.failed is not None:
            return []
        capacity = float(np.median(trial.capacities))
        return sorted({*(share * capacity for share in _SHARES), *([] if self._rate is None else [self._rate])})

    def _climb(self, trial: _Trial, rates: Sequence[float], seconds: float) -> bool:
        """Offer requests at ascending rates until one is too high or the time is up; return False if Ctrl-C ended that."""
        assert trial.server is not None  # noqa: S101
        in_flight = sum(one.in_flight for one in trial.server.executors)
        too_high = False
        for rate in rates:
            if (too_high and rate != self._rate) or (trial.turns and clock.now() > self._until):
                continue
            fewest = min(_REQUESTS[0], max(1.0, rate * _MAX_TURN_S))
            requests = int(np.clip(rate * seconds, fewest, _REQUESTS[1]))
            served = offer(trial.server, self._inputs, poisson_arrivals(rate, requests, seed=int(self._rng.integers(1 << 31))))
            if served.interrupted:
                return False
            if served.error is not None:
                trial.failed = str(served.error)
                return True
            keeps_up = served.keeps_up(max(in_flight, rate * self._limit.seconds))
            trial.served.setdefault(rate, []).append((served.latencies, keeps_up))
            slow = not len(served.latencies) or self._limit.of(served.latencies) > _STOP_FACTOR * self._limit.seconds
            too_high |= slow or not keeps_up
        return True

    def _shuffled(self, trials: Sequence[_Trial]) -> list[_Trial]:
        return [trials[k] for k in self._rng.permutation(len(trials))]


def _best(trials: Sequence[_Trial], capacity: Callable[[_Trial], float], count: int) -> list[_Trial]:
    """Return the trials with the highest capacities, first the best with and without batches, with one and more in flight."""
    ranked = sorted((one for one in trials if one.failed is None), key=lambda one: -capacity(one))
    first: dict[tuple[bool, bool], _Trial] = {}
    for one in ranked:
        settings = one.placement.serving
        assert settings is not None  # noqa: S101
        first.setdefault((settings.in_flight == 1, settings.max_batch > 0), one)
    return list(dict.fromkeys([*first.values(), *ranked]))[:count]
