"""``placeit run``: run a placement, and measure it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import exit_code, was_given
from placeit.cli.compare import race
from placeit.cli.options import CheckedOptions, LengthOptions, SeedOption
from placeit.cli.paths import OutputFile, check_outputs
from placeit.cli.placements import PLACEMENT, RematchOption, Target, find_target, profile_if_needed
from placeit.cli.recordings import files_of
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import duration
from placeit.core.errors import UsageError, naming
from placeit.core.files import write_text
from placeit.report import as_csv, as_json, runs_as_text

if TYPE_CHECKING:
    from placeit.report.metrics import Metrics
    from placeit.serving.server import Server

__all__ = ["EXAMPLES", "run"]

EXAMPLES = """\b
Examples:
  placeit run model.onnx --placement placement.json
  placeit run model.onnx --devices CPU
  placeit run model.onnx --devices CPU,CPU@0
  placeit run model.onnx -p placement.json --runs 100 --trace trace.json
  placeit run model.onnx -p placement.json --duration 10 --warmup 5
  placeit run model.onnx -p placement.json --csv times.csv
  placeit run model.onnx -p placement.json --rate 50 --record run.json
  placeit run model.onnx -p placement.json --inputs x.npz --outputs y.npz
  placeit run model.onnx -p placement.json --rate 50 --arrivals poisson
  placeit run model.onnx -p placement.json --rate 50 --seconds 10m --live
  placeit run model.onnx -p replicas.json --requests 1000
  placeit run app.placeit --rate 50
  placeit run app.placeit --rematch GPU=CPU@0-3
"""


class Arrivals(StrEnum):
    """Ways in which requests can arrive."""

    CONSTANT = "constant"
    POISSON = "poisson"


@dataclass(frozen=True)
class LoadOptions:
    """Options for several requests in flight."""

    rate: Annotated[
        float | None,
        typer.Option("--rate", metavar="R", help="Requests that arrive per second, whether or not earlier ones have ended."),
    ] = None
    arrivals: Annotated[
        Arrivals | None,
        typer.Option("--arrivals", help="With --rate: at regular intervals (constant, the default), or at random."),
    ] = None
    seconds: Annotated[
        float | None,
        typer.Option(
            "--seconds",
            metavar="TIME",
            parser=duration,
            help="Time for which requests arrive; without --rate, each when another has ended. Default: 10s.",
        ),
    ] = None
    requests: Annotated[
        int | None,
        typer.Option("--requests", metavar="N", min=1, help="Number of requests, instead of --seconds."),
    ] = None
    queue: Annotated[
        int | None,
        typer.Option(
            "--queue", metavar="N", min=1, help="With --rate: most requests that may wait; others are dropped. Default: 64."
        ),
    ] = None
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="With --rate: while requests arrive, show throughput, latencies, the queue and devices on standard error: a "
            "view on a terminal, elsewhere a line every 5 seconds.",
        ),
    ] = False
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            metavar="PORT",
            min=0,
            max=65535,
            help="With --rate: serve the same numbers to Prometheus at http://127.0.0.1:PORT/metrics, which only this machine "
            "can reach; 0 for any free port. Standard error says which.",
        ),
    ] = None
    seed: SeedOption = 0

    def page(self) -> contextlib.AbstractContextManager[Metrics | None]:
        """Open the page of metrics, empty until requests arrive, and print its address; None without ``--metrics-port``."""
        if self.metrics_port is None:
            return contextlib.nullcontext()
        from placeit.report.metrics import Metrics

        page = Metrics(self.metrics_port)
        typer.echo(f"metrics: {page.url}", err=True)
        return page

    @contextlib.contextmanager
    def watch(self, page: Metrics | None, server: Server) -> Iterator[None]:
        """Show the numbers of a server while requests arrive."""
        with contextlib.ExitStack() as stack:
            if page is not None:
                page.read = server.stats
                stack.callback(page.close)
            if self.live:
                stack.enter_context(server.live())
            yield


def run(
    *,
    placement: Annotated[Path | None, PLACEMENT] = None,
    rematch: RematchOption = None,
    length: LengthOptions,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE",
            help="Write a trace of one run, or with several requests in flight, of the last 1000, for https://ui.perfetto.dev.",
        ),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option("--record", metavar="FILE", help="Write a recording of the timed runs (JSON): spans, states, meters."),
    ] = None,
    outputs: Annotated[
        Path | None, typer.Option("--outputs", metavar="FILE", help="Write the outputs, by name (.npz).")
    ] = None,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the times of segments and ops.")] = None,
    load: LoadOptions,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Run a placement, or a bundle, and measure it.

    Shows its latency, the utilisation of each device, and the output error relative to the uncut model on one device; if that
    is too large, the exit code is 1. Without --devices, the devices are those that the placement names. Ctrl-C ends the timed
    runs and keeps them.

    Without --placement, the whole model runs on the device that --devices names. If that names several, they are raced
    against each other, at the pace of --rate if that is given, and the output has the form of 'placeit compare'.

    With --rate, requests arrive at that rate, and several are in flight at once: shows the rate that was achieved, how long
    requests took from their arrival on, and how many waited. With --requests or --seconds alone, and for a placement with
    replicas in any case, as many are in flight as can be, and the rate is what it serves.

    A bundle, which 'placeit build' writes, takes the place of model and placement. Its outputs are compared with the model's
    outputs in the bundle or, for other inputs, with the outputs of the bundle's segments, run one after another.
    """
    runs = length.rounds()
    check_outputs(trace, record, outputs, csv, inputs=[*options.files(), placement])
    loaded = [f"--{name}" for name in ("rate", "requests", "seconds") if getattr(load, name) is not None]
    at_rate = [f"--{name.replace('_', '-')}" for name in ("arrivals", "queue", "live", "metrics_port") if was_given(name)]
    if load.rate is None and at_rate:
        raise UsageError(f"{at_rate[0]} is about requests that arrive at a rate: give --rate as well.")
    target = find_target(options, placement, rematch)
    reason = f"with {loaded[0]}" if loaded else "of a placement with replicas" if target.replicated else None
    if len(target.devices) > 1:
        _check_single(
            target,
            {"--trace": trace, "--record": record, "--outputs": outputs, "--csv": csv},
            [*loaded[load.rate is not None :], *at_rate],
        )
        with terminal.progress() as progress, target.open() as (session, _):
            return race(session, {}, length, "latency", load.seed, progress, load.rate)
    if reason is not None:
        _check_load(reason, load, length, {"--outputs": outputs, "--csv": csv})
        return _under_load(target, load, length, {"trace": trace, "recording": record}, terminal)
    with terminal.progress() as progress, target.open() as (session, chosen):
        home = profile_if_needed(session, chosen, progress)
        with naming(target.path):
            report = session.run(chosen, runs=runs, duration=length.duration, warmup=length.warmup)
        if report.interrupted:
            trace = record = outputs = csv = None
        ops = [] if csv is None else home.op_times(report.plan)
        files = []
        if record is not None:
            files += files_of(session.recording(report), {"recording": record})
        if trace is not None and report.traced is not None:
            files += files_of(session.recording(replace(report, done=[report.traced]), ops=False), {"trace": trace})
    if csv is not None:
        table = as_csv.run(report, home.grouping, ops)
        files.append(OutputFile(csv, "the table of times", lambda: write_text(csv, table)))
    if outputs is not None:
        from placeit.backends.archive import write_tensors

        files.append(OutputFile(outputs, "the outputs of the model", lambda: write_tensors(outputs, report.outputs)))
    written = {"trace": trace, "recording": record, "outputs": outputs, "csv": csv}
    code = exit_code(interrupted=report.interrupted, failed=report.failed is not None)
    show = partial(runs_as_text.run, report=report, files=written)
    return Output(target.data | report.to_dict() | as_json.files(written), show, code, files, runs_as_text.ran(report))


