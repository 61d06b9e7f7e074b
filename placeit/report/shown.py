"""Data for the plots and tables of a recording, independent of the library that draws them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from placeit.measuring.statistics import median_interval
from placeit.profiler.recorded import OpTime, RecordedSpan, States
from placeit.profiler.recording import Recording
from placeit.report.style import shortened
from placeit.report.text import amount, percent, printable, seconds

__all__ = [
    "PATH",
    "Bar",
    "CandidateRow",
    "FrontRow",
    "OpRow",
    "Timeline",
    "candidates",
    "decision",
    "device_names",
    "front",
    "name_of",
    "number",
    "op_rows",
    "records",
    "share",
    "states",
    "timelines",
]

PATH = "critical path"
_MAX_OPS = 3  # maximum number of ops of a segment that are named


def name_of(name: object) -> str:
    """Return a name as text of limited length, without characters that could break the page."""
    return shortened(printable(str(name)).replace("\n", "?"))


def number(value: object) -> float | None:
    """Return a value as a float if it is a finite number, else None."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) else None


def records(value: object) -> list[Mapping[str, Any]]:
    """Return the items of a list that are mappings; an empty list if the value is no list."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, Sequence) else []


def device_names(recording: Recording) -> list[str]:
    """Return the displayed names of the devices, in order."""
    return [name_of(device.name) for device in recording.devices]


@dataclass(frozen=True)
class Bar:
    """A period of time that is drawn as a bar.

    Attributes:
        track: the track that it is drawn on.
        device: the device whose colour it has; None for a transfer or for waiting.
        start_s: seconds from the beginning of the timeline.
        finish_s: seconds; not before ``start_s``.
        what: its name, such as ``segment 3``.
        about: its ops or bytes.
        critical: whether it is on the critical path.
        request: number of its request.
        other: whether it belongs to another request than the timeline.
    """

    track: str
    device: str | None
    start_s: float
    finish_s: float
    what: str
    about: str
    critical: bool = False
    request: int = 0
    other: bool = False


@dataclass(frozen=True)
class Timeline:
    """Segments and transfers along a time axis.

    Attributes:
        title: its title.
        tracks: names of its tracks, from top to bottom.
        bars: the bars, in any order.
    """

    title: str
    tracks: tuple[str, ...]
    bars: tuple[Bar, ...]

    @property
    def seconds(self) -> float:
        """End of the last bar."""
        return max((bar.finish_s for bar in self.bars), default=0.0)


def timelines(recording: Recording) -> list[Timeline]:
    """Return the timelines of the measured request, the best single device and the simulated request, if they are known."""
    found = [_measured(recording), _single(recording), _predicted(recording)]
    return [one for one in found if one is not None and one.bars]


def _measured(recording: Recording) -> Timeline | None:
    path = recording.critical_path
    if path is None or not recording.requests:
        return None
    request = recording.requests[path.request]
    origin, end = request.arrived_s, request.ended_s
    critical = {step.span for step in path.steps if step.span is not None}
    bars = [
        replace(_bar(recording, span, origin), critical=i in critical, other=span.request != path.request)
        for i, span in enumerate(recording.spans)
        if span.request == path.request or (span.finish_s > origin and span.start_s < end)
    ]
    steps = []
    for step in path.steps:
        bar = Bar(PATH, None, step.start_s - origin, step.finish_s - origin, "waiting", "", True, path.request)
        if step.span is not None:
            of = _bar(recording, recording.spans[step.span], origin)
            bar = replace(bar, device=of.device, what=f"{of.what} on {of.track}", about=of.about)
        steps.append(bar)
    count = len(recording.requests)
    title = f"Measured, request {path.request + 1} of {count}" if count > 1 else "Measured"
    return Timeline(title, (PATH, *_tracks(recording, bars)), (*steps, *bars))


def _single(recording: Recording) -> Timeline | None:
    search = recording.search or {}
    best, chosen = search.get("best_single"), search.get("chosen")
    if not isinstance(best, Mapping) or (isinstance(chosen, Mapping) and chosen.get("name") == best.get("name")):
        return None
    took, devices = number(best.get("measured_s")), best.get("devices")
    used = [name for name, ops in devices.items() if number(ops)] if isinstance(devices, Mapping) else []
    if took is None or len(used) != 1:
        return None
    device = name_of(used[0])
    bar = Bar(device, device, 0.0, took, "the whole model", "median of the race")
    return Timeline(f"Best single device, {device}", (device,), (bar,))


def _predicted(recording: Recording) -> Timeline | None:
    if recording.predicted is None:
        return None
    bars = [_bar(recording, span, 0.0) for span in recording.predicted.spans]
    return Timeline("Simulated", _tracks(recording, bars), tuple(bars))


def _bar(recording: Recording, span: RecordedSpan, origin: float) -> Bar:
    start, finish = span.start_s - origin, span.finish_s - origin
    track = " → ".join(map(name_of, span.where))
    if recording.plan is None or span.segment is None:
        of = None if recording.plan is None or span.tensor is None else recording.plan.tensors[span.tensor]
        about = "" if of is None else f"{name_of(of.name)}, {amount(of.bytes, 'B')}"
        return Bar(track, None, start, finish, "transfer", about, request=span.request)
    ops = [recording.graph.ops[op] for op in recording.plan.segments[span.segment].ops]
    named = ", ".join(shortened(name_of(op.name), 60) for op in ops[:_MAX_OPS])
    about = f"{named} and {len(ops) - _MAX_OPS} more" if len(ops) > _MAX_OPS else named
    return Bar(track, track, start, finish, f"segment {span.segment}", about, request=span.request)


def _tracks(recording: Recording, bars: Iterable[Bar]) -> tuple[str, ...]:
    """Return the tracks of bars: devices that ran something, then links."""
    used = dict.fromkeys(bar.track for bar in bars)
    devices = [name for name in device_names(recording) if name in used]
    return (*devices, *sorted(track for track in used if track not in devices))


def states(of: States) -> dict[str, float]:
    """Return the seconds that a device spent in each state, by the state's name in ``style.STATES``."""
    return {
        "executing": of.executing_s,
        "sending": of.sending_s,
        "waiting for data": of.waiting_data_s,
        "waiting for a conflicting device": of.waiting_conflict_s,
        "waiting for the scheduler": of.waiting_scheduler_s,
        "idle": of.idle_s,
    }


