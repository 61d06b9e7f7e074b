"""Make recordings of models, of prepared placements and of their runs."""

from __future__ import annotations

import math
import platform
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import accumulate, compress, pairwise
from statistics import median

import numpy as np

from placeit.core.cluster import Cluster, Device
from placeit.core.extras import versions_of
from placeit.core.graph import OpGraph
from placeit.core.units import about_bytes
from placeit.core.version import __version__
from placeit.devices.host import allowed_cores, cpu_name, memory_bytes
from placeit.devices.kinds import kind_of
from placeit.devices.meters import Series
from placeit.measuring.run_report import RunReport
from placeit.profiler import recorded as r
from placeit.profiler.op_times import OpTime
from placeit.profiler.peaks import peak_of
from placeit.profiler.recording import MAX_SPANS, Recording
from placeit.profiler.timeline import critical_path, link_use, states
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.spans import Done, Event
from placeit.serving.load_run import RateReport
from placeit.workbench.opened import Workbench
from placeit.workbench.prepared import Prepared

__all__ = ["of_model", "of_plan", "of_run"]

_DIGITS = 9  # decimals of seconds: nanoseconds


def of_model(session: Workbench) -> Recording:
    """Return a recording of a model and its devices, without a run."""
    return _base_recording(session, ())


def of_plan(placements: Sequence[Prepared]) -> Recording:
    """Return a recording of a prepared placement and its replicas, which have not run."""
    about = _base_recording(placements[0].home, placements)
    return replace(about, plan=_plan(placements, ()), predicted=_predicted(placements[0]))


def of_run(session: Workbench, report: RunReport | RateReport, *, ops: bool = True) -> Recording:
    """Return a recording of a run: its requests, segments and transfers, with their times and devices.

    Args:
        session: the session that ran the first replica.
        report: of the run.
        ops: whether to measure the time of each op, which takes a few more runs.

    Raises:
        DeviceError: a segment cannot be compiled with counters.
        ExecutionError: a run with counters failed.
    """
    plans = [report.plan] if isinstance(report, RunReport) else report.plans
    ran = [Prepared(one, session.home_of(one), plan) for one, plan in zip(report.placement.every, plans, strict=False)]
    done = _last(report.done)
    about = _base_recording(session, ran)
    clock = _Clock(done, gaps=isinstance(report, RateReport))
    plan = _plan(ran, done)
    moments = [[clock(t) for t in (one.arrived, max(one.arrived, one.begun), one.ended)] for one in done]
    requests = tuple(r.RecordedRequest(one.replica, *times) for one, times in zip(done, moments, strict=True))
    spans = _spans(ran, done, clock)
    wall = max((one.ended_s for one in requests), default=0.0)
    conflicts = {device.name: device.conflicts for device in about.devices}
    timed = [one.home.op_times(one.plan) if ops else [] for one in ran]
    of_ops = [row for k, some in enumerate(timed) for row in _ops(ran[k], _first_segment(ran, k), some)]
    used = {segment.device for segment in plan.segments} if of_ops else ()
    devices = {device.name: device for one in ran for device in one.home.cluster.devices}
    return replace(
        about,
        devices=tuple(
            _with_peak(devices[device.name], session.precision, device, of_ops) if device.name in used else device
            for device in about.devices
        ),
        plan=plan,
        wall_s=wall,
        requests=requests,
        spans=spans,
        events=tuple(_events(report, clock)),
        states=states(plan, requests, spans, conflicts, wall) if requests else (),
        link_use=link_use(plan, spans),
        critical_path=critical_path(plan, requests, spans, conflicts),
        ops=tuple(of_ops),
        groups=tuple(row for one, some in zip(ran, timed, strict=True) for row in _groups(one, some)),
        predicted=_predicted(ran[0]),
        samples=_samples(report.readings, clock, done),
    )


def _events(report: RunReport | RateReport, clock: _Clock) -> Iterator[r.RecordedEvent]:
    for one in report.trace if isinstance(report, RateReport) else ():
        if isinstance(one, Event):
            yield r.RecordedEvent(one.name, clock(one.start), clock(one.finish), one.why)
    if isinstance(report, RunReport):
        for s, why in report.refused.items():
            on = report.plan.problem.device_names[report.plan.segments[s].device]
            yield r.RecordedEvent("refused", 0.0, 0.0, f"segment {s} on {on} runs op by op: {why}")


