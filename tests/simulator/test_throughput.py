import numpy as np
import pytest
from hypothesis import strategies as st

from placeit.core.errors import PlacementError
from placeit.core.problem import Problem
from placeit.simulator.scheduler import Rules
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.throughput_bound import ThroughputCost, bottleneck, relative_throughput
from placeit.testing.oracle import busiest
from tests.simulator import slow_simulator as slow
from tests.simulator.slow_simulator import holds_for

seeds = st.integers(0, 2**32 - 1)


def some_placements(problem, seed, count=4):
    return np.random.default_rng([seed, 1]).integers(0, problem.devices, (count, len(problem)))


@holds_for(seed=seeds, ops=st.integers(1, 14), devices=st.integers(1, 3), cut=st.booleans(), conflicts=st.booleans())
def test_the_bound_is_that_of_a_slow_and_simple_reference(seed, ops, devices, cut, conflicts):
    problem = slow.random_problem(seed, ops, devices, cut=cut, conflicts=conflicts)
    placements = some_placements(problem, seed)
    ours = ThroughputCost(problem)(placements)
    assert ours == pytest.approx([busiest(problem, place) for place in placements])
    for place, seconds in zip(placements, ours, strict=True):
        found = bottleneck(problem, place)
        assert found.seconds == found.busy[found.name] == max(found.busy.values()) == seconds


@holds_for(
    seed=seeds,
    ops=st.integers(1, 10),
    devices=st.integers(1, 4),
    cut=st.booleans(),
    conflicts=st.booleans(),
    queue=st.sampled_from(["fifo", "priority"]),
    flights=st.sampled_from([None, 1, 3]),
)
def test_no_simulation_serves_requests_in_less_than_the_bound(seed, ops, devices, cut, conflicts, queue, flights):
    problem = slow.random_problem(seed, ops, devices, cut=cut, conflicts=conflicts)
    placements = some_placements(problem, seed)
    simulated = SimulatedCost(problem, rules=Rules(queue=queue), requests=12, in_flight=flights)(placements) / 12
    assert (ThroughputCost(problem)(placements) <= simulated * (1 + 1e-9)).all()


@holds_for(seed=seeds, ops=st.integers(1, 10), devices=st.integers(1, 4), max_examples=30)
def test_a_pipeline_with_enough_in_flight_comes_close_to_the_bound(seed, ops, devices):
    rng = np.random.default_rng(seed)
    pairs = np.stack([np.arange(ops - 1), np.arange(1, ops)], axis=1)
    problem = Problem.from_arrays(
        rng.uniform(1, 3, (ops, devices)),
        pairs,
        rng.uniform(0, 2, ops - 1),
        rng.uniform(0.5, 2, (devices, devices)),
        rng.uniform(0, 0.5, (devices, devices)),
        cut=rng.uniform(0, 0.5, (ops - 1, devices)),
    )
    placements = np.sort(some_placements(problem, seed), axis=1)  # no device is come back to
    requests = 200
    simulated = SimulatedCost(problem, requests=requests)(placements) / requests
    bound = ThroughputCost(problem)(placements)
    # the first request fills the pipeline: 4 s at most for each op and each transfer
    assert (simulated <= bound + 2 * ops * 6 / requests).all()


def two_conflicting(memory=None):
    """Three devices of which the first two share cores; op 0 -> ops 1 and 2 by one tensor; op 2 cannot run on the third."""
    return Problem.from_arrays(
        [[1, 1, 1], [2, 2, 2], [4, 4, np.inf]],
        [[0, 1], [0, 2]],
        [10, 10],
        np.full((3, 3), 10.0),
        np.full((3, 3), 0.5),
        edge_tensor=[0, 0],
        param_bytes=[1, 1, 1],
        memory=memory,
        conflicts=[[False, True, False], [True, False, False], [False, False, False]],
        device_names=["CPU@0", "CPU@0-1", "CPU@2"],
    )


def test_the_bottleneck_is_named():
    problem = two_conflicting()
    shared = bottleneck(problem, [2, 0, 1])
    assert (shared.name, shared.seconds) == ("CPU@0, CPU@0-1", 6)
    assert shared.busy == {
        "CPU@0": 2,
        "CPU@0-1": 4,
        "CPU@2": 1,
        "CPU@0, CPU@0-1": 6,
        "CPU@2 -> CPU@0": 1.5,
        "CPU@2 -> CPU@0-1": 1.5,
    }
    fork = Problem.from_arrays([[1, 1]] * 3, [[0, 1], [0, 2]], [70, 70], np.full((2, 2), 10.0), np.zeros((2, 2)))
    link = bottleneck(fork, [0, 1, 1])  # two tensors, one after the other
    assert (link.name, link.seconds) == (" -> ".join(fork.device_names), 14)
    assert bottleneck(two_conflicting(), [0, 0, 0]).seconds == 7


def test_what_cannot_run_or_does_not_fit_costs_infinity():
    assert ThroughputCost(two_conflicting())([[0, 0, 2], [0, 0, 1]]).tolist() == [np.inf, 7]
    assert ThroughputCost(two_conflicting(memory=[2, 3, 3]))([[0, 0, 0], [1, 1, 1]]).tolist() == [np.inf, 7]
    with pytest.raises(PlacementError, match="cannot run"):
        bottleneck(two_conflicting(), [0, 0, 2])


def test_strange_placements_are_refused():
    cost = ThroughputCost(two_conflicting())
    with pytest.raises(PlacementError, match=r"rows of 3 device numbers"):
        cost([[0, 0]])
    with pytest.raises(PlacementError, match=r"0\.\.2"):
        cost([[0, 0, 3]])


def test_relative_throughput_is_the_share_of_a_rate_that_is_served():
    assert relative_throughput([0.0, 0.05, 0.1, 0.4, np.inf], 10).tolist() == [1, 1, 1, 0.25, 0]
    assert relative_throughput(0.2, 10) == 0.5
