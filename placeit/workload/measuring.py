"""Measure choices for a workload against each other, by requests to all of its models at once."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core import clock
from placeit.devices.host import allowed_cores
from placeit.measuring.statistics import FEWEST
from placeit.profiler.costs import Progress
from placeit.serving.latency import OperatingPoint, most_left
from placeit.serving.load_run import Served, keep_busy, offer_all
from placeit.serving.server import Server
from placeit.session import Session
from placeit.simulator.arrivals import Slowdown
from placeit.simulator.load import PERCENTILES, poisson_arrivals
from placeit.workload.choosing import Choice, device_use, simulate_mix
from placeit.workload.entries import Correction, Entry, Workload
from placeit.workload.interference import Pair, Place
from placeit.workload.options import Option, naming

__all__ = ["measure_choices", "measure_corrections", "measure_slowdowns"]

_PAIR_TURNS = 3  # turns in which a pair of models is measured alone and together
_PAIR_S = (0.05, 0.5)  # least and most seconds of such a turn; more if fewer than 5 requests would fit
_TURN_S = (0.1, 5.0)  # least and most seconds of a turn; more if the budget allows and there would be too few requests
_REQUESTS = (5, 100)  # least (if the budget allows) and most requests of the model with the lowest rate in a turn
_MAX_REQUESTS = 20_000  # requests of a model in a turn
_JOINED = 20  # requests of a model, on average, in the turns of which percentiles are taken
_LIGHT = 0.6  # largest sum, over all models, of rate times seconds while corrections are measured
_MIN_REQUESTS = 20  # of each model while corrections are measured

Turn = tuple[NDArray[np.float64], bool, float]
"""Latencies of a model's requests in seconds, whether its server kept up, and the requests per second that it served."""


def measure_choices(
    sessions: Sequence[Session],
    workload: Workload,
    options: Sequence[Sequence[Option]],
    choices: Mapping[str, Choice],
    *,
    until: float,
    seed: int,
    progress: Progress | None,
) -> tuple[dict[str, tuple[OperatingPoint, ...]], int, bool]:
    """Measure the latencies of all models with each choice, in turns.

    Each model has a server for each option that some choice uses, all in this process. The order of choices is random in each
    round, so that a machine that slows down slows all choices down.

    Args:
        sessions: the session of each model.
        workload: the models, with their rates and limits.
        options: the options of each model.
        choices: the choices to measure, by name.
        until: when to end, by :func:`placeit.core.clock.now`; each choice has six turns in any case.
        seed: seed of the order and of the arrivals.
        progress: called with the current step and the share of it that is done.

    Returns:
        The latencies of each model by choice, the number of turns, and whether Ctrl-C ended them early.

    Raises:
        ExecutionError: a request failed.
        KeyboardInterrupt: Ctrl-C in the first turn.
    """
    rng = np.random.default_rng(seed)
    turns: dict[str, list[list[Turn]]] = {name: [] for name in choices}
    priorities = workload.priorities
    with contextlib.ExitStack() as stack:
        servers: dict[tuple[int, int], Server] = {}
        for choice in choices.values():
            for model, number in enumerate(choice):
                if (model, number) not in servers:
                    with naming(workload.entries[model]):
                        server = sessions[model].serve(options[model][number].placement, priority=priorities[model])
                    servers[model, number] = stack.enter_context(server)
        inputs = [session.model.sample_inputs() for session in sessions]
        longest = [max(options[model][choice[model]].seconds for choice in choices.values()) for model in range(len(options))]
        intervals = [1 / entry.rate_at(seconds) for entry, seconds in zip(workload, longest, strict=True)]
        few_s, many_s = (number * max(intervals) for number in _REQUESTS)
        share = (until - clock.now()) / (FEWEST * len(choices))
        turn_s = float(np.clip(share, max(_TURN_S[0], min(_TURN_S[1], few_s)), max(min(_TURN_S[1], many_s), few_s, _TURN_S[0])))
        count = max(FEWEST, int((until - clock.now()) / (turn_s * len(choices))))
        for turn in range(count):
            for name in rng.permutation(list(choices)):
                chosen = [servers[model, number] for model, number in enumerate(choices[name])]
                found = _turn(workload, chosen, inputs, turn_s, rng)
                if found is None:
                    if turn == 0:
                        raise KeyboardInterrupt
                    return _summed_up(workload, turns), turn, True
                transfers = [options[model][number].transfer_s for model, number in enumerate(choices[name])]
                turns[name].append([(each + more, up, rate) for (each, up, rate), more in zip(found, transfers, strict=True)])
            if progress is not None:
                progress("offering requests to all models", (turn + 1) / count)
            if turn + 1 >= FEWEST and clock.now() > until:
                count = turn + 1
                break
    return _summed_up(workload, turns), count, False


