"""Recordings: what a run of a model did, when and where, as a versioned JSON file.

``placeit schema recording`` describes the format. Times are seconds from the beginning of the recording; ops, segments, tensors
and spans are named by their positions in the lists of the file. Values that could not be measured or read are null or not
listed.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from placeit.core.errors import FileError
from placeit.core.files import read_json, write_text
from placeit.core.views import Drawn
from placeit.devices.meters import Series

__all__ = [
    "HOST",
    "MOST_SPANS",
    "CriticalPath",
    "GroupTime",
    "LinkUse",
    "OpTime",
    "Prediction",
    "RecordedDevice",
    "RecordedEvent",
    "RecordedGraph",
    "RecordedLink",
    "RecordedModel",
    "RecordedOp",
    "RecordedPlan",
    "RecordedRequest",
    "RecordedSegment",
    "RecordedSpan",
    "RecordedTensor",
    "Recording",
    "Series",
    "States",
    "Step",
    "read_recording",
    "write_recording",
]

_FORMAT, _VERSION = "placeit-recording", 1

MOST_SPANS = 50_000  # most spans of a recording, so that its file stays below 20 MB

HOST = "host"
"""Name of the host's memory, where a copy of an accelerator begins or ends."""

What: TypeAlias = Literal["computing", "transfer", "waiting"]


@dataclass(frozen=True)
class RecordedModel:
    """The model that ran.

    Attributes:
        name: the file's name.
        path: the file.
        digest: digest of its task graph, as placement files have it.
        precision: precision in which devices computed.
    """

    name: str
    path: str
    digest: str
    precision: str


@dataclass(frozen=True)
class RecordedDevice:
    """A device.

    Attributes:
        name: unique.
        kind: kind of its runtime.
        full_name: its name by the driver.
        driver: versions of runtime and driver.
        node: the node that it is on; empty for this machine.
        cores: CPU cores that it is bound to.
        conflicts: names of devices that never run at the same time as it.
        memory_bytes: size of its memory; None if unknown.
        slowdown: factor by which it is slowed on purpose; 1 for none.
        peak_flops_per_s: highest arithmetic rate that was measured there; None if none was measured.
        peak_bytes_per_s: highest rate of reading memory that was measured there; None if none was measured.
    """

    name: str
    kind: str
    full_name: str
    driver: str
    node: str
    cores: tuple[int, ...]
    conflicts: tuple[str, ...]
    memory_bytes: float | None
    slowdown: float
    peak_flops_per_s: float | None
    peak_bytes_per_s: float | None


@dataclass(frozen=True)
class RecordedLink:
    """A link; its bandwidth is None if it is too high to be measured."""

    src: str
    dst: str
    bandwidth_bytes_per_s: float | None
    latency_s: float
    origin: str


@dataclass(frozen=True)
class RecordedOp:
    """An op of the task graph.

    Attributes:
        name: unique.
        kind: what it computes.
        group: position in ``RecordedGraph.groups``.
        flops: floating-point operations of one request.
        bytes: bytes of the tensors that it reads and writes.
        param_bytes: bytes of its constants.
        shapes: shapes of the tensors that it makes.
    """

    name: str
    kind: str
    group: int
    flops: float
    bytes: float
    param_bytes: float
    shapes: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RecordedGraph:
    """The task graph: ops in topological order, edges (producer, consumer, bytes), and the names of the groups."""

    ops: tuple[RecordedOp, ...]
    edges: tuple[tuple[int, int, float], ...]
    groups: tuple[str, ...]


@dataclass(frozen=True)
class RecordedSegment:
    """A segment of the plan.

    Attributes:
        device: name.
        replica: number of the replica that it belongs to; 0 if there is only one.
        ops: positions in the graph.
        runs: False if it only hands inputs or outputs of the model through, and so has no spans.
        measured_s: median seconds in the recorded requests; None if it did not run.
        predicted_s: seconds by the costs, without waiting; None if costs are unknown.
        cut_share: share of ``predicted_s`` that cutting costs (dispatch, layout conversions, lost fusion, reading what another
            device wrote); None if costs are unknown.
    """

    device: str
    replica: int
    ops: tuple[int, ...]
    runs: bool
    measured_s: float | None
    predicted_s: float | None
    cut_share: float | None


