"""Results as JSON holds them: what the commands print with ``--json``. Fields are only ever added."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from placeit.report.kernels import kernels, kinds

if TYPE_CHECKING:
    from pathlib import Path

    from placeit.core.cluster import Cluster, Link
    from placeit.optimizer.candidates import Candidate
    from placeit.optimizer.compare import Comparison
    from placeit.optimizer.result import Optimized
    from placeit.optimizer.service import Service
    from placeit.planning.segments import Profiled
    from placeit.profiler.profile_report import ProfileReport
    from placeit.profiler.recording import Recording
    from placeit.runtime.check import OutputDifference
    from placeit.runtime.compiling import Compiled
    from placeit.runtime.load import RateReport
    from placeit.runtime.measure import Measurement, Ratio
    from placeit.runtime.run_report import RunReport
    from placeit.simulator.load import LoadReport

_LONGEST = 10  # kernels that a summary names

__all__ = ["comparison", "jsonable", "links", "optimized", "profile", "rate", "recording", "run", "search"]


def optimized(
    found: Optimized, placement_file: str | Path | None = None, recording_file: str | Path | None = None
) -> dict[str, Any]:
    """Describe a result of :func:`placeit.optimize`, and where its placement and a recording of the search are written."""
    error = found.simulator_error or {}
    return {
        "model": found.model,
        "graph": {"ops": found.ops, "edges": found.edges, "groups": found.groups},
        "objective": found.objective.name,
        "objective_unit": found.objective.unit,
        "chosen": _candidate(found.chosen),
        "candidates": [_candidate(candidate) for candidate in found.candidates],
        "races": [{"what": race.what, "rounds": race.rounds, "candidates": list(race.measured)} for race in found.races],
        "unplanned": [{"name": one.name, "placer": one.placer, "failed": one.failed} for one in found.unplanned],
        "precisions": [
            _candidate(other.row)
            | {"of": other.of, "ratio": None if other.ratio is None else other.ratio.ratio, "ratio_ci": _interval(other.ratio)}
            for other in found.precisions
        ],
        "without_precisions": list(found.without_precisions),
        "references": [
            _candidate(one.row)
            | {
                "target": None if one.row.reference is None else one.row.reference.target,
                "used": list(one.row.used),
                "ratio": None if one.ratio is None else one.ratio.ratio,
                "ratio_ci": _interval(one.ratio),
            }
            for one in found.references
        ],
        "best_single": None if found.best_single is None else _candidate(found.best_single),
        "speedup": None if found.speedup is None else found.speedup.ratio,
        "speedup_ci": None if found.speedup is None else _interval(found.speedup),
        "reason": found.reason,
        "bound_s": _finite(found.bound_s),
        "throughput": None if found.service is None else _service(found.service),
        "output_error": _error(found.chosen.output_error),
        "simulator": {name: error.get(name) for name in ("mape", "pearson", "spearman")},
        "budget": {
            "asked_s": found.asked_s,
            "spent_s": found.spent_s,
            "compiling_s": found.compiling_s,
            "least_s": found.least_s,
        },
        "compiling": _compiling(found.compiling),
        "spending": [
            {
                "what": one.what,
                "placer": one.placer,
                "seconds": one.seconds,
                "proposed": one.proposed,
                "new": one.fresh,
                "simulated_value": one.simulated_value,
                "measured_value": one.measured_value,
                "role": one.role,
                "note": one.note,
            }
            for one in found.spending
        ],
        "interrupted": found.interrupted,
        "pins": dict(found.pins),
        "memory_limits": {name: _finite(held) for name, held in found.memory.items()},
        "profiled": _profiled(found.profiled),
        "placement_file": None if placement_file is None else str(placement_file),
        "recording_file": None if recording_file is None else str(recording_file),
        "emulated": _emulated(found.cluster),
    }


def search(
    found: Optimized, placement_file: str | Path | None = None, recording_file: str | Path | None = None
) -> dict[str, Any]:
    """Describe a search as a recording has it: :func:`optimized`, the seconds of each run, and curves of learning."""
    data = optimized(found, placement_file, recording_file)
    for race, of in zip(data["races"], found.races, strict=True):
        race["samples_s"] = {name: one.samples.tolist() for name, one in of.measured.items()}
    result: dict[str, Any] = jsonable(data | {"curves": found.curves})
    return result


def _compiling(kinds: Mapping[str, Compiled]) -> dict[str, Any]:
    return {
        kind: {"compiled": one.compiled, "from_disk": one.from_disk, "reused": one.reused, "seconds": one.seconds}
        for kind, one in kinds.items()
    }


def run(report: RunReport, placement_file: str | Path, files: Mapping[str, Path | None]) -> dict[str, Any]:
    """Describe the runs of a placement.

    Args:
        report: what it showed.
        placement_file: where the placement is from.
        files: what else may be written, by what it is; None for what is not.
    """
    latency = report.latency
    return {
        "model": report.model,
        "placement_file": str(placement_file),
        "devices": report.placement.counts(),
        "precision": report.precision,
        "segments": len(report.plan.programs),
        "native": report.native,
        "host_paced": list(report.host_paced),
        "runs": len(latency.samples),
        "warmup": report.warmup,
        "duration_s": report.duration_s,
        "latency_s": {"median": latency.median, "p95": latency.p95, "ci": _interval(latency)},
        "simulated_s": report.simulated_s,
        "utilization": report.utilization,
        "gpus": {name: vars(use) for name, use in report.gpus.items()},
        "output_error": report.output_error.to_dict(),
        "failed": report.failed,
        "emulated": _emulated(report.cluster),
        "interrupted": report.interrupted,
    } | _files(files)


def _files(files: Mapping[str, Path | None]) -> dict[str, str | None]:
    return {f"{what}_file": None if path is None else str(path) for what, path in files.items()}


def rate(report: RateReport, placement_file: str | Path, files: Mapping[str, Path | None]) -> dict[str, Any]:
    """Describe the runs of a placement under load; the arguments are those of :func:`run`."""
    served = report.served
    load = served.load
    return {
        "model": report.model,
        "placement_file": str(placement_file),
        "devices": report.placement.counts(),
        "replicas": len(report.placement.every),
        "rate": report.rate,
        "arrivals": None if report.rate is None else report.arrivals,
        "seed": report.seed,
        "in_flight": report.in_flight,
        "queue": report.queue,
        "arrived": served.arrived,
        "ended": 0 if load is None else load.requests,
        "dropped": served.dropped,
        "errors": served.failed,
        "seconds": served.seconds,
        "offered": None if load is None else load.offered,
        "achieved": None if load is None else load.achieved,
        "sustained": report.sustained,
        "reason": report.reason,
        "latency_s": None if load is None else {name: getattr(load, name) for name in ("p50", "p95", "p99", "worst")},
        "waiting": None if load is None else {"mean": load.mean_queue, "most": load.most_queued},
        "utilization": dict(served.busy),
        "busiest": served.busiest,
        "output_error": report.output_error.to_dict(),
        "failed": report.failed,
        "emulated": _emulated(report.cluster),
        "interrupted": served.interrupted,
    } | _files(files)


def comparison(found: Comparison) -> dict[str, Any]:
    """Describe a result of :func:`placeit.compare`; the names of given placements are their files."""

    def row(candidate: Candidate) -> dict[str, Any]:
        measured, error = candidate.measured, candidate.output_error
        return {
            "name": candidate.name,
            "placement_file": candidate.name if candidate.placer == "given" else None,
            "segments": candidate.segments,
            "replicas": len(candidate.plans),
            "devices": candidate.placement.counts(),
            "simulated_s": candidate.simulated_s,
            "measured_s": None if measured is None else measured.median,
            "p95_s": None if measured is None else measured.p95,
            "ci_s": _interval(measured),
            "speedup_over": {
                single: None if ratio is None else {"ratio": ratio.ratio, "ci": _interval(ratio)}
                for single, ratio in found.speedups(candidate).items()
            },
            "output_error": None if error is None else error.to_dict(),
            "failed": candidate.failed,
        }

    return {
        "model": found.model,
        "objective": found.objective.name,
        "rounds": found.rounds,
        "warmup": found.warmup,
        "duration_s": found.duration_s,
        "candidates": [row(candidate) for candidate in found.candidates],
        "references": [row(one) | {"used": list(one.used), "not_run": one.not_run} for one in found.references],
        "emulated": _emulated(found.cluster),
        "interrupted": found.interrupted,
        "compiling": _compiling(found.compiling),
    }


def profile(found: ProfileReport) -> dict[str, Any]:
    """Describe the costs of groups on devices."""
    costs, grouping, graph = found.costs, found.grouping, found.grouping.graph
    groups, names = grouping.groups, costs.cluster.names
    whole = costs.dispatch + costs.core.sum(axis=0)
    data = {
        "model": found.model,
        "precision": found.precision,
        "graph": {"ops": len(graph), "edges": len(graph.edges), "groups": len(groups)},
        "devices": [
            {
                "name": device.name,
                "dispatch_s": costs.dispatch[d],
                "whole_model_s": whole[d],
                "read_s_per_byte": costs.read[d],
                "emulated": device.emulated,
                "described": device.described,
            }
            for d, device in enumerate(costs.cluster.devices)
        ],
        "groups": [
            {
                "name": groups.names[g],
                "kind": groups.kinds[g],
                "ops": len(grouping.members(g)),
                "flops": groups.flops[g],
                "seconds": dict(zip(names, costs.core[g], strict=True)),
                "cut_s": dict(zip(names, costs.cut[g], strict=True)),
                "load_s": dict(zip(names, costs.load[g], strict=True)),
            }
            for g in range(len(groups))
        ],
        "links": links(costs.cluster.links),
        "profiled": _profiled(costs.profiled),
        "compiling": _compiling(found.compiling),
    }
    result: dict[str, Any] = jsonable(data)
    return result


def recording(found: Recording, placement_file: str | Path, files: Mapping[str, Path | None]) -> dict[str, Any]:
    """Describe a recording in figures; the arguments are those of :func:`run`."""
    path = found.critical_path
    parts = ("latency_s", "computing_s", "cuts_s", "transfers_s", "waiting_s")
    return {
        "model": found.model.path,
        "placement_file": str(placement_file),
        "precision": found.model.precision,
        "runs": len(found.requests),
        "wall_s": found.wall_s,
        "critical_path": None if path is None else {part: getattr(path, part) for part in parts},
        "simulated_s": None if found.predicted is None else found.predicted.makespan_s,
        "states": [dict(vars(one)) for one in found.states],
        "link_use": [dict(vars(one)) for one in found.link_use],
        "kinds": [dict(vars(one)) for one in kinds(found)],
        "kernels": [dict(vars(one)) for one in kernels(found)[:_LONGEST]],
        "emulated": [device.name for device in found.devices if device.slowdown != 1.0],
    } | _files(files)


def links(known: Mapping[tuple[str, str], Link]) -> list[dict[str, Any]]:
    """Links between devices; a bandwidth too high to be measured is null."""
    return [
        {
            "src": src,
            "dst": dst,
            "bandwidth_bytes_per_s": _finite(link.bandwidth),
            "latency_s": link.latency,
            "origin": link.origin,
        }
        for (src, dst), link in known.items()
    ]


def jsonable(value: Any) -> Any:
    """Turn arrays, mappings and numbers into what JSON can hold; what is not finite, and so was not measured, is null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _candidate(candidate: Candidate) -> dict[str, Any]:
    measured, value = candidate.measured, candidate.value
    return {
        "name": candidate.name,
        "placer": candidate.placer,
        "plain": candidate.plain,
        "simulated_s": candidate.simulated_s,
        "measured_s": None if measured is None else measured.median,
        "ci_s": _interval(measured),
        "race": candidate.race,
        "simulated_value": candidate.simulated_value,
        "value_from_runs": None if value is None else value.median,
        "value_ci": _interval(value),
        "devices": candidate.placement.counts(),
        "segments": candidate.segments,
        "replicas": len(candidate.plans),
        "output_error": _error(candidate.output_error),
        "measured_earlier": candidate.earlier,
        "failed": candidate.failed,
        "not_run": candidate.not_run if measured is None else None,
    }