def measure_slowdowns(
    sessions: Mapping[str, Session],
    options: Mapping[Place, Option],
    pairs: Sequence[tuple[Place, Place]],
    *,
    until: float,
    progress: Progress | None,
) -> list[Pair]:
    """Measure the factors by which models on different devices slow each other, for as many pairs as there is time for.

    Both models of a pair have one request in flight at any time. In each turn, each model runs alone, and then both run
    together. The factor of a model in a turn is the mean of its latencies together, divided by the mean alone. The result is
    the median over turns.

    Args:
        sessions: the session of each model, by name.
        options: the option that runs each model on a single device.
        pairs: the pairs to measure, the most important first.
        until: when to end, by :func:`placeit.core.clock.now`; a pair that was started has all of its turns.
        progress: called with the current step and the share of it that is done.

    Raises:
        ExecutionError: a request failed.
        KeyboardInterrupt: Ctrl-C.
    """
    loads = [Entry(f"{k}", Path(), in_flight=1) for k in range(2)]
    found: list[Pair] = []
    for pair in pairs:
        if (begin := clock.now()) >= until:
            break
        seconds = float(np.clip((until - begin) / 30, *_PAIR_S))
        seconds = max(seconds, _REQUESTS[0] * max(options[place].seconds for place in pair))
        ratios = []
        with contextlib.ExitStack() as stack:
            servers = [stack.enter_context(sessions[place[0]].serve(options[place].placement)) for place in pair]
            inputs = [sessions[name].model.sample_inputs() for name, _ in pair]
            for _ in range(_PAIR_TURNS):
                means = []
                for run in ([0], [1], [0, 1]):
                    some = Workload(tuple(loads[k] for k in run))
                    turn = _turn(some, [servers[k] for k in run], [inputs[k] for k in run], seconds, np.random.default_rng(0))
                    if turn is None:
                        raise KeyboardInterrupt
                    means += [float(np.mean(latencies)) for latencies, *_ in turn]
                ratios.append((means[2] / means[0], means[3] / means[1]))
        first, second = np.median(ratios, axis=0).tolist()
        names, devices = zip(*pair, strict=True)
        found.append(Pair(names, devices, (first, second)))
        if progress is not None:
            progress("measuring how models slow each other", len(found) / len(pairs))
    return found


def measure_corrections(
    sessions: Sequence[Session],
    workload: Workload,
    options: Sequence[Sequence[Option]],
    slowdown: Slowdown | None,
    *,
    until: float,
    seed: int,
) -> dict[str, Correction]:
    """Measure how latencies of the models, at a light load, differ from a simulation with the same arrivals.

    All models are served at once. The CPU time of this process that is not the devices' is the work of clients and servers.
    Percentiles of the latencies are longer than simulated ones because threads have to wake up and wait for a core, and because
    times of segments vary.

    Args:
        sessions: the session of each model.
        workload: the models.
        options: the options of each model, of which the first one is measured.
        slowdown: factor by which models on other devices slow a model; None if they do not.
        until: when to end, by :func:`placeit.core.clock.now`.
        seed: seed of the arrivals.

    Returns:
        The corrections by the name of the model, without models that there is no time to measure.

    Raises:
        ExecutionError: a request failed.
        KeyboardInterrupt: Ctrl-C.
    """
    seconds, share, first = max(until - clock.now(), 1e-9), _LIGHT / len(workload), [own[0] for own in options]
    pairs = list(zip(workload, first, strict=True))
    rates = [max(min(entry.rate or math.inf, share / own.seconds), _MIN_REQUESTS / seconds) for entry, own in pairs]
    measured = [k for k, own in enumerate(first) if rates[k] * own.seconds <= share]
    if not measured:
        return {}
    entries = (replace(workload.entries[k], rate=rates[k], in_flight=None) for k in measured)
    mix = replace(workload, entries=tuple(entries), corrections={})
    chosen = [first[k] for k in measured]
    arrivals = [poisson_arrivals(rates[k], min(math.ceil(rates[k] * seconds), _MAX_REQUESTS), seed=seed + k) for k in measured]
    with contextlib.ExitStack() as stack:
        priorities = zip(measured, chosen, mix.priorities, strict=True)
        servers = [stack.enter_context(sessions[k].serve(own.placement, priority=one)) for k, own, one in priorities]
        inputs = [sessions[k].model.sample_inputs() for k in measured]
        cpu, begin = process_time(), perf_counter()
        served = offer_all(list(zip(servers, inputs, arrivals, strict=True)))
        cpu, elapsed = process_time() - cpu, perf_counter() - begin
    for one in served:
        _check(one)
    latencies = [one.latencies + option.transfer_s for one, option in zip(served, chosen, strict=True)]

    busy = sum(_busy_cores(sessions[k], own, entry) for k, own, entry in zip(measured, chosen, mix, strict=True))
    host = max(0.0, cpu - busy * elapsed) / sum(map(len, arrivals))

    mix = replace(mix, corrections={entry.name: Correction(host=host) for entry in mix})
    simulated = simulate_mix(mix, chosen, arrivals, slowdown)
    found = {}
    for entry, option, flights, actual in zip(mix, chosen, simulated, latencies, strict=True):
        expected = flights.ended - flights.arrived + option.host
        p50, p95, p99 = np.maximum(np.percentile(actual, PERCENTILES) - np.percentile(expected, PERCENTILES), 0.0).tolist()
        found[entry.name] = Correction((p50, p95, p99), host)
    return found