@dataclass(frozen=True)
class RecordedTensor:
    """A tensor between segments, or an input or output of the model.

    Attributes:
        name: the op that makes it, or the name of the input or output.
        producer: position of the segment that makes it; None for an input of the model.
        consumers: positions of the segments that read it; none for an output of the model.
        bytes: its size.
    """

    name: str
    producer: int | None
    consumers: tuple[int, ...]
    bytes: float


@dataclass(frozen=True)
class RecordedPlan:
    """Segments of all replicas, and the tensors between them."""

    segments: tuple[RecordedSegment, ...]
    tensors: tuple[RecordedTensor, ...]


@dataclass(frozen=True)
class RecordedRequest:
    """A request: the replica that served it; when it arrived, began and ended."""

    replica: int
    arrived_s: float
    begun_s: float
    ended_s: float


@dataclass(frozen=True)
class RecordedSpan:
    """A segment that ran, or a tensor that moved.

    Attributes:
        kind: ``compute`` or ``copy``.
        where: name of the device; for a copy, names of source and destination, one of which may be :data:`HOST`.
        request: position in ``Recording.requests``.
        segment: position in the plan; None for a copy.
        tensor: position in the plan; None for a segment.
        start_s: seconds.
        finish_s: seconds.
    """

    kind: Literal["compute", "copy"]
    where: tuple[str, ...]
    request: int
    segment: int | None
    tensor: int | None
    start_s: float
    finish_s: float

    @property
    def track(self) -> str:
        """Name of the line that it is drawn on: the device, or ``A -> B``."""
        return " -> ".join(self.where)


@dataclass(frozen=True)
class RecordedEvent:
    """An event of a server: its name, when it happened, and the reason, in a sentence."""

    name: str
    start_s: float
    finish_s: float
    why: str


@dataclass(frozen=True)
class States:
    """Seconds that a device spent in each state. Their sum is the wall time.

    Attributes:
        device: name.
        executing_s: it ran a segment.
        sending_s: it ran nothing, and a tensor was on its way from it.
        waiting_data_s: requests in flight had a segment left for it, but inputs of the segment were missing.
        waiting_conflict_s: a segment was ready, but another device that shares cores with it was running.
        waiting_scheduler_s: a segment was ready, and nothing else was in its way.
        idle_s: no request in flight had a segment left for it.
    """

    device: str
    executing_s: float
    sending_s: float
    waiting_data_s: float
    waiting_conflict_s: float
    waiting_scheduler_s: float
    idle_s: float


@dataclass(frozen=True)
class LinkUse:
    """Seconds in which a link moved tensors, their bytes and their number."""

    src: str
    dst: str
    busy_s: float
    bytes: float
    transfers: int


@dataclass(frozen=True)
class Step:
    """A part of a critical path.

    Attributes:
        what: ``computing``, ``transfer`` or ``waiting``.
        span: position in the recorded spans; None for waiting.
        start_s: seconds.
        finish_s: seconds; where the next step starts.
    """

    what: What
    span: int | None
    start_s: float
    finish_s: float


@dataclass(frozen=True)
class CriticalPath:
    """The parts of the recorded requests' latency, in seconds, as means over all of them.

    ``computing_s + cuts_s + transfers_s + waiting_s = latency_s``.

    Attributes:
        latency_s: from the arrival of a request to its end.
        computing_s: time of segments on the critical path, without the cost of cutting them off.
        cuts_s: cost of cutting in their time, by the profiled costs; None if costs are unknown.
        transfers_s: time in which tensors are on their way.
        waiting_s: time of waiting for a device, a link, or the scheduler.
        request: position of the request of median latency, whose path ``steps`` has.
        steps: steps of that path without gaps, from the request's arrival to its end.
    """

    latency_s: float
    computing_s: float
    cuts_s: float | None
    transfers_s: float
    waiting_s: float
    request: int
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class OpTime:
    """Time of an op inside its segment, by the counters of the runtime.

    Attributes:
        op: position in the graph; None for a kernel that stands for no op, such as a layout conversion.
        kind: kind of the op, or of the kernel.
        segment: position in the plan.
        device: name.
        kernel: name of the kernel that computed it, maybe together with other ops; None if no kernel names it.
        measured_s: mean seconds over several requests, an equal part of the kernel's time for each op that it computes; None if
            no kernel names the op, because it was folded into others.
        predicted_s: seconds by the costs; None if these are unknown for the op alone.
        flops_per_s: arithmetic rate of the kernel; None if it was not measured.
        bytes_per_s: rate of the kernel's memory traffic, by its tensors and constants; None if it was not measured.
    """

    op: int | None
    kind: str
    segment: int
    device: str
    kernel: str | None
    measured_s: float | None
    predicted_s: float | None
    flops_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True)
