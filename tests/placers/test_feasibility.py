from __future__ import annotations

import contextlib
import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import InfeasibleError
from placeit.core.problem import Problem
from placeit.placers.feasibility import fits, has_room, pack, random_placements, repair
from placeit.placers.registry import parse_placer
from placeit.simulator.cost_functions import TotalCost
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput_bound import ThroughputCost
from placeit.testing.problems import random_problem


def packing_problem(sizes, memory, compute=None):
    devices = len(memory)
    compute = np.ones((len(sizes), devices)) if compute is None else compute
    links = (np.ones((devices, devices)), np.zeros((devices, devices)))
    return Problem.from_arrays(compute, [], [], *links, param_bytes=sizes, memory=memory)


@settings(max_examples=100)
@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    memory=st.lists(st.integers(0, 9), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_packing_finds_a_placement_exactly_when_there_is_one(sizes, memory, seed):
    rng = np.random.default_rng(seed)
    compute = np.where(rng.random((len(sizes), len(memory))) < 0.7, 1.0, np.inf)
    compute[:, 0] = np.where(np.isinf(compute).all(axis=1), 1.0, compute[:, 0])
    problem = packing_problem(sizes, memory, compute)
    every = (np.array(p, np.int32) for p in itertools.product(range(len(memory)), repeat=len(sizes)))
    if any(fits(problem, placement) for placement in every):
        problem.check(pack(problem))
    else:
        with pytest.raises(InfeasibleError, match="No placement was found in which the weights fit"):
            pack(problem)


def test_packing_backtracks_where_best_fit_goes_wrong():
    # 4 on the faster device first leaves no room for 3 + 3 there, and the other holds only 4 + 1
    compute = np.array([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [2.0, 1.0]])
    assert pack(packing_problem([4, 3, 3, 1], [6, 5], compute)).tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize(("memory", "factor"), [([6, 6], "1.5"), ([7.9, 7.9], "1.02"), ([4, 4], "2")])
def test_where_nothing_fits_the_error_says_how_much_more_memory_is_enough(memory, factor):
    with pytest.raises(InfeasibleError, match=f"With {factor} times the memory of each device, they would fit"):
        pack(packing_problem([4, 4, 4], memory))


@settings(max_examples=60)
@given(seed=st.integers(0, 2**20), tight=st.booleans())
def test_repair_returns_a_valid_placement_and_keeps_one_that_already_is(seed, tight):
    problem = random_problem(15, 3, seed, everywhere=0.6, tight=tight)
    broken = np.random.default_rng(seed).integers(3, size=15).astype(np.int32)
    fixed = problem.check(repair(problem, broken))
    assert repair(problem, fixed).tolist() == fixed.tolist()


def test_repair_moves_the_op_that_loses_least_time_per_byte():
    problem = packing_problem([5, 5, 5], [10, 10], np.array([[1.0, 9.0], [1.0, 2.0], [1.0, 9.0]]))
    assert repair(problem, np.zeros(3, np.int32)).tolist() == [0, 1, 0]


def test_random_placements_use_every_feasible_device_and_differ():
    problem = random_problem(10, 3, everywhere=0.6)
    drawn = random_placements(problem, 200, np.random.default_rng(0))
    for placement in drawn:
        problem.check(placement)
    for op in range(10):
        assert set(drawn[:, op].tolist()) == set(np.flatnonzero(problem.feasible[op]).tolist())


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 4), min_size=3, max_size=6),
    shared=st.integers(1, 5),
    memory=st.lists(st.integers(0, 12), min_size=2, max_size=3),
    seed=st.integers(0, 1000),
)
def test_a_device_holds_a_weight_that_several_of_its_ops_read_once(sizes, shared, memory, seed):
    rng = np.random.default_rng(seed)
    readers = np.sort(rng.choice(len(sizes), 2, replace=False)).tolist()
    once = np.array(sizes, float)
    once[readers[0]] += shared
    plain = packing_problem(once, memory)
    problem = dataclasses.replace(plain, shared=((float(shared), tuple(readers)),))
    placement = rng.integers(len(memory), size=len(sizes)).astype(np.int32)
    held = np.bincount(placement, sizes, len(memory))
    for device in {int(placement[v]) for v in readers}:
        held[device] += shared
    np.testing.assert_allclose(problem.held(placement[None])[0], held)
    assert fits(problem, placement) == bool((held <= memory).all())
    assert np.isfinite(SimulatedCost(problem)(placement)[0]) == fits(problem, placement)
    assert np.isfinite(TotalCost(problem)(placement)[0]) == fits(problem, placement)
    assert np.isfinite(ThroughputCost(problem)(placement)[0]) == fits(problem, placement)
    with contextlib.suppress(InfeasibleError):
        problem.check(pack(problem))
    if fits(problem, placement):
        room = has_room(problem, placement)
        for op, device in itertools.product(range(len(sizes)), range(len(memory))):
            moved = placement.copy()
            moved[op] = device
            assert device == placement[op] or room[op, device] == fits(problem, moved)


@pytest.mark.parametrize(("placer", "seconds"), [("dp", 4.0), ("annealing", 3.0), ("local-search", 3.0), ("exact", 3.0)])
def test_a_decoder_whose_embedding_is_also_its_head_is_divided_within_caps(placer, seconds):
    weights = np.array([110.0, 10.0, 10.0, 10.0, 10.0, 10.0])  # the first and the last op read one weight of 100 bytes
    edges = [[v, v + 1] for v in range(5)]
    links = (np.full((2, 2), np.inf), np.zeros((2, 2)))
    arrays = (np.ones((6, 2)), edges, np.zeros(5), *links)
    problem = Problem.from_arrays(*arrays, param_bytes=weights, memory=[150, 125], shared=((100.0, (0, 5)),))
    cost = ThroughputCost(problem)
    found = parse_placer(placer).place(problem, cost, seed=0, evaluations=None)
    assert cost(problem.check(found))[0] == seconds
