"""``placeit serve``: serve models over HTTP and gRPC until the process is told to end."""

from __future__ import annotations

import contextlib
import contextvars
import gc
import resource
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.nodes import RayOption, reach_nodes
from placeit.cli.options import CheckedOptions, ContextOption, DevicesOption
from placeit.cli.placements import RematchOption, find_target, open_application, profile_if_needed
from placeit.cli.server_options import NetworkOptions, RepositoryOptions, RunOptions
from placeit.cli.terminal import Output, Terminal
from placeit.cli.workload import is_workload
from placeit.core.errors import ModelError, PlaceitError, UsageError, naming
from placeit.core.extras import need
from placeit.core.interrupts import ended_by
from placeit.core.memory import return_freed_memory
from placeit.core.threads import Gate
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.profiler.costs import Progress
    from placeit.serve.served_model import ServedModel
    from placeit.serve.sources import Opened, Planned, Source
    from placeit.session import Session

__all__ = ["EXAMPLES", "serve"]

EXAMPLES = """\b
Examples:
  placeit serve app.placeit --port 8000
  placeit serve cats=a.placeit dogs=b.placeit --queue 128
  placeit serve model.onnx --placement placement.json --no-grpc
  placeit serve app.placeit --max-batch 16 --batch-delay 2ms
  placeit serve workload.placed.yaml -d CPU@0,CPU@1 --follow-rates
  placeit serve --repository bundles --watch --control
  placeit serve decoder.placeit --state-memory 2GB --sequence-idle 5m --recompute
  placeit serve app.placeit --shared-memory
  placeit serve FOLDER -p placement.json --context 2048
  placeit serve app.placeit --host 0.0.0.0 --tls-cert chain.pem --tls-key key.pem --token-file token
"""