class GroupTime:
    """Time of a group inside its segment; None for a time that is unknown.

    Attributes:
        group: position in ``RecordedGraph.groups``.
        device: name.
        measured_s: sum of the times of its ops.
        predicted_s: seconds by the costs, without cuts.
    """

    group: int
    device: str
    measured_s: float | None
    predicted_s: float | None


@dataclass(frozen=True)
class Prediction:
    """The simulator's prediction for one request on the same plan, the first replica's if there are several."""

    makespan_s: float
    spans: tuple[RecordedSpan, ...]


@dataclass(frozen=True)
class Recording(Drawn):
    """A recording of a run. Without a placement nothing ran, and it has ``costs`` in place of a plan and times.

    Attributes:
        made: when it was made, ISO 8601.
        versions: of placeit, Python and the runtimes, by name.
        environment: facts about the machine, by name.
        model: what ran.
        devices: in the order of their numbers.
        links: as far as they are known.
        graph: the task graph.
        plan: the plan; None without a placement.
        wall_s: seconds that were recorded.
        requests: in the order in which they began.
        spans: sorted by start; spans of one device never overlap.
        events: events of the server, if one ran.
        states: states of each device.
        link_use: use of each link that was used.
        critical_path: None if nothing ran.
        ops: times of ops inside segments, for devices that count them.
        groups: times of groups inside segments, as sums over their ops.
        predicted: None if costs are unknown.
        samples: series of the process, and of meters that could be read.
        costs: the JSON of ``placeit profile --json``; None if costs were not profiled.
        search: the JSON of ``placeit optimize --json``, with curves of learning and the story of the search; None if there
            was no search.
    """

    made: str
    versions: Mapping[str, str]
    environment: Mapping[str, str]
    model: RecordedModel
    devices: tuple[RecordedDevice, ...]
    links: tuple[RecordedLink, ...]
    graph: RecordedGraph
    plan: RecordedPlan | None = None
    wall_s: float = 0.0
    requests: tuple[RecordedRequest, ...] = ()
    spans: tuple[RecordedSpan, ...] = ()
    events: tuple[RecordedEvent, ...] = ()
    states: tuple[States, ...] = ()
    link_use: tuple[LinkUse, ...] = ()
    critical_path: CriticalPath | None = None
    ops: tuple[OpTime, ...] = ()
    groups: tuple[GroupTime, ...] = ()
    predicted: Prediction | None = None
    samples: tuple[Series, ...] = ()
    costs: Mapping[str, Any] | None = None
    search: Mapping[str, Any] | None = None


def write_recording(path: str | Path, recording: Recording) -> None:
    """Write a recording in one step, so that no incomplete file is left. Raises FileError."""
    sections = {field.name: _plain(getattr(recording, field.name)) for field in fields(recording)}
    texts = {name: _text(name, value) for name, value in sections.items()}
    head = {"format": _FORMAT, "version": _VERSION, "digests": {name: _digest(text) for name, text in texts.items()}}
    body = ",\n".join(f'"{name}": {text}' for name, text in texts.items())
    write_text(Path(path), f"{json.dumps(head)[:-1]},\n{body}}}\n")


