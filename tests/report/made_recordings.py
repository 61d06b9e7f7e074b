"""Recordings of any size, as a run of a model with branches on two devices would give them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from placeit.devices.meters import Series
from placeit.profiler.recorded import (
    CriticalPath,
    GroupTime,
    LinkUse,
    OpTime,
    Prediction,
    RecordedDevice,
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
from placeit.profiler.recording import Recording

DEVICES = ("CPU@0", "CPU@1")
_KINDS = ("Convolution", "Relu", "Add", "MaxPool", "MatMul", "Concat")


def a_recording(ops: int = 40, requests: int = 5, names: dict[int, str] | None = None) -> Recording:
    """A recording of a model whose ops are in segments of five, which take turns on two devices; ``names`` replaces some."""
    rng = np.random.default_rng(0)
    steps = [[v - step for step in {1, int(rng.choice([2, 3, 7]))} if v >= step] for v in range(ops)]
    edges = tuple((u, v, 4096.0) for v, before in enumerate(steps) for u in sorted(before))
    nodes = tuple(
        RecordedOp(
            (names or {}).get(i, f"block{i // 5}/{_KINDS[i % 6].lower()}_{i}"),
            _KINDS[i % 6],
            i // 2,
            float(rng.integers(1, 90) * 1e6),
            8192.0,
            float(rng.integers(0, 9) * 1e4),
            ((1, 64, 56, 56),),
        )
        for i in range(ops)
    )
    graph = RecordedGraph(nodes, edges, tuple(f"group {g}" for g in range((ops + 1) // 2)))
    took = rng.uniform(1e-5, 1e-3, ops)
    parts = [tuple(range(at, min(at + 5, ops))) for at in range(0, ops, 5)]
    segments = tuple(
        RecordedSegment(DEVICES[s % 2], 0, part, True, float(took[list(part)].sum()), float(took[list(part)].sum() * 0.97), 0.1)
        for s, part in enumerate(parts)
    )
    tensors = tuple(RecordedTensor(f"tensor {s}", s, (s + 1,), 4096.0) for s in range(len(parts) - 1))
    plan = RecordedPlan(segments, tensors)
    spans: list[RecordedSpan] = []
    served: list[RecordedRequest] = []
    way: list[Step] = []
    clock = 0.0
    for request in range(requests):
        begun, found = clock, []
        for s, segment in enumerate(segments):
            end = clock + segment.measured_s * float(rng.uniform(0.95, 1.05))
            found.append(RecordedSpan("compute", (segment.device,), request, s, None, clock, end))
            way.append(Step("computing", len(spans) + len(found) - 1, clock, end))
            clock = end
            if s < len(tensors):
                link = (segment.device, segments[s + 1].device)
                found.append(RecordedSpan("copy", link, request, None, s, clock, clock + 3e-5))
                way += [Step("transfer", len(spans) + len(found) - 1, clock, clock + 3e-5)]
                way += [Step("waiting", None, clock + 3e-5, clock + 5e-5)]
                clock += 5e-5
        spans += found
        served.append(RecordedRequest(0, begun, begun, clock))
        clock += 1e-3
    middle = int(np.argsort([one.ended_s - one.begun_s for one in served])[(requests - 1) // 2])
    window = served[middle]
    path = tuple(step for step in way if window.begun_s <= step.start_s and step.finish_s <= window.ended_s)
    parts_s = {
        what: sum(s.finish_s - s.start_s for s in path if s.what == what) for what in ("computing", "transfer", "waiting")
    }
    latency = window.ended_s - window.begun_s
    critical = CriticalPath(
        latency, parts_s["computing"] * 0.9, parts_s["computing"] * 0.1, parts_s["transfer"], parts_s["waiting"], middle, path
    )
    busy = [sum(s.finish_s - s.start_s for s in spans if s.where == (name,)) for name in DEVICES]
    rest = [clock - one for one in busy]
    states = tuple(
        States(name, busy[d], rest[d] * 0.1, rest[d] * 0.6, rest[d] * 0.05, rest[d] * 0.05, rest[d] * 0.2)
        for d, name in enumerate(DEVICES)
    )
    times = tuple(
        OpTime(
            op,
            nodes[op].kind,
            s,
            segment.device,
            "kernel",
            float(took[op]),
            float(took[op] * 0.97),
            nodes[op].flops / float(took[op]),
            1e9,
        )
        for s, segment in enumerate(segments)
        for op in segment.ops
    )
    at = tuple(float(moment) for moment in np.linspace(0, clock, 50))
    return Recording(
        made="2026-11-26T05:00:00+00:00",
        versions={"placeit": "0.1.0", "openvino": "2026.4.0", "python": "3.11.9"},
        environment={"system": "Linux", "processor": "AMD EPYC", "cores": "2"},
        model=RecordedModel("model.onnx", "models/model.onnx", "abc", "f32"),
        devices=tuple(
            RecordedDevice(name, "openvino", "AMD EPYC", "2026.4.0", "", (d,), (), 8e9, 1.0, 5e10, 1e10)
            for d, name in enumerate(DEVICES)
        ),
        links=(
            RecordedLink("CPU@0", "CPU@1", None, 2e-5, "measured"),
            RecordedLink("CPU@1", "CPU@0", 1.25e9, 5e-5, "emulated"),
        ),
        graph=graph,
        plan=plan,
        wall_s=clock,
        requests=tuple(served),
        spans=tuple(spans),
        states=states,
        link_use=(LinkUse("CPU@0", "CPU@1", 1e-3, 40960.0, 10), LinkUse("CPU@1", "CPU@0", 2e-3, 40960.0, 10)),
        critical_path=critical,
        ops=(*times, OpTime(None, "Reorder", 0, "CPU@0", "reorder", 5e-5, None, None, None)),
        groups=tuple(
            GroupTime(
                g, DEVICES[(2 * g // 5) % 2], float(took[2 * g : 2 * g + 2].sum()), float(took[2 * g : 2 * g + 2].sum() * 0.97)
            )
            for g in range((ops + 1) // 2)
        ),
        predicted=Prediction(
            latency * 0.97,
            tuple(
                replace(
                    s, request=0, start_s=(s.start_s - window.begun_s) * 0.97, finish_s=(s.finish_s - window.begun_s) * 0.97
                )
                for s in spans
                if s.request == middle
            ),
        ),
        samples=(
            Series("process CPU", "cores", None, at, tuple(float(v) for v in rng.uniform(1.5, 2, 50))),
            Series("resident memory", "B", None, at, tuple(float(v) for v in np.linspace(3e8, 3.2e8, 50))),
        ),
    )


def a_front() -> list[dict[str, object]]:
    """Points of a front of latency and energy, as ``placeit optimize --pareto --json`` prints them."""

    def point(name: str, latency: float, energy: float, *known: str) -> dict[str, object]:
        places, sources = {"CPU@0": 20, "CPU@1": 20}, {"latency_from": known[0], "energy_from": known[-1]}
        values = {"name": name, "latency_s": latency, "energy_j": energy, "devices": places, "segments": 8}
        return values | sources | {"placement_file": f"p.{name}.json"}

    return [
        point("annealing", 0.0161, 0.9, "measured", "modelled"),
        point("<front 1>", 0.018, 0.5, "measured"),
        point("CPU@0", 0.0205, 0.3, "simulated"),
    ]


def a_search(chosen: str = "annealing") -> dict[str, object]:
    """What ``placeit optimize --json`` prints, as far as pictures show it."""

    def row(name: str, placer: str, devices: dict[str, int], simulated: float, measured: float | None) -> dict[str, object]:
        ends = [None, None] if measured is None else [measured * 0.98, measured * 1.01]
        return {
            "name": name,
            "placer": placer,
            "devices": devices,
            "segments": 8,
            "simulated_value": simulated,
            "simulated_s": simulated,
            "value_from_runs": measured,
            "measured_s": measured,
            "value_ci": ends,
            "ci_s": ends,
            "race": None if measured is None else 0,
            "failed": None,
            "not_run": "it is simulated to be slower" if measured is None else None,
        }

    rows = [
        row("annealing", "annealing", {"CPU@0": 20, "CPU@1": 20}, 0.0152, 0.0161),
        row("CPU@0", "single", {"CPU@0": 40, "CPU@1": 0}, 0.0211, 0.0205),
        row("heft", "heft", {"CPU@0": 25, "CPU@1": 15}, 0.0166, 0.0174),
        row("random", "random", {"CPU@0": 13, "CPU@1": 27}, 0.0301, None),
    ]
    return {
        "objective": "latency",
        "objective_unit": "s",
        "chosen": next(one for one in rows if one["name"] == chosen),
        "best_single": rows[1],
        "candidates": rows,
        "reason": "in the deciding race it takes 0.785 of the time of CPU@0 (95 % interval 0.771 to 0.802)",
        "races": [{"what": "race 1: deciding", "rounds": 26, "candidates": ["annealing", "CPU@0"], "samples_s": {}}],
        "curves": {"surrogate": [0.021, 0.019, 0.02, 0.0175, 0.0161]},
        "simulator": {"mape": 0.036, "pearson": 0.99, "spearman": 0.9},
    }
