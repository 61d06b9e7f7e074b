"""A small recording, with something in each of its lists, and what holds for any recording of a run."""

import math
from itertools import pairwise
from pathlib import Path

from placeit.devices.meters import Series
from placeit.profiler.recorded import (
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
    RecordedOp,
    RecordedPlan,
    RecordedRequest,
    RecordedSegment,
    RecordedSpan,
    RecordedTensor,
    States,
    Step,
)
from placeit.profiler.recording import Recording, read_recording, write_recording


def _device(name: str, core: int) -> RecordedDevice:
    return RecordedDevice(name, "openvino", "a CPU", "2026.1", "", (core,), (), None, 1.0, 1e11, 1e10)


SPANS = (
    RecordedSpan("compute", ("CPU@0",), 0, 0, None, 0.0, 1.0),
    RecordedSpan("copy", ("CPU@0", "CPU@1"), 0, None, 0, 1.0, 2.0),
    RecordedSpan("compute", ("CPU@1",), 0, 1, None, 3.0, 4.0),
)

RECORDING = Recording(
    made="2026-11-26T05:00:00+00:00",
    versions={"placeit": "0.1.0"},
    environment={"cpu": "a CPU"},
    model=RecordedModel("m.onnx", "/models/m.onnx", "abc", "f32"),
    devices=(_device("CPU@0", 0), _device("CPU@1", 1)),
    links=(RecordedLink("CPU@0", "CPU@1", None, 1e-6, "measured"),),
    graph=RecordedGraph(
        ops=(
            RecordedOp("conv <b>1</b>", "Convolution", 0, 2e9, 8e6, 4e6, ((1, 2, 3), ())),
            RecordedOp("relu", "Relu", 0, 1e6, 8e6, 0.0, ((1, 2, 3),)),
            RecordedOp("fc", "MatMul", 1, 1e9, 4e6, 4e6, ((1, 5),)),
        ),
        edges=((0, 1, 4e6), (1, 2, 4e6)),
        groups=("conv <b>1</b>", "fc"),
    ),
    plan=RecordedPlan(
        segments=(
            RecordedSegment("CPU@0", 0, (0, 1), True, 1.0, 0.9, 0.2),
            RecordedSegment("CPU@1", 0, (2,), True, 1.0, 1.1, 0.1),
        ),
        tensors=(RecordedTensor("relu", 0, (1,), 4e6),),
    ),
    wall_s=4.0,
    requests=(RecordedRequest(0, 0.0, 0.0, 4.0),),
    spans=SPANS,
    events=(RecordedEvent("news", 0.5, 0.5, "nothing is wrong"),),
    states=(States("CPU@0", 1.0, 1.0, 0.0, 0.0, 0.0, 2.0), States("CPU@1", 1.0, 0.0, 2.0, 0.0, 1.0, 0.0)),
    link_use=(LinkUse("CPU@0", "CPU@1", 1.0, 4e6, 1),),
    critical_path=CriticalPath(
        latency_s=4.0,
        computing_s=1.7,
        cuts_s=0.3,
        transfers_s=1.0,
        waiting_s=1.0,
        request=0,
        steps=(
            Step("computing", 0, 0.0, 1.0),
            Step("transfer", 1, 1.0, 2.0),
            Step("waiting", None, 2.0, 3.0),
            Step("computing", 2, 3.0, 4.0),
        ),
    ),
    ops=(
        OpTime(0, "Convolution", 0, "CPU@0", "conv", 0.25, None, 4e9, 1.6e7),
        OpTime(1, "Relu", 0, "CPU@0", "conv", 0.25, None, 4e9, 1.6e7),
        OpTime(2, "MatMul", 1, "CPU@1", "fc", 0.75, 0.8, 1.33e9, 1e7),
        OpTime(None, "Reorder", 1, "CPU@1", "reorder 7", 0.25, None, None, None),
    ),
    groups=(GroupTime(0, "CPU@0", 0.5, 0.8), GroupTime(1, "CPU@1", 0.75, 0.8)),
    predicted=Prediction(3.0, SPANS),
    samples=(
        Series("process CPU", "cores", None, (1.0, 2.0), (1.5, 0.5)),
        Series("power", "W", "package-0", (1.0, 2.0), (40.0, 50.0)),
    ),
    search={"reason": "it is faster"},
)


def check(recording: Recording, folder: Path, *, one_at_a_time: bool = True) -> None:
    """Check what holds for any recording of a run."""
    write_recording(folder / "run.json", recording)
    assert read_recording(folder / "run.json") == recording
    assert recording.plan is not None
    segments = recording.plan.segments
    assert sorted(v for s in segments if s.replica == 0 for v in s.ops) == list(range(len(recording.graph.ops)))
    running = {(s.replica, n) for n, s in enumerate(segments) if s.runs}
    for number, request in enumerate(recording.requests):
        ran = [span.segment for span in recording.spans if span.request == number and span.kind == "compute"]
        assert sorted(map(str, ran)) == sorted(str(n) for replica, n in running if replica == request.replica)
    for device in recording.devices if one_at_a_time else ():
        mine = [span for span in recording.spans if span.where == (device.name,)]
        assert all(before.finish_s <= after.start_s for before, after in pairwise(mine)), device.name
    assert {state.device for state in recording.states} == {device.name for device in recording.devices}
    for state in recording.states:
        _, *seconds = vars(state).values()
        assert min(seconds) >= 0
        assert math.isclose(sum(seconds), recording.wall_s, rel_tol=0.01)
    path = recording.critical_path
    assert path is not None
    parts = path.computing_s + (path.cuts_s or 0.0) + path.transfers_s + path.waiting_s
    assert math.isclose(parts, path.latency_s, rel_tol=0.02)
    shown = recording.requests[path.request]
    ends = [(step.start_s, step.finish_s) for step in path.steps]
    assert [ends[0][0], *(end for _, end in ends)] == [*(start for start, _ in ends), shown.ended_s]
    assert ends[0][0] == shown.arrived_s
    assert {series.name for series in recording.samples} >= {"process CPU", "resident memory"}
