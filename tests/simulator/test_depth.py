"""What a placement serves with a limited number of requests in flight."""

from __future__ import annotations

import math

import numpy as np
import pytest

from placeit.core.problem import Problem
from placeit.planning.in_flight import held, in_flight
from placeit.planning.segments import Plan
from placeit.simulator.depth import Served, enough, served
from placeit.simulator.objectives.throughput import Throughput
from tests.small_plans import alternating, chain


def at(plan: Plan, requests: int) -> Served:
    return served(plan.problem, plan.placement, requests)


def test_with_one_request_in_flight_each_takes_the_makespan() -> None:
    plan = alternating(0.1, 0.4, 0.1, 0.1, 0.5)
    assert at(plan, 1).seconds == pytest.approx(plan.schedule.makespan)


def test_a_full_pipeline_serves_at_the_pace_of_its_bottleneck() -> None:
    plan = chain(0.1, 0.2, 0.2)
    for requests in (3, 5, 8):
        assert at(plan, requests).seconds == pytest.approx(0.2)


def test_requests_that_end_in_bursts_are_counted_over_whole_bursts() -> None:
    """Two stages of which the first runs on two conflicting devices would alternate; here, one request holds both devices."""
    problem = Problem.from_arrays(
        [[0.1, np.inf], [np.inf, 0.3], [0.2, np.inf]],
        [(0, 1), (1, 2)],
        [0.0, 0.0],
        np.full((2, 2), np.inf),
        np.zeros((2, 2)),
        conflicts=[[False, True], [True, False]],
    )
    for requests in (1, 4, 7):
        assert served(problem, np.array([0, 1, 0], np.int32), requests).seconds == pytest.approx(0.6)


def test_as_many_requests_are_in_flight_as_a_pipeline_holds_and_one_more() -> None:
    assert [in_flight(chain(*times)) for times in ((0.1,), (0.1, 0.1), (0.1, 0.04), (0.1, 0.1, 0.1, 0.02), (0.0,))] == [
        2, 3, 3, 5, 2,
    ]  # fmt: skip
    assert in_flight(chain(*[0.1] * 30)) == 16


def test_more_requests_are_in_flight_where_segments_alternate_between_devices() -> None:
    plan = alternating(0.1, 0.4, 0.1, 0.1, 0.5)
    found = enough(plan.problem, plan.placement)
    few = math.ceil(held(plan)) + 1
    assert few < found.in_flight < 16
    assert 0.95 * found.seconds <= at(plan, 16).seconds < 0.95 * at(plan, found.in_flight - 1).seconds
    assert Throughput().of_plan(plan) == found.seconds
    assert Throughput(few).of_plan(plan) == at(plan, few).seconds > found.seconds


def test_a_plan_holds_what_keeps_its_bottleneck_busy_and_one_request_at_least() -> None:
    assert held(chain(0.1, 0.2, 0.2)) == pytest.approx(2.5)
    assert held(alternating(0.1, 0.4, 0.1, 0.1, 0.5)) == pytest.approx(12 / 7)
    assert held(chain(0.1)) == held(chain(0.0)) == 1
