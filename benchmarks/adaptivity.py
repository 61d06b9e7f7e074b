"""Placing a model anew when a node becomes slow or is lost: by GiPH's policy zero-shot, HEFT, search, or not at all.

Random graphs of segments that sleep for known times, unequal on three nodes of this machine, are placed by search. Then one
node takes four times as long, and after that it is killed. Each time the same problem is given to the policy that ships with
placeit, to HEFT, to a search of half a second, and to a server's method (such a search). Their answers are run on the nodes.
The policy has seen neither the graphs nor the nodes. Costs are the sleeping times of segments; the cost of a hop is a guess.
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._sleeping import TimedDevice
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core import clock
from placeit.core.cluster import Cluster, Link
from placeit.core.telemetry import import_openvino
from placeit.devices import discover
from placeit.devices.nodes import connection, local
from placeit.measuring.measure import Race
from placeit.placers.heft import Heft
from placeit.placers.local_search import starts
from placeit.placers.registry import get_placer
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.nodes.actor import DeviceActor
from placeit.runtime.nodes.device import NodeDevice, NodeLink
from placeit.runtime.runtime import Runtime
from placeit.simulator.simulate import SimulatedCost
from placeit.workbench.recovery import Recovery

NODES = ("head", "edge1", "edge2")
HOP = Link(bandwidth=1e9, latency=5e-4)
OPS, ELEMENTS = 40, 1000
MIN_S, MAX_S = 1e-3, 4e-3
"""Seconds of an op on a node of middling speed for it; on other nodes half or twice as long at the extremes."""
SLOWER = 4.0
SEARCH_S, STEPS = 0.5, 600


def run(args: Args, report: Report) -> None:
    graphs, rounds = (1, 5) if args.quick else (10, 30)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder, "cluster.json")
        cluster = local.start(NODES, file)
        stack.callback(cluster.stop, file)
        nodes = connection.connect(cluster.address, token=cluster.token)
        stack.callback(connection.disconnect)
        devices = discover([f"{node}/CPU" for node in NODES])
        found = [_graph(number, args.seed + number, devices, nodes, rounds, report) for number in range(graphs)]
    for what in ("slow", "lost"):
        for who in dict.fromkeys(who for happened, who in found[0] if happened == what and who != "HEFT"):
            ratios = [one[what, who][1] / one[what, "HEFT"][1] for one in found]
            report.claim(f"latency with a {what} node, {who} over HEFT", float(np.exp(np.mean(np.log(ratios)))), "")
    decided = max(one[key][0] for one in found for key in one if key[1] in ("GiPH", "server"))
    report.claim("decision of the policy and of a server, worst", decided, "s", at_most=1.0)


def _graph(
    number: int, seed: int, cluster: Cluster, nodes: connection.Nodes, rounds: int, report: Report
) -> dict[tuple[str, str], tuple[float, float]]:
    """Place one graph anew twice; return the seconds of each decision, and of a request after it."""
    rng = np.random.default_rng(seed)
    model = _model(rng)
    grouping = Grouping.singletons(model.graph)
    graph, order = grouping.graph, np.argsort(grouping.group_of)  # index of the op of each group
    names = [graph.names[v] for v in order]
    computes = np.array([graph.kinds[v] not in ("Parameter", "Result") for v in order])
    seconds = rng.uniform(MIN_S, MAX_S, (len(names), 1)) * 2 ** rng.uniform(-1, 1, (len(names), len(NODES)))
    seconds *= computes[:, None]
    links = {(a, b): HOP for a in cluster.names for b in cluster.names if a != b}
    cluster = Cluster(cluster.devices, links)
    costs = replace(Costs.zero(len(names), cluster), core=seconds)
    found = {}
    with ExitStack() as stack:
        devices = []
        for d, device in enumerate(cluster.devices):
            opened = functools.partial(TimedDevice, seconds=dict(zip(names, seconds[:, d].tolist(), strict=True)))
            devices.append(NodeDevice(device, "f32", nodes=nodes, open_device=opened))
        pairs = [(a, b) for a in range(len(devices)) for b in range(len(devices)) if a != b]
        transports = {(a, b): NodeLink(devices[a], devices[b]) for a, b in pairs}
        runtime = stack.enter_context(Runtime(model, grouping, cluster, devices=devices, transports=transports))
        recovery = Recovery(runtime, costs, None)
        before = _search(Segmenter(grouping, costs))
        for what in ("slow", "lost"):
            if what == "slow":
                _slow_down(devices[2])
                recovery.slow = {cluster.names[2]: SLOWER}
                now = replace(costs, core=costs.core * [1.0, 1.0, SLOWER])
            else:
                os.kill(devices[2].pid, signal.SIGKILL)
                while devices[2].gone is None:
                    time.sleep(0.01)
                recovery.slow = {}
                now = costs.where(np.broadcast_to([True, True, False], costs.core.shape))
            segmenter = Segmenter(grouping, now)
            ways: dict[str, Callable[[], Plan]] = {
                "HEFT": functools.partial(_heft, segmenter),
                "GiPH": functools.partial(_policy, segmenter),
                "search": functools.partial(_search, segmenter),
                "server": functools.partial(_server, recovery),
            }
            if what == "slow":
                ways["nothing"] = lambda: before
            plans, decided = {}, {}
            for who, decide in ways.items():
                begin = clock.now()
                plans[who] = decide()
                decided[who] = clock.now() - begin
            took = _measured(runtime, plans, rounds)
            for who, plan in plans.items():
                found[what, who] = decided[who], took[who]
                report.row(
                    graph=number,
                    node=what,
                    placed_by=who,
                    decision_s=decided[who],
                    predicted_ms=segmenter.priced(plan).schedule.makespan * 1e3,
                    latency_ms=took[who] * 1e3,
                )
    return found


def _model(rng: np.random.Generator) -> OpenVinoModel:
    """Make sums over a random graph, with several readers of one tensor, and one more sum of all tensors without a reader."""
    ov: Any = import_openvino()
    ops = ov.opset13
    given = ops.parameter([1, ELEMENTS], ov.Type.f32, name="in")
    values = [ops.relu(given, name="op 0").output(0)]
    for number in range(1, OPS):
        first, second = number - np.minimum(rng.geometric(0.25, size=2), number)
        values.append(ops.add(values[first], values[second], name=f"op {number}").output(0))
    last = [value for value in values if not value.get_target_inputs()]
    return describe(ov.Model([ops.result(value) for value in last], [given], "sums"), Path("sums"))


def _heft(segmenter: Segmenter) -> Plan:
    return segmenter.plan(Heft().plan(segmenter.problem()).placement)


def _policy(segmenter: Segmenter) -> Plan:
    problem = segmenter.problem()
    return segmenter.plan(get_placer("giph").place(problem, SimulatedCost(problem), seed=0, evaluations=None))


def _search(segmenter: Segmenter) -> Plan:
    deadline, problem = clock.now() + SEARCH_S, segmenter.problem()
    first = starts(problem)
    best = first[int(np.argmin(segmenter.seconds(first)))]
    return segmenter.plan(segmenter.search(best, problem, steps=STEPS, seed=0, deadline=deadline))


def _server(recovery: Recovery) -> Plan:
    better = recovery.better(None, [])
    assert better is not None
    return better.plan


def _slow_down(device: NodeDevice) -> None:
    def slow_down(actor: DeviceActor, factor: float = SLOWER) -> None:
        cast("TimedDevice", actor._device).factor = factor

    connection.answer_of(device._actor.__ray_call__.remote(slow_down), "A node that is to be slow", 60.0)


def _measured(runtime: Runtime, plans: Mapping[str, Plan], rounds: int) -> dict[str, float]:
    """Return the median seconds of a request on each plan, in interleaved rounds."""
    with ExitStack() as stack:
        executors = {who: stack.enter_context(runtime.executor(plan)) for who, plan in plans.items()}
        for executor in executors.values():
            executor.set_inputs(runtime.model.sample_inputs())
        race = Race({who: functools.partial(executor.time, timeout=60) for who, executor in executors.items()})
        race.warm_up()
        return {who: taken.median for who, taken in race.run(rounds=rounds, drop_losers=False).items()}


if __name__ == "__main__":
    main("adaptivity", run)
