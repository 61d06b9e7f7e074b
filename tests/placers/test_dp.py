"""Contiguous splits are optimal for their order, for the busiest device and for the sum of all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit import _core
from placeit.core import clock
from placeit.core.problem import Problem
from placeit.placers.annealing import Annealing
from placeit.placers.dp import Dp, splits
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import compiled
from placeit.simulator.throughput_bound import ThroughputCost
from placeit.testing.oracle import busiest


def problem_of(seed: int, ops: int, devices: int, *, alike: bool) -> Problem:
    """Draw a graph with tensors of several consumers, free links, and devices that are alike in pairs or all unequal."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(devices) // (2 if alike else 1)
    compute = rng.uniform(1, 3, (ops, devices))[:, kinds]
    compute[rng.random(compute.shape) < 0.1] = np.inf
    compute[:, kinds == kinds[0]] = np.where(np.isfinite(compute[:, :1]), compute[:, :1], 2.0)
    edges = [(u, v) for u in range(ops) for v in range(u + 1, ops) if rng.random() < 0.4]
    sizes = rng.uniform(0, 2, ops)
    cut = rng.uniform(0, 0.5, (ops, devices))[:, kinds]
    return Problem.from_arrays(
        compute[:, kinds],
        np.array(edges, np.int32).reshape(-1, 2),
        [sizes[u] for u, _ in edges],
        np.full((devices, devices), np.inf),
        np.zeros((devices, devices)),
        edge_tensor=[u for u, _ in edges],
        cut=[cut[u] for u, _ in edges] if edges else None,
        param_bytes=rng.integers(0, 3, ops),
        memory=rng.uniform(2, 2 * ops, devices)[kinds],
    )


def contiguous(problem: Problem) -> list[np.ndarray]:
    """All placements that divide the problem's order into one run for each device, in any order of the devices."""
    found = []
    ops, devices = len(problem), problem.devices
    for borders in itertools.combinations_with_replacement(range(ops + 1), devices - 1):
        runs = np.diff([0, *borders, ops])
        for turn in itertools.permutations(range(devices)):
            place = np.empty(ops, np.int32)
            place[problem.order] = np.repeat(turn, runs)
            found.append(place)
    return found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ops=st.integers(1, 6), devices=st.integers(1, 4), alike=st.booleans())
def test_a_split_is_the_best_of_all_that_there_are(seed: int, ops: int, devices: int, alike: bool) -> None:
    problem = problem_of(seed, ops, devices, alike=alike)
    kinds = np.arange(devices, dtype=np.int32) // (2 if alike else 1)
    every = contiguous(problem)
    fitting = [place for place in every if np.isfinite(ThroughputCost(problem)(place)[0])]
    for cost in (_core.SplitCost.busiest, _core.SplitCost.sum):
        place = np.full(ops, -1, np.int32)
        borders = np.arange(ops + 1, dtype=np.int32)
        seconds = _core.contiguous_split(compiled(problem), np.array(problem.order), borders, kinds, cost, place)
        if not fitting:
            assert (seconds, set(place.tolist())) == (np.inf, {-1})
            continue
        value = busiest if cost == _core.SplitCost.busiest else busy_sum
        assert seconds == pytest.approx(min(value(problem, one) for one in fitting))
        assert value(problem, place) == pytest.approx(seconds)


def busy_sum(problem: Problem, place: np.ndarray) -> float:
    """Seconds of all devices together, a tensor counted once on each device."""
    return sum(busiest(keep(problem, place, d), place) for d in range(problem.devices))


def keep(problem: Problem, place: np.ndarray, device: int) -> Problem:
    """The problem with the costs of one device alone."""
    compute, cut = problem.compute.copy(), problem.cut.copy()
    compute[place != device] = 0.0
    cut[:, [d for d in range(problem.devices) if d != device]] = 0.0
    return Problem.from_arrays(
        compute, problem.edges, problem.edge_bytes, problem.bandwidth, problem.latency, edge_tensor=problem.edge_tensor, cut=cut
    )


