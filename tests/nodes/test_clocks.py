"""Nodes whose clocks differ from this process's: what they report is in its time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter

import pytest
from small_models import inception_like

from placeit.core.cluster import Cluster, Device
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.nodes import device as device_module
from placeit.runtime.nodes.device import NodeDevice, NodeLink
from placeit.runtime.runtime import Runtime

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

CORES = allowed_cores()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A device of each of two nodes, and one of this process."""
    started = local.start(["head", "edge1"], tmp_path / "cluster.json")
    try:
        connection.connect(started.address, token=started.token)
        yield discover([f"head/CPU@{CORES[0]}", f"edge1/CPU@{CORES[-1]}", f"CPU@{CORES[0]}"])
    finally:
        connection.disconnect()
        started.stop(tmp_path / "cluster.json")


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


@pytest.mark.slow
def test_spans_of_nodes_with_other_clocks_are_in_the_time_of_this_process_from_the_first_run_on(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_module, "_BEAT_S", 60.0)  # what is known of a clock is what opening the device has told
    model, (head, edge, here) = inception_like(), cluster.devices
    with ExitStack() as stack:
        nodes = [NodeDevice(device, "f32", opened=ahead_by(s)) for device, s in ((head, 1000.0), (edge, -500.0))]
        devices: list[RuntimeDevice] = [*nodes, device_kind(here).open(here, "f32")]
        links = {(a, b): NodeLink(devices[a], devices[b]) for a, b in itertools.permutations(range(3), 2)}
        runtime = stack.enter_context(Runtime(model, coarsen(model.graph), cluster, devices=devices, transports=links))
        groups = len(runtime.grouping.groups)
        plan = Segmenter(runtime.grouping, Costs.zero(groups, cluster)).plan([g % 3 for g in range(groups)], merge=False)
        with runtime.executor(plan) as executor:
            begin = perf_counter()
            executor.run(model.random_inputs(0), timeout=60)
            end, slack = perf_counter(), max(node.round_trip for node in nodes)
            spans = executor.spans()
    assert slack < 100
    assert {span.where for span in spans} >= {*zip(cluster.names, strict=True), tuple(cluster.names[:2])}
    assert all(begin - slack <= span.start <= span.finish <= end + slack for span in spans)
