"""Models on different devices of a machine slow each other: measured for some pairs, assumed for others, and simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from placeit.workload.choosing import Predictor, choose
from placeit.workload.interference import Interference, Pair, Place, pairs_by_load
from tests.workload.test_choosing import option, workload

A, B, C = ((f"m{model}", f"CPU@{model}") for model in range(3))
HERE = {f"CPU@{core}": "" for core in range(4)}


def pair(one: Place, other: Place, slowdown: tuple[float, float]) -> Pair:
    return Pair((one[0], other[0]), (one[1], other[1]), slowdown)


def test_a_measured_pair_has_its_factor_and_others_the_mean() -> None:
    found = Interference((pair(A, B, (1.2, 0.9)),), HERE | {"board": "edge"})
    assert (found(A, [B]), found(B, [A])) == (1.2, 1.0)  # nothing is faster beside others
    assert found(A, [C]) == pytest.approx(1.05)
    assert found(A, [B, C]) == pytest.approx(1.2 * 1.05)
    assert found(("m0", "board"), [B]) == found(A, [("m1", "CPU@0")]) == 1.0  # another machine, and the same device
    assert found.error is None
    assert (Interference()(A, [B]), Interference().error) == (1.0, None)


def test_models_with_their_own_threads_share_the_cores() -> None:
    whole, other = ("m3", "CPU"), ("m4", "CPU")
    overlapping = {frozenset(("CPU", core)) for core in HERE} | {frozenset(("CPU",))}
    found = Interference((pair(A, B, (1.2, 1.2)),), HERE | {"CPU": ""}, overlapping)
    assert found(whole, [A]) == 2.0  # half of the core
    assert found(whole, [A, B]) == 2.0  # the slowest core decides
    assert found(whole, [other, B]) == 3.0  # a third of the core
    assert found(A, [whole]) == 2.0
    assert found(A, [whole, B]) == pytest.approx(2.0 * 1.2)
    assert found(B, [C]) == pytest.approx(1.2)  # as the pair without a common core
    assert found.error is None


def test_each_factor_is_predicted_from_the_other_pairs_for_the_error() -> None:
    found = Interference((pair(A, B, (1.2, 1.2)), pair(A, C, (1.5, 1.5))), HERE)
    assert found.error == pytest.approx((0.3 / 1.2 + 0.3 / 1.5) / 2)


def test_pairs_of_much_loaded_models_are_measured_first_and_each_before_one_is_repeated() -> None:
    busy = {("m0", "a"): 0.5, ("m0", "b"): 0.4, ("m1", "a"): 0.3, ("m1", "b"): 0.3, ("m2", "a"): 0.1, ("m2", "board"): 0.9}
    machines = {"a": "", "b": "", "board": "edge"}
    found = pairs_by_load(busy, machines)
    assert found[:4] == [
        (("m0", "b"), ("m1", "a")),
        (("m0", "b"), ("m2", "a")),
        (("m1", "b"), ("m2", "a")),
        (("m0", "a"), ("m0", "b")),
    ]
    assert len(found) == len(set(found)) == 6
    whole = busy | {("m0", "all"): 0.2, ("m2", "all"): 0.05}
    overlapping = {frozenset(("all", device)) for device in ("a", "b", "all")}
    found = pairs_by_load(whole, machines | {"all": ""}, overlapping)
    assert not any("all" in (first, second) for (_, first), (_, second) in found)


def test_models_share_a_device_if_they_would_slow_each_other_much() -> None:
    options = [[option(0.010, "a")], [option(0.010, "a"), option(0.010, "b")]]
    load = workload(20.0, 20.0)
    assert choose(Predictor(load, options, {}), [(0, 0)]) == (0, 1)
    predict = Predictor(load, options, {}, slowdown=lambda one, others: 4.0 ** len(others))
    assert predict((0, 1))[0].p95 > 0.02
    assert choose(predict, [(0, 0)]) == (0, 0)
    assert replace(predict, workload=load)((0, 1))[0].p95 == predict((0, 1))[0].p95


def test_the_whole_cpu_is_left_if_others_would_take_its_cores() -> None:
    """A model with its own threads on all cores is fastest alone; beside models that keep these busy, one core is better."""
    whole = option(0.008, "CPU")
    whole = replace(whole, replicas=tuple(replace(one, shared=False) for one in whole.replicas))
    options = [[whole, option(0.010, "a")], [option(0.002, "a"), option(0.002, "b")]]
    overlapping = {frozenset(("CPU", core)) for core in ("a", "b")}
    slowdown = Interference((), dict.fromkeys(("CPU", "a", "b"), ""), overlapping)
    for rate, chosen in ((1.0, 0), (400.0, 1)):
        predict = Predictor(workload(20.0, rate, limit=1.0), options, {}, slowdown=slowdown)
        assert choose(predict, [(0, 0)])[0] == chosen
