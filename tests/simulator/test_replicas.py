"""Several replicas behind one queue, and several models on shared devices, in simulation."""

import heapq
import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

from placeit.core.problem import Problem
from placeit.simulator.arrivals import SimulatedReplica, Stream, serve, serve_streams
from placeit.simulator.load import LoadReport, constant_arrivals, poisson_arrivals
from placeit.simulator.simulate import schedule
from tests.simulator import slow_simulator as slow
from tests.simulator.slow_simulator import holds_for

unused = (f"d{number}" for number in itertools.count())


def one_op(seconds, in_flight=1, device=None):
    """Return an op on a device, by default on one that nothing else uses."""
    names = [device or next(unused)]
    problem = Problem.from_arrays([[seconds]], np.empty((0, 2), int), [], [[1.0]], [[0.0]], device_names=names)
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


def of_two_queues(seconds, arrivals):
    """When the requests of two models end that each take so long, if the models take turns on one device."""
    ended, now, last = [[], []], 0.0, 1
    while any(len(done) < len(times) for done, times in zip(ended, arrivals, strict=True)):
        due = [times[len(done)] if len(done) < len(times) else np.inf for done, times in zip(ended, arrivals, strict=True)]
        now = max(now, min(due))
        last = 1 - last if due[1 - last] <= now else last
        now += seconds[last]
        ended[last].append(now)
    return [np.array(times) for times in ended]


def figures(report):
    return [report.p50, report.p95, report.p99, report.worst, report.achieved, report.mean_queue, report.max_queued]


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
    replica = SimulatedReplica(problem, place, in_flight)
    assert figures(serve([replica], arrivals)) == figures(wanted)
    (stream,) = serve_streams([Stream([replica], arrivals)])
    for ours, theirs in zip(stream, (flights.arrived, flights.begun, flights.ended), strict=True):
        assert ours == pytest.approx(theirs)


@holds_for(seed=st.integers(0, 10**6), max_examples=20)
def test_models_on_devices_that_they_do_not_share_are_served_as_if_alone(seed):
    names = ["a", "b"], ["c", "d"]
    rng = np.random.default_rng(seed)
    streams, alone = [], []
    for number, own in enumerate(names):
        problem = slow.random_problem(seed + number, 4, 2)
        place = rng.integers(0, 2, 4).astype(np.int32)
        arrivals = poisson_arrivals(0.2, 15, seed=seed + number)
        streams.append(Stream([SimulatedReplica(replace(problem, device_names=tuple(own)), place, 2)], arrivals))
        alone.append(schedule(problem, place, arrivals=arrivals, in_flight=2).requests.ended)
    for flights, ended in zip(serve_streams(streams), alone, strict=True):
        assert flights.ended == pytest.approx(ended)


def test_models_take_turns_on_a_device_that_they_share():
    busy, rare = Stream([one_op(1.0, 9, "d")], np.zeros(4)), Stream([one_op(0.5, 9, "d")], np.array([0.2, 2.0]))
    first, second = serve_streams([busy, rare])
    assert first.ended.tolist() == [1.0, 2.5, 4.0, 5.0]
    assert second.ended.tolist() == [1.5, 3.0]  # behind one request of the other model each, not behind all that wait


@pytest.mark.parametrize("load", [0.3, 0.6, 0.9, 1.2])
def test_two_models_on_a_device_are_two_queues_that_take_turns(load):
    seconds = (1.0, 0.3)
    arrivals = [poisson_arrivals(load / 2 / each, 300, seed=seed) for seed, each in enumerate(seconds)]
    streams = [Stream([one_op(each, 4, "d")], times) for each, times in zip(seconds, arrivals, strict=True)]
    for flights, ended in zip(serve_streams(streams), of_two_queues(seconds, arrivals), strict=True):
        assert flights.ended == pytest.approx(ended)


def test_work_of_the_lowest_priority_number_goes_first():
    times = [np.zeros(2), np.array([0.1]), np.array([0.2])]
    streams = [Stream([one_op(1.0, 9, "d")], at, priority) for at, priority in zip(times, (0, 0, -1), strict=True)]
    assert [flights.ended.tolist() for flights in serve_streams(streams)] == [[1.0, 4.0], [3.0], [2.0]]


def test_replicas_that_share_no_threads_run_beside_others_of_the_same_device():
    streams = [Stream([replace(one_op(1.0, 1, "d"), shared=shared)], np.zeros(2)) for shared in (True, False)]
    for flights in serve_streams(streams, slowdown=lambda _, others: 1.0 + len(others)):
        assert flights.ended.tolist() == [2.0, 4.0]


def test_segments_on_two_devices_slow_each_other_while_both_run():
    factor = {(("long", "a"), ("short", "b")): 2.0, (("short", "b"), ("long", "a")): 1.5}
    streams = [
        Stream([one_op(4.0, 1, "a")], np.zeros(1), name="long"),
        Stream([one_op(1.0, 1, "b")], np.ones(1), name="short"),
    ]
    long, short = serve_streams(streams, slowdown=lambda one, others: factor[one, others[0]] if others else 1.0)
    assert short.ended.tolist() == [2.5]
    assert long.ended.tolist() == [4.75]  # a second alone, 0.75 done in the next 1.5 s, and 2.25 s alone


def test_requests_under_way_are_replaced_until_the_time_is_over():
    (flights,) = serve_streams([Stream([one_op(1.0, 2)], 3)], until=5.0)
    assert flights.ended.tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert (flights.ended - flights.arrived).max() == 3.0


def test_a_factor_on_the_times_of_a_replica_holds_for_all_of_them():
    arrivals = constant_arrivals(0.3, 9)
    one = one_op(2.0)
    twice = serve([replace(one, scale=2.0)], 2 * arrivals)
    assert figures(twice) == pytest.approx(figures(serve([one], arrivals).scaled(2.0)))


def test_pipelines_behind_one_queue_serve_as_much_as_all_of_them():
    compute = [[1.0, np.inf], [np.inf, 2.0]]

    def pipeline():
        names = [next(unused), next(unused)]
        problem = Problem.from_arrays(compute, [(0, 1)], [0.0], np.full((2, 2), np.inf), np.zeros((2, 2)), device_names=names)
        return SimulatedReplica(problem, np.array([0, 1], np.int32), 3)  # 2 s per request, 3 s each

    replicas = [pipeline(), pipeline(), one_op(4.0, 2)]
    report = serve(replicas, constant_arrivals(100.0, 400))
    assert report.achieved == pytest.approx(1 / 2 + 1 / 2 + 1 / 4, rel=0.02)
    calm = serve(replicas, constant_arrivals(0.1, 50))
    assert (calm.p50, calm.worst, calm.max_queued) == (pytest.approx(3.0), pytest.approx(3.0), 0)
