"""Sessions that refine what they serve: what a candidate may cost, when it wins, and that every request is answered."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from small_models import inception_like

from placeit.core.cluster import Cluster
from placeit.core.errors import ExecutionError, UsageError
from placeit.core.placement import Placement
from placeit.devices.clusterfile import find_cluster
from placeit.devices.host import allowed_cores
from placeit.planning.segments import Plan
from placeit.profiler.cache import Cache
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.refining import Limits, Refiner, Request, Trial
from placeit.runtime.serving import Server
from placeit.session import Session
from placeit.session.serving import Proposals

CORES = [f"CPU@{core}" for core in allowed_cores()[:2]]
FAST = Limits(tail=1e6, core=1)  # of a core that others use as well, only ratios are known


@pytest.fixture
def session(cache: Cache) -> Iterator[Session]:
    """The second device takes twenty times as long."""
    if len(CORES) < 2:
        pytest.skip("needs two CPU cores")
    fast, slow = find_cluster(CORES).devices
    with Session(inception_like(), Cluster((fast, replace(slow, slowdown=20.0))), cache=cache) as opened:
        opened.profile()
        yield opened


def on(session: Session, device: int) -> Placement:
    return session.placement(np.full(len(session.grouping.groups), device))


def serve_until(server: Server, session: Session, over: str, seconds: float = 60) -> int:
    """Submit requests one by one, and check each answer, until the report has a reason that says so; return how many."""
    batches = [session.model.random_inputs(seed) for seed in range(3)]
    expected, count, until = [session.reference(batch) for batch in batches], 0, time.monotonic() + seconds
    while over not in f"{refinement(server).doing} {refinement(server).reason}":
        assert time.monotonic() < until, refinement(server)
        answer = server.submit(batches[count % 3]).result(60)
        for name, value in expected[count % 3].items():
            np.testing.assert_allclose(answer[name], value, rtol=1e-3, atol=1e-5)
        count += 1
    return count


def refinement(server: Server):  # type: ignore[no-untyped-def]
    assert server.refinement is not None
    return server.refinement


def test_a_bad_placement_is_replaced_by_a_better_one_while_every_request_is_answered(session: Session) -> None:
    with session.serve(on(session, 1), refine=FAST) as server:
        count = serve_until(server, session, "a candidate was faster")
        report = refinement(server)
        assert report.switches == 1
        assert report.tried >= 1
        assert report.ratio is not None
        assert report.ratio.ci_high < 1
        assert report.before is not None
        assert report.explored * 20 <= report.requests <= count
        assert set(server.plan.placement) != {1}
        serve_until(server, session, "no other placement")


def test_a_worse_candidate_never_wins(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = session.plan_of(on(session, 1))
    monkeypatch.setattr(Proposals, "best", lambda self, plan, tried, *, steady: None if slow in tried else slow)
    with session.serve(on(session, 0), refine=FAST) as server:
        serve_until(server, session, "no other placement")
        report = refinement(server)
        assert (report.tried, report.switches) == (1, 0)
        assert report.ratio is not None
        assert report.ratio.ci_low > 1
        assert 0 < report.explored * 20 <= report.requests
        assert set(server.plan.placement) == {0}


def test_a_candidate_whose_outputs_are_wrong_gets_no_request(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Session, executor: PlanExecutor, *, after: bool = False) -> None:
        raise ExecutionError("Its outputs are wrong")

    with session.serve(on(session, 1), refine=FAST) as server:
        monkeypatch.setattr(Session, "check_outputs", wrong)
        serve_until(server, session, "left out: Its outputs are wrong")
        assert refinement(server).explored == 0


@pytest.mark.parametrize("drain", [True, False])
def test_closing_in_the_middle_answers_all_and_leaves_no_thread(session: Session, drain: bool) -> None:
    server = session.serve(on(session, 1), refine=FAST)
    serve_until(server, session, "requests try")
    answers = [server.submit(session.model.sample_inputs()) for _ in range(30)]
    server.close(drain=drain)
    assert all(answer.done() for answer in answers)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("placeit refin", "placeit serv"))]


def test_what_cannot_be_refined_is_said(session: Session) -> None:
    with pytest.raises(UsageError, match="without replicas"):
        session.serve(replace(on(session, 0), replicas=(on(session, 1),)), refine=True)
    with pytest.raises(UsageError, match="Limits"):
        Limits(share=0.9)


# ------------------------------------------------------------------------------------------------ trials, by given times


def requests(plans: tuple[Plan, Plan], ratio: float, *, alone: bool = True, others: float = 1.0) -> Iterator[Request]:
    """One in twenty tries a candidate that takes so many times as long; the times of the others change by a factor."""
    now = 0.0
    for number in range(1000):
        explored = number % 20 == 19
        plan = plans[0] if explored else plans[1]
        took = (ratio if explored else others) * (1 + 0.01 * (number % 3))
        ran = [(s, now, now + took) for s, segment in enumerate(plan.segments) if not segment.passthrough]
        yield Request(plan, now, now + took * (1 if alone else 5), ran, alone, explored)
        now += 6 * took


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(("ratio", "wins"), [(0.3, True), (1.0, False), (3.0, False)])
def test_a_trial_is_won_by_what_is_faster_beyond_the_interval(session: Session, alone: bool, ratio: float, wins: bool) -> None:
    plan = session.plan_of(on(session, 0))
    trial = Trial([5.0] * 40, tail=1.1)
    for request in requests((plan, plan), ratio, alone=alone):
        trial.add(request)
    assert trial.over
    assert trial.adopt == wins
    assert trial.ratio is not None
    assert trial.ratio.ratio == pytest.approx(ratio, rel=0.05)


def test_a_trial_ends_when_others_take_longer_than_before(session: Session) -> None:
    plan = session.plan_of(on(session, 0))
    trial, count = Trial([1.0] * 40, tail=1.1), 0
    for request in requests((plan, plan), 0.3, others=3.0):
        trial.add(request)
        count += not trial.over
    assert trial.too_slow
    assert not trial.adopt
    assert trial.meanwhile is not None
    assert trial.meanwhile[0] > 3
    assert count < 50


class FakeServer:
    """Takes a candidate, and says what became of it."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.exploring, self.adopted = plan, False, list[bool]()

    def explore(self, executor: PlanExecutor, every: int) -> None:
        assert every == 20
        executor.close()
        self.exploring = True

    def settle(self, *, adopt: bool) -> bool:
        self.exploring = False
        self.adopted.append(adopt)
        return adopt


@pytest.mark.parametrize(("others", "adopted"), [(1.0, True), (3.0, False)])
def test_a_candidate_is_dropped_when_others_take_longer(session: Session, others: float, adopted: bool) -> None:
    plans = session.plan_of(on(session, 0)), session.plan_of(on(session, 1))
    server = FakeServer(plans[1])
    refiner = Refiner(server, Proposals(session, None), Limits(core=1))
    try:
        until = time.monotonic() + 60
        while not server.adopted:
            assert time.monotonic() < until, refiner.report
            stream = requests(plans, 0.3, others=others if server.exploring else 1.0)
            for request in itertools.islice((one for one in stream if server.exploring or not one.explored), 60):
                refiner.ended(request)
            time.sleep(0.01)
    finally:
        refiner.close(60)
    assert server.adopted[0] == adopted
    assert ("faster" if adopted else "took longer") in str(refiner.report.reason)
