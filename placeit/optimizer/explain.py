"""Explain the devices of ops in a placement by the costs of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.graph import OpGraph
from placeit.core.jsonable import jsonable_dict
from placeit.core.nearest import nearest
from placeit.core.placement import Placement
from placeit.optimizer.trials import Move, Trials
from placeit.planning.pins import matches
from placeit.planning.profiled import Profiled
from placeit.planning.segments import Plan, Segmenter
from placeit.profiler.memory_rates import Rates, group_reads
from placeit.profiler.sampling import border_bytes
from placeit.simulator.slack import slack
from placeit.workbench import Workbench

__all__ = ["Crossing", "Decision", "Explained", "Explanation", "Reading", "check_ops", "explain"]

_PROPOSED = {
    "single": "a single device was best",
    "given": "the search was given it to start from",
    "search": "the search among plans found it",
    "replicas": "the search for replicas found it",
}
"""Reasons for placements that no placer proposed, by the text that stands for the placer in a result."""


@dataclass(frozen=True)
class Crossing:
    """A tensor that crosses the border of a group.

    Attributes:
        tensor: name of the op that makes it.
        way: ``in`` if the group reads it, ``out`` if it makes it.
        bytes: its size.
        seconds: for a transfer, seconds on the link; for a cut, seconds on the group's device.
        src: for a transfer, the device that sends it; None for a cut.
        dst: for a transfer, the device that receives it; None for a cut.
        readers: for a transfer, the groups that read it at ``dst``; moving one of several saves no transfer.
    """

    tensor: str
    way: str
    bytes: float
    seconds: float
    src: str | None = None
    dst: str | None = None
    readers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """A reason for a group's device, as far as the placement file contains it.

    Attributes:
        by: ``pin``, ``group`` (another of its ops is pinned), ``device`` (no other can run it), ``memory`` (no other has room),
            ``placer``, or ``unknown``.
        why: the reason, as text for users.
    """

    by: str
    why: str


@dataclass(frozen=True)
class Reading:
    """Memory traffic of groups on a device, and whether it takes most of their time.

    Attributes:
        device: the groups' device.
        bytes: weights and state that they read, and tensors that they read from other groups or write for them.
        seconds: time of the groups inside an uncut model.
        bytes_per_s: rate at which the device reads memory; None if unknown.
    """

    device: str
    bytes: float
    seconds: float
    bytes_per_s: float | None

    @property
    def bound(self) -> bool:
        """True if moving the bytes at the memory's rate takes more than half of the time."""
        return self.bytes_per_s is not None and self.bytes / self.bytes_per_s > self.seconds / 2

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict for JSON output."""
        return asdict(self) | {"bound": self.bound}


@dataclass(frozen=True)
class Explained:
    """An op, its device, and the reasons for that device.

    Attributes:
        op: its name.
        kind: its kind, such as ``Convolution``.
        device: the device that it is on.
        group: names of the ops of its group, itself among them.
        segment: number of its segment in the plan, from 0.
        segment_ops: names of the ops of its segment.
        start_s: when its segment starts in the simulated request.
        finish_s: when its segment ends in the simulated request.
        slack_s: by how much its segment could start later without delaying the end of the request.
        core_s: by device, seconds of its group inside an uncut model; ``inf`` where the group cannot run.
        cut_s: by device, seconds that cutting the group off from all neighbours adds.
        load_s: by device, seconds that the group takes more while all other devices work.
        memory: memory traffic of its group on its device.
        transfers: tensors of its group that move between devices.
        cuts: tensors of its group that cross the border of its segment.
        moves: simulated moves of its group and of its segment to each other device.
        decided: the reasons for its device.
    """

    op: str
    kind: str
    device: str
    group: tuple[str, ...]
    segment: int
    segment_ops: tuple[str, ...]
    start_s: float
    finish_s: float
    slack_s: float
    core_s: Mapping[str, float]
    cut_s: Mapping[str, float]
    load_s: Mapping[str, float]
    memory: Reading
    transfers: tuple[Crossing, ...]
    cuts: tuple[Crossing, ...]
    moves: tuple[Move, ...]
    decided: tuple[Decision, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict for JSON output."""
        return jsonable_dict(
            vars(self)
            | {"memory": self.memory.to_dict(), "transfers": [asdict(one) for one in self.transfers]}
            | {"cuts": [{name: getattr(one, name) for name in ("tensor", "way", "bytes", "seconds")} for one in self.cuts]}
            | {"moves": [asdict(one) for one in self.moves], "decided": [asdict(one) for one in self.decided]}
        )