def serve(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]FILE",
            help="Bundles of 'placeit build', a model file or folder, or a placed workload of 'placeit optimize'.",
        ),
    ] = None,
    placement: Annotated[
        Path | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement of a model file, as 'placeit optimize' writes it."),
    ] = None,
    devices: DevicesOption = None,
    ray_address: RayOption = None,
    context: ContextOption = None,
    rematch: RematchOption = None,
    running: RunOptions,
    repository_options: RepositoryOptions,
    network: NetworkOptions,
    terminal: Terminal,
) -> Output:
    """Serve models over HTTP and gRPC.

    Speaks the Open Inference Protocol, as Triton Inference Server, KServe and OpenVINO Model Server do: their clients work.
    Folders with a decoder and its tokenizer are also served as OpenAI's clients ask: /v1/completions, /v1/chat/completions.
    Metrics for Prometheus are at /metrics. The addresses are printed to standard error once the server is ready.

    Ctrl-C or SIGTERM ends it: it accepts no more requests, finishes the others, and exits with 0. A second one ends it at once.
    """
    need(
        "A server", "serve", "uvicorn", "starlette", "httptools", "grpc", "grpc_health", "grpc_reflection", "prometheus_client"
    )
    from placeit.runtime.device_pool import shared_devices
    from placeit.serve.network import NetworkServer
    from placeit.serve.repository import Repository
    from placeit.serve.sources import Planned

    models = models or []
    if not models and repository_options.repository is None:
        raise UsageError("There is nothing to serve: give bundles, a model with its placement, or --repository.")
    if placement is not None and (len(models) != 1 or repository_options.repository is not None):
        raise UsageError("--placement is for one model: to serve several models, make bundles of them with 'placeit build'.")
    workloads = [argument for argument in models if is_workload(Path(argument))]
    if placement is not None and workloads:
        raise UsageError(
            f"--placement is for a model file, and {workloads[0]} is a workload, which names placements: leave it out."
        )
    if repository_options.follow_rates and not workloads:
        raise UsageError("--follow-rates is about placed workloads, and none is served: leave it out, or give one.")
    options, stop = network.checked(), Gate()
    return_freed_memory()
    running.check()
    hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))  # each connection takes a file
    with contextlib.ExitStack() as stack:
        if workloads:
            stack.enter_context(shared_devices())
        common = {"devices": devices, "context": context, "ray_address": ray_address}
        context_here = contextvars.copy_context()  # options, and devices that models share, for models that are opened later

        def opener(source: Source, name: str, version: str) -> Opened:
            if progress is not None:
                progress(f"opening {name or source.path}", 0.0)
            if isinstance(source, Planned):
                return context_here.copy().run(_serve_planned, source, name, common, running, progress)
            return context_here.copy().run(_serve_bundle, source.path, name, version, rematch, running, ray_address)

        words = [("-d", devices), ("--ray-address", ray_address)]
        repository = Repository(
            opener,
            repository_options.repository,
            control=repository_options.control,
            watch=repository_options.watch,
            devices=[word for option, value in words if value is not None for word in (option, value)],
            follow=repository_options.follow_rates,
        )
        stack.callback(repository.close)
        fixed = []
        with terminal.progress() as progress:
            for argument in models:
                if argument in workloads:
                    repository.open_plan(Path(argument), lambda plan: reach_nodes(devices or plan.used(), ray_address))
                elif placement is None and devices is None:
                    repository.open(*_split_name(argument))
                else:
                    fixed.append(_serve_model(argument, placement, common, rematch, running, stack, progress)[0])
            repository.open_folder()
        progress = None  # models that are opened later show no progress
        for model in (*fixed, *repository.models):
            for line in _batching_lines(model):
                typer.echo(line, err=True)
        with ended_by(stop.open), NetworkServer(fixed, options, repository) as server:
            gc.collect()
            gc.freeze()  # a collection of all objects, each few thousand requests, would stop these for 0.2 s
            typer.echo(f"http: {server.url}", err=True)
            if server.grpc_address is not None:
                typer.echo(f"grpc: {server.grpc_address}", err=True)
            stop.wait()
        data: dict[str, Any] = {
            "http": server.url,
            "grpc": server.grpc_address,
            "models": [_request_counts(model) for model in server.models],
        }
    answer = ", ".join(f"{model['succeeded']} of {model['name']}" for model in data["models"])
    return Output(data, partial(_show, data=data), answer=f"requests succeeded: {answer}")


def _batching_lines(model: ServedModel) -> Iterator[str]:
    """Yield lines on the sizes of batches, and of joined steps of texts, on each replica of a model."""
    name = _with_version(model.name, model.version)
    for batches in model.server.batches:
        if batches.most:
            padded = "" if batches.padding is None else ", shorter texts padded"
            yield f"batches: {name}: up to {batches.most} rows{padded}"
        elif batches.why is not None:
            yield f"batches: {name}: none, as {batches.why}"
    for stepping in model.server.stepping:
        size = f"up to {stepping.most} texts" if stepping.most else f"one text, as {stepping.why}"
        yield f"steps: {name}: {size}"


def _split_name(argument: str) -> tuple[Path, str]:
    """Split ``[NAME=]FILE`` into the path and the name; the name is empty if it is not given."""
    from placeit.serve.served_model import is_name

    name, equals, rest = argument.partition("=")
    return (Path(rest), name) if equals and is_name(name) else (Path(argument), "")


def _serve_bundle(
    path: Path, name: str, version: str, rematch: str | None, running: RunOptions, ray_address: str | None
) -> Opened:
    """Open a bundle, check it by its samples, and serve it."""
    from placeit.backends import check_path
    from placeit.backends.bundle.files import is_bundle
    from placeit.backends.bundle.model import open_bundle
    from placeit.serve.served_model import ServedModel
    from placeit.serve.sources import Opened

    if not is_bundle(path):
        check_path(path)
        raise UsageError(
            f"{path} is not a bundle: give its placement with --placement, or --devices to run it whole, or make a bundle "
            "with 'placeit build'."
        )
    bundle = open_bundle(path)
    with contextlib.ExitStack() as stack:
        app = stack.enter_context(open_application(CheckedOptions(path, ray_address=ray_address), bundle, rematch))
        app.check()
        server = stack.enter_context(app.server(**running.of_server(app.placement)))
        model = ServedModel(name or app.name, server, app.inputs, app.outputs, version, **running.of_sequences())
        return Opened(model, stack.pop_all().close)