@dataclass(frozen=True)
class CandidateRow:
    """A candidate of a search; unknown values are None.

    Attributes:
        name: its unique name.
        placer: placer that proposed it.
        where: ops by device.
        segments: number of segments.
        simulated: simulated objective, before it ran.
        measured: measured objective, by its last race.
        low: lower end of the 95 % interval.
        high: upper end of the 95 % interval.
        modelled: joules of the measured runs by the power model; for energy only.
        joules: joules of the measured runs by meters; for energy only.
        race: number of its last race.
        chosen: whether it is the answer.
        note: why it failed, or did not run.
    """

    name: str
    placer: str
    where: str
    segments: int | None
    simulated: float | None
    measured: float | None
    low: float | None
    high: float | None
    modelled: float | None
    joules: float | None
    race: int | None
    chosen: bool
    note: str


def candidates(search: Mapping[str, Any] | None) -> list[CandidateRow]:
    """Return the candidates of a search: the answer, then the measured ones, the fastest first, then the others."""
    search = search or {}
    rows = []
    for one in records(search.get("candidates")):
        ends, race, segments = one.get("value_ci"), number(one.get("race")), number(one.get("segments"))
        low, high = (number(end) for end in ends) if isinstance(ends, Sequence) and len(ends) == 2 else (None, None)
        row = CandidateRow(
            name_of(one.get("name")),
            name_of(one.get("placer")),
            _devices(one),
            None if segments is None else int(segments),
            number(one.get("simulated_value")),
            number(one.get("value_from_runs")),
            low,
            high,
            number(one.get("joules_modelled")),
            number(one.get("joules_measured")),
            None if race is None else int(race),
            one.get("name") == _answer(search),
            name_of(one.get("failed") or one.get("not_run") or ""),
        )
        rows.append(row)
    known = [row.measured if row.measured is not None else math.inf for row in rows]
    order = sorted(range(len(rows)), key=lambda i: (not rows[i].chosen, known[i], rows[i].simulated or math.inf))
    return [rows[i] for i in order]


def _answer(search: Mapping[str, Any]) -> object:
    """Return the name of the chosen candidate of a search."""
    chosen = search.get("chosen")
    return chosen.get("name") if isinstance(chosen, Mapping) else None


def _devices(row: Mapping[str, Any]) -> str:
    """Return the numbers of ops by device of a candidate or a point."""
    used = row.get("devices")
    return ", ".join(f"{name_of(name)} {ops}" for name, ops in used.items() if ops) if isinstance(used, Mapping) else ""


@dataclass(frozen=True)
class FrontRow:
    """A point of a Pareto front of latency and energy.

    Attributes:
        name: name of its placement.
        where: ops by device.
        latency_s: seconds of a request.
        energy_j: joules of a request.
        source: origin of both values: ``measured``, ``measured, energy modelled`` or ``simulated``.
        file: file of the placement; empty if it was not written.
        chosen: whether it is the answer.
    """

    name: str
    where: str
    latency_s: float
    energy_j: float
    source: str
    file: str
    chosen: bool