class _Clock:
    """Converts times of ``time.perf_counter`` to seconds from the beginning of a recording.

    Args:
        done: requests, in the order in which they began.
        gaps: whether the time without any request in flight counts; it is left out for single requests, which are measured one
            after the other.
    """

    def __init__(self, done: Sequence[Done], *, gaps: bool) -> None:
        self._origin = min((one.arrived for one in done), default=0.0)
        left_out = [] if gaps else [(before.ended, after.arrived) for before, after in pairwise(done)]
        self._ends, self._begins = [end for end, _ in left_out], [begin for _, begin in left_out]
        self._left_out = [0.0, *accumulate(begin - end for end, begin in left_out)]

    def __call__(self, moment: float) -> float:
        """Return the seconds of a moment from the beginning, rounded to nanoseconds."""
        n = bisect_right(self._begins, moment)
        moment = min(moment, self._ends[n]) if n < len(self._ends) else moment
        return round(moment - self._origin - self._left_out[n], _DIGITS)


def _last(done: Sequence[Done]) -> list[Done]:
    """Return the latest requests that fit into a recording, in the order in which they began."""
    latest: list[Done] = []
    room = MAX_SPANS
    for one in sorted(done, key=lambda one: one.begun, reverse=True):
        room -= len(one.ran) + len(one.moved)
        if latest and room < 0:
            break
        latest.append(one)
    return latest[::-1]


def _first_segment(placements: Sequence[Prepared], k: int) -> int:
    """Return the position of a replica's first segment among the segments of all replicas."""
    return sum(len(one.plan.segments) for one in placements[:k])


def _base_recording(session: Workbench, placements: Sequence[Prepared]) -> Recording:
    """Return a recording of the model and of the devices of a session and of prepared placements."""
    graph, grouping = session.grouping.graph, session.grouping
    devices = {device.name: device for home in (session, *(one.home for one in placements)) for device in home.cluster.devices}
    together = Cluster(tuple(devices.values()))
    links = session.cluster.links if session._costs is None else session.costs.cluster.links
    packages = {"numpy", *filter(None, (kind_of(device).package for device in devices.values()))}
    bytes_made = np.bincount(graph.tensor_op, graph.tensor_bytes, len(graph))
    readers, read = np.unique(np.column_stack([graph.edges[:, 1], graph.edge_tensor]), axis=0).T
    bytes_read = np.bincount(readers, graph.tensor_bytes[read], len(graph))
    shapes: list[list[tuple[int, ...]]] = [[] for _ in range(len(graph))]
    for v, shape in zip(graph.tensor_op.tolist(), graph.tensor_shapes, strict=True):
        shapes[v].append(tuple(map(int, shape)))
    return Recording(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        versions={"placeit": __version__, "python": platform.python_version(), **versions_of(packages)},
        environment=_environment(),
        model=r.RecordedModel(session.model.path.name, str(session.model.path), graph.hash, session.precision),
        devices=tuple(
            _device(device, compress(together.names, conflicts))
            for device, conflicts in zip(together.devices, together.conflicts(), strict=True)
        ),
        links=tuple(
            r.RecordedLink(src, dst, _finite(link.bandwidth), float(link.latency), link.origin)
            for (src, dst), link in links.items()
        ),
        graph=r.RecordedGraph(
            ops=tuple(
                r.RecordedOp(
                    graph.names[v],
                    graph.kinds[v],
                    int(grouping.group_of[v]),
                    float(graph.flops[v]),
                    float(bytes_made[v] + bytes_read[v]),
                    float(graph.param_bytes[v]),
                    tuple(shapes[v]),
                )
                for v in range(len(graph))
            ),
            edges=tuple(
                (u, w, float(graph.tensor_bytes[t]))
                for (u, w), t in zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True)
            ),
            groups=grouping.groups.names,
        ),
    )


def _environment() -> dict[str, str]:
    return {
        "system": platform.platform(),
        "cpu": cpu_name(),
        "cores": ",".join(map(str, allowed_cores())),
        "memory": about_bytes(memory_bytes()),
    }


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _device(device: Device, shared: Iterable[str]) -> r.RecordedDevice:
    address = device.address
    return r.RecordedDevice(
        name=device.name,
        kind=device.kind,
        full_name=device.full_name,
        driver=device.driver,
        node="" if address is None else address.node or "",
        cores=device.cores,
        conflicts=tuple(shared),
        memory_bytes=_finite(device.memory_bytes),
        slowdown=float(device.slowdown),
        peak_flops_per_s=None,
        peak_bytes_per_s=None,
    )


