"""The parts of a :class:`placeit.profiler.recording.Recording`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = [
    "HOST",
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
    "States",
    "Step",
]

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
    """An event of a server, or a segment that runs op by op: its name, when it happened, and the reason, in a sentence."""

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
