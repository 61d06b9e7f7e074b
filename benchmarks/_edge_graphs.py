"""Chains and diamonds of segments that sleep, over nodes, raced through placeit's sockets and through Ray's own channels."""

from __future__ import annotations

import functools
import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._harness import Args, Report
from benchmarks._models import progress
from benchmarks._network import Network
from benchmarks._sleeping import RayStage, SleepingDevice
from placeit.backends.openvino.model import OpenVinoModel, describe, relu_chain
from placeit.core.cluster import Cluster
from placeit.core.telemetry import import_openvino
from placeit.devices import discover
from placeit.devices.nodes import connection, local
from placeit.measuring.measure import Race
from placeit.measuring.statistics import Measurement
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.nodes.device import NodeDevice, NodeLink
from placeit.runtime.runtime import Runtime

__all__ = ["NODES", "graphs"]

NODES = ("head", "edge1", "edge2")
SLEEP_S, HOPS = {False: 2e-3, True: 5e-3}, {False: 12, True: 6}  # on the loopback interface, and on a network
SIZES = (1_000, 100_000, 1_000_000)
"""Elements of float32."""
LONG = 1_000_000
"""Elements of tensors that are sent fewer times. Their overhead on the loopback interface, which is copying, has no bound."""
MAX_MS, MAX_PERCENT = 1.5, 7.0
OURS = "placeit"

Timer = Callable[[], float]


def graphs(args: Args, ray: local.LocalCluster, made: Network | None) -> Report:
    """Race graphs on a cluster: on an emulated network, or on the loopback interface."""
    report = Report()
    nodes = connection.connect(ray.address, token=ray.token)
    try:
        found = discover([f"{node}/CPU" for node in NODES])
        for elements in SIZES[:2] if args.quick else SIZES:
            chain, diamonds = relu_chain(elements, HOPS[made is not None]), _diamonds(elements, HOPS[made is not None])
            _Graph("chain", chain, elements, found, nodes, made).race(args, report)
            if made is not None and not args.quick:
                _Graph("chain over two", chain, elements, Cluster(found.devices[:2]), nodes, made).race(args, report)
            _Graph("diamonds", diamonds, elements, found, nodes, made).race(args, report)
    finally:
        connection.disconnect()
    return report