def read_recording(path: str | Path) -> Recording:
    """Read a recording.

    Raises:
        FileError: the file cannot be read, is cut short, is of another version, or was changed; the message names the field.
    """
    data = read_json(Path(path), _FORMAT, (_VERSION,))
    for name in ("format", "version", "digests"):
        if name not in data:
            raise FileError(f"{path} is not a {_FORMAT} file: it has no '{name}'.")
    digests = data.pop("digests")
    del data["format"], data["version"]
    try:
        recording: Recording = _reader(Recording)(data)
        _check(recording)
        for field in fields(Recording):
            if not isinstance(digests, dict) or digests.get(field.name) != _digest(_text(field.name, data[field.name])):
                raise _FieldError(field.name, "was changed after it had been written")
    except _FieldError as error:
        raise FileError(f"{path} is not a recording as placeit writes it: {error}. Record the run again.") from None
    return recording


class _FieldError(ValueError):
    """An error that names a field with an invalid value."""

    def __init__(self, field: str, what: str) -> None:
        super().__init__(f"'{field}' {what}")
        self.field, self.what = field, what

    def inside(self, outer: str) -> _FieldError:
        """Return the error of the same field as a field of an outer one."""
        dot = "." if self.field and not self.field.startswith("[") else ""
        return _FieldError(f"{outer}{dot}{self.field}", self.what)


