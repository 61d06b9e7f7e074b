"""Turn a placement of groups into segments, each of which is compiled and run as one program on one device."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit import _core
from placeit.core import clock
from placeit.core.cluster import Cluster, Link
from placeit.core.conflicts import exclusive, shares_beside
from placeit.core.errors import PlacementError
from placeit.core.graph import OpGraph
from placeit.core.placement import NOT_SEGMENTS, are_segments
from placeit.core.problem import Problem
from placeit.core.problem_checks import cannot_run, device_numbers
from placeit.core.units import milliseconds
from placeit.core.weights import held_bytes
from placeit.planning.coarsen import Grouping
from placeit.planning.profiled import Profiled
from placeit.simulator.simulate import Schedule, schedule

__all__ = ["Costs", "Plan", "Segment", "Segmenter"]

_FREE_KINDS = frozenset({"Parameter", "Result"})
_STEPS = 50  # of a search between two checks of the deadline; they take milliseconds


@dataclass(frozen=True, eq=False)
class Costs:
    """Costs of groups on devices, and of cuts between them, all in seconds.

    A segment takes one ``dispatch``, the ``core`` time of each of its groups, and a part of each group's ``cut`` time. This
    part is the share that the tensors crossing the segment's border have in all bytes that the group reads and writes. So a
    group alone in a segment takes dispatch + core + cut, and the whole model as one segment takes dispatch + the sum of core.

    Devices that work at the same time share memory bandwidth, and a tensor that another device has just written is not in the
    caches of the device that reads it. So a segment takes longer by the ``load`` of its groups, times the share of its time in
    which other devices work, and by ``read`` for each byte that enters from another device.

    Attributes:
        core: ``float64[G, D]``, seconds of a group inside an uncut model; ``inf`` where the group cannot run.
        cut: ``float64[G, D]``, seconds added by cutting a group off all its neighbours: layout conversions, lost fusion.
        dispatch: ``float64[D]``, seconds to start a segment.
        cluster: the devices, with all links known.
        load: ``float64[G, D]``, or an array that broadcasts to it: seconds that a group takes longer while all other devices
            work that can run at the same time as its device and as each other.
        read: ``float64[D]``, or an array that broadcasts to it: seconds per byte that another device wrote.
        host: ``float64[D + 1]``, or an array that broadcasts to it: seconds of a request besides the work of devices and links,
            on each device alone and, in the last entry, on several (:attr:`placeit.core.problem.Problem.host`).
        profiled: the circumstances of their measurement; None if they were not measured.
        shared: whether only whole models were measured, so that ``core`` does not tell groups apart.
    """

    core: NDArray[np.float64]
    cut: NDArray[np.float64]
    dispatch: NDArray[np.float64]
    cluster: Cluster
    load: NDArray[np.float64] = field(default_factory=lambda: np.zeros((1, 1)))
    read: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))
    host: NDArray[np.float64] = field(default_factory=lambda: np.zeros(1), kw_only=True)
    profiled: Profiled | None = None
    shared: bool = False

    def __repr__(self) -> str:
        return f"<Costs of {len(self.core)} groups on {', '.join(self.cluster.names)}>"

    @classmethod
    def zero(cls, groups: int, cluster: Cluster) -> Costs:
        """Return costs of zero everywhere, for running plans before anything has been measured."""
        devices = len(cluster)
        instant = {pair: Link(np.inf, 0.0) for pair in cluster.missing_links()}
        known = replace(cluster, links={**cluster.links, **instant})
        return cls(np.zeros((groups, devices)), np.zeros((groups, devices)), np.zeros(devices), known)

    def where(self, able: NDArray[np.bool_]) -> Costs:
        """Return these costs with ``inf`` where a group cannot run, by ``bool[G, D]``."""
        return replace(self, core=np.where(able, self.core, np.inf))

    @cached_property
    def hosts(self) -> NDArray[np.float64]:
        """``float64[D + 1]``, :attr:`host` of each device alone and, in the last entry, of several devices."""
        return np.broadcast_to(self.host, len(self.dispatch) + 1)

    @cached_property
    def whole(self) -> NDArray[np.float64]:
        """``float64[D]``, seconds of a request of the whole model on each device; ``inf`` where it cannot run."""
        return np.asarray(self.dispatch + self.core.sum(axis=0) + self.hosts[:-1], np.float64)

    @cached_property
    def bandwidth(self) -> NDArray[np.float64]:
        """``float64[D, D]``, bandwidth of each link in bytes per second."""
        return self.cluster.bandwidth()

    @cached_property
    def latency(self) -> NDArray[np.float64]:
        """``float64[D, D]``, latency of each link in seconds."""
        return self.cluster.latency()

    @cached_property
    def conflicts(self) -> NDArray[np.bool_]:
        """``bool[D, D]``, whether two devices never run at the same time."""
        return self.cluster.conflicts()


@dataclass(frozen=True)
class Segment:
    """Groups that run as one program.

    Attributes:
        device: device number.
        groups: group numbers, ascending.
        inputs: tensors (of the group graph) that enter from other segments, ascending.
        outputs: tensors that leave for other segments, ascending.
        passthrough: whether it only passes on inputs or outputs of the model, so that nothing is compiled or run.
    """

    device: int
    groups: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    passthrough: bool


@dataclass(frozen=True, eq=False)
class Plan:
    """Segments in topological order, and the problem over segments for the simulator and the scheduler.

    Attributes:
        segments: the segments, ``S`` of them.
        problem: compute, edges and links of the segments.
        tensors: for each tensor number of ``problem``, its number in the group graph.
        schedule: the simulated run.
    """

    segments: tuple[Segment, ...]
    problem: Problem
    tensors: tuple[int, ...]
    schedule: Schedule

    def __repr__(self) -> str:
        used = sorted({self.problem.device_names[segment.device] for segment in self.segments})
        return f"<Plan of {len(self.segments)} segments on {', '.join(used)}; simulated {milliseconds(self.schedule.makespan)}>"

    @cached_property
    def placement(self) -> NDArray[np.int32]:
        """``int32[S]``, the device of each segment."""
        return np.array([segment.device for segment in self.segments], np.int32)

    @cached_property
    def segment_of(self) -> NDArray[np.int32]:
        """``int32[G]``, the segment of each group."""
        segment_of = np.empty(sum(len(segment.groups) for segment in self.segments), np.int32)
        for s, segment in enumerate(self.segments):
            segment_of[list(segment.groups)] = s
        return segment_of

    @cached_property
    def group_devices(self) -> NDArray[np.int32]:
        """``int32[G]``, the device of each group."""
        return self.placement[self.segment_of]

    @cached_property
    def makers(self) -> tuple[int, ...]:
        """The segment that writes each tensor of ``problem``."""
        maker = dict(zip(self.problem.edge_tensor.tolist(), self.problem.edges[:, 0].tolist(), strict=True))
        return tuple(maker[t] for t in range(len(self.tensors)))

    @cached_property
    def programs(self) -> tuple[Segment, ...]:
        """Segments that compute something, and so are compiled."""
        return tuple(segment for segment in self.segments if not segment.passthrough)

    def memory_left(self, groups: OpGraph, cluster: Cluster) -> dict[str, float]:
        """Return the memory of each device that the plan's weights leave free, in bytes by device name; ``inf`` if unknown."""
        used = held_bytes(groups.bytes_once, groups.shared, self.group_devices[None], len(cluster))[0].tolist()
        return {device.name: device.memory_bytes - weights for device, weights in zip(cluster.devices, used, strict=True)}


