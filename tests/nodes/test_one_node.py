"""What is tried with each change: a node beside this process, and its loss."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from placeit.backends.base import Arrays
from placeit.core.cluster import Cluster
from placeit.core.errors import DeviceError, LostError, PlaceitError, UsageError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.runtime.devices.base import Program, SegmentSource
from placeit.runtime.nodes.device import NodeDevice
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench import adapting
from tests.recorded_run import check
from tests.small_models import inception_like

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

TIMEOUT_S = 240.0  # for an answer: a node is a separate process, and cores may be busy
THERE, HERE = f"head/CPU@{allowed_cores()[0]}", f"CPU@{allowed_cores()[-1]}"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[connection.Nodes]:
    file = tmp_path_factory.mktemp("cluster") / "cluster.json"
    started = local.start(local.names(1), file)
    try:
        yield connection.connect(started.address, token=started.token)
    finally:
        connection.disconnect()
        started.stop(file)
    assert started.pids() == []


@pytest.fixture
def cluster(nodes: connection.Nodes) -> Cluster:
    return discover([THERE, HERE])


def test_a_run_on_a_node_is_recorded_in_the_time_of_this_process(cluster: Cluster, cache: Cache, tmp_path: Path) -> None:
    with Session(inception_like(), cluster, cache=cache) as session:
        session.profile(budget_s=1.0)
        groups = len(session.grouping.groups)
        recording = session.recording(session.run(session.placement(np.arange(groups) * 2 // groups), runs=3), ops=False)
    check(recording, tmp_path)
    assert [device.node for device in recording.devices] == ["head", ""]
    assert {(use.src, use.dst) for use in recording.link_use} == {(THERE, HERE)}


def test_requests_that_a_lost_device_had_run_on_what_is_left_once_each(
    cluster: Cluster, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "_POLL_S", 600.0)  # it does not come back
    model = inception_like()
    with Session(model, cluster, cache=cache) as session:
        session.profile(budget_s=1.0)
        groups = len(session.grouping.groups)
        split = session.placement(np.arange(groups) * 2 // groups)
        batches = [model.random_inputs(seed) for seed in range(3)]
        expected = [session.reference(values) for values in batches]
        with session.serve(split, on_loss="replace") as server:
            answers = []
            for i in range(120):  # more than wait and are in flight, so that some are submitted after the loss
                answers.append(server.submit(batches[i % 3]))
                if i == 30:
                    answers[0].result(TIMEOUT_S)
                    victim = session.runtime.devices[0]
                    assert isinstance(victim, NodeDevice)
                    assert os.getpriority(os.PRIO_PROCESS, victim.pid) == os.getpriority(os.PRIO_PROCESS, 0)
                    os.kill(victim.pid, signal.SIGKILL)
            for i, answer in enumerate(answers):
                for name, value in answer.result(TIMEOUT_S).items():
                    np.testing.assert_allclose(value, expected[i % 3][name], rtol=1e-3, atol=1e-4)
            lost = server.stats()
            assert session.runtime.pool.reopen() == [frozenset({THERE})]
            back = server.stats()
        assert (lost.outcomes["succeeded"], lost.arrived, lost.replacements) == (120, 120, 1)
        for stats, up, returns in ((lost, False, 0), (back, True, 1)):
            seen = {device.name: (device.node, device.up, device.losses, device.returns) for device in stats.devices}
            assert seen == {THERE: ("head", up, 1, returns), HERE: ("", True, 0, 0)}
        assert server.repeated == 0
        (replacement,) = server.replacements
        assert replacement.devices == (HERE,)
        assert f"{THERE} is lost" in replacement.why
        assert replacement.answered_s > 0


def test_a_node_that_is_lost_while_it_compiles_is_not_said_to_refuse_ops(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compile_there = NodeDevice.compile_within

    def compile_and_end(self: NodeDevice, segment: SegmentSource, seconds: float) -> Program:
        os.kill(self.pid, signal.SIGKILL)
        return compile_there(self, segment, seconds)

    monkeypatch.setattr(NodeDevice, "compile_within", compile_and_end)
    lost = pytest.raises(LostError, match=f"^{THERE}.* is lost: its process has ended")
    with Session(inception_like(), cluster, cache=Cache(tmp_path)) as session, lost as caught:
        session.profile(budget_s=1.0)
    assert caught.value.ops == ()
    assert "The segment has" not in str(caught.value)


@pytest.mark.slow
def test_where_no_device_is_left_every_request_fails_with_the_reason(nodes: connection.Nodes, cache: Cache) -> None:
    model = inception_like()
    with Session(model, [THERE], cache=cache) as session:
        session.profile(budget_s=1.0)
        placement = session.placement(np.zeros(len(session.grouping.groups), int))
        with session.serve(placement, on_loss="replace") as server:
            server.submit(model.sample_inputs()).result(TIMEOUT_S)
            victim = session.runtime.devices[0]
            assert isinstance(victim, NodeDevice)
            os.kill(victim.pid, signal.SIGKILL)
            with pytest.raises(PlaceitError, match=f"{THERE} is lost.*cannot be placed on the remaining devices"):
                _use_up(server, model.sample_inputs())


@pytest.mark.two_cores
def test_devices_of_several_nodes_that_share_cores_of_one_machine_are_warned_of_once(
    nodes: connection.Nodes, caplog: pytest.LogCaptureFixture
) -> None:
    same = THERE.removeprefix("head/")
    for _ in range(2):
        discover([THERE, same])
    discover(["head/CPU", same])
    assert [record.message.partition(":")[0] for record in caplog.records] == [
        f"{THERE} and {same} share cores of one machine",
        f"head/CPU and {same} share cores of one machine",
    ]
    caplog.clear()
    discover([f"head/CPU@{allowed_cores()[0]}", "head/CPU"])  # of one node, which is refused when they are opened
    discover([THERE, HERE])
    assert caplog.records == []


def test_errors_of_the_cluster_are_not_printed_where_results_go(
    nodes: connection.Nodes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    from ray._private import utils, worker

    published, logged = "a worker died", threading.Event()
    caplog.set_level(logging.DEBUG, "placeit")
    monitor = logging.Handler()
    monitor.emit = lambda record: logged.set() if published in record.getMessage() else None  # type: ignore[method-assign]
    logging.getLogger("placeit").addHandler(monitor)
    try:
        core = worker.global_worker
        utils.publish_error_to_driver("test", published, gcs_client=core.gcs_client, job_id=core.current_job_id)
        assert logged.wait(TIMEOUT_S)
    finally:
        logging.getLogger("placeit").removeHandler(monitor)
    assert capfd.readouterr().out == ""


def test_a_node_that_was_there_is_said_to_be_lost_and_another_name_to_be_unknown(nodes: connection.Nodes) -> None:
    with pytest.raises(DeviceError, match="has no node 'edge7'; its nodes are head"):
        nodes.node("edge7")


def _use_up(server: Server, inputs: Arrays) -> None:
    while True:
        server.submit(inputs).result(TIMEOUT_S)


@pytest.mark.parametrize("address", ["", "localhost", "localhost:", ":6379", "localhost:x", "localhost:70000"])
def test_what_is_no_address_is_an_error(address: str) -> None:
    with pytest.raises(UsageError, match="HOST:PORT"):
        connection.connect(address)
