"""Models on a fast head and slow edge nodes: the best split, compared with single nodes, the simulator and Ray's references."""

from __future__ import annotations

import functools
import itertools
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._edge_graphs import NODES
from benchmarks._harness import Args, Report
from benchmarks._models import load_model, progress, two_cores
from benchmarks._network import Network
from placeit.core.cluster import Device
from placeit.devices.nodes import connection, local
from placeit.measuring.measure import Race
from placeit.measuring.statistics import faster
from placeit.placers.local_search import starts
from placeit.planning.segments import Plan
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.nodes.actor import local as as_on_its_node
from placeit.runtime.nodes.formats import Package
from placeit.runtime.nodes.package import Unpacked, pack
from placeit.runtime.nodes.weights import WeightStore
from placeit.session import Session

__all__ = ["best_split", "on_nodes"]

QUOTAS = {"head": 1.0, "edge1": 0.3, "edge2": 0.3}
"""Cores of each node. The rest of two cores is for the driver and the switch."""
MAX_PERCENT = 10.0
_STEPS = 3000  # of a search among plans


def on_nodes(name: str, args: Args, ray: local.LocalCluster, made: Network) -> Report:
    """Race a model on the nodes of an emulated network."""
    report, where = Report(), f"{name} at {made.rate / 1e6:g} Mbit/s"
    first, second = two_cores()
    devices = [f"{node}/CPU@{first if node == NODES[0] else second}" for node in NODES]
    connection.connect(ray.address, token=ray.token, patience=30.0)
    try:
        with ExitStack() as stack:
            session = stack.enter_context(Session(load_model(name), devices, cache=None))
            _ = session.runtime  # starts its actors, before the CPU quotas apply
            for node, cores in QUOTAS.items():
                made.limit(node, cores)
                stack.callback(made.limit, node, None)
            progress(f"profiling {where}")
            session.profile(budget_s=30.0 if args.quick else 120.0)
            _race(session, where, made, args, report)
    finally:
        connection.disconnect()
    return report


def _race(session: Session, where: str, made: Network, args: Args, report: Report) -> None:
    groups = len(session.grouping.groups)
    plans = {name: session.segmenter.plan(np.full(groups, d)) for d, name in enumerate(session.cluster.names)}
    plans["split"] = split = best_split(session, args.seed)
    with ExitStack() as stack:
        executors = {who: stack.enter_context(session.executor(plan)) for who, plan in plans.items()}
        timers: dict[str, Callable[[], float]] = {
            who: functools.partial(executor.time, timeout=120) for who, executor in executors.items()
        }
        through_ray = _Ray(session, split, stack)
        timers["split, Ray's references"] = through_ray.time
        outputs = through_ray.run()
        for output, value in session.reference(session.model.sample_inputs()).items():
            np.testing.assert_allclose(outputs[output], value, rtol=1e-2, atol=1e-3)
        progress(f"racing {len(timers)} candidates of {where}")
        race = Race(timers, seed=args.seed, blocks=False)
        race.warm_up()
        begin, used = time.perf_counter(), made.switch_cpu()
        results = race.run(rounds=8 if args.quick else 30, drop_losers=False)
        cores = (made.switch_cpu() - used) / (time.perf_counter() - begin)
        crossed = {who: made.crossed_by(timer) for who, timer in timers.items()}
    best = min(session.cluster.names, key=lambda name: results[name].median)
    for who, taken in results.items():
        plan = plans.get(who)
        report.row(
            model=where,
            what=who,
            segments=len(split.programs if plan is None else plan.programs),
            median_ms=taken.median * 1e3,
            low_ms=taken.ci_low * 1e3,
            high_ms=taken.ci_high * 1e3,
            simulated_ms=None if plan is None else plan.schedule.makespan * 1e3,
            over_best_node=faster(taken, results[best]).ratio,
            bytes_that_cross_kb=crossed[who] / 1e3,
            cores_of_the_switch=cores,
        )
    off = (split.schedule.makespan / results["split"].median - 1) * 100
    report.claim(f"{where}: split over the best single node", faster(results["split"], results[best]).ratio, "")
    report.claim(f"{where}: simulated split off by", abs(off), "%", at_most=MAX_PERCENT)
    ratio = faster(results["split"], results["split, Ray's references"]).ratio
    report.claim(f"{where}: split over the same through Ray's references", ratio, "", at_most=1.0)


