"""Records of the segments and transfers that ran: where and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias

__all__ = ["HOST", "Done", "Event", "Labels", "Moved", "Ran", "Span", "SpanKind", "Timed", "blended"]

SpanKind: TypeAlias = Literal["compute", "copy"]
"""Kind of a span: a segment on a device, or a copy of a tensor from one memory to another."""

Ran: TypeAlias = tuple[int, float, float]
"""A segment that ran: its number in the plan, its begin and its end in seconds."""

Moved: TypeAlias = tuple[int, int, int, float, float]
"""A tensor that moved: its number in :class:`Labels`, numbers of source and destination, begin and end in seconds."""

HOST = -1
"""Number of the host's pinned memory, where a device is expected."""


@dataclass(frozen=True)
class Span:
    """A segment or transfer with its start and end.

    Attributes:
        kind: ``compute`` for a segment, ``copy`` for a transfer.
        where: name of the device or, for a copy, names of the two ends of the link.
        request: number of its request, among the requests in flight at the same time.
        segment: number of the segment in the plan; None for a copy.
        tensor: number of the tensor in :class:`Labels`; None for a segment, or if it is not known.
        start: seconds, by any clock that all spans share.
        finish: seconds; not before ``start``.
        name: label for display: the first op of the segment, or the op that made the tensor.
        ops: names of the segment's ops.
        sequence: number of the sequence of its request; 0 for none.
    """

    kind: SpanKind
    where: tuple[str, ...]
    request: int
    segment: int | None
    start: float
    finish: float
    name: str = ""
    ops: tuple[str, ...] = ()
    tensor: int | None = None
    sequence: int = 0

    def __post_init__(self) -> None:
        if len(self.where) != (1 if self.kind == "compute" else 2):
            raise ValueError(
                f"'{self.name}' is a {self.kind} span, and is said to be on {', '.join(self.where) or 'no device'}"
            )
        if not (math.isfinite(self.start) and math.isfinite(self.finish) and self.start <= self.finish):
            raise ValueError(f"'{self.name}' on {self.track} runs from {self.start} s to {self.finish} s")

    @property
    def track(self) -> str:
        """Name of its track in a timeline: the device, or ``A -> B``."""
        return " -> ".join(self.where)

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.finish - self.start


@dataclass(frozen=True)
class Labels:
    """Names of the segments and tensors of an executor.

    Attributes:
        devices: names of the devices, by number.
        segments: device number and op names of each segment.
        tensors: names of the plan's tensors, then of the model's inputs, then of the model's outputs.
    """

    devices: tuple[str, ...]
    segments: tuple[tuple[int, tuple[str, ...]], ...]
    tensors: tuple[str, ...]

    def spans(self, request: int, ran: Sequence[Ran], moved: Sequence[Moved]) -> list[Span]:
        """Return the segments and transfers of a request as spans."""
        spans = []
        for s, start, finish in ran:
            device, ops = self.segments[s]
            spans.append(Span("compute", (self.devices[device],), request, s, start, finish, ops[0], ops))
        for t, src, dst, start, finish in moved:
            ends = tuple("host" if end == HOST else self.devices[end] for end in (src, dst))
            spans.append(Span("copy", ends, request, None, start, finish, self.tensors[t], tensor=t))
        return spans


@dataclass(frozen=True)
class Done:
    """A request that has ended.

    Attributes:
        number: number of the request, in the order in which requests began.
        labels: names of its executor's segments and tensors; the same object for all requests of one executor.
        arrived: time of its arrival, in seconds of ``time.perf_counter``.
        begun: time at which its inputs were copied to their buffers, or its lanes began.
        ended: time at which its outputs were ready; NaN if it failed.
        ran: its segments.
        moved: its transfers.
        replica: number of the replica that ran it; 0 if it is not known.
        sequence: number of its sequence; 0 for none.
    """

    number: int
    labels: Labels = field(repr=False)
    arrived: float
    begun: float
    ended: float
    ran: Sequence[Ran]
    moved: Sequence[Moved]
    replica: int = 0
    sequence: int = 0

    def spans(self) -> list[Span]:
        """Return its segments and transfers as spans."""
        spans = self.labels.spans(self.number, self.ran, self.moved)
        return [replace(span, sequence=self.sequence) for span in spans] if self.sequence else spans


@dataclass(frozen=True)
class Event:
    """An event of a server, with its start and end.

    Attributes:
        name: label for display.
        start: seconds, by the clock of the spans.
        finish: seconds; not before ``start``.
        why: reason, as a sentence.
    """

    kind: ClassVar[Literal["event"]] = "event"
    track: ClassVar[str] = "server"

    name: str
    start: float
    finish: float
    why: str = ""


@dataclass(frozen=True)
class Timed:
    """A timed run of one of several requests, for means weighted by share.

    Attributes:
        share: weight of the request.
        seconds: duration in seconds.
        begin: begin of its lanes, in seconds of ``time.perf_counter``.
        ran: its segments.
        moved: its transfers.
    """

    share: float
    seconds: float
    begin: float
    ran: Sequence[Ran]
    moved: Sequence[Moved]


def blended(runs: Sequence[Timed]) -> tuple[list[Ran], list[Moved]]:
    """Return weighted mean times of the segments and transfers of several runs, as if in a run with the last one's begin."""
    last = runs[-1].begin
    ran: dict[int, tuple[float, float]] = {}
    moved: dict[tuple[int, int, int], tuple[float, float]] = {}
    for run in runs:
        for s, start, finish in run.ran:
            ran[s] = _weighted(ran.get(s, (last, last)), run, start, finish)
        for tensor, src, dst, start, finish in run.moved:
            moved[tensor, src, dst] = _weighted(moved.get((tensor, src, dst), (last, last)), run, start, finish)
    return [(s, *span) for s, span in ran.items()], [(*what, *span) for what, span in moved.items()]


def _weighted(span: tuple[float, float], run: Timed, start: float, finish: float) -> tuple[float, float]:
    return span[0] + run.share * (start - run.begin), span[1] + run.share * (finish - run.begin)
