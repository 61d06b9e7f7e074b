"""Records of what ran where and when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, TypeAlias

__all__ = ["HOST", "Done", "Event", "Labels", "Moved", "Ran", "Span", "SpanKind"]

SpanKind: TypeAlias = Literal["compute", "copy"]
"""Spans of time: a segment on a device, or a tensor on its way from one memory to another."""

Ran: TypeAlias = tuple[int, float, float]
"""A segment that ran, by its number in the plan, and when it began and ended."""

Moved: TypeAlias = tuple[int, int, int, float, float]
"""A tensor that moved, by its number in :class:`Labels`; source and destination, by their numbers; when it began and ended."""

HOST = -1
"""The number that stands for pinned memory of the host where a device is expected."""


@dataclass(frozen=True)
class Span:
    """A segment or transfer with its start and end.

    Attributes:
        kind: ``compute`` for a segment, ``copy`` for a transfer.
        where: the name of the device or, for a copy, the names of the two ends of the link.
        request: number of the request that it belonged to, among those in flight at once.
        segment: number of the segment that ran, in the plan; None for a copy.
        tensor: number of the tensor that moved, in :class:`Labels`; None for a segment, or if that is not known.
        start: seconds, of any clock that all spans share.
        finish: seconds; not before ``start``.
        name: what is shown: the first op of the segment, or the one that made the tensor.
        ops: names of the ops that ran.
        sequence: number of the sequence that the request belonged to; 0 for none.
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
        """Name of the line that it is drawn on: the device, or ``A -> B``."""
        return " -> ".join(self.where)

    @property
    def seconds(self) -> float:
        """Duration in seconds."""
        return self.finish - self.start


@dataclass(frozen=True)
class Labels:
    """Names of what an executor runs and moves.

    Attributes:
        devices: names, by number.
        segments: for each segment, its device and the names of its ops.
        tensors: names of the plan's tensors, of the model's inputs, and of the model's outputs, one after the other.
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
        labels: names of what the executor that ran it runs and moves; the same object for all requests of one executor.
        arrived: seconds of ``time.perf_counter``.
        begun: when its inputs were put into place, or its lanes began.
        ended: when its outputs were there; NaN if it has failed.
        ran: segments.
        moved: tensors.
        replica: number of the replica that ran it, if that is known.
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
    """Something that happened to a server, at a moment or for a while.

    Attributes:
        name: what is shown.
        start: seconds, of the clock of the spans.
        finish: seconds; not before ``start``.
        why: a sentence.
    """

    kind: ClassVar[Literal["event"]] = "event"
    track: ClassVar[str] = "server"

    name: str
    start: float
    finish: float
    why: str = ""


@dataclass(frozen=True)
class Timed:
    """A timed run of one of several requests, whose times are averaged by their shares.

    Attributes:
        share: share of such requests.
        seconds: seconds that it took.
        begin: when it began.
        ran: its segments.
        moved: its transfers.
    """

    share: float
    seconds: float
    begin: float
    ran: Sequence[Ran]
    moved: Sequence[Moved]


def blended(runs: Sequence[Timed]) -> tuple[list[Ran], list[Moved]]:
    """Return mean begins and ends of the segments and transfers of several runs, counted from the begin of the last run."""
    last = runs[-1].begin
    ran: dict[int, tuple[float, float]] = {}
    moved: dict[tuple[int, int, int], tuple[float, float]] = {}
    for run in runs:
        for s, start, finish in run.ran:
            ran[s] = _later(ran.get(s, (last, last)), run, start, finish)
        for tensor, src, dst, start, finish in run.moved:
            moved[tensor, src, dst] = _later(moved.get((tensor, src, dst), (last, last)), run, start, finish)
    return [(s, *span) for s, span in ran.items()], [(*what, *span) for what, span in moved.items()]


def _later(span: tuple[float, float], run: Timed, start: float, finish: float) -> tuple[float, float]:
    return span[0] + run.share * (start - run.begin), span[1] + run.share * (finish - run.begin)
