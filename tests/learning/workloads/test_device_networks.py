import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.core.errors import InfeasibleError, ProblemError, UsageError
from placeit.learning.workloads.device_networks import DeviceNetwork, DeviceNetworkParameters, problem_of, random_device_network
from placeit.learning.workloads.task_graphs import TaskGraph, TaskGraphParameters, random_task_graph
from placeit.simulator.simulate import simulate

PARAMETERS = st.builds(
    DeviceNetworkParameters,
    devices=st.integers(1, 20),
    mean_speed=st.floats(0.1, 1e6),
    mean_bandwidth=st.floats(0.1, 1e9),
    mean_delay=st.floats(0, 100),
    speed_heterogeneity=st.floats(0, 0.99),
    bandwidth_heterogeneity=st.floats(0, 0.99),
    hardware_types=st.integers(1, 8),
    support=st.floats(0, 1),
)
SEEDS = st.integers(0, 2**32)


def draw(seed: int = 0, **values: float) -> DeviceNetwork:
    return random_device_network(DeviceNetworkParameters(**values), np.random.default_rng(seed))


@given(PARAMETERS, SEEDS)
def test_speeds_links_and_delays_stay_within_their_bounds(parameters, seed):
    network = random_device_network(parameters, np.random.default_rng(seed))
    between = ~np.eye(len(network), dtype=bool)
    for values, mean, share in (
        (network.speed, parameters.mean_speed, parameters.speed_heterogeneity),
        (network.bandwidth[between], parameters.mean_bandwidth, parameters.bandwidth_heterogeneity),
        (network.delay[between], parameters.mean_delay, 1.0),
    ):
        slack = 1e-9 * mean
        assert (values >= mean * (1 - share) - slack).all()
        assert (values <= mean * (1 + share) + slack).all()
    assert np.isinf(np.diag(network.bandwidth)).all()
    assert not np.diag(network.delay).any()
    assert np.array_equal(network.bandwidth, network.bandwidth.T)
    assert np.array_equal(network.delay, network.delay.T)


@given(PARAMETERS, SEEDS)
def test_every_type_of_hardware_is_on_some_device_so_that_every_graph_can_be_placed(parameters, seed):
    rng = np.random.default_rng(seed)
    network = random_device_network(parameters, rng)
    assert network.supports.any(axis=0).all()
    graph = random_task_graph(TaskGraphParameters(tasks=6, hardware_types=parameters.hardware_types), rng)
    problem = problem_of(graph, network)
    assert problem.feasible.any(axis=1).all()


def test_without_any_support_each_type_is_on_one_device():
    assert draw(devices=6, support=0.0, hardware_types=9).supports.sum(axis=0).tolist() == [1] * 9


def test_means_are_those_asked_for():
    network = draw(devices=300, mean_speed=7.0, mean_bandwidth=40.0, mean_delay=3.0, support=0.35, hardware_types=10)
    between = ~np.eye(300, dtype=bool)
    assert network.speed.mean() == pytest.approx(7.0, rel=0.05)
    assert network.bandwidth[between].mean() == pytest.approx(40.0, rel=0.01)
    assert network.delay[between].mean() == pytest.approx(3.0, rel=0.01)
    assert network.supports.mean() == pytest.approx(0.35, abs=0.03)


@pytest.mark.parametrize(("devices", "feasible"), [(4, 1.5), (8, 3.0), (20, 1.0), (20, 6.5), (5, 5.0)])
def test_the_number_of_devices_that_can_run_a_task_may_be_given_itself(devices, feasible):
    rng = np.random.default_rng(0)
    parameters = DeviceNetworkParameters(devices=devices, feasible_devices=feasible, hardware_types=20)
    able = [random_device_network(parameters, rng).supports.sum(axis=0) for _ in range(100)]
    assert np.mean(able) == pytest.approx(feasible, rel=0.03)


def test_a_problem_has_the_times_of_the_papers_equations():
    graph = TaskGraph(
        np.array([6.0, 9.0]), np.array([[0, 1]], np.int32), np.array([100.0]), np.array([1, 0], np.int32), ("a", "b")
    )
    bandwidth, delay = np.array([[np.inf, 50.0], [50.0, np.inf]]), np.array([[0.0, 4.0], [4.0, 0.0]])
    network = DeviceNetwork(np.array([2.0, 3.0]), bandwidth, delay, np.array([[True, False], [True, True]]), ("x", "y"))
    problem = problem_of(graph, network)
    assert problem.compute.tolist() == [[np.inf, 2.0], [4.5, 3.0]]
    assert problem.comm(0).tolist() == [[0.0, 6.0], [6.0, 0.0]]
    assert (problem.op_names, problem.device_names) == (("a", "b"), ("x", "y"))
    assert simulate(problem, np.array([[1, 1], [1, 0]])).tolist() == [5.0, 2.0 + 6.0 + 4.5]


def test_a_graph_that_requires_hardware_unknown_to_the_network_is_refused():
    rng = np.random.default_rng(0)
    graph = random_task_graph(TaskGraphParameters(hardware_types=9), rng)
    with pytest.raises(ProblemError, match=r"requires hardware of type \d, and the device network has types 0\.\.1"):
        problem_of(graph, draw(hardware_types=2))


def test_hardware_that_no_device_has_is_an_infeasible_problem():
    graph = TaskGraph(np.ones(1), np.zeros((0, 2), np.int32), np.zeros(0), np.zeros(1, np.int32), ("a",))
    alone = DeviceNetwork(np.ones(1), np.full((1, 1), np.inf), np.zeros((1, 1)), np.zeros((1, 1), bool), ("x",))
    with pytest.raises(InfeasibleError, match="Op 'a' can run on none"):
        problem_of(graph, alone)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"devices": 0}, "'devices' .* at least 1"),
        ({"mean_speed": 0.0}, "'mean_speed' .* above 0"),
        ({"speed_heterogeneity": 1.0}, "'speed_heterogeneity' .* below 1"),
        ({"support": -0.1}, "'support' .* at least 0"),
        ({"devices": 4, "feasible_devices": 5.0}, "'feasible_devices' .* at most 4"),
        ({"feasible_devices": 0.5}, "'feasible_devices' .* at least 1"),
    ],
)
def test_a_network_parameter_out_of_range_is_refused(values, said):
    with pytest.raises(UsageError, match=said):
        DeviceNetworkParameters(**values)