@dataclass(frozen=True)
class Explanation:
    """Result of :func:`explain`.

    Attributes:
        model: path of the model.
        devices: devices that the ops could be on.
        replicas: number of replicas that serve whole requests; the first one is explained.
        segments: number of the plan's segments that compute something.
        simulated_s: simulated seconds of a request by the plan.
        host_s: part of ``simulated_s`` in which neither devices nor links work.
        replanned_s: simulated seconds with the segments planned again; moves are compared with this.
        memory: memory traffic of the groups on each device that has groups.
        ops: the explained ops.
        profiled: when costs were measured; None if they are estimates.
    """

    model: str
    devices: tuple[str, ...]
    replicas: int
    segments: int
    simulated_s: float
    host_s: float
    replanned_s: float
    memory: tuple[Reading, ...]
    ops: tuple[Explained, ...]
    profiled: Profiled | None

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, as ``placeit explain --json`` prints it."""
        return jsonable_dict(
            vars(self)
            | {
                "memory": [one.to_dict() for one in self.memory],
                "ops": [one.to_dict() for one in self.ops],
                "profiled": None if self.profiled is None else self.profiled.to_dict(),
            }
        )


def explain(session: Workbench, placement: Placement, ops: Sequence[str] = (), *, worst: int = 10) -> Explanation:
    """Explain why ops are where they are, and what moving them would change.

    Args:
        session: the model on the devices, profiled (:meth:`placeit.Session.profile`).
        placement: a placement of the model's ops. Groups that it divides must be split (:meth:`placeit.Session.divide`). Of
            several replicas, the first is explained.
        ops: names of the ops to explain; empty for one op of each of the worst groups.
        worst: number of groups in that case, among the groups that compute something. The group whose best move would save
            most, or cost least, comes first.

    Raises:
        UsageError: an op does not exist, or the session was not profiled.
        PlacementError: the placement does not fit the model, the devices or their memory.
    """
    home = session.home_of(placement)
    graph = home.grouping.graph
    check_ops(graph, ops)
    trials = Trials(home, placement)
    chosen = dict.fromkeys(graph.index[name] for name in ops) if ops else [trials.heaviest(g) for g in trials.worst(worst)]
    late = slack(trials.plan.problem, trials.plan.schedule)
    memory = _Memory(trials)
    return Explanation(
        model=str(home.model.path),
        devices=home.cluster.names,
        replicas=len(placement.every),
        segments=len(trials.plan.programs),
        simulated_s=trials.plan.schedule.makespan,
        host_s=trials.plan.schedule.makespan - float(trials.plan.schedule.finish.max()),
        replanned_s=trials.replanned_s,
        memory=tuple(memory.reading(d, np.flatnonzero(trials.groups == d)) for d in np.unique(trials.groups).tolist()),
        ops=tuple(_explained(trials, placement, op, late, memory) for op in chosen),
        profiled=home.costs.profiled,
    )


def check_ops(graph: OpGraph, ops: Sequence[str]) -> None:
    """Raise UsageError unless all ``ops`` are in the model's graph."""
    unknown = [name for name in ops if name not in graph.index]
    if unknown:
        raise UsageError(
            f"The model has no op '{unknown[0]}'{nearest(unknown[0], graph.names)}; `placeit inspect MODEL --groups` lists all."
        )


class _Memory:
    """Memory traffic of the groups of a placement.

    Args:
        trials: the placement, and its session.
    """

    def __init__(self, trials: Trials) -> None:
        session = trials.session
        self._cluster, self._core = session.cluster, session.costs.core
        self._moved = group_reads(session.grouping) + border_bytes(session.grouping.groups)
        rates, used = Rates.of_model(session.model, session.cache), set(trials.groups.tolist())
        self._rates = [rates.of(device) if d in used else None for d, device in enumerate(self._cluster.devices)]

    def reading(self, device: int, groups: NDArray[np.int64]) -> Reading:
        seconds = float(self._core[groups, device].sum())
        return Reading(self._cluster.names[device], float(self._moved[groups].sum()), seconds, self._rates[device])


def _explained(trials: Trials, placement: Placement, op: int, late: NDArray[np.float64], memory: _Memory) -> Explained:
    session, plan = trials.session, trials.plan
    grouping, costs = session.grouping, session.costs
    graph, names = grouping.graph, session.cluster.names
    group = int(grouping.group_of[op])
    number = int(plan.segment_of[group])
    segment = plan.segments[number]
    moves = trials.moves("group", [group])
    return Explained(
        op=graph.names[op],
        kind=graph.kinds[op],
        device=names[segment.device],
        group=grouping.members(group),
        segment=number,
        segment_ops=tuple(name for g in segment.groups for name in grouping.members(g)),
        start_s=float(plan.schedule.start[number]),
        finish_s=float(plan.schedule.finish[number]),
        slack_s=float(late[number]),
        core_s=dict(zip(names, costs.core[group].tolist(), strict=True)),
        cut_s=dict(zip(names, costs.cut[group].tolist(), strict=True)),
        load_s=dict(zip(names, np.broadcast_to(costs.load, costs.core.shape)[group].tolist(), strict=True)),
        memory=memory.reading(segment.device, np.array([group])),
        transfers=_transfers(trials, group),
        cuts=_cuts(trials.segmenter, plan, group),
        moves=(*moves, *trials.moves("segment", segment.groups)),
        decided=_decided(trials, placement, op, moves),
    )


