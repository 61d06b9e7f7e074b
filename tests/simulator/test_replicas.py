"""Several replicas behind one queue, in simulation."""

import heapq

import numpy as np
import pytest
from hypothesis import strategies as st

from placeit.core.problem import Problem
from placeit.simulator.arrivals import SimulatedReplica, serve
from placeit.simulator.load import LoadReport, constant_arrivals, poisson_arrivals
from placeit.simulator.simulate import schedule
from tests.simulator import slow_simulator as slow
from tests.simulator.slow_simulator import holds_for


def one_op(seconds, in_flight=1):
    problem = Problem.from_arrays([[seconds]], np.empty((0, 2), int), [], [[1.0]], [[0.0]])
    return SimulatedReplica(problem, np.zeros(1, np.int32), in_flight)


def of_queue(seconds, arrivals):
    """Replicas that each take one request at a time for so long, the quickest free one first."""
    free = [(0.0, each, s) for s, each in enumerate(seconds)]  # when
    begun, ended = [], []
    for arrival in arrivals:
        now = max(arrival, min(free)[0])
        able = [one for one in free if one[0] <= now]
        chosen = min(able, key=lambda one: one[1])
        free.remove(chosen)
        heapq.heappush(free, (now + chosen[1], chosen[1], chosen[2]))
        begun.append(now)
        ended.append(now + chosen[1])
    return LoadReport.of(arrivals, begun, ended)


def figures(report):
    return [report.p50, report.p95, report.p99, report.worst, report.achieved, report.mean_queue, report.most_queued]


@pytest.mark.parametrize("rate", [0.5, 1.2, 4.0])
def test_replicas_on_single_devices_are_a_queue(rate):
    seconds = (1.0, 3.0, 0.7)
    arrivals = poisson_arrivals(rate, 150, seed=2)
    ours, theirs = serve([one_op(each) for each in seconds], arrivals), of_queue(seconds, arrivals)
    assert figures(ours) == pytest.approx(figures(theirs))
    assert ours.queue.tolist() == theirs.queue.tolist()


@holds_for(seed=st.integers(0, 10**6), in_flight=st.integers(1, 3), max_examples=20)
def test_one_replica_is_what_the_simulator_says(seed, in_flight):
    problem = slow.random_problem(seed, 5, 2)
    place = np.random.default_rng(seed).integers(0, 2, 5).astype(np.int32)
    arrivals = poisson_arrivals(0.3, 20, seed=seed)
    flights = schedule(problem, place, arrivals=arrivals, in_flight=in_flight).requests
    wanted = LoadReport.of(flights.arrived, flights.begun, flights.ended)
    ours = serve([SimulatedReplica(problem, place, in_flight)], arrivals)
    assert figures(ours) == figures(wanted)


def test_pipelines_behind_one_queue_serve_as_much_as_all_of_them():
    compute = [[1.0, np.inf], [np.inf, 2.0]]
    problem = Problem.from_arrays(compute, [(0, 1)], [0.0], np.full((2, 2), np.inf), np.zeros((2, 2)))
    pipeline = SimulatedReplica(problem, np.array([0, 1], np.int32), 3)  # 2 s per request, 3 s each
    report = serve([pipeline, pipeline, one_op(4.0, 2)], constant_arrivals(100.0, 400))
    assert report.achieved == pytest.approx(1 / 2 + 1 / 2 + 1 / 4, rel=0.02)
    calm = serve([pipeline, pipeline, one_op(4.0, 2)], constant_arrivals(0.1, 50))
    assert (calm.p50, calm.worst, calm.most_queued) == (pytest.approx(3.0), pytest.approx(3.0), 0)
