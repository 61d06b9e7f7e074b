"""Sessions that serve: one placement or several, and requests that arrive at a rate."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placeit.core.errors import ExecutionError, NoRoomError, UsageError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.planning.in_flight import in_service
from placeit.planning.segments import Plan
from placeit.profiler.cache import Cache
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.runtime import SERVING_PRIORITY
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench import Workbench
from placeit.workbench.options import Traffic
from placeit.workbench.serving import move
from tests.small_models import inception_like

CORES = [f"CPU@{core}" for core in allowed_cores()[:2]]


@pytest.fixture
def session(cache: Cache) -> Iterator[Session]:
    if len(CORES) < 2:
        pytest.skip("needs two CPU cores")
    with Session(inception_like(), CORES, cache=cache) as opened:
        opened.profile()
        yield opened


def placements(session: Session) -> dict[str, Placement]:
    groups = len(session.grouping.groups)
    first, last = (session.placement(np.full(groups, device)) for device in (0, 1))
    return {"first": first, "last": last, "split": session.placement(np.arange(groups) * 2 // groups)}


def test_a_placement_and_replicas_answer_what_the_uncut_model_does(session: Session) -> None:
    made = placements(session)
    batches = [session.model.random_inputs(seed) for seed in range(4)]
    for served in (made["split"], replace(made["first"], replicas=(made["last"],))):
        with session.serve(served) as server:
            while set(server.busy) != set(CORES):  # until each device had its turn; a replica alone may be quick enough
                answers = [(server.submit(batch), batch) for batch in batches * 5]
                for answer, batch in answers:
                    for name, value in session.reference(batch).items():
                        np.testing.assert_allclose(answer.result(60)[name], value, rtol=1e-3, atol=1e-5)


def test_a_server_has_as_many_requests_in_flight_as_its_plan_needs_and_there_is_room_for(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement, asked, opened = session.placement(np.arange(len(session.grouping.groups)) % 2), list[int](), Workbench.executor
    needed = in_service(session.plan_of(placement))

    def executor(self: Session, plan: Plan, *, in_flight: int = 1, **options: Any) -> PlanExecutor:
        asked.append(in_flight)
        if in_flight > 2:
            raise NoRoomError("There is room for two requests.")
        return opened(self, plan, in_flight=in_flight, **options)

    monkeypatch.setattr(Workbench, "executor", executor)
    with session.serve(placement) as server:
        server.submit(session.model.sample_inputs()).result(60)
    assert asked == [*range(needed, 1, -1)]
    with pytest.raises(NoRoomError, match="room for two"):
        session.serve(placement, in_flight=3)


@pytest.mark.parametrize("options", [{}, {"refine": True}, {"on_loss": "replace"}])
def test_a_server_that_changes_its_placement_has_a_priority_as_others_have(session: Session, options: dict[str, Any]) -> None:
    with session.serve(placements(session)["first"], priority=-2, **options) as server:
        assert [one.priority for one in server.executors] == [SERVING_PRIORITY - 2]
    with pytest.raises(UsageError, match="'priority' is 1; it must be 0 or less"):
        session.serve(placements(session)["first"], priority=1, **options)


def test_placements_are_run_and_served_after_each_other_and_at_once(session: Session) -> None:
    made = placements(session)
    inputs = session.model.sample_inputs()
    with session.serve(made["split"]) as one, session.serve(made["first"]) as other:
        answers = [server.submit(inputs) for _ in range(20) for server in (one, other)]
        assert session.run(made["last"], runs=2, warmup=0).failed is None
        for answer in answers:
            answer.result(60)


def test_a_server_moves_between_placements_under_load_and_no_request_is_lost(session: Session) -> None:
    made, over = placements(session), threading.Event()
    batches = [session.model.random_inputs(seed) for seed in range(3)]
    wanted = [session.reference(batch) for batch in batches]

    def ask() -> int:
        count = 0
        while not over.is_set():
            for name, value in server.submit(batches[count % 3]).result(60).items():
                np.testing.assert_allclose(value, wanted[count % 3][name], rtol=1e-3, atol=1e-5)
            count += 1
        return count

    both = replace(made["first"], replicas=(made["last"],))
    with session.serve(made["first"]) as server, ThreadPoolExecutor(2) as pool:
        clients = [pool.submit(ask) for _ in range(2)]
        for placement in (made["last"], both, made["split"]):
            move(session, server, placement, in_flight=2, priority=-1)
            assert [(one.in_flight, one.priority) for one in server.executors] == [(2, -2)] * len(placement.every)
        over.set()
        asked = sum(client.result() for client in clients)
        server.submit(batches[0]).result(60)
        outcomes = server.stats().outcomes
        assert (outcomes["succeeded"], outcomes["failed"], server.repeated) == (asked + 1, 0, 0)
        assert server.replacements[-1].devices == tuple(CORES)
    with pytest.raises(ExecutionError, match="closed"):
        move(session, server, made["last"], in_flight=1)


def test_a_session_that_is_closed_fails_what_its_server_has(session: Session) -> None:
    server = session.serve(placements(session)["split"])
    answers = [server.submit(session.model.sample_inputs()) for _ in range(30)]
    session.close()
    for answer in answers:
        assert answer.exception(60) is None or "closed" in str(answer.exception())
    server.close()
    with pytest.raises(ExecutionError, match="closed"):
        server.submit(session.model.sample_inputs())


def test_requests_that_arrive_at_a_rate_are_all_accounted_for(session: Session) -> None:
    made, watched = placements(session), list[Server]()

    @contextlib.contextmanager
    def watch(server: Server) -> Iterator[None]:
        watched.append(server)
        assert server.stats().arrived == 0
        yield
        assert server.stats().arrived == 40

    report = session.run(
        replace(made["first"], replicas=(made["last"],)),
        traffic=Traffic(100, requests=40, arrivals="poisson", seed=1),
        warmup=3,
        watch=watch,
    )
    served = report.served
    assert len(watched) == 1
    assert served.load is not None
    assert (served.arrived, served.load.requests + served.dropped, served.failed) == (40, 40, 0)
    assert report.in_flight >= 4  # more if the host takes as long as a core does
    assert report.failed is None
    with pytest.raises(UsageError, match="leave out 'runs'"):
        session.run(made["first"], traffic=Traffic(), runs=3)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="leave out 'watch'"):
        session.run(made["first"], watch=watch)  # type: ignore[call-overload]
    for wrong in ({"rate": 0.0}, {"rate": 1.0, "requests": 0}, {"requests": 0}, {"rate": 1.0, "seconds": float("inf")}):
        with pytest.raises(UsageError):
            session.run(made["first"], traffic=Traffic(**wrong))  # type: ignore[arg-type]
