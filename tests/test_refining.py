"""Sessions that refine what they serve: what a candidate may cost, when it wins, and that every request is answered."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeit.core.cluster import Cluster
from placeit.core.errors import ExecutionError, UsageError
from placeit.core.placement import Placement
from placeit.devices.clusterfile import discover
from placeit.devices.host import allowed_cores
from placeit.devices.plain import plain_devices
from placeit.measuring.check import OutputDifference
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime.devices.base import SegmentSource
from placeit.runtime.devices.openvino import OpenVinoDevice, OpenVinoProgram
from placeit.runtime.plan_executor import PlanExecutor
from placeit.serving.attendant import Request
from placeit.serving.refinement import Limits
from placeit.serving.server import Answer, Server
from placeit.session import Session
from placeit.simulator.depth import served
from placeit.workbench.proposals import Proposals
from placeit.workbench.reference import Reference
from placeit.workbench.refining import Refiner, Trial
from tests.optimizer.test_throughput_search import described
from tests.small_models import inception_like

CORES = [f"CPU@{core}" for core in allowed_cores()[:2]]
FAST = Limits(tail=1e6, core=1)  # of a core that others use as well, only ratios are known
TIMEOUT_S = 240.0


@pytest.fixture(autouse=True)
def _background_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have another policy that threads inherit stand for ``SCHED_IDLE``: beside other processes, nothing runs under that."""
    monkeypatch.setattr(os, "SCHED_IDLE", os.SCHED_BATCH)


@pytest.fixture
def session(cache: Cache) -> Iterator[Session]:
    """The second device takes twenty times as long."""
    if len(CORES) < 2:
        pytest.skip("needs two CPU cores")
    fast, slow = discover(CORES).devices
    slow = replace(slow, slowdown=20.0)
    with Session(inception_like(), Cluster((fast, slow)), cache=cache) as opened:
        opened.profile(budget_s=30)
        yield opened


def on(session: Session, device: int) -> Placement:
    return session.placement(np.full(len(session.grouping.groups), device))


def serve_until(server: Server, session: Session, over: str, seconds: float = TIMEOUT_S) -> int:
    """Submit requests one by one, and check each answer, until the report has a reason that says so; return how many."""
    batches = [session.model.random_inputs(seed) for seed in range(3)]
    expected, count, until = [session.reference(batch) for batch in batches], 0, time.monotonic() + seconds
    while over not in f"{refinement(server).doing} {refinement(server).reason}":
        assert time.monotonic() < until, refinement(server)
        answer = server.submit(batches[count % 3]).result(TIMEOUT_S)
        for name, value in expected[count % 3].items():
            np.testing.assert_allclose(answer[name], value, rtol=1e-3, atol=1e-5)
        count += 1
    return count


def serve_many(server: Server, session: Session, over: str, seconds: float = TIMEOUT_S) -> None:
    """The same with three requests under way all the time."""
    inputs, answers, until = session.model.sample_inputs(), deque[Answer](), time.monotonic() + seconds
    while over not in f"{refinement(server).doing} {refinement(server).reason}":
        assert time.monotonic() < until, refinement(server)
        answers.append(server.submit(inputs))
        if len(answers) == 3:
            answers.popleft().result(TIMEOUT_S)
    for answer in answers:
        answer.result(TIMEOUT_S)


