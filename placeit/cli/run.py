"""``placeit run``: a placement, executed and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli import text
from placeit.cli.command import FAILED
from placeit.cli.options import CheckedOptions, LengthOptions
from placeit.cli.paths import OutputFile, check_outputs, write_tensors
from placeit.cli.placements import PlacementOption, naming, open_session
from placeit.cli.terminal import Output, Terminal
from placeit.core.files import write_text
from placeit.core.interrupts import INTERRUPTED

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """\b
Examples:
  placeit run model.onnx --placement placement.json
  placeit run model.onnx -p placement.json --runs 100 --trace trace.json
  placeit run model.onnx -p placement.json --duration 10 --warmup 5
  placeit run model.onnx -p placement.json --csv times.csv
  placeit run model.onnx -p placement.json --inputs x.npz --outputs y.npz
"""


def run(
    *,
    placement: PlacementOption,
    length: LengthOptions,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace of one run for https://ui.perfetto.dev.")
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option("--outputs", metavar="FILE", help="Write the outputs, by name (.npz).")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the times of segments and ops.")] = None,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Run a placement and measure it.

    Shows its latency, the utilisation of each device, and the output error relative to the uncut model on one device; if that
    is too large, the exit code is 1. Without --devices, the devices are those that the placement names. Ctrl-C ends the timed
    runs and keeps them.
    """
    from placeit.profiler.op_times import csv_table
    from placeit.profiler.trace import write_chrome_trace

    runs = length.rounds()
    check_outputs(trace, outputs, csv, inputs=[*options.files(), placement])
    with terminal.progress() as progress, open_session(options, [placement], by_segments=True) as (session, [chosen]):
        home = session.home_of(chosen)
        if chosen.segments is None:
            home.profile(progress=progress)
        else:
            home.recall()
        with naming(placement):
            report = home.run(chosen, runs=runs, duration=length.duration, warmup=length.warmup)
        simulated = report.simulated_s
        cluster, grouping = home.cluster, home.grouping
        ops = [] if csv is None or report.interrupted else home.op_times(report.plan)
    if report.interrupted:
        trace = outputs = csv = None
    files = []
    if csv is not None:
        table = csv_table(report.plan, grouping, report.segment_s, ops)
        files.append(OutputFile(csv, "the table of times", lambda: write_text(csv, table)))
    if trace is not None:
        files.append(OutputFile(trace, "the trace", lambda: write_chrome_trace(trace, report.spans, devices=cluster.names)))
    if outputs is not None:
        files.append(OutputFile(outputs, "the outputs of the model", lambda: write_tensors(outputs, report.outputs)))
    latency, error = report.latency, report.output_error
    written = {"trace": trace, "outputs": outputs, "csv": csv}
    data = {
        "model": str(options.model),
        "placement_file": str(placement),
        "devices": chosen.counts(),
        "segments": text.programs(report.plan),
        "runs": len(latency.samples),
        "warmup": length.warmup,
        "duration_s": length.duration,
        "latency_s": {"median": latency.median, "p95": latency.p95, "ci": [latency.ci_low, latency.ci_high]},
        "simulated_s": simulated,
        "utilization": report.utilization,
        "gpus": {name: vars(use) for name, use in report.gpus.items()},
        "output_error": error.to_dict(),
        "failed": report.failed,
        "emulated": text.emulated(cluster),
        "interrupted": report.interrupted,
    } | {f"{name}_file": None if path is None else str(path) for name, path in written.items()}

    ended = ", ended by Ctrl-C: no traced run and no outputs" if report.interrupted else ""

    def show(console: Console) -> None:
        figures = {
            "latency": f"{text.seconds(latency.median)} (median of {len(latency.samples)} runs{ended})",
            "interval": f"{text.interval(latency)} (95 % confidence)",
            "p95": text.seconds(latency.p95),
            "simulated": text.seconds(simulated),
            "segments": str(text.programs(report.plan)),
            "output error": f"{text.error(error)} (relative to the largest output of the uncut model)",
            **({} if report.failed is None else {"failed": report.failed}),
        }
        text.facts(console, figures | {name: str(path) for name, path in written.items() if path is not None})
        text.show_unchecked(console, [error])
        console.print()
        counts = chosen.counts()
        rows = [(track, str(counts.get(track, "")), text.percent(share)) for track, share in report.utilization.items()]
        text.table(console, ("device or link", "ops", "busy"), rows)
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
        text.show_notes(console, cluster)

    return Output(data, show, INTERRUPTED if report.interrupted else 0 if report.failed is None else FAILED, files)