class _Graph:
    """A graph over nodes.

    Args:
        shape: its name.
        model: a layer for each segment.
        elements: number of float32 elements in each tensor.
        cluster: its devices, each on a different node, the first on the driver's.
        nodes: the connection.
        made: the network; None for the loopback interface.
    """

    def __init__(
        self, shape: str, model: OpenVinoModel, elements: int, cluster: Cluster, nodes: connection.Nodes, made: Network | None
    ) -> None:
        self._shape, self._model, self._elements, self._cluster = shape, model, elements, cluster
        self._nodes, self._made = nodes, made
        self._sleep_s = SLEEP_S[made is not None]

    def race(self, args: Args, report: Report) -> None:
        """Race the graph through placeit and through Ray, in turns."""
        made, kilobytes = self._made, self._elements * 4 / 1e3
        progress(f"{self._shape}, {kilobytes:g} kB{'' if made is None else ', on an emulated network'}")
        with ExitStack() as stack:
            runtime = stack.enter_context(self._runtime())
            plan = self._spread(runtime)
            executor = stack.enter_context(runtime.executor(plan))
            executor.set_inputs(self._model.random_inputs())
            once: dict[str, Timer] = {
                OURS: functools.partial(executor.time, timeout=60),
                "Ray's references": self._references(plan, stack),
            }
            if self._elements < LONG:  # with more, Ray 2.60 hung in a call, or at its end, in each of two runs
                once["Ray's compiled graph"] = self._compiled(plan, stack)
            timers = once if made is None else {who: functools.partial(_second, timer) for who, timer in once.items()}
            race = Race(timers, seed=args.seed, blocks=False)
            race.warm_up()
            begin, used = time.perf_counter(), 0.0 if made is None else made.switch_cpu()
            results = race.run(rounds=self._rounds(args.quick), drop_losers=False)
            cores = None if made is None else (made.switch_cpu() - used) / (time.perf_counter() - begin)
            crossed = {who: None if made is None else made.crossed_by(timer) for who, timer in once.items()}
        path_s, segments = self._critical_path(plan)
        for who, taken in results.items():
            self._tell(report, who, taken, path_s, segments, self._tensor_bytes(plan), crossed[who], cores)

    def _rounds(self, quick: bool) -> int:
        if self._made is None:
            return 20 if quick else 100
        return 6 if quick or self._elements >= LONG else 30

    def _tell(
        self,
        report: Report,
        who: str,
        taken: Measurement,
        path_s: float,
        segments: int,
        nbytes: float,
        crossed: float | None,
        cores: float | None,
    ) -> None:
        overhead_ms = (taken.median - path_s) / segments * 1e3
        over_percent = (taken.median / path_s - 1) * 100
        network = {
            "tensors_that_cross_kb": nbytes / 1e3,
            "bytes_that_cross_kb": None if crossed is None else crossed / 1e3,
            "cores_of_the_switch": cores,
        }
        report.row(
            graph=self._shape,
            tensor_kb=self._elements * 4 / 1e3,
            what=who,
            critical_path_ms=path_s * 1e3,
            median_ms=taken.median * 1e3,
            low_ms=taken.ci_low * 1e3,
            high_ms=taken.ci_high * 1e3,
            overhead_per_segment_and_hop_ms=overhead_ms,
            over_the_critical_path_percent=over_percent,
            **({} if self._made is None else network),
        )
        if who != OURS:
            return
        where = "" if self._made is None else ", shaped"
        what = f"{self._shape}, {self._elements * 4 / 1e3:g} kB{where}"
        bound = self._made is not None or self._elements < LONG
        report.claim(f"{what}: overhead per segment and hop", overhead_ms, "ms", at_most=MAX_MS if bound else None)
        if self._made is not None:
            report.claim(f"{what}: over the critical path", over_percent, "%", at_most=MAX_PERCENT)

    def _runtime(self) -> Runtime:
        opened = functools.partial(SleepingDevice, seconds=self._sleep_s)
        devices = [NodeDevice(device, "f32", nodes=self._nodes, open_device=opened) for device in self._cluster.devices]
        pairs = [(a, b) for a in range(len(devices)) for b in range(len(devices)) if a != b]
        links = {(a, b): NodeLink(devices[a], devices[b]) for a, b in pairs}
        grouping = Grouping.singletons(self._model.graph)
        return Runtime(self._model, grouping, self._cluster, devices=devices, transports=links)

    def _spread(self, runtime: Runtime) -> Plan:
        """Place each segment on another node than its producers, a diamond's middle on two, results with their producers."""
        groups, devices = runtime.grouping.groups, len(self._cluster)
        level = np.zeros(len(groups), int)
        beside = np.zeros(len(groups), int)
        for u, v in sorted(groups.edges.tolist()):
            level[v] = max(level[v], level[u] + 1)
        for step in range(level.max() + 1):
            here = np.flatnonzero(level == step)
            beside[here] = np.arange(len(here))
        placement = (level * (2 if beside.any() else 1) + beside) % devices
        for u, v in groups.edges.tolist():
            if groups.kinds[v] == "Result":
                placement[v] = placement[u]
        return Segmenter(runtime.grouping, Costs.zero(len(groups), runtime.cluster)).plan(placement.tolist(), merge=False)

    def _critical_path(self, plan: Plan) -> tuple[float, int]:
        """Return the seconds of the longest path from the driver and back, and its segments; its tensors share no link."""
        where = _nodes_of(plan)
        length = np.array([0 if segment.passthrough else 1 for segment in plan.segments])
        begin, count = np.zeros(len(length)), length.copy()
        for (u, v), nbytes in sorted(zip(plan.problem.edges.tolist(), plan.problem.edge_bytes.tolist(), strict=True)):
            hop = self._made.hop(nbytes) if self._made is not None and where[u] != where[v] else 0.0
            arrives = begin[u] + length[u] * self._sleep_s + hop
            if arrives >= begin[v]:
                begin[v], count[v] = arrives, count[u] + length[v]
        end = begin + length * self._sleep_s
        return float(end.max()), int(count[end.argmax()])

    def _tensor_bytes(self, plan: Plan) -> float:
        """Return the bytes of the tensors that go from one node to another."""
        where, problem = _nodes_of(plan), plan.problem
        moved = {
            (t, where[v]): nbytes
            for (u, v), t, nbytes in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), problem.edge_bytes, strict=True)
            if where[u] != where[v]
        }
        return float(sum(moved.values()))

    def _stages(self, stack: ExitStack) -> list[Any]:
        """Start an actor of Ray on each node."""
        ray = connection.ray_module()
        made, actors = ray.remote(num_cpus=0)(RayStage), []
        for device in self._cluster.devices:
            pinned = connection.pinned(self._nodes.node(device.where.node))
            actors.append(made.options(scheduling_strategy=pinned).remote(self._sleep_s, self._elements))
            stack.callback(ray.kill, actors[-1])
        return actors

    def _references(self, plan: Plan, stack: ExitStack) -> Timer:
        """Return a timer of the plan as calls of Ray's actors, which take and return object references."""
        ray, actors = connection.ray_module(), self._stages(stack)
        value = np.zeros((1, self._elements), np.float32)

        def once() -> float:
            begin = time.perf_counter()
            last = _walk(plan, value, lambda device, inputs: actors[device].run.remote(*inputs))
            ray.get(last, timeout=60)
            return time.perf_counter() - begin

        return once

    def _compiled(self, plan: Plan, stack: ExitStack) -> Timer:
        """Return a timer of the plan as a graph that Ray compiles: channels between actors, and no scheduler between calls.

        Its actors poll their channels, which takes a third of a core each. They are stopped while other candidates run.
        """
        from ray.dag import InputNode

        ray, actors = connection.ray_module(), self._stages(stack)
        value = np.zeros((1, self._elements), np.float32)
        pids = ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors], timeout=60)
        with InputNode() as given:
            last = _walk(plan, given, lambda device, inputs: actors[device].run.bind(*inputs))
        compiled = last.experimental_compile(_buffer_size_bytes=value.nbytes + 10_000)
        stack.callback(compiled.teardown, kill_actors=True)
        stack.callback(_signal, pids, signal.SIGCONT)

        def once() -> float:
            _signal(pids, signal.SIGCONT)
            begin = time.perf_counter()
            ray.get(compiled.execute(value), timeout=60)
            taken = time.perf_counter() - begin
            _signal(pids, signal.SIGSTOP)
            return taken

        return once