def _text(field: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise _FieldError(field, "holds a number that is not finite") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _plain(value: Any) -> Any:
    """Convert dataclasses and tuples to JSON-compatible values."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {name: _plain(item) for name, item in vars(value).items()}
    return value


@functools.cache
def _reader(kind: Any) -> Callable[[Any], Any]:
    """Return a function that reads a value of a type, by the type's annotation. The function raises _FieldError."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        some = _reader(of[0])
        return lambda value: None if value is None else some(value)
    if is_dataclass(kind):
        return functools.partial(_read_fields, kind, {name: _reader(one) for name, one in get_type_hints(kind).items()})
    if origin is tuple:
        return functools.partial(_read_list, None if of[-1] is Ellipsis else len(of), [*map(_reader, of[:-1]), _last(of)])
    if origin is Literal:
        return functools.partial(_read_choice, of)
    if origin is Mapping:
        return functools.partial(_read_mapping, _reader(of[1]))
    return {Any: lambda value: value, float: _read_float, int: _read_int}.get(kind, functools.partial(_read_plain, kind))


def _last(of: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return the reader of a tuple's last item; for a tuple of any length, of every item."""
    return _reader(of[0] if of[-1] is Ellipsis else of[-1])


def _read_fields(kind: Any, readers: Mapping[str, Callable[[Any], Any]], value: Any) -> Any:
    if not isinstance(value, dict):
        raise _FieldError("", "must be an object")
    for name in () if value.keys() == readers.keys() else (*readers, *value):
        if name not in value or name not in readers:
            raise _FieldError(name, "is missing" if name not in value else "is not known")
    found = {}
    for name, read in readers.items():
        try:
            found[name] = read(value[name])
        except _FieldError as error:
            raise error.inside(name) from None
    return kind(**found)


def _read_list(length: int | None, readers: Sequence[Callable[[Any], Any]], value: Any) -> Any:
    if not isinstance(value, list):
        raise _FieldError("", "must be a list")
    if length is not None and len(value) != length:
        raise _FieldError("", f"must have {length} items")
    last, found = len(readers) - 1, []
    for i, item in enumerate(value):
        try:
            found.append(readers[min(i, last)](item))
        except _FieldError as error:
            raise error.inside(f"[{i}]") from None
    return tuple(found)


def _read_choice(of: tuple[Any, ...], value: Any) -> Any:
    if value not in of:
        raise _FieldError("", f"must be one of {', '.join(map(str, of))}")
    return value


def _read_mapping(read: Callable[[Any], Any], value: Any) -> Any:
    if not isinstance(value, dict):
        raise _FieldError("", "must be an object")
    found = {}
    for name, item in value.items():
        try:
            found[name] = read(item)
        except _FieldError as error:
            raise error.inside(name) from None
    return found


def _read_float(value: Any) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer may have hundreds of digits
            number = float(value)
            if math.isfinite(number):
                return number
    raise _FieldError("", "must be a finite number")


def _read_int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _FieldError("", "must be a whole number")
    return value


def _read_plain(kind: type, value: Any) -> Any:
    if not isinstance(value, kind):
        raise _FieldError("", "must be text" if kind is str else "must be true or false")
    return value


def _check(recording: Recording) -> None:
    """Raise _FieldError unless all positions and names refer to existing items."""
    names = [device.name for device in recording.devices]
    if len(set(names)) != len(names) or not names:
        raise _FieldError("devices", "must have names that differ, and at least one")
    graph, plan = recording.graph, recording.plan or RecordedPlan((), ())
    ops, segments, tensors = len(graph.ops), len(plan.segments), len(plan.tensors)
    groups, requests = len(graph.groups), len(recording.requests)
    for i, device in enumerate(recording.devices):
        _among(f"devices[{i}].conflicts", device.conflicts, names)
    for i, link in enumerate(recording.links):
        _among(f"links[{i}]", (link.src, link.dst), names)
    for i, op in enumerate(graph.ops):
        _within(f"graph.ops[{i}].group", op.group, groups)
    for i, (producer, consumer, _) in enumerate(graph.edges):
        _within(f"graph.edges[{i}]", consumer, ops)
        _within(f"graph.edges[{i}]", producer, consumer)
    for i, segment in enumerate(plan.segments):
        _among(f"plan.segments[{i}].device", (segment.device,), names)
        for v in segment.ops:
            _within(f"plan.segments[{i}].ops", v, ops)
    for i, tensor in enumerate(plan.tensors):
        for s in (*tensor.consumers, *(() if tensor.producer is None else (tensor.producer,))):
            _within(f"plan.tensors[{i}]", s, segments)
    for i, request in enumerate(recording.requests):
        if not request.arrived_s <= request.begun_s <= request.ended_s:
            raise _FieldError(f"requests[{i}]", "must begin when it has arrived, and end after that")
    _check_spans("spans", recording.spans, names, (requests, segments, tensors))
    if recording.predicted is not None:
        _check_spans("predicted.spans", recording.predicted.spans, names, (1, segments, tensors))
    for i, state in enumerate(recording.states):
        _among(f"states[{i}].device", (state.device,), names)
    for i, use in enumerate(recording.link_use):
        _among(f"link_use[{i}]", (use.src, use.dst), [*names, HOST])
    if (path := recording.critical_path) is not None:
        _within("critical_path.request", path.request, requests)
        for i, step in enumerate(path.steps):
            if step.span is not None:
                _within(f"critical_path.steps[{i}].span", step.span, len(recording.spans))
    for i, timed in enumerate(recording.ops):
        _among(f"ops[{i}].device", (timed.device,), names)
        _within(f"ops[{i}].segment", timed.segment, segments)
        if timed.op is not None:
            _within(f"ops[{i}].op", timed.op, ops)
    for i, group in enumerate(recording.groups):
        _among(f"groups[{i}].device", (group.device,), names)
        _within(f"groups[{i}].group", group.group, groups)
    for i, series in enumerate(recording.samples):
        if len(series.time_s) != len(series.values):
            raise _FieldError(f"samples[{i}].values", "must be as many as 'time_s'")


def _check_spans(where: str, spans: tuple[RecordedSpan, ...], names: list[str], counts: tuple[int, int, int]) -> None:
    requests, segments, tensors = counts
    for i, span in enumerate(spans):
        field = f"{where}[{i}]"
        if len(span.where) != (1 if span.kind == "compute" else 2):
            raise _FieldError(f"{field}.where", "must name one device, or the two ends of a copy")
        _among(f"{field}.where", span.where, names if span.kind == "compute" else [*names, HOST])
        _within(f"{field}.request", span.request, requests)
        of = ("segment", span.segment, segments) if span.kind == "compute" else ("tensor", span.tensor, tensors)
        if of[1] is None:
            raise _FieldError(f"{field}.{of[0]}", "is missing")
        _within(f"{field}.{of[0]}", of[1], of[2])
        if span.start_s > span.finish_s:
            raise _FieldError(f"{field}.finish_s", "must not be before 'start_s'")


def _among(where: str, some: tuple[str, ...], names: list[str]) -> None:
    for name in some:
        if name not in names:
            raise _FieldError(where, f"names '{name}', which is not among 'devices'")


def _within(where: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise _FieldError(where, f"is {number}, and there are {count}")
