"""Models on the nodes of a Ray cluster that is all on this machine."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import perf_counter

import numpy as np
import openvino as ov
import pytest

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ExecutionError
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.nodes import heartbeat
from placeit.runtime.nodes.actor import DeviceActor
from placeit.runtime.nodes.device import NodeDevice, NodeLink
from placeit.runtime.runtime import Runtime
from placeit.session import Session
from placeit.workbench import adapting
from tests.small_models import inception_like, ops

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

pytestmark = pytest.mark.slow

CORES = allowed_cores()
HERE, NAMES = f"CPU@{CORES[0]}", [f"{node}/CPU@{CORES[i % len(CORES)]}" for i, node in enumerate(("head", "edge1", "edge2"))]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster") / "cluster.json"


@pytest.fixture(scope="module")
def nodes(file: Path) -> Iterator[connection.Nodes]:
    cluster = local.start(local.names(3), file)
    try:
        yield connection.connect(cluster.address, token=cluster.token)
    finally:
        connection.disconnect()
        cluster.stop(file)
    assert not connection.ray_module().is_initialized()  # what was closed after the last test has started no other one
    assert cluster.pids() == []
    assert not Path(cluster.folder).exists()
    assert local.running(file) is None


@pytest.fixture(scope="module")
def cluster(nodes: connection.Nodes) -> Cluster:
    return discover([*NAMES, HERE])


def plan_on(runtime: Runtime, devices: list[int]) -> Plan:
    """Place groups on devices in turn, each group as a separate segment."""
    groups = len(runtime.grouping.groups)
    segmenter = Segmenter(runtime.grouping, Costs.zero(groups, runtime.cluster))
    return segmenter.plan([devices[g % len(devices)] for g in range(groups)], merge=False)


def opened(cluster: Cluster) -> Runtime:
    model = inception_like()
    return Runtime(model, coarsen(model.graph), cluster)


@pytest.fixture(scope="module")
def runtime(cluster: Cluster) -> Iterator[Runtime]:
    with opened(cluster) as runtime:
        yield runtime


def test_a_model_on_three_nodes_and_this_process_has_the_outputs_of_one_device(runtime: Runtime) -> None:
    model, inputs = runtime.model, [runtime.model.random_inputs(seed) for seed in range(3)]
    reference = model.reference(None, "f32")
    for devices in ([0, 1, 2, 3], [1], [3, 1], [2, 0]):
        with runtime.executor(plan_on(runtime, devices), in_flight=3) as executor:
            for request, values in enumerate(inputs):
                executor.set_inputs(values, request=request)
            executor.times(7, timeout=60)
            for request, values in enumerate(inputs):
                for name, expected in reference(values).items():
                    np.testing.assert_allclose(executor.outputs(request=request)[name], expected, rtol=1e-3, atol=1e-4)
            spans = executor.spans()
            assert {span.where[0] for span in spans if span.kind == "compute"} == {runtime.cluster.names[d] for d in devices}
            assert all(span.finish >= span.start for span in spans)


def test_what_a_run_has_not_written_shows(runtime: Runtime) -> None:
    with runtime.executor(plan_on(runtime, [0, 1, 3])) as executor:
        values = runtime.model.random_inputs(0)
        expected = executor.run(values, timeout=60)
        for sentinel in (0, 1):
            assert executor.blank(sentinel) is None
            for name, value in executor.run(values, timeout=60).items():
                np.testing.assert_array_equal(value, expected[name])


def test_a_killed_device_fails_what_needs_it_says_so_and_leaves_the_others_running(
    cluster: Cluster, nodes: connection.Nodes
) -> None:
    with opened(cluster) as runtime:
        _kill_one(runtime, nodes)


def _kill_one(runtime: Runtime, nodes: connection.Nodes) -> None:
    lost: list[tuple[str, str]] = []
    nodes.on_lost.append(lambda name, why: lost.append((name, why)))
    victim = runtime.devices[1]
    assert isinstance(victim, NodeDevice)
    with runtime.executor(plan_on(runtime, [0, 1, 2, 3]), in_flight=2) as executor:
        for request in range(2):
            executor.set_inputs(runtime.model.random_inputs(request), request=request)
        executor.times(4, timeout=60)
        killer = threading.Timer(0.2, os.kill, (victim.pid, signal.SIGKILL))
        killer.start()
        with pytest.raises(ExecutionError, match=f"{NAMES[1]} is lost"):
            executor.times(1_000_000, timeout=60)
        with pytest.raises(ExecutionError, match=f"{NAMES[1]} is lost"):
            executor.time(timeout=60)
        killer.join()
    assert [name for name, _ in lost] == [NAMES[1]]
    with runtime.executor(plan_on(runtime, [0, 2, 3])) as executor:
        values = runtime.model.random_inputs(0)
        for name, expected in runtime.model.reference(None, "f32")(values).items():
            np.testing.assert_allclose(executor.run(values, timeout=60)[name], expected, rtol=1e-3, atol=1e-4)
    nodes.on_lost.clear()


def test_a_link_that_is_lost_fails_what_crosses_it_until_it_is_back_and_a_server_goes_on_without_it(
    cluster: Cluster, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapting, "_POLL_S", 60.0)

    def cut(actor: DeviceActor, name: str) -> None:  # a function of this module could not be found on the node
        actor._lane._peers[name]._sock.shutdown(socket.SHUT_RDWR)

    with Session(inception_like(), cluster, cache=cache) as session:
        session.profile(budget_s=1.0)
        values, devices = session.model.random_inputs(0), session.runtime.devices
        expected = session.reference(values)
        split = session.placement(np.arange(len(session.grouping.groups)) % 3)
        source = devices[1]
        assert isinstance(source, NodeDevice)
        with session.serve(split, on_loss="replace") as server, session.executor(session.plan_of(split)) as executor:
            server.submit(values).result(60)
            ray_module = connection.ray_module()
            ray_module.get(source._actor.__ray_call__.remote(cut, NAMES[2]), timeout=60)
            for _ in range(50):
                for name, value in server.submit(values).result(60).items():
                    np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)
            (replacement,) = server.replacements
            assert "The link between" in replacement.why
            assert not set(NAMES[1:]) <= set(replacement.devices)
            for _ in range(2):
                with pytest.raises(ExecutionError, match="The link between"):
                    executor.run(values, timeout=60)
            assert session.runtime.pool.reopen() == [frozenset(NAMES[1:])]
            for name, value in executor.run(values, timeout=60).items():
                np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-4)
        assert all(device.gone is None for device in devices if isinstance(device, NodeDevice))


def test_a_device_that_hangs_is_lost_when_it_has_been_silent_for_too_long(
    cluster: Cluster, nodes: connection.Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(cluster) as runtime, runtime.executor(plan_on(runtime, [0, 1, 2])) as executor:
        victim = runtime.devices[1]
        assert isinstance(victim, NodeDevice)
        executor.set_inputs(runtime.model.random_inputs(0))
        executor.time(timeout=60)
        monkeypatch.setattr(nodes, "patience", 2.0)
        os.kill(victim.pid, signal.SIGSTOP)
        try:
            with pytest.raises(ExecutionError, match="no sign of life"):
                executor.time(timeout=60)
        finally:
            os.kill(victim.pid, signal.SIGCONT)


def heavy(megabytes: int) -> OpenVinoModel:
    """A product with a large matrix."""
    weights = np.random.default_rng(0).standard_normal((1000, megabytes * 250), np.float32)
    given = ops.parameter([1, 1000], ov.Type.f32, name="in")
    product = ops.matmul(given, ops.constant(weights), False, False)
    return describe(ov.Model([ops.result(ops.reduce_sum(product, ops.constant([1])))], [given], "heavy"), Path("heavy"))


def test_a_node_that_runs_out_of_memory_while_it_loads_is_an_error_and_nothing_is_left(nodes: connection.Nodes) -> None:
    def limit(actor: DeviceActor) -> None:
        with Path("/proc/self/statm").open() as stat:
            used = int(stat.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))

    model, cluster = heavy(200), discover([NAMES[0], HERE])
    with Runtime(model, coarsen(model.graph), cluster) as runtime:
        device, groups = runtime.devices[0], len(runtime.grouping.groups)
        assert isinstance(device, NodeDevice)
        connection.ray_module().get(device._actor.__ray_call__.remote(limit), timeout=60)
        segmenter = Segmenter(runtime.grouping, Costs.zero(groups, cluster))
        with pytest.raises(DeviceError, match=r"memory|its process has ended"):  # Ray may need memory first
            runtime.executor(segmenter.plan([0] * groups))
        with runtime.executor(segmenter.plan([1] * groups)) as executor:
            executor.run(model.random_inputs(0), timeout=60)
    while Path(f"/proc/{device.pid}").exists():
        time.sleep(0.1)


def ahead_by(seconds: float) -> Callable[[Device], RuntimeDevice]:
    """Opens a device in a process whose clock is ahead."""

    def opened(device: Device) -> RuntimeDevice:  # a function of this module could not be found on the node
        import sys
        import time

        clock = time.perf_counter
        for module in [*sys.modules.values()]:
            if getattr(module, "perf_counter", None) is clock:
                module.perf_counter = lambda: clock() + seconds  # type: ignore[attr-defined]
        return device_kind(device).open(device, "f32")

    return opened


def test_spans_of_nodes_with_other_clocks_are_in_the_time_of_this_process_from_the_first_run_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "_BEAT_S", 60.0)  # what is known of a clock is what opening the device has told
    model, (head, edge, _, here) = inception_like(), cluster.devices
    among = Cluster((head, edge, here))
    with ExitStack() as stack:
        nodes = [NodeDevice(device, "f32", open_device=ahead_by(s)) for device, s in ((head, 1000.0), (edge, -500.0))]
        devices: list[RuntimeDevice] = [*nodes, device_kind(here).open(here, "f32")]
        links = {(a, b): NodeLink(devices[a], devices[b]) for a, b in itertools.permutations(range(3), 2)}
        runtime = stack.enter_context(Runtime(model, coarsen(model.graph), among, devices=devices, transports=links))
        groups = len(runtime.grouping.groups)
        plan = Segmenter(runtime.grouping, Costs.zero(groups, among)).plan([g % 3 for g in range(groups)], merge=False)
        with runtime.executor(plan) as executor:
            begin = perf_counter()
            executor.run(model.random_inputs(0), timeout=60)
            end, slack = perf_counter(), max(min(node.clock._round_trips)[0] for node in nodes)
            spans = executor.spans()
    assert slack < 100
    assert {span.where for span in spans} >= {*zip(among.names, strict=True), tuple(among.names[:2])}
    assert all(begin - slack <= span.start <= span.finish <= end + slack for span in spans)


@pytest.mark.parametrize(("coding", "worst"), [(1, 1e-2), (2, 0.2)])
def test_compressed_tensors_cost_accuracy_and_the_check_of_outputs_says_how_much(
    nodes: connection.Nodes, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, coding: int, worst: float
) -> None:
    monkeypatch.setattr(nodes, "coding", coding)
    with opened(cluster) as runtime:
        model, values = runtime.model, runtime.model.random_inputs(0)
        with runtime.executor(plan_on(runtime, [0, 1, 2, 3])) as executor:
            outputs = executor.run(values, timeout=60)
        for name, expected in model.reference(None, "f32")(values).items():
            error = np.abs(outputs[name] - expected).max() / np.abs(expected).max()
            assert 0 < error < worst


def test_strangers_at_the_port_of_a_device_get_nothing_and_break_nothing(runtime: Runtime) -> None:
    device = runtime.devices[0]
    assert isinstance(device, NodeDevice)
    with runtime.executor(plan_on(runtime, [0, 1])) as executor:
        values = runtime.model.random_inputs(0)
        expected = executor.run(values, timeout=60)
        with socket.create_connection(device.address, timeout=120) as stranger:
            stranger.sendall(os.urandom(4000))
            for name, value in executor.run(values, timeout=60).items():
                np.testing.assert_array_equal(value, expected[name])
            assert device.address[0] == "127.0.0.1"


LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same in IPv6, and ::1, as the kernel writes them."""