def _walk(plan: Plan, given: Any, call: Callable[[int, list[Any]], Any]) -> Any:
    """Return the outputs of calls of all segments on their devices for an input."""
    reads: dict[int, list[int]] = {s: [] for s in range(len(plan.segments))}
    for u, v in plan.problem.edges.tolist():
        reads[v].append(u)
    made: dict[int, Any] = {}
    last = given
    for s, segment in enumerate(plan.segments):
        inputs = [made[u] for u in reads[s]]
        if segment.passthrough:
            made[s] = inputs[0] if inputs else given
        else:
            made[s] = last = call(segment.device, inputs)
    return last


def _nodes_of(plan: Plan) -> list[int]:
    """Return the node of each segment. Segments that only pass on inputs and outputs are on the first node, the driver's."""
    return [0 if segment.passthrough else segment.device for segment in plan.segments]


def _signal(pids: Sequence[int], what: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, what)


def _second(timer: Timer) -> float:
    """Run twice, and time the second run: after a pause, TCP sends slowly at first, for any sender."""
    timer()
    return timer()


def _diamonds(elements: int, hops: int) -> OpenVinoModel:
    """Make consecutive diamonds: a segment, two parallel segments that read it, and a segment that adds their outputs."""
    ov: Any = import_openvino()
    ops = ov.opset13
    parameter = ops.parameter([1, elements], ov.Type.f32, name="in")
    value = parameter.output(0)
    for _ in range(hops // 3):
        top = ops.relu(value).output(0)
        value = ops.add(ops.abs(top).output(0), ops.sign(top).output(0)).output(0)
    return describe(ov.Model([ops.result(value)], [parameter], "diamonds"), Path("diamonds"))