def _check_single(target: Target, files: Mapping[str, Path | None], options: Sequence[str]) -> None:
    """Raise UsageError if an option needs one placement, while several devices are to be raced."""
    for option in (*options, *(option for option, path in files.items() if path is not None)):
        names = ", ".join(target.devices)
        raise UsageError(f"{option} is about one placement, and --devices names {names}: name one, or give --placement.")


def _check_load(reason: str, load: LoadOptions, length: LengthOptions, files: Mapping[str, Path | None]) -> None:
    if load.seconds is not None and load.requests is not None:
        raise UsageError("Give either --seconds or --requests: both say how many requests arrive.")
    several = f"{reason[0].upper()}{reason[1:]}, several requests are in flight at once"
    if length.runs is not None or length.duration is not None:
        raise UsageError(f"{several}: --requests or --seconds says how long to measure, and not --runs or --duration.")
    for option, path in files.items():
        if path is not None:
            raise UsageError(f"{several}, and {option} is about single ones: leave it out.")


def _under_load(
    target: Target, load: LoadOptions, length: LengthOptions, paths: Mapping[str, Path | None], terminal: Terminal
) -> Output:
    from placeit.workbench.options import Traffic

    given = {name: getattr(load, name) for name in ("rate", "requests", "seconds", "queue") if getattr(load, name) is not None}
    traffic = Traffic(arrivals=(load.arrivals or Arrivals.CONSTANT).value, seed=load.seed, **given)
    with load.page() as page, target.open() as (session, chosen):
        with terminal.progress() as progress:
            profile_if_needed(session, chosen, progress)
        with naming(target.path):
            report = session.run(chosen, traffic=traffic, warmup=length.warmup, watch=partial(load.watch, page))
        ops = paths["recording"] is not None and not report.served.interrupted
        files = files_of(session.recording(report, ops=ops), paths) if any(paths.values()) else []
    code = exit_code(interrupted=report.served.interrupted, failed=report.failed is not None)
    show = partial(runs_as_text.rate, report=report, files=paths)
    return Output(target.data | report.to_dict() | as_json.files(paths), show, code, files, runs_as_text.ran(report))
