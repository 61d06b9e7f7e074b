"""``placeit profile``: measure the costs of each group of ops on each device, or record runs of a placement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from placeit.cli.command import exit_code, was_given
from placeit.cli.options import LengthOptions, SessionOptions
from placeit.cli.paths import OutputFile, check_outputs
from placeit.cli.placements import open_session
from placeit.cli.recordings import files_of
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError, naming
from placeit.core.files import write_text
from placeit.report import as_csv, as_json, costs_as_text, runs_as_text

__all__ = ["EXAMPLES", "profile"]

EXAMPLES = """\b
Examples:
  placeit profile model.onnx --devices CPU@0,CPU@1
  placeit profile model.onnx --devices cluster.yaml --output costs.json
  placeit profile model.onnx --placement placement.json --output run.json
  placeit profile model.onnx --csv costs.csv
  placeit profile model.onnx --inputs x.npz
  placeit profile model.onnx --no-cache --max-groups 20
"""


def profile(
    *,
    placement: Annotated[
        Path | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Run this placement and record what it does."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write a recording (JSON): the costs, or the runs.")
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE", help="With --placement: write the runs as a trace, for https://ui.perfetto.dev."
        ),
    ] = None,
    csv: Annotated[
        Path | None,
        typer.Option(
            "--csv", metavar="FILE", help="Write a table: a row for each group and device, or for each span, op and kernel."
        ),
    ] = None,
    length: LengthOptions,
    options: SessionOptions,
    terminal: Terminal,
) -> Output:
    """Measure the costs of ops on each device, or what a placement does on them.

    The time of a group of ops is that inside the whole model; its cut time is added where it is cut off from its neighbours:
    layout conversions, lost fusion. Its load is the additional time while other devices work. Costs of described devices are
    estimates from their figures.

    With --placement, single requests are run and recorded: what each device and link did, which kernels took the time, and
    what the latency consists of. 'placeit run --record' records several requests in flight.
    """
    from placeit.profiler.profile_report import ProfileReport

    length.rounds()
    check_outputs(output, csv, trace, inputs=[*options.files(), placement])
    if placement is not None:
        return _placement(placement, length, {"recording": output, "trace": trace, "csv": csv}, options, terminal)
    for option in ("trace", "runs", "duration", "warmup"):
        if was_given(option):
            raise UsageError(f"--{option} is about the runs of a placement: give --placement as well.")
    with terminal.progress() as progress, options.session() as session:
        costs = session.profile(check=session.policy.check_costs, progress=progress)
        found = ProfileReport(str(session.model.path), session.precision, session.grouping, costs, session.compiling.kinds)
        recorded = session.recording()
    data = found.to_dict()
    files = files_of(replace(recorded, costs=data), {"recording": output})
    if csv is not None:
        files.append(OutputFile(csv, "the table of costs", lambda: write_text(csv, as_csv.profile(found))))
    written = [path for path in (output, csv) if path is not None]
    shown = partial(costs_as_text.profile, found=found, files=written)
    return Output(data, shown, files=files, answer=costs_as_text.whole_model(found))


def _placement(
    placement: Path, length: LengthOptions, paths: Mapping[str, Path | None], options: SessionOptions, terminal: Terminal
) -> Output:
    from placeit.measuring.run_report import RunReport
    from placeit.profiler.profile_report import ProfileReport
    from placeit.serving.load_run import RateReport
    from placeit.workbench.options import Traffic

    report: RunReport | RateReport
    runs = length.rounds()
    with terminal.progress() as progress, open_session(options, [placement], by_segments=True) as (session, [chosen]):
        home = session.home_of(chosen)
        costs = home.profile(check=session.policy.check_costs, progress=progress)
        with naming(placement):
            if chosen.replicas:
                lasting = Traffic(requests=runs) if length.duration is None else Traffic(seconds=length.duration)
                report = session.run(chosen, traffic=lasting, warmup=length.warmup)
            else:
                report = session.run(chosen, runs=runs, duration=length.duration, warmup=length.warmup)
        found = ProfileReport(str(home.model.path), home.precision, home.grouping, costs, home.compiling.kinds)
        interrupted = report.interrupted if isinstance(report, RunReport) else report.served.interrupted
        recorded = replace(session.recording(report, ops=not interrupted), costs=found.to_dict())
    shown = partial(runs_as_text.recording, found=recorded, files=paths, failed=report.failed)
    code = exit_code(interrupted=interrupted, failed=report.failed is not None)
    data = as_json.recording(recorded, placement, paths) | {"failed": report.failed, "interrupted": interrupted}
    return Output(data, shown, code, files_of(recorded, paths), runs_as_text.ran(report))
