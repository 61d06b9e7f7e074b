from __future__ import annotations

import ctypes

import numpy as np
import pytest

from placeit.core.problem import Problem
from placeit.placers.critical_path import CriticalPath
from placeit.placers.metis import Metis, partition
from placeit.simulator.simulate import SimulatedCost, simulate
from placeit.testing.problems import random_problem


def chains(count, length, devices, speed=None):
    """Chains of equal ops that exchange nothing."""
    speed = np.ones(devices) if speed is None else np.array(speed, float)
    edges = [(c * length + i, c * length + i + 1) for c in range(count) for i in range(length - 1)]
    compute = np.ones((count * length, 1)) / speed
    return Problem.from_arrays(compute, edges, [5.0] * len(edges), np.ones((devices, devices)), np.zeros((devices, devices)))


def place(placer, problem):
    return placer.place(problem, SimulatedCost(problem), seed=0, evaluations=None)


def test_chains_stay_whole_and_are_shared_out_evenly():
    problem = chains(4, 10, 2)
    placement = place(Metis(), problem).reshape(4, 10)
    assert (placement == placement[:, :1]).all()
    assert np.bincount(placement[:, 0]).tolist() == [2, 2]


def test_a_faster_device_gets_a_larger_part():
    placement = place(Metis(), chains(40, 3, 2, speed=[3, 1]))
    assert 80 <= np.count_nonzero(placement == 0) <= 100


def test_more_devices_than_are_worth_trying_in_all_orders_still_get_the_parts_that_suit_them():
    speeds = [1, 1, 1, 1, 1, 1, 1, 8]
    problem = chains(60, 2, 8, speeds)
    placement = place(Metis(), problem)
    assert np.bincount(placement, minlength=8).argmax() == 7


def test_there_are_no_more_parts_than_ops():
    for seed in range(40):
        problem = random_problem(2 + seed % 6, 2, seed)
        assert partition(problem, 12).tolist() == partition(problem, len(problem)).tolist()


def test_parts_go_where_their_ops_can_run():
    compute = np.full((20, 2), 1.0)
    compute[:10, 0] = np.inf
    edges = [(i, i + 1) for i in range(19) if i != 9]
    problem = Problem.from_arrays(compute, edges, [9.0] * 18, np.ones((2, 2)), np.zeros((2, 2)))
    assert place(Metis(), problem).tolist() == [1] * 10 + [0] * 10


def test_critical_path_shares_out_equal_chains_and_its_best_run_is_kept():
    problem = chains(4, 10, 2)
    assert simulate(problem, place(CriticalPath(), problem)[None])[0] == 20
    problem = random_problem(40, 4, 7)
    one, many = (simulate(problem, place(CriticalPath(runs=runs), problem)[None])[0] for runs in (1, 50))
    assert many <= one


def test_small_graphs_and_several_devices_make_metis_say_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for seed in range(60):
        ops, devices = int(rng.integers(1, 30)), int(rng.integers(2, 12))
        pairs = [(u, v) for v in range(ops) for u in range(v) if rng.random() < 3 / ops]
        work = rng.random((ops, 1)) ** 6 + 0.01  # of which a few ops have most
        compute = work * rng.uniform(0.8, 1.2, (ops, devices))
        free = np.zeros((devices, devices))
        problem = Problem.from_arrays(compute, pairs, rng.random(len(pairs)), free + 1.0, free)
        problem.check(Metis(ways=1).place(problem, SimulatedCost(problem), seed=seed, evaluations=None))
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr() == ("", "")
