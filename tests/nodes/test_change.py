"""Nodes that come back or become slow, under load, on a cluster that is all on this machine."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeit.core.cluster import Cluster
from placeit.core.errors import PlaceitError
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.runtime.nodes.actor import DeviceActor
from placeit.runtime.nodes.device import NodeDevice
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench.serving import move
from tests.beside import beside
from tests.small_models import inception_like

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900, method="thread")]

THERE, HERE = f"edge1/CPU@{allowed_cores()[0]}", f"CPU@{allowed_cores()[-1]}"


class Edge:
    """A local cluster with a head and a node that is killed and started again."""

    def __init__(self, file: Path) -> None:
        self.cluster = local.start(["head"], file)
        self.pids = list[int]()

    def start(self) -> None:
        before = set(self.cluster.pids())
        local.start_node(self.cluster, "edge1", local.Place())
        self.pids = sorted(set(self.cluster.pids()) - before)

    def kill(self) -> None:
        for pid in self.pids:
            local._kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    file = tmp_path_factory.mktemp("cluster") / "cluster.json"
    made = Edge(file)
    try:
        made.start()
        connection.connect(made.cluster.address, token=made.cluster.token)
        yield made
    finally:
        connection.disconnect()
        made.cluster.stop(file)
    assert made.cluster.pids() == []


@contextmanager
def served(session: Session, device: int, replicas: tuple[Placement, ...] = ()) -> Iterator[Server]:
    """A server on one device that is asked for answers all the time, each of which has to be right."""
    over, batches = threading.Event(), [session.model.random_inputs(seed) for seed in range(3)]
    expected = [session.reference(batch) for batch in batches]

    def ask() -> int:
        count = 0
        while not over.is_set():
            for name, value in server.submit(batches[count % 3], timeout=60).result(60).items():
                np.testing.assert_allclose(value, expected[count % 3][name], rtol=1e-3, atol=1e-4)
            count += 1
        return count

    with ExitStack() as stack:
        placement = replace(session.placement(np.full(len(session.grouping.groups), device)), replicas=replicas)
        server = stack.enter_context(session.serve(placement, on_loss="replace"))
        asked = stack.enter_context(beside(ask))
        stack.callback(over.set)
        yield server
    assert isinstance(asked[0], int), asked
    assert asked[0] > 0


def _news(server: Server) -> list[str]:
    """What the server has noticed, which may be devices that are slow on a busy machine as well."""
    return [event.why for event in server.stats().events]


def until(true: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_node_that_is_killed_and_comes_back_is_used_again_and_no_request_is_lost(edge: Edge, cache: Cache) -> None:
    there, here = discover([THERE, HERE]).devices
    with Session(inception_like(), Cluster((there, replace(here, slowdown=50.0))), cache=cache) as session:
        session.profile(budget_s=1.0)
        with served(session, 0) as server:
            edge.kill()
            until(lambda: server.replacements)
            assert server.replacements[0].devices == (HERE,)
            edge.start()
            until(lambda: any(THERE in later.devices for later in server.replacements[1:]))
            assert f"{THERE} is back." in _news(server)
        assert session.runtime.pool.lost() == {}


def test_a_node_that_becomes_slow_is_left(edge: Edge, cache: Cache) -> None:
    def slow_down(actor: DeviceActor) -> None:  # a function of this module could not be found on the node
        actor._device.slowdown = 300.0  # type: ignore[attr-defined]

    there, here = discover([THERE, HERE]).devices
    with Session(inception_like(), Cluster((replace(there, slowdown=1.01), here)), cache=cache) as session:
        session.profile(budget_s=1.0)
        with served(session, 0) as server:
            device = session.runtime.devices[0]
            assert isinstance(device, NodeDevice)
            connection.ray_module().get(device._actor.__ray_call__.remote(slow_down), timeout=60)
            until(lambda: server.replacements)
            assert server.replacements[0].devices == (HERE,)
            assert f"{THERE} takes " in server.replacements[0].why


def test_a_node_that_joins_after_the_session_was_opened_is_used(edge: Edge, cache: Cache) -> None:
    edge.kill()
    until(lambda: "edge1" not in connection.connected().nodes())
    like = f"head/CPU@{allowed_cores()[0]}"
    head, here = discover([like, HERE]).devices
    with Session(
        inception_like(), Cluster((head, replace(here, slowdown=50.0))), cache=cache, expected={THERE: like}
    ) as session:
        session.profile(budget_s=1.0)
        assert session.runtime.pool.lost().keys() == {frozenset({THERE})}
        groups = len(session.grouping.groups)
        on_head = session.placement(np.full(groups, 0))  # which leaves only the slow device to the other one
        with served(session, 1, replicas=(on_head,)) as server:
            edge.start()

            def used() -> bool:
                for answer in [server.submit(session.model.sample_inputs()) for _ in range(6)]:  # all replicas have some
                    answer.result(60)
                return any(THERE in one.devices for one in server.replacements)

            until(used)
            assert f"{THERE} is back." in _news(server)
        assert session.runtime.pool.lost() == {}


def test_models_move_as_a_plan_says_and_outlive_the_node_that_they_were_on(edge: Edge, cache: Cache) -> None:
    def on(session: Session, device: int) -> Placement:
        return session.placement(np.full(len(session.grouping.groups), device))

    def used(server: Server) -> set[str]:
        plans = [executor.plan for executor in server.executors]
        return {plan.problem.device_names[segment.device] for plan in plans for segment in plan.segments}

    def moved(session: Session, server: Server, device: int) -> bool:
        try:
            move(session, server, on(session, device), in_flight=None)
        except PlaceitError:  # it moves by itself just now, or the node is not there again
            return False
        return True

    with ExitStack() as stack:
        models = [stack.enter_context(Session(inception_like(), [THERE, HERE], cache=cache)) for _ in range(2)]
        for session in models:
            session.profile(budget_s=1.0)
        one, other = (stack.enter_context(served(session, 0)) for session in models)
        before = other.executors
        assert moved(models[0], one, 1)
        assert (used(one), other.executors) == ({HERE}, before)
        edge.kill()
        until(lambda: used(other) == {HERE})
        edge.start()
        for session, server in zip(models, (one, other), strict=True):
            until(lambda session=session, server=server: moved(session, server, 0) and used(server) == {THERE})  # type: ignore[misc]
        assert (one.repeated, other.repeated) == (0, 0)
