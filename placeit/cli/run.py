"""``placeit run``: a placement, executed and measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli import text
from placeit.cli.options import SessionOptions
from placeit.cli.paths import check_outputs, read_tensors, write_tensors
from placeit.cli.placements import PlacementOption, naming, open_session
from placeit.cli.terminal import Output, Terminal

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """\b
Examples:
  placeit run model.onnx --placement placement.json
  placeit run model.onnx -p placement.json --runs 100 --trace trace.json
  placeit run model.onnx -p placement.json --inputs x.npz --outputs y.npz
"""


def run(
    *,
    placement: PlacementOption,
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Timed runs.")] = 30,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="FILE", help="Write a trace of one run for https://ui.perfetto.dev.")
    ] = None,
    inputs: Annotated[
        Path | None, typer.Option("--inputs", metavar="FILE", help="Arrays by input name (.npz); random ones without it.")
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option("--outputs", metavar="FILE", help="Write the outputs, by name (.npz).")
    ] = None,
    options: SessionOptions,
    terminal: Terminal,
) -> Output:
    """Run a placement and measure it.

    Shows its latency, how busy each device is, and how far the outputs are from those of the uncut model on one device.
    Without --devices, the devices are those that the placement names.
    """
    from placeit.profiler.trace import write_chrome_trace

    check_outputs(trace, outputs, inputs=[options.model, placement, inputs])
    tensors = None if inputs is None else read_tensors(inputs)
    with terminal.progress() as progress, open_session(options, [placement], progress) as (session, [chosen]):
        with naming(placement):
            report = session.run(chosen, runs=runs, inputs=tensors)
        cluster = session.cluster
    if trace is not None:
        write_chrome_trace(trace, report.spans, devices=cluster.names)
    if outputs is not None:
        write_tensors(outputs, report.outputs)
    latency, error = report.latency, report.output_error
    written = {"trace": trace, "outputs": outputs}
    data = {
        "model": str(options.model),
        "placement_file": str(placement),
        "devices": chosen.counts(),
        "segments": text.programs(report.plan),
        "runs": len(latency.samples),
        "latency_s": {"median": latency.median, "p95": latency.p95, "ci": [latency.ci_low, latency.ci_high]},
        "simulated_s": report.plan.schedule.makespan,
        "utilization": report.utilization,
        "gpus": {name: vars(use) for name, use in report.gpus.items()},
        "output_error": vars(error),
        "emulated": text.emulated(cluster),
    } | {f"{name}_file": None if path is None else str(path) for name, path in written.items()}

    def show(console: Console) -> None:
        figures = {
            "latency": f"{text.seconds(latency.median)} (median of {len(latency.samples)} runs)",
            "interval": f"{text.interval(latency)} (95 % confidence)",
            "p95": text.seconds(latency.p95),
            "simulated": text.seconds(report.plan.schedule.makespan),
            "segments": str(text.programs(report.plan)),
            "output error": f"{text.error(error)}, relative to the uncut model's largest output",
        }
        text.facts(console, figures | {name: str(path) for name, path in written.items() if path is not None})
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

    return Output(data, show)
