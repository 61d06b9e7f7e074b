"""Requests under load: their arrivals, and what is said of them."""

import numpy as np
import pytest

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.simulator.load import LoadReport, arrival_times, constant_arrivals, poisson_arrivals
from placeit.simulator.simulate import schedule, simulate


def two_ops():
    """Make two ops of 3 s and 1 s, on two devices one after the other; a tensor takes 0.5 s."""
    return Problem.from_arrays([[3.0, 9.0], [9.0, 1.0]], [(0, 1)], [1.0], np.full((2, 2), 2.0), np.zeros((2, 2)))


def test_a_load_is_summed_up():
    # at any time, waiting: [0, 1) none, [1, 2) one, [2, 5) two, [5, 6) one, [6, 9) none; the second request is given first
    report = LoadReport.of(arrived=[11, 10, 12], begun=[15, 10, 16], ended=[17, 15, 19])
    assert (report.requests, report.offered, report.achieved) == (3, 1.0, 3 / 9)
    assert (report.p50, report.worst) == (6.0, 7.0)
    assert report.p95 == pytest.approx(6.9)
    assert report.p99 == pytest.approx(6.98)
    assert report.queue_at.tolist() == [1, 2, 5, 6]
    assert report.queue.tolist() == [1, 2, 1, 0]
    assert report.max_queued == 2
    assert report.mean_queue == pytest.approx((1 * 1 + 3 * 2 + 1 * 1) / 9)


def test_one_request_has_no_rate_of_arrival_and_nothing_that_takes_no_time_has_a_rate():
    report = LoadReport.of([4.0], [4.0], [6.0])
    assert (report.offered, report.achieved, report.p99, report.max_queued) == (None, 0.5, 2.0, 0)
    assert LoadReport.of([4.0, 4.0], [4.0, 4.0], [4.0, 4.0]).achieved is None


@pytest.mark.parametrize(
    "times",
    [
        ([], [], []),
        ([0.0], [0.0, 1.0], [2.0]),
        ([1.0], [0.0], [2.0]),
        ([0.0], [2.0], [1.0]),
        ([0.0], [0.0], [np.inf]),
        (0.0, 0.0, 1.0),
    ],
)
def test_times_that_make_no_sense_are_refused(times):
    with pytest.raises(UsageError):
        LoadReport.of(*times)


def test_requests_arrive_at_a_rate():
    assert constant_arrivals(4.0, 3).tolist() == [0, 0.25, 0.5]
    times = poisson_arrivals(4.0, 20_001, seed=3)
    between = np.diff(times)
    assert times[0] == 0
    assert between.mean() == pytest.approx(0.25, rel=0.03)
    assert between.std() == pytest.approx(0.25, rel=0.05)  # the two are equal where arrivals know nothing of each other
    assert (poisson_arrivals(4.0, 20_001, seed=3) == times).all()
    assert (poisson_arrivals(4.0, 20_001, seed=4) != times).any()
    assert (arrival_times("poisson", 4.0, 9, seed=5) == poisson_arrivals(4.0, 9, seed=5)).all()
    assert (arrival_times("constant", 4.0, 9, seed=5) == constant_arrivals(4.0, 9)).all()


@pytest.mark.parametrize(
    ("rate", "requests", "seed", "message"),
    [(0.0, 1, 0, "rate is 0"), (-2.0, 1, 0, "rate is -2"), (np.nan, 1, 0, "rate is nan"), (np.inf, 1, 0, "rate is inf"),
     (1.0, 0, 0, "'requests' is 0"), (1.0, 1, -1, "seed is -1")],
)  # fmt: skip
def test_arrivals_of_no_sense_are_refused(rate, requests, seed, message):
    with pytest.raises(UsageError, match=message):
        poisson_arrivals(rate, requests, seed=seed)


def test_an_unknown_way_to_arrive_is_refused():
    with pytest.raises(UsageError, match="'bursts'; there are constant, poisson"):
        arrival_times("bursts", 1.0, 1)


def test_given_arrivals_are_simulated():
    found = schedule(two_ops(), [0, 1], arrivals=[1.0, 2.0, 9.0], in_flight=1)
    assert found.requests.arrived.tolist() == [1, 2, 9]
    assert found.requests.begun.tolist() == [1, 5.5, 10]
    assert found.requests.ended.tolist() == [5.5, 10, 14.5]
    assert simulate(two_ops(), [[0, 1], [0, 0]], arrivals=[1.0, 2.0, 9.0], in_flight=1).tolist() == [14.5, 37]
    assert simulate(two_ops(), [0, 1], arrivals=[7.0]).tolist() == [11.5]
    flights = found.requests
    report = LoadReport.of(flights.arrived, flights.begun, flights.ended)
    assert (report.p50, report.worst, report.max_queued) == (5.5, 8.0, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"arrivals": []},
        {"arrivals": [[0.0]]},
        {"arrivals": [1.0, 0.5]},
        {"arrivals": [-1.0]},
        {"arrivals": [0.0, np.nan]},
        {"arrivals": [0.0, 1.0], "requests": 3},
    ],
)
def test_arrivals_that_cannot_be_are_refused(options):
    with pytest.raises(UsageError, match="'arrivals'"):
        schedule(two_ops(), [0, 1], **options)