def split(session: Session) -> Plan:
    """One half of the groups on each device."""
    groups = len(session.grouping.groups)
    return session.plan_of(session.placement(np.arange(groups) * 2 // groups))


def propose(monkeypatch: pytest.MonkeyPatch, make: Callable[[], Plan]) -> None:
    """Have one placement be tried, in a plan that is made anew each time, as long as it may be."""

    def best(self: Proposals, plan: Plan, tried: Sequence[Plan], *, steady: bool) -> Plan | None:
        made = make()
        return None if any(groups_of(one) == groups_of(made) for one in (plan, *tried)) else made

    monkeypatch.setattr(Proposals, "best", best)


def groups_of(plan: Plan) -> list[int]:
    return plan.group_devices.tolist()


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
        assert (report.explored + report.checks) * 20 <= report.requests <= count
        assert report.checks >= 2
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


def test_a_candidate_during_which_others_take_longer_is_dropped_and_tried_three_times_at_most(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a factor below 1, which no user can set, any time of the other requests is too long."""
    monkeypatch.setattr("placeit.workbench.refining.Trial", lambda before, tail, in_flight: Trial(before, tail=1e-9))
    propose(monkeypatch, lambda: split(session))
    with session.serve(on(session, 0), refine=Limits(core=1)) as server:
        serve_many(server, session, "took longer")
        first = refinement(server)
        assert (first.tried, first.switches) == (1, 0)
        assert first.before is not None
        assert first.others is not None
        assert first.ratio is None  # it was over before that was known
        serve_many(server, session, "no other placement")
        last = refinement(server)
        assert last.tried == 3
        assert last.switches == 0
        assert last.explored * 20 <= last.requests
        assert groups_of(server.plan) == [0] * len(session.grouping.groups)


def test_candidates_are_compiled_in_the_background_while_requests_are_answered(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    propose(monkeypatch, lambda: split(session))
    compile_one, begun, go_on, seen = OpenVinoDevice.compile, threading.Event(), threading.Event(), list[tuple[str, int]]()

    def watched(self: OpenVinoDevice, segment: SegmentSource) -> OpenVinoProgram:
        seen.append((threading.current_thread().name, os.sched_getscheduler(0)))
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        return compile_one(self, segment)

    with session.serve(on(session, 0), refine=FAST) as server:
        monkeypatch.setattr(OpenVinoDevice, "compile", watched)
        try:
            serve_until(server, session, "compiling")
            assert begun.wait(TIMEOUT_S)
            answers = [server.submit(session.model.sample_inputs()) for _ in range(30)]
            for answer in answers:
                answer.result(TIMEOUT_S)
            assert refinement(server).explored == 0
        finally:
            go_on.set()
        serve_until(server, session, "requests try")
    assert len(seen) > 1
    assert set(seen) == {("placeit refining", os.SCHED_IDLE)}


@pytest.mark.parametrize("privileged", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.two_cores
def test_threads_that_openvino_starts_for_a_candidate_have_the_ordinary_priority(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, privileged: bool
) -> None:
    both = f"CPU@{'+'.join(name.removeprefix('CPU@') for name in CORES)}"
    change = os.sched_setscheduler

    def refuse(thread: int, policy: int, param: os.sched_param) -> None:
        if policy != os.SCHED_IDLE:
            raise PermissionError
        change(thread, policy, param)

    if not privileged:
        monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with Session(inception_like(), [both, CORES[0]], cache=cache) as session:
        session.profile()
        groups = len(session.grouping.groups)
        halves = np.arange(groups, dtype=np.int32) * 2 // groups  # not compiled yet
        wide = session.segmenter.merged(halves, np.zeros(groups, np.int32))
        propose(monkeypatch, lambda: wide)
        with session.serve(on(session, 1), refine=FAST) as server:
            before = set(tasks())
            serve_until(server, session, "requests try")
            for _ in range(60):
                server.submit(session.model.sample_inputs()).result(TIMEOUT_S)
            found = tasks()
            idle = {task for task, policy in found.items() if policy == os.SCHED_IDLE}
            refining = {thread.native_id for thread in threading.enumerate() if thread.name == "placeit refining"}
            assert idle == refining
            assert set(found) - before - refining  # of OpenVINO


def tasks() -> dict[int, int]:
    """The scheduling policy of each thread of the process, as two readings in a row had it."""
    found, read = None, _tasks()
    while found != read:
        found, read = read, _tasks()
    return read


def _tasks() -> dict[int, int]:
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(ProcessLookupError):  # it has ended
            found[int(task.name)] = os.sched_getscheduler(int(task.name))
    return found


def test_a_plain_device_is_refined_by_what_requests_take_there(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(CORES) < 2 or len(allowed_cores()) != 2:
        pytest.skip("needs a process that may use two cores")
    with Session(inception_like(), CORES, cache=cache) as session:
        session.profile()
        (home,) = (session.alone(device) for device in plain_devices(session.cluster))
        groups, proposals = np.zeros(len(session.grouping.groups), np.int32), Proposals(session, None)
        plan = Segmenter(home.grouping, Costs.zero(len(groups), home.cluster)).plan(groups)
        plain = home.placement(groups, plan)
        for seconds, found in ((1e-9, False), (1e3, True)):
            proposals.calibrate([(plan, np.array([seconds]))])
            proposals.search(plan, steady=False)
            best = proposals.best(plan, [], steady=False)
            assert (best is not None) == found
            assert best is None or best.problem.device_names == session.cluster.names
        propose(monkeypatch, lambda: split(session))
        with session.serve(plain, refine=FAST) as server:
            serve_until(server, session, "requests try")


@pytest.mark.parametrize("in_flight", [1, 2, 8])
def test_a_plan_is_tried_if_it_serves_more_with_the_requests_in_flight(cache: Cache, in_flight: int) -> None:
    with Session(inception_like(), described(1e9, 1e9), cache=cache) as session:
        session.profile()
        alone, proposals = session.plan_of(on(session, 0)), Proposals(session, in_flight)
        proposals.search(alone, steady=True)
        best = proposals.best(alone, [], steady=True)
        assert best is not None
        found, now = (served(one.problem, one.placement, in_flight).seconds for one in (best, alone))
        assert found < 0.98 * now


def test_a_candidate_whose_outputs_are_wrong_gets_no_request(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Reference, executor: PlanExecutor, *, after: bool = False) -> None:
        raise ExecutionError("Its outputs are wrong")

    with session.serve(on(session, 1), refine=FAST) as server:
        monkeypatch.setattr(Reference, "check", wrong)
        serve_until(server, session, "left out: Its outputs are wrong")
        assert refinement(server).explored == 0


def test_runs_that_check_a_candidate_are_explored_and_who_waits_for_them_does_so_meanwhile(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are on the devices that serve: they wait until the share allows them."""
    check, begun, go_on = Reference.check, threading.Event(), threading.Event()

    def watched(self: Reference, executor: PlanExecutor, *, after: bool = False) -> OutputDifference:
        begun.set()
        assert go_on.wait(TIMEOUT_S)
        return check(self, executor, after=after)

    propose(monkeypatch, lambda: split(session))
    inputs = session.model.sample_inputs()
    with session.serve(on(session, 0), refine=replace(FAST, share=0.02)) as server:
        monkeypatch.setattr(Reference, "check", watched)
        try:
            while not begun.is_set():
                server.submit(inputs).result(TIMEOUT_S)
            first = refinement(server)
            assert (first.checks, first.explored) == (2, 0)
            assert first.requests >= 100
            assert first.share == pytest.approx(2 / (first.requests + 2))
            while refinement(server).others is None:
                server.submit(inputs).result(TIMEOUT_S)
        finally:
            go_on.set()
        serve_until(server, session, "requests try")


@pytest.mark.parametrize("drain", [True, False])
def test_closing_in_the_middle_answers_all_and_leaves_no_thread(session: Session, drain: bool) -> None:
    server = session.serve(on(session, 1), refine=FAST)
    serve_until(server, session, "requests try")
    answers = [server.submit(session.model.sample_inputs()) for _ in range(30)]
    server.close(drain=drain)
    assert all(answer.done() for answer in answers)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith(("placeit refin", "placeit serv"))]


def test_what_cannot_be_refined_is_said(session: Session) -> None:
    with pytest.raises(UsageError, match="with replicas is not refined"):
        session.serve(replace(on(session, 0), replicas=(on(session, 1),)), refine=True)
    with pytest.raises(UsageError, match="leave out 'refine' or 'on_loss'"):
        session.serve(on(session, 0), refine=True, on_loss="replace")
    with pytest.raises(UsageError, match="Limits"):
        Limits(share=0.9)


# ------------------------------------------------------------------------------------------------ trials, by given times


def requests(plans: tuple[Plan, Plan], ratio: float, *, alone: bool = True, others: float = 1.0) -> Iterator[Request]:
    """One in twenty requests tries a candidate that takes ``ratio`` times as long; the other times change by a factor."""
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


@pytest.mark.parametrize(("in_flight", "wins"), [(1, False), (4, True)])
def test_requests_that_overlap_are_compared_with_as_many_in_flight(session: Session, in_flight: int, wins: bool) -> None:
    """Two devices with 0.7 of the time each are slower than one if a request is in flight at a time, and faster if four are."""
    trial, now = Trial([2.0] * 40, tail=1.1, in_flight=in_flight), 0.0
    while not trial.over:
        for plan, busy in ((split(session), 0.7), (session.plan_of(on(session, 0)), 1.0)):
            devices = {s: segment.device for s, segment in enumerate(plan.segments) if not segment.passthrough}
            ran = [(s, now, now + busy / [*devices.values()].count(device)) for s, device in devices.items()]
            trial.add(Request(plan, now, now + 2.0, ran, alone=False, explored=busy < 1))
            now += 3.0
    assert trial.adopt == wins


def test_a_gain_that_another_opening_may_take_away_is_none(session: Session) -> None:
    """Runs of 1 % less each, which do not vary."""
    plan, trial, now = session.plan_of(on(session, 0)), Trial([1.0] * 40, tail=1.1), 0.0
    while not trial.over:
        for explored in (True, False):
            took = 0.99 if explored else 1.0
            trial.add(Request(plan, now, now + took, (), alone=True, explored=explored))
            now += 2.0
    assert trial.ratio is not None
    assert trial.ratio.ratio == pytest.approx(0.99)
    assert not trial.adopt


def test_a_trial_ends_when_others_take_longer_than_before(session: Session) -> None:
    plan = session.plan_of(on(session, 0))
    trial, count = Trial([1.0] * 40, tail=1.1), 0
    for request in requests((plan, plan), 0.3, others=3.0):
        trial.add(request)
        count += not trial.over
    assert trial.too_slow
    assert not trial.adopt
    assert trial.others is not None
    assert trial.others[0] > 3
    assert count < 120


def noisy(plan: Plan, seed: int, *, held_up: float) -> tuple[list[float], list[Request]]:
    """Times of requests that vary as those that arrive at random, and requests of which a share takes twice as long."""
    random = np.random.default_rng(seed)
    before = random.lognormal(0.0, 0.5, 200)
    meanwhile = random.lognormal(0.0, 0.5, 500) * np.where(random.random(500) < held_up, 2.5, 1.0)
    return before.tolist(), [Request(plan, 0.0, took, (), alone=False, explored=False) for took in meanwhile.tolist()]


@pytest.mark.parametrize(("held_up", "most", "least"), [(0.0, 1, 0), (0.2, 20, 19)])
def test_others_count_as_slower_beyond_chance_only(session: Session, held_up: float, most: int, least: int) -> None:
    plan, dropped = session.plan_of(on(session, 0)), 0
    for seed in range(20):
        before, others = noisy(plan, seed, held_up=held_up)
        trial = Trial(before, tail=1.1)
        for request in others:
            trial.add(request)
        dropped += trial.too_slow
    assert least <= dropped <= most


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
    refiner = Refiner(server, Proposals(session, None), Limits(core=1))  # type: ignore[arg-type]
    refiner.start()
    try:
        until = time.monotonic() + TIMEOUT_S
        while not server.adopted:
            assert time.monotonic() < until, refiner.report
            stream = requests(plans, 0.3, others=others if server.exploring else 1.0)
            for request in itertools.islice((one for one in stream if server.exploring or not one.explored), 60):
                refiner.ended(request)
            time.sleep(0.01)
    finally:
        refiner.close(TIMEOUT_S)
    assert server.adopted[0] == adopted
    assert ("faster" if adopted else "took longer") in str(refiner.report.reason)