def best_split(session: Session, seed: int, used: int = 2) -> Plan:
    """Return the plan with the lowest simulated time among plans that a search finds and that use several devices.

    Args:
        session: with costs.
        seed: seed of the search.
        used: number of devices to use, at least.
    """
    segmenter, problem = session.segmenter, session.segmenter.problem()
    at = np.arange(len(session.grouping.groups)) / len(session.grouping.groups)
    runs = []  # a long one on the first device, then one on each of some others
    for others in itertools.permutations(range(1, len(session.cluster)), used - 1):
        for share in (0.5, 0.9):
            begins = share + (1 - share) * np.arange(used - 1) / (used - 1)
            runs.append(np.array((0, *others), np.int32)[np.searchsorted(begins, at, side="right")])
    found = [segmenter.search(start, problem, steps=_STEPS, seed=seed) for start in [*starts(problem), *runs]]
    splits = [placement for placement in [*found, *runs] if len(np.unique(placement)) >= used]
    return segmenter.plan(splits[int(np.argmin(segmenter.seconds(splits)))])


class _Stage:
    """Segments on a node, as a plain actor of Ray that receives and returns arrays."""

    def __init__(self, device: Device) -> None:
        self._device = device_kind(device).open(device, "f32")
        self._store = WeightStore.of_user()
        self._made: dict[int, tuple[Any, list[HostBuffer], int]] = {}

    def load(self, number: int, package: Package) -> None:
        weights = self._store.get(package.pieces)
        assert weights is not None, "placeit has compiled the same plan before"
        program = self._device.compile(Unpacked(package, weights))
        instance, buffers = self._device.instance(program), [HostBuffer(spec) for spec in program.inputs]
        for i, buffer in enumerate(buffers):
            instance.bind(i, buffer)
        self._made[number] = instance, buffers, len(program.outputs)

    def run(self, number: int, *values: NDArray[np.generic]) -> Any:
        instance, buffers, count = self._made[number]
        for buffer, value in zip(buffers, values, strict=True):
            buffer.memory()[...] = value
        over, failed = threading.Event(), list[BaseException]()

        def done(_start: float, _finish: float, error: BaseException | None) -> None:
            failed.extend([] if error is None else [error])
            over.set()

        self._device.start(instance, done)
        over.wait()
        if failed:
            raise failed[0]
        outputs = [np.array(instance.output(i).memory()) for i in range(count)]
        return outputs[0] if count == 1 else tuple(outputs)


class _Ray:
    """A plan as calls of plain actors of Ray, one on each node, that pass object references."""

    def __init__(self, session: Session, plan: Plan, stack: ExitStack) -> None:
        self._ray, self._runtime, self._plan = connection.ray_module(), session.runtime, plan
        self._inputs = session.model.sample_inputs()
        made, nodes = self._ray.remote(num_cpus=0)(_Stage), connection.connected()
        self._actors = []
        for device in session.cluster.devices:
            pinned = connection.pinned(nodes.node(device.where.node))
            self._actors.append(made.options(scheduling_strategy=pinned).remote(as_on_its_node(device)))
            stack.callback(self._ray.kill, self._actors[-1])
        loading = [
            self._actors[segment.device].load.remote(s, pack(self._runtime.compiler.source(segment), ["openvino"])[0])
            for s, segment in enumerate(plan.segments)
            if not segment.passthrough
        ]
        self._ray.get(loading, timeout=300)

    def time(self) -> float:
        begin = time.perf_counter()
        self.run()
        return time.perf_counter() - begin

    def run(self) -> Mapping[str, NDArray[np.generic]]:
        runtime = self._runtime
        inputs = {name: self._ray.put(value) for name, value in self._inputs.items()}
        tensors: dict[int, Any] = {}
        outputs: dict[str, Any] = {}
        for s, segment in enumerate(self._plan.segments):
            entering = {t: tensors[t] for t in segment.inputs}
            names = runtime.book.outputs_of(segment)
            count = len(segment.outputs) + len(names)
            if segment.passthrough:
                made = runtime.book.hand_through(segment, entering, inputs)
            else:
                given = [*entering.values(), *(inputs[name] for name in runtime.book.inputs_of(segment))]
                call = self._actors[segment.device].run.options(num_returns=count)
                made = call.remote(s, *given)
                made = [made] if count == 1 else made
            tensors |= zip(segment.outputs, made, strict=False)
            outputs |= zip(names, made[len(segment.outputs) :], strict=True)
        return dict(zip(outputs, self._ray.get(list(outputs.values()), timeout=120), strict=True))
