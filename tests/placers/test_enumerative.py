from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit import _core
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.problem import Problem
from placeit.learning.workloads.tensor_graphs import TENSOR_GRAPHS, tensor_graph
from placeit.placers.critical_path import CriticalPath
from placeit.placers.enumerative import Enumerative, parallel_sets
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem


def cluster(count: int) -> Cluster:
    machines = tuple(Device(f"d{n}", "described", flops_per_s=1e12, bytes_per_s=1e11, op_overhead_s=1e-6) for n in range(count))
    names = [machine.name for machine in machines]
    return Cluster(machines, {(a, b): Link(1e10, 1e-6, "described") for a in names for b in names if a != b})


def answer(problem: Problem, **options: int) -> np.ndarray:
    return Enumerative(**options).place(problem, SimulatedCost(problem), seed=0, evaluations=None)


def sharded(problem: Problem, sets: list[list[int]]) -> Problem:
    """The same with names that say which ops are shards of one."""
    names = {v: f"set{number}[{place}]" for number, ops in enumerate(sets) for place, v in enumerate(ops)}
    return Problem.from_arrays(
        problem.compute,
        problem.edges,
        problem.edge_bytes,
        problem.bandwidth,
        problem.latency,
        edge_tensor=problem.edge_tensor,
        op_names=[names.get(v, f"op{v}") for v in range(len(problem))],
    )


@pytest.mark.parametrize("name", TENSOR_GRAPHS)
@pytest.mark.parametrize("shards", [3, 4])
def test_sets_are_the_meta_ops_of_a_program(name: str, shards: int) -> None:
    program = tensor_graph(name, shards=shards)
    problem = program.problem(cluster(2))
    found = {frozenset(problem.op_names[v] for v in ops) for ops in parallel_sets(problem)}
    assert found == {frozenset(ops) for meta in program.meta_ops for ops in (meta.shard_ops, meta.reduce_ops) if ops}


@given(st.integers(0, 2**20), st.data())
@settings(max_examples=40)
def test_sets_hold_every_op_once_and_each_comes_after_what_it_reads(seed: int, data: st.DataObject) -> None:
    problem = random_problem(12, 2, seed, everywhere=1.0)
    names = data.draw(st.lists(st.sampled_from("abcd"), min_size=12, max_size=12))
    labelled = sharded(problem, [[v for v in range(12) if names[v] == name] for name in "abcd"])
    sets = parallel_sets(labelled)
    assert sorted(itertools.chain.from_iterable(sets)) == list(range(12))
    turn = {v: number for number, ops in enumerate(sets) for v in ops}
    assert all(turn[u] < turn[v] for u, v in problem.edges.tolist())


@given(st.integers(0, 2**20), st.integers(2, 7), st.integers(1, 4))
@settings(max_examples=40)
def test_a_set_is_spread_evenly_in_the_best_of_all_ways(seed: int, shards: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    sources = devices + 1
    edges = [(u, sources + v) for u in range(sources) for v in range(shards)]
    problem = Problem.from_arrays(
        np.ones((sources + shards, devices)),
        edges,
        rng.uniform(1, 100, len(edges)),
        rng.uniform(1, 2, (devices, devices)),
        np.zeros((devices, devices)),
    )
    problem = sharded(problem, [list(range(sources, sources + shards))])
    found = answer(problem)

    def transfers(placement: np.ndarray) -> float:
        return sum(problem.comm(e)[placement[u], placement[v]] for e, (u, v) in enumerate(problem.edges.tolist()))

    ways = itertools.product(range(devices), repeat=shards)
    even = [way for way in ways if max(way.count(d) for d in way) <= -(-shards // devices)]
    best = min(transfers(np.array([*found[:sources], *way])) for way in even)
    assert max(np.bincount(found[sources:])) <= -(-shards // devices)
    assert transfers(found) == pytest.approx(best, abs=1e-6)


def test_a_tensor_that_is_on_a_device_already_costs_nothing_more() -> None:
    # 0 and 1 on two devices; 2 and 3 cross; 4 reads what 2 brought to device 1
    edges = [(0, 2), (1, 3), (0, 3), (0, 4), (3, 4)]
    problem = Problem.from_arrays(
        [[1, 9], [9, 1], [np.inf, 1], [1, 1], [1, 1]],
        edges,
        [5, 9, 5, 5, 9],
        np.ones((2, 2)),
        np.zeros((2, 2)),
        edge_tensor=[0, 1, 0, 0, 2],
    )
    assert answer(problem).tolist() == [0, 1, 1, 1, 1]


def test_ops_that_can_run_in_one_place_only_need_not_be_spread() -> None:
    compute = np.ones((6, 3))
    compute[:5, 1:] = np.inf
    problem = sharded(Problem.from_arrays(compute, [], [], np.ones((3, 3)), np.zeros((3, 3))), [list(range(6))])
    assert answer(problem).tolist()[:5] == [0] * 5
    assert answer(problem, limit=1).tolist()[:5] == [0] * 5


@pytest.mark.parametrize("name", TENSOR_GRAPHS)
def test_on_sharded_programs_it_is_about_as_good_as_the_critical_path(name: str) -> None:
    problem = tensor_graph(name, shards=4, paper_sizes=True).problem(cluster(4))
    cost = SimulatedCost(problem)
    other = CriticalPath().place(problem, cost, seed=0, evaluations=None)
    assert cost(answer(problem))[0] <= 1.15 * cost(other)[0]
    assert cost(answer(problem))[0] <= 0.5 * cost(np.zeros(len(problem), np.int32))[0]


@pytest.mark.parametrize(
    ("seconds", "devices", "message"),
    [
        (np.zeros((3, 2), np.float32), np.zeros(3, np.int32), "'seconds' must be an array of float64"),
        (np.zeros((2, 3)).T, np.zeros(3, np.int32), "'seconds' must be contiguous"),
        (np.zeros((3, 0)), np.zeros(3, np.int32), "'seconds' has no devices"),
        (np.full((3, 2), np.inf), np.zeros(3, np.int32), "'seconds' has an op that can run on no device"),
        (np.full((3, 2), np.nan), np.zeros(3, np.int32), "'seconds' holds nan"),
        (np.zeros((3, 2)), np.zeros(2, np.int32), "'devices' has 2 values; expected 3"),
    ],
)
def test_a_bad_table_of_seconds_is_an_error_that_names_it(seconds: np.ndarray, devices: np.ndarray, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        _core.spread(seconds, 100, devices)