def _busy_cores(session: Session, option: Option, entry: Entry) -> float:
    """Return how many cores of this machine the devices of a model keep busy, by the times of its option."""
    cores = {
        device.name: len(device.where.cores) or len(allowed_cores())
        for device in session.home_of(option.placement).cluster.devices
        if device.address is not None and device.where.core_set and not device.where.node
    }
    return sum(share * cores.get(name, 0) for name, share in device_use(option, entry).items())


def _turn(
    workload: Workload, servers: Sequence[Server], inputs: Sequence[Arrays], seconds: float, rng: np.random.Generator
) -> list[Turn] | None:
    """Send the requests of a workload to its servers for some seconds; return None if Ctrl-C ended them early.

    Raises:
        ExecutionError: a request failed.
    """
    seeds = rng.integers(1 << 31, size=len(workload))
    arriving = [k for k, entry in enumerate(workload) if entry.rate is not None]
    served: dict[int, Served] = {}
    with ThreadPoolExecutor(len(workload)) as pool:
        busy = {
            k: pool.submit(keep_busy, servers[k], inputs[k], entry.in_flight, seconds=seconds)
            for k, entry in enumerate(workload)
            if entry.in_flight is not None
        }
        offers = []
        for k in arriving:
            rate = workload.entries[k].rate or 0.0
            times = poisson_arrivals(rate, min(max(1, math.ceil(rate * seconds)), _MAX_REQUESTS), seed=int(seeds[k]))
            offers.append((servers[k], inputs[k], times))
        served |= zip(arriving, offer_all(offers) if offers else (), strict=True)
        served |= {k: future.result() for k, future in busy.items()}
    if any(one.interrupted for one in served.values()):
        return None
    for one in served.values():
        _check(one)
    turns = []
    for k, entry in enumerate(workload):
        in_flight, one = sum(executor.in_flight for executor in servers[k].executors), served[k]
        up = entry.rate is None or one.keeps_up(most_left(in_flight, one.arrived))
        turns.append((one.latencies, up, len(one.latencies) / one.seconds))
    return turns


def _check(served: Served) -> None:
    """Raise the error of the first request that failed, or KeyboardInterrupt after Ctrl-C."""
    if served.interrupted:
        raise KeyboardInterrupt
    if served.error is not None:
        raise served.error


def _summed_up(workload: Workload, turns: Mapping[str, Sequence[Sequence[Turn]]]) -> dict[str, tuple[OperatingPoint, ...]]:
    """Return the latencies of each model over all turns, by choice."""
    found = {}
    for name, of_choice in turns.items():
        points = []
        for entry, of_model in zip(workload, zip(*of_choice, strict=True), strict=True):
            rate = entry.rate if entry.rate is not None else float(np.median([served for *_, served in of_model]))
            points.append(OperatingPoint.of(rate, _joined(of_model), entry.limited))
        found[name] = tuple(points)
    return found


def _joined(turns: Sequence[Turn]) -> list[tuple[NDArray[np.float64], bool]]:
    """Join turns with few requests: of six requests, the 95th percentile would be about the longest but one."""
    count = max(1, min(len(turns), sum(len(latencies) for latencies, *_ in turns) // _JOINED))
    parts = [turns[len(turns) * k // count : len(turns) * (k + 1) // count] for k in range(count)]
    return [(np.concatenate([latencies for latencies, *_ in part]), any(up for _, up, _ in part)) for part in parts]
