"""Running a plan level by level, as bulk-synchronous systems do: the baseline of a work-conserving executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.core.cluster import Cluster
from placeit.learning.workloads.tensor_program import of_program
from placeit.learning.workloads.tensors import shard
from placeit.learning.workloads.tensors.expression import elementwise, tensor
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.devices.base import Buffer, Instance
from placeit.runtime.runtime import Runtime

__all__ = ["EMPTY_LEVELS", "LevelByLevel", "empty_levels", "levels", "simulated"]

EMPTY_LEVELS = 12
"""Number of levels in :func:`empty_levels`."""

_ELEMENTS = 256


def levels(plan: Plan) -> list[list[int]]:
    """Return the segments by level, each one below the lowest of its producers. Segments that run nothing are left out."""
    level = [0] * len(plan.segments)
    for producer, consumer in sorted(
        plan.problem.edges.tolist(), key=lambda edge: edge[1]
    ):  # segments are in topological order
        level[consumer] = max(level[consumer], level[producer] + (not plan.segments[producer].passthrough))
    found: list[list[int]] = [[] for _ in range(max(level) + 1)]
    for s, segment in enumerate(plan.segments):
        if not segment.passthrough:
            found[level[s]].append(s)
    return [numbers for numbers in found if numbers]


@contextmanager
def empty_levels(cluster: Cluster) -> Iterator[LevelByLevel]:
    """Make levels whose ops, one on every device, compute next to nothing, to measure the time of a level.

    In each level the host wakes every device, each device runs one segment, and the last one wakes the host.

    Args:
        cluster: devices that PyTorch drives, in one memory.
    """
    value, devices = tensor("x", len(cluster), _ELEMENTS), range(len(cluster))
    for level in range(EMPTY_LEVELS):
        value = elementwise(f"relu{level}", "ij->ij", torch.relu, value)
    program = shard([value], 1, {f"relu{level}": {"i": len(devices)} for level in range(EMPTY_LEVELS)})
    model = of_program(program, shard([value], 1), name="empty levels")
    grouping = Grouping.singletons(model.graph)
    placement = [*devices] * (EMPTY_LEVELS + 1)  # outputs are last
    plan = Segmenter(grouping, Costs.zero(len(model.graph), cluster)).plan(placement, merge=False)
    with Runtime(model, grouping, cluster) as runtime:
        yield LevelByLevel(runtime, plan)


def simulated(plan: Plan, dispatch: float, level: float) -> float:
    """Return the seconds of a plan that runs level by level, by the simulator's costs of the plan.

    Each level takes the time of its busiest link, then the time of its busiest device, and the time that the host adds. A level
    that computes nothing takes ``level``; the simulator's segments already contain ``dispatch`` of that. Links have no latency
    here: between devices that share memory, latency is the time to wake a device, which is already part of ``level``.

    Args:
        plan: the plan to run.
        dispatch: seconds to start a segment, as in the costs of the plan.
        level: seconds, from :func:`empty_levels`.
    """
    problem, total = plan.problem, 0.0
    for numbers in levels(plan):
        moved, busy = np.zeros((problem.devices, problem.devices)), np.zeros(problem.devices)
        arrived = set()
        for s in numbers:
            at = plan.segments[s].device
            busy[at] += problem.compute[s, at]
            for e in np.flatnonzero(problem.edges[:, 1] == s).tolist():
                src, what = plan.segments[problem.edges[e, 0]].device, (int(problem.edge_tensor[e]), at)
                if src != at and what not in arrived:
                    arrived.add(what)
                    moved[src, at] += problem.edge_bytes[e] / problem.bandwidth[src, at]
        total += float(moved.max() + busy.max()) + max(0.0, level - dispatch)
    return total


class LevelByLevel:
    """A plan that runs level by level: no device starts a level before every device has ended the one before.

    It runs the same segments on the same devices as :class:`placeit.runtime.executor.Executor`; only the order differs.

    Args:
        runtime: devices and compiled segments, of a model without inputs, whose devices share memory.
        plan: the plan to run.
    """

    def __init__(self, runtime: Runtime, plan: Plan) -> None:
        programs = iter(runtime.compiler.compile(plan.programs))
        held: dict[int, Buffer] = {}
        instances: list[Instance | None] = []
        self._devices, self._outputs = runtime.devices, dict[str, Buffer]()
        for segment in plan.segments:
            if segment.passthrough:
                instances.append(None)
                made = runtime.book.hand_through(segment, {t: held[t] for t in segment.inputs}, {})
            else:
                program = next(programs)
                instance = runtime.devices[segment.device].instance(program)
                for i, t in enumerate(segment.inputs):
                    instance.bind(i, held[t])
                made = [instance.output(i) for i in range(len(program.outputs))]
                instances.append(instance)
            held |= zip(segment.outputs, made, strict=False)
            self._outputs |= zip(runtime.book.outputs_of(segment), made[len(segment.outputs) :], strict=True)
        self._levels = [
            [(plan.segments[s].device, ready) for s in numbers if (ready := instances[s]) is not None]
            for numbers in levels(plan)
        ]

    @property
    def devices_by_level(self) -> list[list[int]]:
        """Device numbers of the segments of each level, in the order in which they are started."""
        return [[device for device, _ in level] for level in self._levels]

    def time(self) -> float:
        """Run once and return the seconds. Raises the errors that devices report."""
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def done(_start: float, _finish: float, error: BaseException | None) -> None:
            ended.put(error)

        begin = perf_counter()
        for level in self._levels:
            for device, instance in level:
                self._devices[device].start(instance, done)
            errors = [ended.get() for _ in level]
            for error in errors:
                if error is not None:
                    raise error
        return perf_counter() - begin

    def outputs(self) -> dict[str, NDArray[np.generic]]:
        """Return copies of the outputs of the last run, by name."""
        return {name: np.array(buffer.array()) for name, buffer in self._outputs.items()}
