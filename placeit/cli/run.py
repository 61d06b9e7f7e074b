"""``placeit run``: a placement, executed and measured."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from placeit.cli.command import FAILED
from placeit.cli.options import CheckedOptions, LengthOptions
from placeit.cli.paths import OutputFile, check_outputs, write_tensors
from placeit.cli.placements import PlacementOption, naming, open_session
from placeit.cli.terminal import Output, Terminal
from placeit.core.files import write_text
from placeit.core.interrupts import INTERRUPTED
from placeit.report import as_csv, as_json, as_text

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
        ops = [] if csv is None or report.interrupted else home.op_times(report.plan)
    if report.interrupted:
        trace = outputs = csv = None
    files = []
    if csv is not None:
        table = as_csv.run(report, home.grouping, ops)
        files.append(OutputFile(csv, "the table of times", lambda: write_text(csv, table)))
    if trace is not None:
        devices = report.cluster.names
        files.append(OutputFile(trace, "the trace", lambda: write_chrome_trace(trace, report.spans, devices=devices)))
    if outputs is not None:
        files.append(OutputFile(outputs, "the outputs of the model", lambda: write_tensors(outputs, report.outputs)))
    written = {"trace": trace, "outputs": outputs, "csv": csv}
    code = INTERRUPTED if report.interrupted else 0 if report.failed is None else FAILED
    return Output(as_json.run(report, placement, written), partial(as_text.run, report=report, files=written), code, files)