def front(search: Mapping[str, Any] | None) -> list[FrontRow]:
    """Return the points of a search's Pareto front, the fastest first; empty if the search has none."""
    search, rows = search or {}, []
    for one in records(search.get("pareto")):
        latency, energy = number(one.get("latency_s")), number(one.get("energy_j"))
        if latency is None or energy is None:
            continue
        sources = [name_of(one.get("latency_from")), name_of(one.get("energy_from"))]
        row = FrontRow(
            name_of(one.get("name")),
            _devices(one),
            latency,
            energy,
            sources[0] if sources[0] == sources[1] else f"{sources[0]}, energy {sources[1]}",
            name_of(one.get("placement_file") or ""),
            one.get("name") == _answer(search),
        )
        rows.append(row)
    return rows


def decision(recording: Recording) -> str:
    """Return a sentence with the decision of a search, or with the time of a request."""
    tuning, search = recording.tuning, recording.search or {}
    if tuning is not None and isinstance(tuning.get("reason"), str):
        return f"{name_of(tuning.get('chosen') or 'Nothing')} is chosen: {printable(tuning['reason'])}."
    chosen = search.get("chosen")
    if isinstance(chosen, Mapping) and isinstance(search.get("reason"), str):
        verdict = search.get("verdict")  # recordings of older versions have none
        sentence = f"{name_of(chosen.get('name'))} is chosen: {printable(search['reason'])}."
        return f"{printable(verdict)} {sentence}" if isinstance(verdict, str) else sentence
    if not recording.requests:
        return "Nothing ran: these are the costs of the model's ops."
    plan = recording.plan
    used = dict.fromkeys(name_of(segment.device) for segment in plan.segments if segment.runs) if plan is not None else {}
    took = [request.ended_s - request.arrived_s for request in recording.requests]
    low, high = median_interval(took)
    interval = f", 95 % interval {seconds(low)} to {seconds(high)}" if math.isfinite(high) else ""
    many = f"median of {len(took)} requests{interval}" if len(took) > 1 else "one request was recorded"
    return f"A request takes {seconds(median(took))} on {_listed(list(used))} ({many})."


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


@dataclass(frozen=True)
class OpRow:
    """An op, or a kernel that belongs to no op; unknown values are None.

    Attributes:
        op: position in the graph; None for a kernel that belongs to no op.
        name: name of the op.
        kind: kind of the op or kernel.
        device: name of the device; empty without a placement.
        segment: position in the plan.
        group: name of its group.
        shapes: shapes of its outputs.
        flops: operations of one request.
        bytes: bytes that it reads and writes in one request, with its constants.
        measured_s: measured seconds in a request.
        predicted_s: seconds in a request by the costs.
        flops_per_s: achieved rate.
        bytes_per_s: achieved rate.
        kernel: kernel that computes it, possibly with other ops; empty if unknown.
    """

    op: int | None
    name: str
    kind: str
    device: str
    segment: int | None
    group: str
    shapes: str
    flops: float | None
    bytes: float | None
    measured_s: float | None = None
    predicted_s: float | None = None
    flops_per_s: float | None = None
    bytes_per_s: float | None = None
    kernel: str = ""


def op_rows(recording: Recording) -> list[OpRow]:
    """Return all ops and kernels, the most expensive first. With replicas, these are the ops of the first replica."""
    graph, plan = recording.graph, recording.plan
    rows = [
        OpRow(
            i,
            name_of(op.name),
            name_of(op.kind),
            "",
            None,
            name_of(graph.groups[op.group]),
            ", ".join("×".join(map(str, shape)) or "scalar" for shape in op.shapes),
            op.flops,
            op.bytes + op.param_bytes,
        )
        for i, op in enumerate(graph.ops)
    ]
    for s, segment in reversed(list(enumerate(plan.segments if plan is not None else ()))):
        for op in segment.ops:
            rows[op] = replace(rows[op], device=name_of(segment.device), segment=s)
    kernels = []
    for timed in recording.ops:
        if timed.op is None:
            kernel = OpRow(None, "", name_of(timed.kind), name_of(timed.device), timed.segment, "", "", None, None)
            kernels.append(_timed(kernel, timed))
        elif rows[timed.op].segment == timed.segment:
            rows[timed.op] = _timed(rows[timed.op], timed)
    return sorted((*rows, *kernels), key=lambda row: -(row.measured_s if row.measured_s is not None else -1.0))


def _timed(row: OpRow, timed: OpTime) -> OpRow:
    return replace(
        row,
        measured_s=timed.measured_s,
        predicted_s=timed.predicted_s,
        flops_per_s=timed.flops_per_s,
        bytes_per_s=timed.bytes_per_s,
        kernel="" if timed.kernel is None else name_of(timed.kernel),
    )


def share(part: float | None, whole: float) -> str:
    """Format a part of a whole as a percentage."""
    return percent(part / whole) if part is not None and whole > 0 else percent(None)