def _with_peak(device: Device, precision: str, found: r.RecordedDevice, ops: Sequence[r.OpTime]) -> r.RecordedDevice:
    """Add the highest rates that were measured on a device: of its kernels, and of programs that reach its peak."""
    peak, own_ops = peak_of(device, precision), [one for one in ops if one.device == found.name]
    return replace(
        found,
        peak_flops_per_s=max(filter(None, [peak.flops_per_s, *(one.flops_per_s for one in own_ops)]), default=None),
        peak_bytes_per_s=max(filter(None, [peak.bytes_per_s, *(one.bytes_per_s for one in own_ops)]), default=None),
    )


def _plan(placements: Sequence[Prepared], done: Sequence[Done]) -> r.RecordedPlan:
    took: dict[tuple[int, int], list[float]] = {}
    for request in done:
        for s, start, finish in request.ran:
            took.setdefault((request.replica, s), []).append(finish - start)
    segments: list[r.RecordedSegment] = []
    tensors: list[r.RecordedTensor] = []
    for k, one in enumerate(placements):
        home, plan, first = one.home, one.plan, _first_segment(placements, k)
        members: list[list[int]] = [[] for _ in plan.segments]
        for v, s in enumerate(one.segments.tolist()):
            members[s].append(v)
        for s, segment in enumerate(plan.segments):
            predicted = share = None
            if home.has_costs:
                predicted = float(plan.problem.compute[s, segment.device])
                core = float(home.costs.core[list(segment.groups), segment.device].sum())
                share = max(0.0, 1 - core / predicted) if predicted > 0 else 0.0
            times = took.get((k, s))
            segments.append(
                r.RecordedSegment(
                    device=home.cluster.names[segment.device],
                    replica=k,
                    ops=tuple(members[s]),
                    runs=not segment.passthrough,
                    measured_s=None if times is None else round(median(times), _DIGITS),
                    predicted_s=predicted,
                    cut_share=share,
                )
            )
        tensors += _tensors(one, first)
    return r.RecordedPlan(tuple(segments), tuple(tensors))


def _tensors(prepared: Prepared, first: int) -> list[r.RecordedTensor]:
    """Return a plan's tensors, then the model's inputs and outputs: in the order of :class:`placeit.runtime.spans.Labels`."""
    home, plan, segment_of = prepared.home, prepared.plan, prepared.segments.tolist()
    graph, problem = home.grouping.graph, plan.problem
    consumers: list[list[int]] = [[] for _ in plan.tensors]
    sizes = [0.0] * len(plan.tensors)
    for (_, w), t, size in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), problem.edge_bytes.tolist(), strict=True):
        consumers[t].append(first + w)
        sizes[t] = size
    found = [
        r.RecordedTensor(
            home.grouping.tensor_name(plan.tensors[t]), first + producer, tuple(sorted(set(consumers[t]))), sizes[t]
        )
        for t, producer in enumerate(plan.makers)
    ]
    for spec in home.model.inputs:
        reader = segment_of[graph.index[spec.op]]
        found.append(r.RecordedTensor(spec.name, None, (first + reader,), float(BufferSpec(spec.shape, spec.dtype).nbytes)))
    for spec in home.model.outputs:
        maker = segment_of[graph.index[spec.op]]
        found.append(r.RecordedTensor(spec.name, first + maker, (), float(BufferSpec(spec.shape, spec.dtype).nbytes)))
    return found


def _spans(placements: Sequence[Prepared], done: Sequence[Done], clock: _Clock) -> tuple[r.RecordedSpan, ...]:
    segments, tensors = [0], [0]
    for home, plan in ((one.home, one.plan) for one in placements):
        segments.append(segments[-1] + len(plan.segments))
        tensors.append(tensors[-1] + len(plan.tensors) + len(home.model.inputs) + len(home.model.outputs))
    found = [
        r.RecordedSpan(
            kind=span.kind,
            where=span.where,
            request=n,
            segment=None if span.segment is None else segments[one.replica] + span.segment,
            tensor=None if span.tensor is None else tensors[one.replica] + span.tensor,
            start_s=clock(span.start),
            finish_s=clock(span.finish),
        )
        for n, one in enumerate(done)
        for span in one.spans()
    ]
    return tuple(sorted(found, key=lambda span: (span.start_s, span.finish_s)))


