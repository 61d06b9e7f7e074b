"""The host's part of a request: all simulators add it to the makespan once, and nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from placeit.core.errors import ProblemError
from placeit.core.problem import Problem
from placeit.placers.bound import lower_bound
from placeit.simulator.scheduler import Rules
from placeit.simulator.simulate import SimulatedCost, schedule, simulate
from placeit.simulator.slack import slack
from placeit.simulator.throughput_bound import ThroughputCost
from tests.simulator import slow_simulator as slow
from tests.simulator.slow_simulator import holds_for

seeds = st.integers(0, 2**32 - 1)


def with_host(problem: Problem, seed: int) -> Problem:
    """The same problem with a host's part that adds without rounding, as all its other costs do."""
    return replace(problem, host=np.random.default_rng([seed, 7]).integers(1, 9, problem.devices + 1) / 2)


def placements(problem: Problem, seed: int, count: int = 6) -> np.ndarray:
    """Some on several devices, and one on each device."""
    some = np.random.default_rng([seed, 1]).integers(0, problem.devices, (count, len(problem)))
    return np.concatenate([some, np.repeat(np.arange(problem.devices)[:, None], len(problem), axis=1)]).astype(np.int32)


def host_of(problem: Problem, place: np.ndarray) -> float:
    used = np.unique(place)
    return float(problem.host[used[0] if len(used) == 1 else problem.devices])


@holds_for(
    seed=seeds,
    ops=st.integers(1, 12),
    devices=st.integers(1, 4),
    links=st.sampled_from(("contention-free", "channel")),
    queue=st.sampled_from(("fifo", "priority", "planned")),
    conflicts=st.booleans(),
    memory=st.booleans(),
    requests=st.integers(1, 3),
    max_examples=150,
)
def test_it_is_added_to_every_makespan_once(
    seed: int, ops: int, devices: int, links: str, queue: str, *, conflicts: bool, memory: bool, requests: int
) -> None:
    free = slow.random_problem(seed, ops, devices, cut=True, conflicts=conflicts)
    problem, rules = with_host(free, seed), Rules(links, queue)
    some = placements(problem, seed)
    host = [host_of(problem, place) for place in some]
    options = {"rules": rules, "memory": memory, "requests": requests}
    before, after = simulate(free, some, **options), simulate(problem, some, **options)
    np.testing.assert_array_equal(after, before + host)
    for place, makespan, extra in zip(some, after, host, strict=True):
        if requests == 1:
            trace = slow.run(free, place, links, queue)
            assert makespan == max(trace.finish.values()) + extra
        ours, theirs = (schedule(one, place, rules=rules, requests=requests) for one in (problem, free))
        assert ours.makespan == makespan == theirs.makespan + extra
        for what in ("start", "finish", "busy", "peak_memory"):
            np.testing.assert_array_equal(getattr(ours, what), getattr(theirs, what))
        np.testing.assert_array_equal(ours.requests.ended, theirs.requests.ended)


@holds_for(seed=seeds, ops=st.integers(1, 10), devices=st.integers(1, 3))
def test_a_problem_whose_host_adds_nothing_is_the_one_without(seed: int, ops: int, devices: int) -> None:
    free = slow.random_problem(seed, ops, devices)
    zero = replace(free, host=np.zeros(devices + 1))
    some = placements(free, seed)
    assert simulate(zero, some).tobytes() == simulate(free, some).tobytes()
    assert zero.key == free.key
    assert with_host(free, seed).key != free.key


@holds_for(seed=seeds, ops=st.integers(2, 8), devices=st.integers(2, 3), max_examples=40)
def test_bounds_slack_and_throughput_hold_beside_it(seed: int, ops: int, devices: int) -> None:
    free = slow.random_problem(seed, ops, devices)
    problem, some = with_host(free, seed), placements(free, seed)
    assert lower_bound(problem) == lower_bound(free) + problem.host.min()
    assert lower_bound(problem) <= simulate(problem, some).min() + 1e-9
    np.testing.assert_array_equal(ThroughputCost(problem)(some), ThroughputCost(free)(some))  # requests overlap it
    rules = Rules("channel", "priority")
    for place in some:
        ours, theirs = (slack(one, schedule(one, place, rules=rules)) for one in (problem, free))
        np.testing.assert_array_equal(ours, theirs)


def test_compiled_searches_value_placements_with_it() -> None:
    """Two equal ops side by side: a split is twice as fast, and the host makes it slower than one device."""
    free = Problem.from_arrays(np.ones((2, 2)), np.empty((0, 2), int), [], np.ones((2, 2)), np.zeros((2, 2)))
    problem = replace(free, host=np.array([0.0, 0.0, 1.5]))
    assert simulate(problem, [[0, 1], [0, 0]]).tolist() == [2.5, 2.0]
    assert SimulatedCost(problem).model is not None
    from placeit.placers.api import place

    assert len(set(place(free, "annealing").devices.tolist())) == 2
    assert len(set(place(problem, "annealing").devices.tolist())) == 1


def test_it_is_checked_and_goes_through_a_file(tmp_path: Path) -> None:
    problem = with_host(slow.random_problem(3, 5, 2), 3)
    problem.to_json(tmp_path / "problem.json")
    again = Problem.from_json(tmp_path / "problem.json")
    assert again.host.tolist() == problem.host.tolist()
    assert again.key == problem.key
    one = (np.ones((1, 1)), np.empty((0, 2), int), [], [[1.0]], [[0.0]])
    for bad in ([1.0], [1.0, -1.0], [np.nan, 0.0], [np.inf, 0.0]):
        with pytest.raises(ProblemError, match="host"):
            Problem.from_arrays(*one, host=bad)
