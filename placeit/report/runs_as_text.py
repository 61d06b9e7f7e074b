"""Print runs of placements for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from placeit.report import text
from placeit.report.kernels import kernels, kinds
from placeit.report.machine import disturbed_rounds

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from placeit.measuring.run_report import AtSize, RunReport
    from placeit.profiler.recording import Recording
    from placeit.serving.load_run import RateReport

__all__ = ["ran", "rate", "recording", "run"]

_MAX_KERNELS = 10  # maximum number of kernels in a summary


def run(console: Console, report: RunReport, files: Mapping[str, Path | None]) -> None:
    """Print the results of running a placement, and the written files by content; None for a file that was not written."""
    latency, error = report.latency, report.output_error
    ended = ", ended by Ctrl-C: no traced run and no outputs" if report.interrupted else ""
    disturbed = disturbed_rounds(report.disturbed, report.left_out, len(latency.samples), "runs")
    figures = {
        "latency": f"{text.seconds(latency.median)} (median of {len(latency.samples)} runs{ended})",
        **({} if disturbed is None else {"machine": disturbed}),
        "interval": f"{text.interval(latency)} (95 % confidence)",
        "p95": text.seconds(latency.p95),
        "inside": f"{text.seconds(report.inner_s)} (from the start of the lanes to the end of the last segment)",
        "simulated": text.seconds(report.simulated_s),
        "segments": str(len(report.plan.programs)),
        **({} if report.precision == "f32" else {"precision": _precision(report)}),
        "lanes": "native" if report.native else "Python",
        **({"spinning": f"{text.percent(report.spinning)} of a core"} if report.spinning else {}),
        **({"host-paced": ", ".join(report.host_paced)} if report.host_paced else {}),
        "output error": f"{text.error(error)} (relative to the largest output of the uncut model)",
        **({} if report.failed is None else {"failed": report.failed}),
    }
    text.facts(console, figures | {what: str(path) for what, path in files.items() if path is not None})
    text.show_unchecked(console, [error])
    on = [report.plan.problem.device_names[segment.device] for segment in report.plan.segments]
    text.show_failures(console, {f"segment {s} on {on[s]}": why for s, why in report.refused.items()}, title="run op by op")
    console.print()
    counts = report.placement.counts()
    rows = [(track, str(counts.get(track, "")), text.percent(share)) for track, share in report.utilization.items()]
    text.table(console, ("device or link", "ops", "busy"), rows)
    if report.sizes:
        console.print()
        text.table(console, ("inputs of other sizes", "measured", "simulated", "off by"), map(_at_size, report.sizes))
    if report.gpus:
        console.print()
        heads = ("GPU, by its driver", "busy", "most memory", "power", "energy")
        uses = [
            (
                name,
                text.percent(use.utilization),
                text.amount(use.peak_memory_bytes, "B"),
                text.watts(use.power_w),
                text.amount(use.energy_j, "J"),
            )
            for name, use in report.gpus.items()
        ]
        text.table(console, heads, uses)
    text.show_notes(console, report.cluster)


def _at_size(one: AtSize) -> tuple[str, ...]:
    shapes = ", ".join(dict.fromkeys(map(text.shape, one.shapes.values())))
    if one.simulated_s is None:
        return shapes, text.seconds(one.measured_s), "-", "-"
    off = one.simulated_s / one.measured_s - 1
    return shapes, text.seconds(one.measured_s), text.seconds(one.simulated_s), text.percent(abs(off))


def _precision(report: RunReport) -> str:
    found = report.placement.conditions
    return (
        f"{report.precision}{', with which the placement was found' if found and found.precision == report.precision else ''}"
    )


def rate(console: Console, report: RateReport, files: Mapping[str, Path | None]) -> None:
    """Print the results of running a placement under load, and the written files (see :func:`run`)."""
    served, load = report.served, report.served.load
    ended = ", until Ctrl-C" if served.interrupted else ""
    how = "each when another had ended" if report.rate is None else f"{report.rate:g} per second, {report.arrivals}"
    figures = {"arrived": f"{served.arrived} requests, {how}{ended}"}
    if load is not None:
        achieved = "-" if load.achieved is None else f"{load.achieved:.4g} per second"
        figures |= {
            "achieved": achieved,
            "latency": ", ".join(
                f"{name} {text.seconds(value)}" for name, value in (("p50", load.p50), ("p95", load.p95), ("p99", load.p99))
            )
            + " (from arrival)",
            "waiting": f"{load.mean_queue:.2f} requests on average, {load.max_queued} at most",
        }
    figures |= {
        "replicas": str(len(report.placement.every)),
        "in flight": f"{report.in_flight} at most",
        "dropped": f"{served.dropped} (queue of {report.queue})",
        **({"errors": f"{served.failed}: {served.error}"} if served.failed else {}),
        "output error": f"{text.error(report.output_error)} (relative to the largest output of the uncut model)",
        **({} if report.failed is None else {"failed": report.failed}),
    }
    text.facts(console, figures | {what: str(path) for what, path in files.items() if path is not None})
    text.show_unchecked(console, [report.output_error])
    console.print()
    text.table(console, ("device", "busy"), [(name, text.percent(share)) for name, share in served.busy.items()])
    if report.reason is not None:
        console.print()
        text.paragraph(console, report.reason)
    text.show_notes(console, report.cluster)


def ran(report: RunReport | RateReport) -> str:
    """Return a line with the results of running a placement: the latency, or the rate of requests with their latencies."""
    from placeit.measuring.run_report import RunReport

    if isinstance(report, RunReport):
        within = text.interval(report.latency)
        line = text.seconds(report.latency.median) + ("" if within == text.NOTHING else f" ({within})")
    elif (load := report.served.load) is None:
        line = "no request has ended"
    else:
        line = f"{text.rate(load.achieved)} requests/s, p50 {text.seconds(load.p50)}, p99 {text.seconds(load.p99)}"
    return line if report.failed is None else f"{line}; failed: {report.failed}"


def recording(console: Console, found: Recording, files: Mapping[str, Path | None], *, failed: str | None = None) -> None:
    """Print the parts of the latency in a recording, the states of devices, the use of links, and the longest kernels."""
    path = found.critical_path
    figures = {"requests": str(len(found.requests))}
    if path is not None:
        figures["latency"] = f"{text.seconds(path.latency_s)} (mean)"
    if path is not None and path.latency_s > 0:
        parts = {"computing": path.computing_s, "cuts": path.cuts_s, "transfers": path.transfers_s, "waiting": path.waiting_s}
        shares = (f"{what} {text.percent(s / path.latency_s)}" for what, s in parts.items() if s is not None)
        figures["critical path"] = ", ".join(shares)
    if found.predicted is not None:
        figures["simulated"] = f"{text.seconds(found.predicted.makespan_s)} (one request)"
    if failed is not None:
        figures["failed"] = failed
    text.facts(console, figures | {what: str(file) for what, file in files.items() if file is not None})
    if found.states:
        console.print()
        heads = ("device", "executing", "sending", "waiting for data", "for shared cores", "for the scheduler", "idle")
        rows = [
            (one.device, *(text.percent(seconds / found.wall_s) for seconds in list(vars(one).values())[1:]))
            for one in found.states
        ]
        text.table(console, heads, rows)
    if found.link_use:
        console.print()
        moved = [
            (
                f"{one.src} -> {one.dst}",
                text.percent(one.busy_s / found.wall_s),
                str(one.transfers),
                text.amount(one.bytes, "B"),
                text.amount(one.bytes / one.busy_s if one.busy_s else None, "B/s"),
            )
            for one in found.link_use
        ]
        text.table(console, ("link", "busy", "transfers", "moved", "rate while busy"), moved)
    if found.ops:
        console.print()
        by_kind = [(one.kind, str(one.kernels), text.seconds(one.seconds), text.percent(one.share)) for one in kinds(found)]
        text.table(console, ("kind", "kernels", "time", "share"), by_kind)
        console.print()
        columns = ("op", "kind", "device", "ops", "time", "share", "FLOP/s", "of peak", "B/s", "of peak ")
        longest = [
            (
                one.name,
                one.kind,
                one.device,
                str(one.ops),
                text.seconds(one.seconds),
                text.percent(one.share),
                text.amount(one.flops_per_s, "FLOP/s"),
                text.percent(one.flops_share),
                text.amount(one.bytes_per_s, "B/s"),
                text.percent(one.bytes_share),
            )
            for one in kernels(found)[:_MAX_KERNELS]
        ]
        text.table(console, columns, longest, left=3, spare=["ops", "of peak", "of peak "])
