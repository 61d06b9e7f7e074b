"""Recordings of runs: which ops ran when on which device, as a versioned JSON file.

``placeit schema recording`` describes the format. Times are seconds from the beginning of the recording; ops, segments, tensors
and spans are named by their positions in the lists of the file. Values that could not be measured or read are null or not
listed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from placeit.core.errors import FileError
from placeit.core.files import write_text
from placeit.core.records import RecordError, plain, read_json, record
from placeit.core.views import Drawn
from placeit.devices.meters import Series
from placeit.profiler.recorded import (
    HOST,
    CriticalPath,
    GroupTime,
    LinkUse,
    OpTime,
    Prediction,
    RecordedDevice,
    RecordedEvent,
    RecordedGraph,
    RecordedLink,
    RecordedModel,
    RecordedPlan,
    RecordedRequest,
    RecordedSpan,
    States,
)

__all__ = ["MAX_SPANS", "Recording", "read_recording", "write_recording"]

_FORMAT, _VERSION = "placeit-recording", 1

MAX_SPANS = 50_000  # maximum number of spans, so that the file stays below 20 MB


@dataclass(frozen=True)
class Recording(Drawn):
    """A recording of a run. If there was no placement to run, it has ``costs`` instead of a plan and times.

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
        events: events of the server, if one ran; ``refused`` for each segment that its device's compiler refused.
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
        tuning: the JSON of ``placeit tune --json``, or of ``placeit optimize --objective tokens --json``; None without either.
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
    tuning: Mapping[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Recording of {self.model.name}, {self.made}: {len(self.requests)} requests, {len(self.spans)} spans>"


def write_recording(path: str | Path, recording: Recording) -> None:
    """Write a recording in one step, so that no incomplete file is left. Raises FileError."""
    sections = {field.name: plain(getattr(recording, field.name)) for field in fields(recording)}
    texts = {name: _text(name, value) for name, value in sections.items()}
    head = {"format": _FORMAT, "version": _VERSION, "digests": {name: _digest(text) for name, text in texts.items()}}
    body = ",\n".join(f'"{name}": {text}' for name, text in texts.items())
    write_text(Path(path), f"{json.dumps(head)[:-1]},\n{body}}}\n")


def read_recording(path: str | Path) -> Recording:
    """Read a recording.

    Raises:
        FileError: the file cannot be read, is truncated, has another version, or was modified; the message names the field.
    """
    data = read_json(Path(path), _FORMAT, (_VERSION,))
    for name in ("format", "version", "digests"):
        if name not in data:
            raise FileError(f"{path} is not a {_FORMAT} file: it has no '{name}'.")
    digests = data.pop("digests")
    del data["format"], data["version"]
    try:
        recording = record(Recording, data, strict=True)
        _check(recording)
        for field in fields(Recording):
            if not isinstance(digests, dict) or digests.get(field.name) != _digest(_text(field.name, data[field.name])):
                raise RecordError(field.name, "was changed after it had been written")
    except RecordError as error:
        raise FileError(f"{path} is not a recording as placeit writes it: {error}. Record the run again.") from None
    return recording


def _text(field: str, value: Any) -> str:
    try:
        return json.dumps(value, allow_nan=False, separators=(",", ":"))
    except ValueError:
        raise RecordError(field, "holds a number that is not finite") from None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _check(recording: Recording) -> None:
    """Raise RecordError unless all positions and names refer to existing items."""
    names = [device.name for device in recording.devices]
    if len(set(names)) != len(names) or not names:
        raise RecordError("devices", "must have names that differ, and at least one")
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
            raise RecordError(f"requests[{i}]", "must begin when it has arrived, and end after that")
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
            raise RecordError(f"samples[{i}].values", "must be as many as 'time_s'")


def _check_spans(where: str, spans: tuple[RecordedSpan, ...], names: list[str], counts: tuple[int, int, int]) -> None:
    requests, segments, tensors = counts
    for i, span in enumerate(spans):
        field = f"{where}[{i}]"
        if len(span.where) != (1 if span.kind == "compute" else 2):
            raise RecordError(f"{field}.where", "must name one device, or the two ends of a copy")
        _among(f"{field}.where", span.where, names if span.kind == "compute" else [*names, HOST])
        _within(f"{field}.request", span.request, requests)
        of = ("segment", span.segment, segments) if span.kind == "compute" else ("tensor", span.tensor, tensors)
        if of[1] is None:
            raise RecordError(f"{field}.{of[0]}", "is missing")
        _within(f"{field}.{of[0]}", of[1], of[2])
        if span.start_s > span.finish_s:
            raise RecordError(f"{field}.finish_s", "must not be before 'start_s'")


def _among(where: str, some: tuple[str, ...], names: list[str]) -> None:
    for name in some:
        if name not in names:
            raise RecordError(where, f"names '{name}', which is not among 'devices'")


def _within(where: str, number: int, count: int) -> None:
    if not 0 <= number < count:
        raise RecordError(where, f"is {number}, and there are {count}")