def _service(service: Service) -> dict[str, Any]:
    return {
        "capacity": _finite(service.capacity),
        "capacity_measured": service.measured,
        "bottlenecks": [{"name": one.name, "seconds": one.seconds, "busy_s": one.busy} for one in service.bottlenecks],
        "rate": service.rate,
        "relative": service.relative,
        "sustained": service.sustained,
        "load": {arrivals: _load(report) for arrivals, report in service.load.items()},
    }


def _load(report: LoadReport) -> dict[str, Any]:
    """Describe what happened to requests that arrived over time."""
    return {
        "requests": report.requests,
        "offered": report.offered,
        "achieved": report.achieved,
        "latency_s": {"p50": report.p50, "p95": report.p95, "p99": report.p99, "worst": report.worst},
        "waiting": {"mean": report.mean_queue, "most": report.most_queued},
    }


def _error(error: OutputDifference | None) -> dict[str, Any]:
    if error is None:
        return {
            "max_abs": None,
            "max_rel": None,
            "fault": None,
            "not_checked": "it was not run",
            "not_finite": None,
            "same_precision": None,
        }
    return error.to_dict()


def _profiled(profiled: Profiled | None) -> dict[str, Any] | None:
    if profiled is None:
        return None
    at = datetime.fromtimestamp(profiled.at, UTC).isoformat(timespec="seconds")
    age = max(0.0, time.time() - profiled.at)
    return {
        "at": at,
        "age_s": age,
        "other_load_cores": profiled.load,
        "cached": profiled.cached,
        "cut_groups": profiled.cut,
        "groups": profiled.groups,
        "predicted_cut_error": profiled.error,
        "spread": profiled.spread,
    }


def _emulated(cluster: Cluster) -> list[str]:
    """Names of devices and links that are slowed on purpose."""
    devices = [device.name for device in cluster.devices if device.emulated]
    return devices + [f"{src} -> {dst}" for (src, dst), link in cluster.links.items() if link.origin == "emulated"]


def _interval(of: Measurement | Ratio | None) -> list[float | None]:
    """Ends of a confidence interval; null where it is open, or nothing was measured."""
    return [None, None] if of is None else [_finite(of.ci_low), _finite(of.ci_high)]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