def _serve_model(
    argument: str,
    placement: Path | None,
    common: Mapping[str, Any],
    rematch: str | None,
    running: RunOptions,
    stack: contextlib.ExitStack,
    progress: Progress | None,
    priority: int = 0,
    only: Sequence[str] = (),
) -> tuple[ServedModel, Session]:
    """Open a model with a placement, or whole on a device, and serve it until the stack is closed.

    ``only`` has the names of the devices that the model may use; empty for all.
    """
    from placeit.backends.folder import TOKENIZER, tokenizer_folder
    from placeit.backends.openvino.inputs import OpenSizesError
    from placeit.serve.served_model import ServedModel

    path, name = _split_name(argument)
    target = find_target(CheckedOptions(path, **common), placement, rematch, only)
    try:
        session, chosen = stack.enter_context(target.open())
    except OpenSizesError as error:
        raise ModelError(
            f"{error} A server takes them from a placement: give them to 'placeit optimize', and serve its placement with -p."
        ) from error
    profile_if_needed(session, chosen, progress, costs=running.moves)
    with naming(target.path):
        server = stack.enter_context(session.serve(chosen, **running.of_server(chosen, priority)))
    model, text = session.model, None
    if path.is_dir() and (tokenizer_folder(model.path) / TOKENIZER).is_file():
        name = name or path.name
        try:
            need("Text", "text", "tokenizers", "jinja2")
            from placeit.text.generating import TextModel

            text = TextModel(server, model, chunk=chosen.chunk)
        except PlaceitError as error:  # such as a model for embeddings
            typer.echo(f"texts: none: {error}", err=True)
    return ServedModel(name or model.name, server, model.inputs, model.outputs, text=text, **running.of_sequences()), session


def _serve_planned(
    source: Planned, name: str, common: Mapping[str, Any], running: RunOptions, progress: Progress | None
) -> Opened:
    from placeit.serve.sources import Mover, Opened
    from placeit.workload.options import naming as naming_model

    with contextlib.ExitStack() as stack, naming_model(source.entry):
        argument, options, only = f"{name}={source.path}", {**common, "inputs": source.entry.inputs}, source.entry.devices
        options["devices"] = options["devices"] or ",".join(only) or None
        model, session = _serve_model(argument, source.file, options, None, running, stack, progress, source.priority, only)
        return Opened(model, stack.pop_all().close, Mover(session, model.server, source, running.in_flight))


def _request_counts(model: ServedModel) -> dict[str, Any]:
    """Return the numbers of a model's requests by outcome, and the latencies since it was last loaded."""
    stats = model.counts.stats()
    p50, p95, p99 = stats.percentiles(0.5, 0.95, 0.99)
    latency = {"p50": p50, "p95": p95, "p99": p99}
    batches, steps = ({str(rows): runs for rows, runs in sorted(counts.items())} for counts in (stats.batches, stats.steps))
    return {
        "name": model.name,
        "version": model.version,
        **stats.outcomes,
        "latency_s": latency,
        "batches": batches,
        "steps": steps,
    }


def _with_version(name: str, version: str) -> str:
    return name if version == "1" else f"{name}, version {version}"


def _show(console: Console, data: Mapping[str, Any]) -> None:
    from placeit.serving.stats import OUTCOMES

    for model in data["models"]:
        name = _with_version(model["name"], model["version"])
        text.paragraph(console, f"{name}: {', '.join(f'{model[what]} {what}' for what in OUTCOMES)}", indent=2)