class Segmenter:
    """Merges the groups of a placement into segments, and computes the cost of such plans.

    Args:
        grouping: ops and groups.
        costs: costs of the groups.
        steady: whether the cost of a plan is, instead of its makespan, a lower bound of its seconds per request in steady
            state: the seconds for which one request keeps the busiest device or link busy.
        in_flight: for ``steady``, the number of requests in flight: the bound is at least the makespan over this number. None
            for as many as keep the busiest device or link busy all the time.
        outside: ``float64[D]``, share of the time in which something outside the plan, such as a replica, keeps each device
            busy; None for zero. For ``steady`` only.

    Attributes:
        cut_per_byte: ``float64[G, D]``, seconds for each byte of a group's tensors that cross the border of its segment.
    """

    def __init__(
        self,
        grouping: Grouping,
        costs: Costs,
        *,
        steady: bool = False,
        in_flight: int | None = None,
        outside: NDArray[np.float64] | None = None,
    ) -> None:
        graph = grouping.groups
        self.grouping, self.graph, self.costs = grouping, graph, costs
        kinds: list[set[str]] = [set() for _ in range(len(graph))]
        reading = set(grouping.graph.edges[:, 1].tolist())
        for v, (kind, group) in enumerate(zip(grouping.graph.kinds, grouping.group_of.tolist(), strict=True)):
            # an output that reads no op is a constant, which a program has to write
            kinds[group].add("Constant" if kind == "Result" and v not in reading else kind)
        border = np.bincount(graph.tensor_op, graph.tensor_bytes, len(graph))
        np.add.at(border, graph.edges[:, 1], graph.tensor_bytes[graph.edge_tensor])
        by_producer = np.argsort(graph.edges[:, 0], kind="stable")
        self.cut_per_byte = np.divide(costs.cut, border[:, None], out=np.zeros_like(costs.cut), where=border[:, None] > 0)
        self._passthrough = np.array([kind <= _FREE_KINDS for kind in kinds])
        self._groups = _core.Groups(
            edges=np.column_stack([graph.edges, graph.edge_tensor])[by_producer].astype(np.int32, "C"),
            tensor_bytes=_doubles(graph.tensor_bytes),
            core=_doubles(costs.core),
            cut_per_byte=_doubles(self.cut_per_byte),
            dispatch=_doubles(costs.dispatch),
            load=_doubles(np.broadcast_to(costs.load, costs.core.shape)),
            beside=shares_beside(costs.conflicts),
            conflicts=costs.conflicts,
            read=_doubles(np.broadcast_to(costs.read, costs.dispatch.shape)),
            latency=costs.latency,
            bandwidth=costs.bandwidth,
            passthrough=self._passthrough,
            cliques=exclusive(costs.conflicts),
            host=_doubles(costs.hosts),
            in_flight=(in_flight or math.inf) if steady else 0,
            outside=np.zeros(len(costs.dispatch)) if outside is None else _doubles(outside),
        )

    @property
    def computes(self) -> NDArray[np.bool_]:
        """``bool[G]``, false for groups that only pass on inputs or outputs of the model."""
        return ~self._passthrough

    def problem(self) -> Problem:
        """Return the placement problem over groups that placers solve.

        It assumes that neighbours on one device are fused. An edge's ``cut`` is the mean of the cut seconds of its two ends. A
        group has the kind of its op with the most floating-point operations, and the output shape of the largest tensor that
        leaves it.
        """
        graph, costs = self.graph, self.costs
        moved = graph.tensor_bytes[graph.edge_tensor]
        ends = self.cut_per_byte[graph.edges]
        return Problem.from_arrays(
            costs.core,
            graph.edges,
            moved,
            costs.bandwidth,
            costs.latency,
            edge_tensor=graph.edge_tensor,
            cut=ends.mean(axis=1) * moved[:, None],
            param_bytes=graph.held_once,
            shared=graph.shared,
            memory=np.array([device.memory_bytes for device in costs.cluster.devices]),
            conflicts=costs.conflicts,
            host=costs.hosts,
            op_names=graph.names,
            device_names=costs.cluster.names,
            graph_hash=self.grouping.graph.hash,
            kinds=graph.kinds,
            output_shapes=graph.output_shapes,
        )

    def plan(self, placement: ArrayLike, *, merge: bool = True) -> Plan:
        """Segment a placement of the groups, ``int32[G]``.

        Segments that follow each other on one device are merged while the graph of segments stays acyclic and the simulated
        makespan (if ``steady``: the seconds per request) does not grow. Merging saves dispatches and cuts. But a segment starts
        only when all its inputs are there, and its outputs are available only when it ends.

        Args:
            placement: device of each group.
            merge: whether to merge; False for one segment per group, as the profiler runs them.

        Raises:
            PlacementError: wrong length, unknown device, or a group where it cannot run.
        """
        devices = self._check(placement)
        of = np.arange(len(devices), dtype=np.int32)
        if merge:
            self._groups.merge(devices, of)
        return self._plan(of, devices)

    def merged(self, segment_of: ArrayLike, placement: ArrayLike) -> Plan:
        """Return the plan of given segments: the segment of each group and its device, ``int32[G]`` both.

        Segments are numbered from 0, so that none reads from one with a higher number, and each is on one device.

        Raises:
            PlacementError: wrong length, unknown device, a group where it cannot run, a number that is left out, a segment on
                several devices, or one that reads from a later one.
        """
        of, devices = np.array(segment_of, np.int32), self._check(placement)
        if not are_segments(of.tolist(), devices.tolist()):
            raise PlacementError(NOT_SEGMENTS)
        ends = of[self.graph.edges]
        if (ends[:, 0] > ends[:, 1]).any():
            raise PlacementError("A segment of the placement reads from a later one: leave 'segments' out to plan it anew.")
        return self._plan(of, devices)

    def priced(self, plan: Plan) -> Plan:
        """Return a plan with the same segments and this segmenter's costs."""
        return self._plan(plan.segment_of, plan.group_devices)

    def seconds(self, placements: ArrayLike) -> NDArray[np.float64]:
        """Return the simulated makespans of the plans of placements, ``int32[B, G] -> float64[B]``.

        With ``steady``, return their seconds per request. This is a cost function that includes the merging into segments. A
        placement with a group where it cannot run costs ``inf``.

        Raises:
            PlacementError: wrong length or unknown device.
        """
        rows = [self._in_range(row) for row in np.atleast_2d(np.asarray(placements))]
        of = np.empty(len(self.graph), np.int32)
        return np.array([self._groups.merge(row, of) for row in rows])

    def work(self, placements: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return :meth:`seconds` of placements and the busy seconds of each device, ``float64[B]`` and ``float64[B, D]``.

        Raises:
            PlacementError: wrong length or unknown device.
        """
        rows = [self._in_range(row) for row in np.atleast_2d(np.asarray(placements))]
        of, moves = np.empty(len(self.graph), np.int32), np.empty((len(self.graph.edges), 3), np.int32)
        seconds, busy = np.empty(len(rows)), np.zeros((len(rows), len(self.costs.cluster)))
        for i, row in enumerate(rows):
            seconds[i] = self._groups.merge(row, of)
            if np.isfinite(seconds[i]):
                segment_s, devices = np.empty(of.max() + 1), np.empty(of.max() + 1, np.int32)
                self._groups.divide(of, row, moves, segment_s)
                devices[of] = row
                np.add.at(busy[i], devices, segment_s)
        return seconds, busy

    def search(
        self,
        placement: ArrayLike,
        problem: Problem,
        *,
        steps: int,
        seed: int,
        heat: float = 0.01,
        deadline: float = math.inf,
    ) -> NDArray[np.int32]:
        """Improve a placement by simulated annealing on the :meth:`seconds` of its plan.

        Other placers see groups only, and cannot take the merging into segments into account.

        Args:
            placement: placement to start from, ``int32[G]``.
            problem: the result of :meth:`problem`, by which placements are feasible and fit into memory.
            steps: number of moves of one group to try; each takes a plan, hence milliseconds.
            seed: seed of the random numbers; equal seeds give equal results.
            heat: initial temperature, as a share of the seconds of the best placement so far.
            deadline: time to stop with the best placement so far, by :func:`placeit.core.clock.now`.

        Raises:
            PlacementError: the placement to start from is infeasible.
        """
        best, generator = np.array(problem.check(placement), np.int32), np.random.default_rng(seed).bit_generator
        search = _core.SegmentSearch(
            self._groups, best, problem.feasible, problem.param_bytes, problem.memory, steps, heat, generator
        )
        with generator.lock:
            while not search.over:
                search.advance(_STEPS)
                if clock.now() >= deadline:
                    break
        search.write_best(best)
        return best

    def _in_range(self, placement: ArrayLike) -> NDArray[np.int32]:
        return device_numbers("A placement of these groups is", placement, len(self.graph), len(self.costs.cluster))

    def _check(self, placement: ArrayLike) -> NDArray[np.int32]:
        devices = self._in_range(placement)
        bad = np.flatnonzero(np.isinf(self.costs.core[np.arange(len(devices)), devices]))
        if len(bad):
            v, cluster = int(bad[0]), self.costs.cluster
            raise cannot_run(self.graph.names[v], devices[v], np.isfinite(self.costs.core[v]), cluster.names)
        return devices

    def _plan(self, of: NDArray[np.int32], devices: NDArray[np.int32]) -> Plan:
        """Build the plan of a partition, its segments in topological order."""
        count = int(of.max()) + 1
        moves, seconds = np.empty((len(self.graph.edges), 3), np.int32), np.empty(count)
        moves = moves[: self._groups.divide(of, devices, moves, seconds)]
        compute = np.full((count, len(self.costs.cluster)), np.inf)
        segments = []
        for s in range(count):
            groups = np.flatnonzero(of == s)
            device = int(devices[groups[0]])
            compute[s, device] = seconds[s]
            segments.append(
                Segment(
                    device,
                    tuple(groups.tolist()),
                    tuple(np.unique(moves[moves[:, 1] == s, 2]).tolist()),
                    tuple(np.unique(moves[moves[:, 0] == s, 2]).tolist()),
                    bool(self._passthrough[groups].all()),
                )
            )
        tensors, compact = np.unique(moves[:, 2], return_inverse=True)
        problem = Problem.from_arrays(
            compute,
            moves[:, :2],
            self.graph.tensor_bytes[moves[:, 2]],
            self.costs.bandwidth,
            self.costs.latency,
            edge_tensor=compact.reshape(-1),
            conflicts=self.costs.conflicts,
            host=self.costs.hosts,
            device_names=self.costs.cluster.names,
        )
        placement = np.array([segment.device for segment in segments], np.int32)
        simulated = schedule(problem, placement)
        return Plan(tuple(segments), problem, tuple(tensors.tolist()), simulated)


def _doubles(values: ArrayLike) -> NDArray[np.float64]:
    return np.ascontiguousarray(values, np.float64)