@pytest.mark.parametrize("unlike", [1, 7, 40])
def test_a_long_graph_on_many_devices_is_split_too(unlike: int) -> None:
    """Of more ops than borders, and more classes of devices than can be combined."""
    rng = np.random.default_rng(0)
    ops = 3000
    chain = np.stack([np.arange(ops - 1), np.arange(1, ops)], axis=1)
    speeds = np.r_[np.linspace(1, 2, unlike), np.full(40 - unlike, 2.0)]
    problem = Problem.from_arrays(
        rng.uniform(1, 2, (ops, 1)) * speeds, chain, np.full(ops - 1, 1.0), np.full((40, 40), 1e9), np.full((40, 40), 1e-6)
    )
    cost = ThroughputCost(problem)
    found = Dp(orders=1).place(problem, cost, seed=0, evaluations=None)
    assert (np.diff(found) != 0).sum() <= 39
    assert cost(found)[0] <= 1.4 * problem.compute.max(axis=1).sum() / 40  # an even share of the work on the slowest devices


def test_annealing_starts_from_splits_where_one_request_is_not_all() -> None:
    problem = problem_of(5, 40, 4, alike=True)
    cost = ThroughputCost(problem)
    best = min(float(cost(split)[0]) for split in splits(problem, 0, 8, busiest=True))
    assert float(cost(Annealing(evaluations=100).place(problem, cost, seed=0, evaluations=None))[0]) <= best


def test_the_first_split_is_there_when_the_deadline_has_passed() -> None:
    problem = problem_of(5, 40, 4, alike=False)
    late = Dp().place(problem, SimulatedCost(problem), seed=0, evaluations=None, deadline=clock.now() - 1)
    problem.check(late)


def test_what_is_no_order_is_refused() -> None:
    problem = problem_of(3, 4, 2, alike=False)
    tables, busiest = compiled(problem), _core.SplitCost.busiest
    place, kinds = np.empty(4, np.int32), np.array([0, 1], np.int32)
    good, borders = np.array(problem.order), np.arange(5, dtype=np.int32)
    for order, cuts, classes, said in (
        (np.zeros(4, np.int32), borders, kinds, "every op once"),
        (np.arange(4, dtype=np.int32)[::-1].copy(), borders, kinds, "producers before consumers"),
        (good, borders[1:], kinds, "'borders' must ascend"),
        (good, np.array([0, 2, 2, 4], np.int32), kinds, "'borders' must ascend"),
        (good, borders, np.array([1, 1], np.int32), "without a gap"),
    ):
        with pytest.raises(ValueError, match=said):
            _core.contiguous_split(tables, order, cuts, classes, busiest, place)


def test_a_split_for_throughput_keeps_slow_links_as_little_busy_as_devices() -> None:
    """The cut where devices are most alike sends 10 bytes over a link of 1 byte per second; the next one sends 1."""
    chain = np.array([[0, 1], [1, 2], [2, 3]])
    slow, free = np.full((2, 2), 1.0), np.zeros((2, 2))
    problem = Problem.from_arrays(np.full((4, 2), 2.0), chain, [1.0, 10.0, 10.0], slow, free)
    cost = ThroughputCost(problem)
    found = Dp().place(problem, cost, seed=0, evaluations=None)
    assert float(cost(found)[0]) == 6.0


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), ops=st.integers(2, 6), devices=st.integers(2, 3), alike=st.booleans())
def test_annealing_finds_the_best_of_all_placements_of_a_small_graph(seed: int, ops: int, devices: int, alike: bool) -> None:
    problem = problem_of(seed, ops, devices, alike=alike)
    cost = ThroughputCost(problem)
    every = np.array(list(itertools.product(range(devices), repeat=ops)), np.int32)
    least = float(cost(every).min())
    if np.isfinite(least):
        found = Annealing(evaluations=20_000).place(problem, cost, seed=0, evaluations=None)
        assert float(cost(found)[0]) == pytest.approx(least)
