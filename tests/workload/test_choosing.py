"""The options of all models are chosen together, by a simulation of all requests."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeit.core.placement import Placement
from placeit.core.problem import Problem
from placeit.devices.host import allowed_cores
from placeit.serving.latency import LatencyLimit
from placeit.simulator.arrivals import SimulatedReplica
from placeit.workload.choosing import Predictor, choose, largest_factor
from placeit.workload.entries import Correction, Entry, Workload
from placeit.workload.options import Option

NOWHERE = Placement(("op",), np.zeros(1, np.int32), ("d",))


def option(seconds: float, *devices: str, held: float = 0.0) -> Option:
    """Whole requests on each of some devices."""
    problems = [
        Problem.from_arrays([[seconds]], np.empty((0, 2), int), [], [[1.0]], [[0.0]], device_names=[name]) for name in devices
    ]
    replicas = tuple(SimulatedReplica(problem, np.zeros(1, np.int32), 2) for problem in problems)
    return Option(" + ".join(devices), NOWHERE, replicas, 0.0, dict.fromkeys(devices, held))


def workload(*rates: float, limit: float | None = None, **more: float) -> Workload:
    limited = None if limit is None else LatencyLimit(95, limit)
    return Workload(tuple(Entry(f"m{k}", Path("m"), rate=rate, limit=limited, **more) for k, rate in enumerate(rates)))


def test_models_leave_the_device_that_is_best_for_each_of_them_alone() -> None:
    options = [[option(0.010, "fast"), option(0.015, "slow")], [option(0.001, "fast"), option(0.0015, "slow")]]
    predict = Predictor(workload(60.0, 100.0, limit=0.1), options, {})
    chosen = choose(predict, [(0, 0)])
    assert chosen == (0, 1)
    assert predict.rank(chosen)[0] == 0


@pytest.mark.parametrize("seed", range(6))
def test_a_choice_is_about_as_good_as_the_best_of_all(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = ["a", "b", "c"]
    options = []
    for _ in range(3):
        seconds = rng.uniform(0.002, 0.02, len(names))
        options.append([option(each, name) for each, name in zip(seconds, names, strict=True)])
        options[-1].append(option(seconds.mean(), *names[:2]))
    predict = Predictor(workload(*rng.uniform(10, 60, 3), limit=0.03), options, {}, seed=seed, requests=(200, 4000))
    best = min(predict.rank(choice) for choice in itertools.product(range(4), repeat=3))
    found = predict.rank(choose(predict, [(0, 0, 0)]))
    assert found[0] == best[0]
    assert found[2] <= 1.05 * best[2]


def test_a_choice_that_is_best_for_few_requests_is_improved_with_more() -> None:
    rng = np.random.default_rng(6)
    seconds = rng.uniform(0.002, 0.02, (3, 2))
    options = [[option(one, "a"), option(other, "b"), option((one + other) / 2, "a", "b")] for one, other in seconds.tolist()]
    load = workload(*(rng.uniform(0.3, 0.5, 3) / seconds.mean(axis=1)), limit=0.06)
    few = choose(Predictor(load, options, {}, seed=6, requests=(200, 4000)), [(0, 0, 0)])
    predict = Predictor(load, options, {}, seed=6)
    assert predict.rank(choose(predict, [(0, 0, 0)])) < predict.rank(few)


def test_a_choice_ends_at_its_time() -> None:
    options = [[option(0.001 * k, "d") for k in range(1, 9)] for _ in range(8)]
    predict = Predictor(workload(*[20.0] * 8), options, {})
    assert choose(predict, [(7,) * 8], until=0.0) == (0,) * 8  # the choice of the least used devices, without a change


def test_limits_count_before_latencies_and_latencies_by_their_weights() -> None:
    fast, slow = option(0.001, "fast"), option(0.004, "slow")
    entries = tuple(Entry(f"m{k}", Path("m"), rate=400.0, weight=weight) for k, weight in enumerate((1.0, 5.0)))
    assert choose(Predictor(Workload(entries[:1]), [[fast, slow]], {}), [(1,)]) == (0,)
    predict = Predictor(Workload(entries), [[fast, option(0.002, "slow")]] * 2, {})
    assert choose(predict, [(0, 0)]) == (1, 0)  # the model of the higher weight has the faster device for itself


@pytest.mark.parametrize(("seconds", "chosen"), [(0.0195, 0), (0.015, 1)])
def test_a_model_moves_only_where_that_saves_enough(seconds: float, chosen: int) -> None:
    options = [[option(0.02, "fast"), option(seconds, "slow")], [option(0.001, "other")]]
    predict = Predictor(workload(1.0, 1.0), options, {}, now=[0, None])
    assert choose(predict, [(1, 0)]) == (chosen, 0)
    assert predict.moves((1, 0)) == ["m0"]
    assert predict.moves((0, 0)) == []
    tight = Predictor(workload(1.0, 1.0, limit=0.0198), options, {}, now=[0, None])
    assert choose(tight, [(0, 0)]) == (1, 0)  # a limit that is kept only there


def test_the_weights_of_all_models_have_to_fit() -> None:
    options = [[option(0.001, "d", held=6.0), option(0.002, "e", held=6.0)]] * 2
    predict = Predictor(workload(10.0, 10.0), options, {"d": 10.0, "e": 10.0})
    assert predict.overfull((0, 0)) == {"d": 12.0}
    assert sorted(choose(predict, [(0, 0)])) == [0, 1]
    tight = Predictor(workload(10.0, 10.0), options, {"d": 10.0, "e": 1.0})
    assert tight.overfull(choose(tight, [(0, 0)]))


def test_the_largest_factor_on_the_rates_is_found_to_some_percent() -> None:
    predict = Predictor(workload(10.0, limit=0.03), [[option(0.01, "d")]], {})
    factor = largest_factor(predict, (0,))
    assert 2 < factor < 8
    assert all(point.kept for point in replace(predict, workload=predict.workload.scaled(factor))((0,)))
    assert not all(point.kept for point in replace(predict, workload=predict.workload.scaled(1.03 * factor))((0,)))
    assert largest_factor(Predictor(workload(10.0, limit=9.0), [[option(0.01, "d")]], {}), (0,)) == 8.0
    assert largest_factor(Predictor(workload(10.0, limit=0.009), [[option(0.01, "d")]], {}), (0,)) == 0.0


@pytest.mark.parametrize("rate", [1e-12, 1e12])
def test_a_factor_on_the_least_and_the_highest_rates_is_found_as_well(rate: float) -> None:
    assert largest_factor(Predictor(workload(rate, limit=0.009), [[option(0.01, "d")]], {}), (0,)) == 0.0
    assert largest_factor(Predictor(workload(rate, limit=1e9), [[option(1e-12, "d")]], {}), (0,)) == 8.0


def test_measured_waits_are_added_to_percentiles() -> None:
    options, load = [[option(0.01, "d")]], workload(10.0, limit=0.03)
    plain = Predictor(load, options, {})((0,))[0]
    waiting = Predictor(replace(load, corrections={"m0": Correction((0.001, 0.02, 0.03))}), options, {})((0,))[0]
    found = np.subtract([waiting.p50, waiting.p95, waiting.p99], [plain.p50, plain.p95, plain.p99])
    assert found == pytest.approx([0.001, 0.02, 0.03], abs=1e-3)
    assert (plain.kept, waiting.kept) == (True, False)


def test_the_work_of_clients_and_servers_takes_a_share_of_the_cores_that_grows_with_the_rates() -> None:
    cores = len(allowed_cores())
    options = [[option(0.01, "d"), replace(option(0.01, "d"), here=False)]]
    for rate, share in ((10.0, 0.25), (20.0, 0.5)):
        load = workload(rate, limit=1.0)
        corrected = replace(load, corrections={"m0": Correction(host=0.025 * cores)})
        wanted = Predictor(load, [[option(0.01 / (1 - share), "d")]], {})((0,))[0]
        here, elsewhere = (Predictor(corrected, options, {})((k,))[0] for k in range(2))
        assert here.p95 == pytest.approx(wanted.p95)
        assert elsewhere == Predictor(load, options, {})((0,))[0]


def test_requests_under_way_have_the_rate_at_which_they_are_served() -> None:
    entries = Workload((Entry("m", Path("m"), in_flight=2), Entry("n", Path("n"), rate=5.0)))
    first, second = Predictor(entries, [[option(0.01, "d")], [option(0.01, "e")]], {})((0, 0))
    assert first.rate == pytest.approx(100.0, rel=0.01)
    assert first.p50 == pytest.approx(0.02)
    assert (second.rate, second.kept) == (5.0, True)
