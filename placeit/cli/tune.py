"""``placeit tune``: find how to serve a model within a limit on latency."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import exit_code
from placeit.cli.options import CheckedOptions, Precision, SeedOption
from placeit.cli.paths import OutputFile, check_outputs
from placeit.cli.placements import open_session, profile_if_needed
from placeit.cli.recordings import files_of
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import duration
from placeit.core.units import percentage
from placeit.report import as_json, text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.serving.latency import OperatingPoint
    from placeit.tuning import Tuned

__all__ = ["EXAMPLES", "tune"]

EXAMPLES = """\b
Examples:
  placeit tune model.onnx --devices CPU@0,CPU@1 --latency-limit p95=20ms
  placeit tune model.onnx -d CPU --latency-limit p99=50ms --rate 100 --budget 5m
  placeit tune model.onnx --input-shape x:1..64@1,1024 -d CPU --latency-limit p95=10ms
  placeit tune model.onnx -d CPU@0 --also bf16 --latency-limit p95=20ms
  placeit tune model.onnx -p a.json -p b.json --latency-limit p95=20ms -o tuned.json --record tuning.json
"""


def tune(
    *,
    latency_limit: Annotated[
        str,
        typer.Option(
            "--latency-limit",
            metavar="PERCENTILE=TIME",
            help="Most time that a share of the requests may take, from their arrival to their answer: p50, p95 or p99, as in "
            "p95=20ms.",
        ),
    ],
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate", metavar="PER_SECOND", help="Requests to serve, with the least latency; default: as many as possible."
        ),
    ] = None,
    placement: Annotated[
        list[Path] | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement to try; repeatable. Default: search for some."),
    ] = None,
    also: Annotated[
        list[Precision] | None,
        typer.Option(
            "--also",
            metavar="PRECISION",
            help="Precision in which to try each placement besides --precision: bf16, f16, f32; repeatable.",
        ),
    ] = None,
    budget: Annotated[
        float, typer.Option("--budget", metavar="TIME", parser=duration, help="Time limit; default: 2m.", show_default=False)
    ] = 120.0,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Where to write the placement and its settings; default: MODEL.tuned.json."
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Write all measurements to a recording (JSON), for 'placeit report'."),
    ] = None,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Find how to serve a model within a limit on latency.

    Tries placements (those with the highest throughput, and the best single device), each with one request in flight and with
    more, with batches if the batch size is open, and with --also in other precisions. The simulator predicts the capacity of
    each way, and the most promising are measured. Each way has a separate server, which is offered requests at random times at
    rising rates; they take turns, so that a machine that slows down slows all of them down. The answer serves most requests
    within the limit, or at --rate has the least latency. It is written as a placement with its settings, which 'placeit serve
    MODEL -p' and 'placeit build' take. Ctrl-C ends the measurement and keeps the results so far. If nothing keeps the limit,
    nothing is written, and the exit code is 1.
    """
    from placeit.serving.latency import LatencyLimit
    from placeit.simulator.load import check_rate
    from placeit.tuning import tune as tuned

    if rate is not None:
        check_rate(rate)
    limit, files = LatencyLimit.parse(latency_limit), placement or []
    path = output or options.model.with_name(f"{options.model.name}.tuned.json")
    check_outputs(path, record, inputs=[*options.files(), *files])
    with terminal.progress() as progress, open_session(options, files, by_segments=True) as (session, placements):
        for placed in placements:
            profile_if_needed(session, placed, progress)
        named = {str(file): placed for file, placed in zip(files, placements, strict=True)}
        precisions = [placed.value for placed in also or ()]
        found = tuned(
            session,
            limit,
            rate=rate,
            placements=named or None,
            precisions=precisions,
            budget=budget,
            seed=seed,
            progress=progress,
        )
        recorded = None if record is None else replace(session.recording(), tuning=found.to_dict())
    chosen = found.chosen
    written = [] if chosen is None else [OutputFile(path, "the placement", lambda: chosen.placement.save(path))]
    if recorded is not None:
        written += files_of(recorded, {"recording": record})

    def show(console: Console) -> None:
        _show(console, found)
        if chosen is not None:
            console.print()
            command = ["placeit", "serve", str(options.model), "-p", str(path)]
            devices = [] if options.devices is None else ["-d", options.devices]
            text.facts(console, {"placement": str(path), "next": [*command, *devices]})
        if record is not None:
            text.facts(console, {"recording": str(record), "page": ["placeit", "report", str(record)]})

    code = exit_code(interrupted=found.interrupted, failed=chosen is None)
    data = found.to_dict() | as_json.files({"placement": None if chosen is None else path, "recording": record})
    return Output(data, show, code, written, answer=f"{'nothing' if chosen is None else chosen.name}: {found.reason}")


def _show(console: Console, found: Tuned) -> None:
    text.facts(
        console,
        {"limit": str(found.limit), "chosen": "nothing" if found.chosen is None else found.chosen.name, "why": found.reason},
    )
    console.print()
    percentile = f"p{found.limit.percentile}"

    def cells(point: OperatingPoint | None) -> list[str]:
        if point is None:
            return ["", "", ""]
        low, high = (text.seconds(end) for end in point.ci)
        return [text.rate(point.rate), text.seconds(found.limit.at(point)), f"{low} .. {high}"]

    rows = []
    for one in found.configurations:
        settings = one.placement.serving
        settings_cells = ["", ""] if settings is None else [str(settings.in_flight), str(settings.max_batch or 1)]
        point = one.best if found.rate is None else one.at(found.rate)
        error = "" if one.error is None else percentage(one.error, "+.0%")
        capacity = [text.rate(one.predicted), text.rate(one.capacity or None), error]
        rows.append([one.of, *settings_cells, *capacity, *cells(point), one.failed or ""])
    rate = "rate in limit" if found.rate is None else "rate"
    heads = ["placement", "in flight", "batch", "predicted", "capacity", "error", rate, percentile, "95 % interval", "failed"]
    text.table(console, heads, rows, spare=["failed"] if all(one.failed is None for one in found.configurations) else [])
    text.paragraph(console, "Rates are of requests per second; ways without one did not keep the limit, or were left out.")
    if found.error is not None:
        text.paragraph(console, f"Predicted capacities differ from measured ones by {percentage(found.error)} in the median.")
    first = found.configurations[0]
    console.print()
    text.table(
        console,
        ["rate", "p50", "p95", "p99", "in limit"],
        [
            [
                text.rate(point.rate),
                *(text.seconds(value) for value in (point.p50, point.p95, point.p99)),
                "yes" if point.kept else "no",
            ]
            for point in first.points
        ],
        title=first.name,
    )
