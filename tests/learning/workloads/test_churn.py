from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import PlacementError, UsageError
from placeit.learning.workloads.churn import carry_placement, churn
from placeit.learning.workloads.device_networks import DeviceNetworkParameters, problem_of, random_device_network
from placeit.learning.workloads.task_graphs import TaskGraphParameters, random_task_graph
from placeit.placers.feasibility import random_placements

SEEDS = st.integers(0, 2**32)


def first_network(seed: int = 0, **values: float):
    parameters = DeviceNetworkParameters(**{"devices": 20, "support": 0.1, **values})
    return random_device_network(parameters, np.random.default_rng(seed))


@settings(max_examples=25)
@given(SEEDS)
def test_there_are_always_16_to_20_devices_and_every_type_of_hardware(seed):
    sequence = list(islice(churn(first_network(seed), np.random.default_rng(seed)), 25))
    assert len(sequence[0]) == 20
    assert {len(network) for network in sequence} <= set(range(16, 21))
    assert all(len(a) != len(b) for a, b in pairwise(sequence))
    assert all(network.supports.any(axis=0).all() for network in sequence)


@settings(max_examples=25)
@given(SEEDS, st.floats(0.1, 1.0))
def test_devices_keep_their_names_and_replacements_are_slower_by_the_given_share(seed, capacity):
    sequence = list(islice(churn(first_network(seed), np.random.default_rng(seed), capacity=capacity), 12))
    start = sequence[0]
    for network in sequence:
        assert len(set(network.names)) == len(network)
        slot = np.array([start.names.index(name.partition(".")[0]) for name in network.names])
        share = capacity ** np.array([int(name.partition(".")[2] or 0) for name in network.names])
        pair = np.outer(share, share)
        here = np.ix_(slot, slot)
        assert network.speed == pytest.approx(start.speed[slot] * share)
        assert network.delay * pair == pytest.approx(start.delay[here])
        between = ~np.eye(len(network), dtype=bool)
        assert network.bandwidth[between] == pytest.approx((start.bandwidth[here] * pair)[between])
        assert np.isinf(np.diag(network.bandwidth)).all()
        assert np.array_equal(network.supports, start.supports[slot])


def test_a_network_only_loses_or_only_gains_devices_from_one_step_to_the_next():
    for a, b in pairwise(islice(churn(first_network(), np.random.default_rng(0)), 30)):
        lost, new = set(a.names) - set(b.names), set(b.names) - set(a.names)
        assert bool(lost) != bool(new)
        assert all("." in name for name in new)


def test_a_network_gets_slower_as_it_changes():
    mean = [network.speed.mean() for network in islice(churn(first_network(), np.random.default_rng(0)), 60)]
    assert mean[-1] < 0.5 * mean[0]


def test_the_same_seed_gives_the_same_changes():
    runs = [[n.names for n in islice(churn(first_network(), np.random.default_rng(9)), 10)] for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"min_devices": 20}, "below the number"),
        ({"min_devices": 5}, "above the number of types"),
        ({"capacity": 0}, "above 0"),
    ],
)
def test_changes_that_cannot_be_are_refused(options, said):
    with pytest.raises(UsageError, match=said):
        churn(first_network(), np.random.default_rng(0), **options)


@settings(max_examples=25)
@given(SEEDS)
def test_a_placement_is_carried_over_by_name_and_stays_feasible(seed):
    rng = np.random.default_rng(seed)
    graph = random_task_graph(TaskGraphParameters(tasks=12), rng)
    problems = [problem_of(graph, network) for network in islice(churn(first_network(seed), rng), 8)]
    placement = random_placements(problems[0], 1, rng)[0]
    for before, after in pairwise(problems):
        carried = carry_placement(placement, before, after, rng)
        assert after.check(carried).tolist() == carried.tolist()
        for v in range(len(before)):
            name = before.device_names[placement[v]]
            assert name not in after.device_names or after.device_names[carried[v]] == name
        placement = carried


def test_a_placement_of_another_problem_is_not_carried_over():
    problem = problem_of(random_task_graph(TaskGraphParameters(), np.random.default_rng(0)), first_network())
    with pytest.raises(PlacementError, match="has 3 ops"):
        carry_placement(np.zeros(3, np.int32), problem, problem, np.random.default_rng(0))