def listening(pid: int) -> dict[str, str]:
    """Addresses that a process listens at, and its command."""
    sockets = set[str]()
    with suppress(FileNotFoundError):  # it has ended
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                sockets.add(str(entry.readlink()))
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        rows = [row.split() for table in ("tcp", "tcp6") for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()]
        return {row[1]: command for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}
    return {}


def test_whatever_listens_does_so_on_the_loopback_address(runtime: Runtime, file: Path) -> None:
    cluster = local.running(file)
    assert cluster is not None
    found = {pid: listening(pid) for pid in [*cluster.pids(), os.getpid()]}
    assert found[os.getpid()]
    for device in runtime.devices[:3]:
        assert isinstance(device, NodeDevice)
        assert f"{device.address[1]:04X}" in {address.partition(":")[2] for address in found[device.pid]}
    heads = {command for addresses in found.values() for address, command in addresses.items()}
    assert any("gcs_server" in command for command in heads)
    assert any("raylet" in command for command in heads)
    elsewhere = {
        (address, command)
        for addresses in found.values()
        for address, command in addresses.items()
        if address.partition(":")[0] not in LOOPBACK
    }
    assert elsewhere == set()
    with socket.create_server(("", 0)) as everywhere:
        assert f"00000000:{everywhere.getsockname()[1]:04X}" in listening(os.getpid())  # or else nothing would be found


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("edge9/CPU", "no node 'edge9'; its nodes are head, "),
        ("edge1/CPU@4000", "core 4000"),
        ("edge1/GPU.7", "There is no device 'GPU.7' on this machine"),
        ("edge1/throughput:CPU", "can be used on their own machine only"),
    ],
)
def test_a_device_that_no_node_has_is_an_error_that_says_what_there_is(nodes: connection.Nodes, name: str, why: str) -> None:
    with pytest.raises(DeviceError, match=why):
        discover(name)


def test_devices_of_a_node_that_share_cores_are_refused(nodes: connection.Nodes) -> None:
    cluster = discover([f"edge1/CPU@{CORES[0]}", "edge1/CPU"])
    with pytest.raises(DeviceError, match="share hardware of the node 'edge1'"):
        opened(cluster)


def test_another_version_on_a_node_is_an_error(nodes: connection.Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "__version__", "0.0.0")
    with pytest.raises(DeviceError, match=r"and this process has placeit 0\.0\.0"):
        nodes.device(Address("CPU", node="edge1"))


def test_an_address_that_nobody_answers_at_and_a_second_cluster_are_errors(nodes: connection.Nodes, file: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        free = taken.getsockname()[1]
    with pytest.raises(DeviceError, match="disconnect first"):
        connection.connect(f"127.0.0.1:{free}")
    with pytest.raises(DeviceError, match=r"is up at .* already"):
        local.start(["head"], file)
    assert connection.connect(nodes.address) is nodes
