"""Choose an option for each model of a workload, by simulated latencies of all models together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.devices.host import allowed_cores
from placeit.planning.moving import LEAST
from placeit.serving.latency import LatencyLimit, OperatingPoint, most_left
from placeit.simulator.arrivals import RequestTimes, Slowdown, Stream, serve_streams
from placeit.simulator.load import PERCENTILES, poisson_arrivals
from placeit.workload.entries import MAX_FACTOR, Correction, Entry, Workload, search_factor
from placeit.workload.options import Option

__all__ = [
    "Choice",
    "Predictor",
    "Rank",
    "choose",
    "device_use",
    "largest_factor",
    "longer_limits",
    "rank",
    "simulate_mix",
]

Choice: TypeAlias = tuple[int, ...]
"""The index of the option of each model."""
Rank: TypeAlias = tuple[float, float, float]
"""Number of models that break their limits, the sum of relative excesses, and the weighted latency: the least is the best."""

_FEW_REQUESTS = (200, 4000)  # `Predictor.requests` while many choices are compared
_FEWEST = 5  # requests of each model in a simulation
_MIN_RATE = 1e-6  # requests per second in a simulation, which keeps its times below 1e10 s, and so precise
_MIN_LEFT = 0.1  # least share of the cores' time that the work of clients and servers leaves for segments in a simulation
_RARE_SHARE = 0.05  # share of a device's time that additional requests of a rare model may take in a simulation


@dataclass(eq=False)
class Predictor:
    """Predicts the latencies of all models by simulation, with the same arrivals for all choices.

    Args:
        workload: the models; their corrections are applied to the simulated latencies.
        options: the options of each model.
        memory: bytes of weights that each device can hold, by name.
        seed: seed of the arrivals.
        now: index of the option that serves each model now, None for a model that is not served. Each model that leaves its
            option has to save 5 % of the weighted latency. None if nothing is served.
        slowdown: factor by which models on other devices slow a model; None if they do not.
        requests: number of simulated requests of the model with the lowest rate, and the most of all models. A 95th percentile
            of 200 requests is off by 15 % on devices that are half busy, of 3000 by 3 %.
    """

    workload: Workload
    options: Sequence[Sequence[Option]]
    memory: Mapping[str, float]
    seed: int = 0
    now: Sequence[int | None] | None = None
    slowdown: Slowdown | None = None
    requests: tuple[int, int] = (3000, 12_000)

    def __post_init__(self) -> None:
        self._cache: dict[Choice, tuple[OperatingPoint, ...]] = {}
        fastest = [min(option.seconds for option in own) for own in self.options]
        pairs = list(zip(self.workload, fastest, strict=True))
        rates = [max(entry.rate_at(each), _MIN_RATE) for entry, each in pairs]
        self._seconds = min(self.requests[0] / min(rates), self.requests[1] / sum(rates))
        self._arrivals: list[NDArray[np.float64] | int] = [
            entry.in_flight or self._arrival_times(entry.rate or 0.0, each, self.seed + number)
            for number, (entry, each) in enumerate(pairs)
        ]

    def _arrival_times(self, rate: float, each: float, seed: int) -> NDArray[np.float64]:
        """Return arrival times of requests that take ``each`` seconds.

        A rare model gets additional requests, so that its percentiles mean something, for a small share of a device's time.
        """
        wanted = min(self.requests[0] / 5, _RARE_SHARE * self._seconds / max(each, 1e-9))
        count = max(_FEWEST, math.ceil(max(rate * self._seconds, wanted)))
        return poisson_arrivals(count / self._seconds if count > rate * self._seconds + 1 else rate, count, seed=seed)

    def chosen(self, choice: Choice) -> list[Option]:
        """Return the options of a choice."""
        return [own[number] for own, number in zip(self.options, choice, strict=True)]

    def overfull(self, choice: Choice) -> dict[str, float]:
        """Return the bytes of weights on each device that cannot hold them, by name."""
        held: dict[str, float] = {}
        for option in self.chosen(choice):
            for name, size in option.weight_bytes.items():
                held[name] = held.get(name, 0.0) + size
        return {name: size for name, size in held.items() if size > self.memory.get(name, math.inf)}

    def __call__(self, choice: Choice) -> tuple[OperatingPoint, ...]:
        """Return the predicted latencies of each model."""
        if choice not in self._cache:
            options = self.chosen(choice)
            flights = simulate_mix(self.workload, options, self._arrivals, self.slowdown, until=self._seconds)
            points = []
            for entry, option, (arrived, _, ended) in zip(self.workload, options, flights, strict=True):
                in_flight = sum(one.in_flight for one in option.replicas)
                pending = int((ended > arrived[-1]).sum())
                up = entry.rate is None or pending <= most_left(in_flight, len(arrived))
                rate = entry.rate if entry.rate is not None else len(ended) / float(ended.max())
                latencies = np.sort(ended - arrived) + option.host
                waits = self.workload.corrections.get(entry.name, Correction()).waits
                latencies += np.interp(np.linspace(0.0, 100.0, len(ended)), PERCENTILES, waits)
                points.append(OperatingPoint.of(rate, [(latencies, up)], entry.limited))
            self._cache[choice] = tuple(points)
        return self._cache[choice]

    def rank(self, choice: Choice) -> Rank:
        """Return the rank of a choice; infinite if weights do not fit."""
        if self.overfull(choice):
            return (math.inf, math.inf, math.inf)
        return rank(self.workload, self(choice), len(self.moves(choice)))

    def moves(self, choice: Choice) -> list[str]:
        """Return the names of the models that leave the options that serve now."""
        models = zip(self.workload, choice, self.now or (None,) * len(choice), strict=True)
        return [entry.name for entry, number, now in models if now not in (None, number)]


def simulate_mix(
    workload: Workload,
    options: Sequence[Option],
    arrivals: Sequence[NDArray[np.float64] | int],
    slowdown: Slowdown | None,
    *,
    until: float = math.inf,
) -> list[RequestTimes]:
    """Simulate requests to all models, with their corrected times (:func:`placeit.simulator.arrivals.serve_streams`).

    The work of clients and servers (:attr:`Correction.host`) takes a share of the time of this machine's cores, which grows
    with the rates: segments take longer.

    Args:
        workload: the models.
        options: the option of each model.
        arrivals: arrival times of the requests to each model, or the number of its requests under way.
        slowdown: factor by which models on other devices slow a model; None if they do not.
        until: seconds after which closed loops submit no more requests.
    """
    streams, known = [], [workload.corrections.get(entry.name, Correction()) for entry in workload]
    own = zip(workload, options, known, strict=True)
    host = sum((entry.rate or entry.rate_at(option.seconds)) * one.host for entry, option, one in own if one.host)
    longer = 1 / max(1 - host / len(allowed_cores()), _MIN_LEFT)
    for entry, option, times, priority in zip(workload, options, arrivals, workload.priorities, strict=True):
        replicas = [replace(one, scale=one.scale * (longer if option.here else 1.0)) for one in option.replicas]
        streams.append(Stream(replicas, times, priority, entry.name))
    return serve_streams(streams, until=until, slowdown=slowdown)


def rank(workload: Workload, points: Sequence[OperatingPoint], moves: int = 0) -> Rank:
    """Return the rank of latencies, predicted or measured, of a choice that moves some number of models.

    Each move has to save a share of the weighted latency (:data:`placeit.planning.moving.LEAST`).
    """
    over, weighted = 0.0, 0.0
    for entry, point in zip(workload, points, strict=True):
        at = entry.limited.at(point)
        over += 0.0 if point.kept else max(0.0, at / entry.limited.seconds - 1.0)
        weighted += entry.weight * at
    weighted *= (1 + LEAST) ** moves / sum(entry.weight for entry in workload)
    return (float(sum(not point.kept for point in points)), over, weighted)


def choose(predict: Predictor, starts: Sequence[Choice], until: float = math.inf) -> Choice:
    """Find a good choice by local search: change the option of one model, or of two, until no change is better.

    The search is done with few simulated requests first, and then from there with all of them, as long as there is time.

    Args:
        predict: predicts latencies.
        starts: choices to start from, besides the greedy one.
        until: time, by :func:`placeit.core.clock.now`, at which the best choice so far is returned.
    """
    few = replace(predict, requests=min(predict.requests, _FEW_REQUESTS))
    return _improve(predict, [_improve(few, [*starts, _greedy(predict)], until), *starts], until)


def _improve(predict: Predictor, starts: Sequence[Choice], until: float) -> Choice:
    best = min(starts, key=predict.rank)
    better: Choice | None = best
    while better is not None:
        best, better = better, None
        for change in _changes(predict, best):
            if clock.now() >= until:
                return best
            if predict.rank(change) < predict.rank(best):
                better = change
                break
    return best


def _changes(predict: Predictor, choice: Choice) -> Iterator[Choice]:
    """Yield the choices that differ in the option of one model, and then the ones that differ in two."""
    others = [[k for k in range(len(own)) if k != number] for own, number in zip(predict.options, choice, strict=True)]
    for several in (1, 2):
        for changed in itertools.combinations(range(len(choice)), several):
            for to in itertools.product(*(others[model] for model in changed)):
                change = dict(zip(changed, to, strict=True))
                yield tuple(change.get(model, number) for model, number in enumerate(choice))


def _greedy(predict: Predictor) -> Choice:
    """Return a choice that gives each model, the busiest first, the option with which the busiest device is least busy."""
    alone = [own[0].seconds for own in predict.options]
    demand = [entry.rate_at(seconds) * seconds for entry, seconds in zip(predict.workload, alone, strict=True)]
    busy: dict[str, float] = {}
    choice = [0] * len(demand)
    for k in sorted(range(len(demand)), key=lambda k: -demand[k]):
        entry = predict.workload.entries[k]
        uses = [device_use(option, entry) for option in predict.options[k]]

        def max_use(number: int, uses: Sequence[Mapping[str, float]] = uses) -> float:
            return max((busy.get(name, 0.0) + share for name, share in uses[number].items()), default=0.0)

        choice[k] = min(range(len(uses)), key=max_use)
        for name, share in uses[choice[k]].items():
            busy[name] = busy.get(name, 0.0) + share
    return tuple(choice)


def device_use(option: Option, entry: Entry) -> dict[str, float]:
    """Return the share of its time that each device works for a model, by name.

    A model with a number of requests under way counts as if each took the time of a request alone.
    """
    rate = entry.rate_at(option.seconds)
    busy: dict[str, float] = {}
    speeds = [
        1 / max(one.scale * float(one.problem.compute[range(len(one.placement)), one.placement].sum()), 1e-12)
        for one in option.replicas
    ]
    for one, speed in zip(option.replicas, speeds, strict=True):
        for op, device in enumerate(one.placement.tolist()):
            name = one.problem.device_names[device]
            busy[name] = busy.get(name, 0.0) + rate * speed / sum(speeds) * one.scale * float(one.problem.compute[op, device])
    return busy


def largest_factor(predict: Predictor, choice: Choice) -> float:
    """Return the largest factor on all rates, at most `MAX_FACTOR`, at which a choice keeps all limits.

    Models with a number of requests under way in place of a rate keep that load.
    """

    def is_kept(factor: float) -> bool:
        return all(point.kept for point in replace(predict, workload=predict.workload.scaled(factor))(choice))

    return search_factor(is_kept, MAX_FACTOR)


def longer_limits(predict: Predictor, choice: Choice) -> dict[str, LatencyLimit]:
    """Return longer limits, by model, with which a choice would keep all limits; empty if longer limits do not help."""
    longer: dict[str, LatencyLimit] = {}
    for entry, point in zip(predict.workload, predict(choice), strict=True):
        at = entry.limited.at(point)
        if entry.limited.seconds < at < math.inf:
            digit = 10.0 ** (math.floor(math.log10(at)) - 1)
            longer[entry.name] = replace(entry.limited, seconds=math.ceil(1.01 * at / digit) * digit)
    entries = (replace(entry, limit=longer.get(entry.name, entry.limit)) for entry in predict.workload)
    points = replace(predict, workload=replace(predict.workload, entries=tuple(entries)))(choice)
    return longer if all(point.kept for point in points) else {}
