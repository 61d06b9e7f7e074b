"""How many requests in flight serve all that a plan can."""

from __future__ import annotations

import math

import pytest

from placeit.planning.in_flight import held, in_flight
from placeit.planning.segments import Plan
from placeit.simulator.simulate import schedule
from tests.small_plans import alternating, chain


def seconds(plan: Plan, requests: int) -> float:
    """Return the simulated seconds of 64 requests, a given number of them in flight."""
    made = schedule(plan.problem, plan.placement, requests=64, in_flight=requests)
    return float(made.requests.ended.max())


def test_as_many_requests_are_in_flight_as_a_pipeline_holds_and_one_more() -> None:
    assert [in_flight(chain(*times)) for times in ((0.1,), (0.1, 0.1), (0.1, 0.04), (0.1, 0.1, 0.1, 0.02), (0.0,))] == [
        2, 3, 3, 5, 2,
    ]  # fmt: skip
    assert in_flight(chain(*[0.1] * 30)) == 16


def test_more_requests_are_in_flight_where_segments_alternate_between_devices() -> None:
    plan = alternating(0.1, 0.4, 0.1, 0.1, 0.5)
    count = in_flight(plan)
    few = math.ceil(held(plan)) + 1
    assert few < count < 16
    assert seconds(plan, count) <= 1.01 * seconds(plan, 16) < seconds(plan, count - 1)
    assert seconds(plan, few) > 1.2 * seconds(plan, count)


def test_a_plan_holds_what_keeps_its_bottleneck_busy_and_one_request_at_least() -> None:
    assert held(chain(0.1, 0.2, 0.2)) == pytest.approx(2.5)
    assert held(alternating(0.1, 0.4, 0.1, 0.1, 0.5)) == pytest.approx(12 / 7)
    assert held(chain(0.1)) == held(chain(0.0)) == 1