def _transfers(trials: Trials, group: int) -> tuple[Crossing, ...]:
    """Return the transfers of tensors that a group computes, or that it reads on its device."""
    grouping, names, plan = trials.session.grouping, trials.session.cluster.names, trials.plan
    graph, moves, device = grouping.groups, plan.schedule.transfers, int(trials.groups[group])
    found = []
    for i in range(len(moves)):
        tensor, src, dst = plan.tensors[int(moves.tensor[i])], int(moves.src[i]), int(moves.dst[i])
        readers = [v for v in graph.edges[graph.edge_tensor == tensor, 1].tolist() if trials.groups[v] == dst]
        way = "out" if graph.tensor_op[tensor] == group else "in" if dst == device and group in readers else None
        if way is not None:
            seconds = float(moves.finish[i] - moves.start[i])
            at = names[src], names[dst], tuple(graph.names[v] for v in readers)
            found.append(Crossing(grouping.tensor_name(tensor), way, float(graph.tensor_bytes[tensor]), seconds, *at))
    return tuple(found)


def _cuts(segmenter: Segmenter, plan: Plan, group: int) -> tuple[Crossing, ...]:
    """Return the tensors of a group that cross the border of its segment, even to a segment on the same device."""
    graph, of = segmenter.graph, plan.segment_of
    per_byte = float(segmenter.cut_per_byte[group, plan.placement[of[group]]])
    crossing = of[graph.edges[:, 0]] != of[graph.edges[:, 1]]
    ends = (("in", 1), ("out", 0))
    found = [
        (way, t) for way, end in ends for t in np.unique(graph.edge_tensor[crossing & (graph.edges[:, end] == group)]).tolist()
    ]
    return tuple(
        Crossing(segmenter.grouping.tensor_name(t), way, float(graph.tensor_bytes[t]), per_byte * float(graph.tensor_bytes[t]))
        for way, t in found
    )


def _decided(trials: Trials, placement: Placement, op: int, moves: Sequence[Move]) -> tuple[Decision, ...]:
    """Return the reasons for a group's device: a constraint that leaves no other, or else the placer that chose it."""
    names, group = trials.session.cluster.names, int(trials.session.grouping.group_of[op])
    result = placement.result or {}
    if pinned := _pinned(trials, result, op):
        return pinned
    able_devices = {name for name, seconds in zip(names, trials.session.costs.core[group], strict=True) if np.isfinite(seconds)}
    if len(able_devices) == 1:
        what = "there is no other device" if len(names) == 1 else "no other device can run its group"
        return (Decision("device", what),)
    full_devices = {move.device for move in moves if move.refused is not None} | _full(trials, result, group)
    if len(able_devices - full_devices) <= 1:
        return (Decision("memory", "no other device that can run its group has room for it"),)
    chosen = result.get("chosen")
    placer = chosen.get("placer") if isinstance(chosen, dict) else None
    if not isinstance(chosen, dict) or not isinstance(placer, str):
        return (Decision("unknown", "the placement file does not say how it was found"),)
    devices_then, devices_now = chosen.get("devices"), {device: ops for device, ops in placement.counts().items() if ops}
    if isinstance(devices_then, dict) and {device: ops for device, ops in devices_then.items() if ops} != devices_now:
        return (Decision("unknown", f"the placement was changed after '{placer}' had found it"),)
    others = len(trials.session.grouping.members(group)) - 1
    together = f", with its group of {others + 1} ops" if others else ""
    return (Decision("placer", f"{_PROPOSED.get(placer, f'the placer {placer} proposed it')}{together}"),)


def _pinned(trials: Trials, result: Mapping[str, Any], op: int) -> tuple[Decision, ...]:
    """Return the pins, of the search or of the session, that put an op or another op of its group on its device."""
    session, grouping = trials.session, trials.session.grouping
    group, name = int(grouping.group_of[op]), grouping.graph.names[op]
    pins, found = result.get("pins"), []
    for pattern, device in {**(pins if isinstance(pins, dict) else {}), **session.pins}.items():
        if device != session.cluster.names[trials.groups[group]]:
            continue
        held = [one for one in grouping.members(group) if matches(pattern, one)]
        if name in held:
            found.append(Decision("pin", f"it is pinned: {pattern}={device}"))
        elif held:
            found.append(Decision("group", f"'{held[0]}' of its group is pinned: {pattern}={device}"))
    return tuple(found)


def _full(trials: Trials, result: Mapping[str, Any], group: int) -> set[str]:
    """Return the devices that lack room for a group under the memory limits of the search."""
    limits, weights = result.get("memory_limits"), trials.problem.param_bytes
    full = set()
    for d, name in enumerate(trials.session.cluster.names):
        limit = limits.get(name) if isinstance(limits, dict) else None
        fits = not isinstance(limit, int | float) or weights[trials.groups == d].sum() + weights[group] <= limit
        if d != trials.groups[group] and not fits:
            full.add(name)
    return full
