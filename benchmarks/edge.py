"""What running on several nodes adds: segments that sleep for a known time, in chains and diamonds over nodes of this machine.

Each graph is run on three nodes of a local Ray cluster, whose actors exchange tensors through placeit's sockets, and beside
that as calls of plain Ray actors that pass object references, in one interleaved race. No segment computes anything, so that
what exceeds the sum of the sleeps along the longest path is overhead: transfers over the loopback interface, decisions, and
waking late. It is divided by the number of segments on that path; each of them is on another node than the one before.
"""

from __future__ import annotations

import functools
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._sleeping import RayStage, SleepingDevice
from placeit.backends.openvino.model import OpenVinoModel, describe, relu_chain
from placeit.core.cluster import Cluster
from placeit.core.telemetry import import_openvino
from placeit.devices import discover
from placeit.devices.nodes import connection, local
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.measure import Race
from placeit.runtime.nodes.device import NodeDevice, NodeLink
from placeit.runtime.runtime import Runtime

NODES = ("head", "edge1", "edge2")
SLEEP_S = 2e-3
HOPS = 12
SIZES = (1_000, 100_000, 1_000_000)
"""Elements of float32."""
MOST_MS = 1.5


def run(args: Args, report: Report) -> None:
    sizes, rounds = (SIZES[:2], 20) if args.quick else (SIZES, 100)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder, "cluster.json")
        cluster = local.start(NODES, file)
        stack.callback(cluster.stop, file)
        nodes = connection.connect(cluster.address, token=cluster.token)
        stack.callback(connection.disconnect)
        found = discover([f"{node}/CPU" for node in NODES])
        for elements in sizes:
            for shape, model, wide in (("chain", relu_chain(elements, HOPS), 1), ("diamonds", _diamonds(elements), 2)):
                _race(shape, model, wide, elements, found, nodes, rounds, args.seed, report)


def _race(
    shape: str,
    model: OpenVinoModel,
    wide: int,
    elements: int,
    cluster: Cluster,
    nodes: connection.Nodes,
    rounds: int,
    seed: int,
    report: Report,
) -> None:
    grouping = Grouping.singletons(model.graph)
    with ExitStack() as stack:
        opened = functools.partial(SleepingDevice, seconds=SLEEP_S)
        devices = [NodeDevice(device, "f32", nodes=nodes, opened=opened) for device in cluster.devices]
        pairs = [(a, b) for a in range(len(devices)) for b in range(len(devices)) if a != b]
        links = {(a, b): NodeLink(devices[a], devices[b]) for a, b in pairs}
        runtime = stack.enter_context(Runtime(model, grouping, cluster, devices=devices, transports=links))
        plan = _spread(runtime, wide)
        executor = stack.enter_context(runtime.executor(plan))
        executor.set_inputs(model.random_inputs())
        references, end = _references(plan, cluster, nodes, elements)
        stack.callback(end)
        race = Race({"placeit": functools.partial(executor.time, timeout=60), "Ray's references": references}, seed=seed)
        race.warm_up()
        results = race.run(rounds=rounds, drop_losers=False)
    longest = _longest(plan)
    for who, taken in results.items():
        overhead = (taken.median - longest * SLEEP_S) / longest * 1e3
        report.row(
            graph=shape,
            tensor_kb=elements * 4 / 1e3,
            what=who,
            critical_path_ms=longest * SLEEP_S * 1e3,
            median_ms=taken.median * 1e3,
            low_ms=taken.ci_low * 1e3,
            high_ms=taken.ci_high * 1e3,
            overhead_per_segment_and_hop_ms=overhead,
        )
        if who == "placeit":
            most = MOST_MS if elements * 4 <= 400_000 else None
            what = f"{shape}, {elements * 4 / 1e3:g} kB: overhead per segment and hop"
            report.claim(what, overhead, "ms", at_most=most)


def _diamonds(elements: int) -> OpenVinoModel:
    """Diamonds one after the other: a segment, two beside each other that read it, one that adds them up."""
    ov: Any = import_openvino()
    ops = ov.opset13
    parameter = ops.parameter([1, elements], ov.Type.f32, name="in")
    value = parameter.output(0)
    for _ in range(HOPS // 3):
        top = ops.relu(value).output(0)
        value = ops.add(ops.abs(top).output(0), ops.sign(top).output(0)).output(0)
    return describe(ov.Model([ops.result(value)], [parameter], "diamonds"), Path("diamonds"))


def _spread(runtime: Runtime, wide: int) -> Plan:
    """Each segment on another node than those that it reads from, and those of a diamond's middle on two."""
    groups = len(runtime.grouping.groups)
    level = np.zeros(groups, int)
    beside = np.zeros(groups, int)
    for u, v in sorted(runtime.grouping.groups.edges.tolist()):
        level[v] = max(level[v], level[u] + 1)
    for step in range(level.max() + 1):
        here = np.flatnonzero(level == step)
        beside[here] = np.arange(len(here))
    placement = (level + beside) % len(NODES) if wide == 1 else (level * 2 + beside) % len(NODES)
    return Segmenter(runtime.grouping, Costs.zero(groups, runtime.cluster)).plan(placement.tolist(), merge=False)


def _longest(plan: Plan) -> int:
    """Segments on the longest path that compute something."""
    length = np.array([0 if segment.passthrough else 1 for segment in plan.segments])
    total = length.copy()
    for u, v in sorted(plan.problem.edges.tolist()):
        total[v] = max(total[v], total[u] + length[v])
    return int(total.max())


def _references(
    plan: Plan, cluster: Cluster, nodes: connection.Nodes, elements: int
) -> tuple[Callable[[], float], Callable[[], None]]:
    """The same segments as calls of Ray actors, one on each node; and what ends them."""
    ray = connection.ray_module()
    made = ray.remote(num_cpus=0)(RayStage)
    actors = []
    for device in cluster.devices:
        pinned = connection.pinned(nodes.node(device.where.node))
        actors.append(made.options(scheduling_strategy=pinned).remote(SLEEP_S, elements))
    reads: dict[int, list[int]] = {s: [] for s in range(len(plan.segments))}
    for u, v in plan.problem.edges.tolist():
        reads[v].append(u)
    value = np.zeros((1, elements), np.float32)

    def once() -> float:
        begin = time.perf_counter()
        made: dict[int, Any] = {}
        last: Any = value
        for s, segment in enumerate(plan.segments):
            inputs = [made[u] for u in reads[s]]
            if segment.passthrough:
                made[s] = inputs[0] if inputs else value
            else:
                made[s] = last = actors[segment.device].run.remote(*(inputs or [value]))
        ray.get(last, timeout=60)
        return time.perf_counter() - begin

    return once, lambda: [ray.kill(actor) for actor in actors] and None


if __name__ == "__main__":
    main("edge", run)