def _predicted(prepared: Prepared) -> r.Prediction | None:
    """Return the simulated schedule of a plan, without segments that only pass tensors on; None if costs are not known."""
    home, plan = prepared.home, prepared.plan
    if not home.has_costs:
        return None
    schedule, names = plan.schedule, home.cluster.names
    found = [
        r.RecordedSpan("compute", (names[segment.device],), 0, s, None, float(schedule.start[s]), float(schedule.finish[s]))
        for s, segment in enumerate(plan.segments)
        if not segment.passthrough
    ]
    moved = schedule.transfers
    found += [
        r.RecordedSpan("copy", (names[src], names[dst]), 0, None, t, start, finish)
        for t, src, dst, start, finish in zip(
            *(array.tolist() for array in (moved.tensor, moved.src, moved.dst, moved.start, moved.finish)), strict=True
        )
    ]
    return r.Prediction(float(schedule.makespan), tuple(sorted(found, key=lambda span: (span.start_s, span.finish_s))))


def _ops(prepared: Prepared, first: int, timed: Sequence[OpTime]) -> list[r.OpTime]:
    home, plan = prepared.home, prepared.plan
    graph, grouping = home.grouping.graph, home.grouping
    kernels: dict[tuple[int, str], list[OpTime]] = {}
    for one in timed:
        if one.kernel is not None and one.op is not None:
            kernels.setdefault((one.segment, one.kernel), []).append(one)
    made: list[list[int]] = [[] for _ in range(len(graph))]
    for tensor, v in enumerate(graph.tensor_op.tolist()):
        made[v].append(tensor)
    rates: dict[tuple[int, str], tuple[float, float] | None] = {}
    for key, some in kernels.items():
        seconds = sum(one.seconds or 0.0 for one in some)
        ops = [graph.index[one.op] for one in some if one.op is not None]
        rates[key] = (float(graph.flops[ops].sum()) / seconds, _traffic(graph, made, ops) / seconds) if seconds > 0 else None
    rows = []
    for one in timed:
        device = plan.segments[one.segment].device
        v = None if one.op is None else graph.index[one.op]
        rate = None if one.kernel is None or one.seconds is None else rates.get((one.segment, one.kernel))
        alone = v is not None and home.has_costs and len(grouping.members(int(grouping.group_of[v]))) == 1
        rows.append(
            r.OpTime(
                op=v,
                kind=one.kind,
                segment=first + one.segment,
                device=home.cluster.names[device],
                kernel=one.kernel,
                measured_s=one.seconds,
                predicted_s=float(home.costs.core[grouping.group_of[v], device]) if alone else None,
                flops_per_s=None if rate is None else rate[0],
                bytes_per_s=None if rate is None else rate[1],
            )
        )
    return rows


def _traffic(graph: OpGraph, made: Sequence[Sequence[int]], ops: Sequence[int]) -> float:
    """Return the bytes that a kernel of ``ops`` reads and writes: constants, and tensors from and for other ops.

    ``made`` has the tensors that each op makes.
    """
    own, read, written = set(ops), set[int](), set[int]()
    into, out = graph.predecessors, graph.successors
    for v in ops:
        read |= {int(graph.edge_tensor[e]) for e in into.row(v) if int(graph.edges[e, 0]) not in own}
        readers: dict[int, list[int]] = {t: [] for t in made[v]}
        for e in out.row(v):
            readers[int(graph.edge_tensor[e])].append(int(graph.edges[e, 1]))
        written |= {t for t, readers_ in readers.items() if not (readers_ and own.issuperset(readers_))}
    return float(graph.param_bytes[list(ops)].sum() + graph.tensor_bytes[[*read, *written]].sum())


def _groups(prepared: Prepared, timed: Sequence[OpTime]) -> list[r.GroupTime]:
    home, plan = prepared.home, prepared.plan
    graph, grouping = home.grouping.graph, home.grouping
    measured: dict[int, float] = {}
    for one in timed:
        if one.op is not None and one.seconds is not None:
            group = int(grouping.group_of[graph.index[one.op]])
            measured[group] = measured.get(group, 0.0) + one.seconds
    rows = []
    for segment in plan.segments:
        for group in () if segment.passthrough else segment.groups:
            predicted = float(home.costs.core[group, segment.device]) if home.has_costs else None
            rows.append(r.GroupTime(group, home.cluster.names[segment.device], measured.get(group), predicted))
    return rows


def _samples(readings: Sequence[Series], clock: _Clock, done: Sequence[Done]) -> tuple[Series, ...]:
    begin, end = min((one.arrived for one in done), default=0.0), max((one.ended for one in done), default=0.0)
    found = []
    for one in readings:
        points = list(zip(one.time_s, one.values, strict=True))
        points = [(t, value) for t, value in points if begin <= t <= end] or points[-1:]
        times, values = tuple(clock(t) for t, _ in points), tuple(float(value) for _, value in points)
        found.append(replace(one, time_s=times, values=values))
    return tuple(found)
