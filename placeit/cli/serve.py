"""``placeit serve``: serve models over HTTP and gRPC until the process is told to end."""

from __future__ import annotations

import contextlib
import math
import resource
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from placeit.cli.nodes import OnLoss, OnLossOption
from placeit.cli.options import CheckedOptions, ContextOption, DevicesOption
from placeit.cli.placements import RematchOption, known, naming, open_application, to_run
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import duration
from placeit.cli.workload import is_workload
from placeit.core.errors import PlaceitError, UsageError
from placeit.core.extras import need
from placeit.core.interrupts import ended_by
from placeit.core.memory import return_freed_memory
from placeit.core.threads import Gate
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.core.placement import Placement
    from placeit.serve.network import Options
    from placeit.serve.repository import Opened
    from placeit.serve.served_model import ServedModel

__all__ = ["EXAMPLES", "serve"]

EXAMPLES = """\b
Examples:
  placeit serve app.placeit --port 8000
  placeit serve cats=a.placeit dogs=b.placeit --queue 128
  placeit serve model.onnx --placement placement.json --no-grpc
  placeit serve app.placeit --max-batch 16 --batch-delay 2ms
  placeit serve workload.placed.yaml -d CPU@0,CPU@1
  placeit serve --repository bundles --watch --control
  placeit serve decoder.placeit --state-memory 2GB --sequence-idle 5m --recompute
  placeit serve app.placeit --shared-memory
  placeit serve FOLDER -p placement.json --context 2048
  placeit serve app.placeit --host 0.0.0.0 --tls-cert chain.pem --tls-key key.pem --token-file token
"""


@dataclass(frozen=True)
class RunOptions:
    """Options of how requests run, the same for every model."""

    queue: Annotated[int, typer.Option("--queue", metavar="N", min=1, help="Requests of a model that may wait.")] = 64
    max_batch: Annotated[
        str | None,
        typer.Option(
            "--max-batch",
            metavar="N",
            help="Most rows of waiting requests that run as one, if the batch size is open; 0 for none, auto to measure it. "
            "Default: as 'placeit tune' found it, or auto.",
            show_default=False,
        ),
    ] = None
    batch_delay: Annotated[
        float,
        typer.Option(
            "--batch-delay",
            metavar="TIME",
            parser=duration,
            help="How long a request may wait for others to join it while a device is free; default: 0ms.",
            show_default=False,
        ),
    ] = 0.0
    in_flight: Annotated[
        int | None,
        typer.Option(
            "--in-flight",
            metavar="N",
            min=1,
            help="Requests in flight on each replica; default: as 'placeit tune' found it, or as many as its highest "
            "throughput needs.",
            show_default=False,
        ),
    ] = None
    refine: Annotated[
        bool, typer.Option("--refine", help="Look for a better placement while serving, by a small share of the requests.")
    ] = False
    on_loss: OnLossOption = OnLoss.FAIL
    state_memory: Annotated[
        str | None,
        typer.Option(
            "--state-memory",
            metavar="SIZE",
            help="Memory for the states of all sequences of a model, such as 2GB; default: half of what is free.",
            show_default=False,
        ),
    ] = None
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Keep the inputs of sequences, to compute states anew that were lost.")
    ] = False
    sequence_idle: Annotated[
        float,
        typer.Option(
            "--sequence-idle",
            metavar="TIME",
            parser=duration,
            help="Time without a request after which a sequence is closed; default: 60s.",
            show_default=False,
        ),
    ] = 60.0

    def check(self) -> None:
        """Raise UsageError if an option is not in range."""
        if not 0.001 <= self.sequence_idle < math.inf:
            raise UsageError(f"--sequence-idle is {self.sequence_idle:g} seconds; it must be at least 1 ms, and finite.")

    @property
    def moves(self) -> bool:
        """True if the server may change its placement, by the costs."""
        return self.refine or self.on_loss is OnLoss.REPLACE

    def of_server(self, placement: Placement, priority: int = 0) -> dict[str, Any]:
        """Return the options of :meth:`placeit.Session.serve` for a placement; with a priority where a server can have one."""
        return {
            "queue": self.queue,
            "max_batch": self._rows(tuned=placement.serving is not None),
            "batch_delay": self.batch_delay,
            "in_flight": self.in_flight,
            "refine": self.refine,
            "on_loss": self.on_loss.value,
            "state_memory": self.state_memory,
            "priority": 0 if self.moves else priority,
        }

    def _rows(self, *, tuned: bool) -> int | Literal["auto"] | None:
        """Read --max-batch; by default, a server whose placement may change joins no requests. Raises UsageError."""
        if self.max_batch is None and tuned:
            return None
        if self.max_batch is None or self.max_batch == "auto":
            return 0 if self.moves else "auto"
        if not (self.max_batch.isascii() and self.max_batch.isdigit()):
            raise UsageError(f"--max-batch is '{self.max_batch}': give a number of rows, 0 to run each request alone, or auto.")
        return int(self.max_batch)

    def of_sequences(self) -> dict[str, Any]:
        """Return the options of the sequences of a served model."""
        return {"idle_s": self.sequence_idle, "recompute": self.recompute}


@dataclass(frozen=True)
class RepositoryOptions:
    """Options of models that come and go."""

    repository: Annotated[
        Path | None,
        typer.Option(
            "--repository",
            metavar="DIR",
            help="Serve the bundles of a folder: NAME.placeit, or NAME/VERSION.placeit.",
            show_default=False,
        ),
    ] = None
    watch: Annotated[
        bool, typer.Option("--watch", help="Load bundles that come or change, and unload bundles that leave the folder.")
    ] = False
    control: Annotated[
        bool, typer.Option("--control", help="Let clients load and unload bundles, by /v2/repository/models/NAME/load.")
    ] = False


@dataclass(frozen=True)
class NetworkOptions:
    """Options of a server's addresses, access and limits."""

    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; 0.0.0.0 or :: is on all networks.")
    ] = "127.0.0.1"
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", min=0, max=65535, help="Port of HTTP; 0 for any that is free.")
    ] = 8000
    grpc_port: Annotated[
        int, typer.Option("--grpc-port", metavar="PORT", min=0, max=65535, help="Port of gRPC; 0 for any that is free.")
    ] = 8001
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Serve HTTP alone.")] = False
    tls_cert: Annotated[
        Path | None, typer.Option("--tls-cert", metavar="FILE", help="Certificate chain (PEM), for HTTPS and gRPC with TLS.")
    ] = None
    tls_key: Annotated[Path | None, typer.Option("--tls-key", metavar="FILE", help="Its private key (PEM).")] = None
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file", metavar="FILE", help="Answer only requests with 'Authorization: Bearer' and the token in this file."
        ),
    ] = None
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="Another name by which clients call a server that is for this machine alone."
        ),
    ] = None
    shared_memory: Annotated[
        bool,
        typer.Option(
            "--shared-memory",
            help="Let clients pass tensors in shared memory of this machine (/dev/shm), as Triton's clients do.",
        ),
    ] = False
    max_request_bytes: Annotated[
        int, typer.Option("--max-request-bytes", metavar="N", min=1, max=(2 << 30) - 1, help="Most bytes of a request.")
    ] = 64 << 20
    request_memory: Annotated[
        str | None,
        typer.Option(
            "--request-memory",
            metavar="SIZE",
            help="Memory for requests and their answers, over both protocols together; default: 16MiB, or as much as "
            "--max-request-bytes.",
            show_default=False,
        ),
    ] = None
    max_connections: Annotated[
        int | None,
        typer.Option(
            "--max-connections",
            metavar="N",
            min=1,
            help="Open connections of each protocol; default: 1024, or what the limit on open files allows.",
            show_default=False,
        ),
    ] = None
    client_timeout: Annotated[
        float,
        typer.Option(
            "--client-timeout",
            metavar="TIME",
            parser=duration,
            help="How long a client may take to send or to receive; default: 60s.",
            show_default=False,
        ),
    ] = 60.0

    def checked(self) -> Options:
        """Read the files, and return the options. Raises UsageError or FileError."""
        from placeit.core.files import read_text
        from placeit.core.units import parse_quantity
        from placeit.serve.network import Options

        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS needs both a certificate and its key: give --tls-cert and --tls-key, or neither.")
        if not 0.001 <= self.client_timeout < math.inf:
            raise UsageError(f"--client-timeout is {self.client_timeout:g} seconds; it must be at least 1 ms, and finite.")
        token = None
        if self.token_file is not None:
            token = read_text(self.token_file).strip().encode()
            if not token.isascii() or len(token.split()) != 1:
                raise UsageError(f"{self.token_file} is to hold a token: ASCII text without spaces, and nothing else.")
        return Options(
            host=self.host,
            port=self.port,
            grpc_port=None if self.no_grpc else self.grpc_port,
            tls=None if self.tls_cert is None or self.tls_key is None else (self.tls_cert, self.tls_key),
            token=token,
            most_bytes=self.max_request_bytes,
            room_bytes=None if self.request_memory is None else int(parse_quantity(self.request_memory, "memory")),
            connections=self.max_connections,
            patience_s=self.client_timeout,
            allowed_hosts=tuple(self.allow_host or ()),
            shared_memory=self.shared_memory,
        )


def serve(
    *,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]FILE",
            help="Bundles of 'placeit build', a model file or folder, or a placed workload of 'placeit optimize'.",
            show_default=False,
        ),
    ] = None,
    placement: Annotated[
        Path | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement of a model file, as 'placeit optimize' writes it."),
    ] = None,
    devices: DevicesOption = None,
    context: ContextOption = None,
    rematch: RematchOption = None,
    running: RunOptions,
    coming: RepositoryOptions,
    network: NetworkOptions,
    terminal: Terminal,
) -> Output:
    """Serve models over HTTP and gRPC.

    Speaks the Open Inference Protocol, as Triton Inference Server, KServe and OpenVINO Model Server do: their clients work.
    Folders with a decoder and its tokenizer are also served as OpenAI's clients ask: /v1/completions, /v1/chat/completions.
    Numbers for Prometheus are at /metrics. Standard error says at which addresses it serves, once it does.

    Ctrl-C or SIGTERM ends it: it is not ready any more, finishes the requests that it has accepted, and exits with 0. A second
    one ends it at once.
    """
    need(
        "A server", "serve", "uvicorn", "starlette", "httptools", "grpc", "grpc_health", "grpc_reflection", "prometheus_client"
    )
    from placeit.serve.network import NetworkServer
    from placeit.serve.repository import Repository

    models = models or []
    if not models and coming.repository is None:
        raise UsageError("Nothing is to be served: give bundles, a model with its placement, or --repository.")
    if placement is not None and (len(models) != 1 or coming.repository is not None):
        raise UsageError("A placement is of one model: build bundles of several models with 'placeit build', and serve these.")
    options, ending = network.checked(), Gate()
    return_freed_memory()
    running.check()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each connection takes a file
    with contextlib.ExitStack() as stack:
        opener = partial(_bundle, rematch=rematch, running=running)
        repository = Repository(opener, coming.repository, control=coming.control, watch=coming.watch)
        stack.callback(repository.close)
        fixed, more = [], {"devices": devices, "context": context}
        for given in models:
            if is_workload(Path(given)):
                fixed += _workload(Path(given), more, running, stack, terminal)
            elif placement is None and devices is None:
                repository.open(*_named(given))
            else:
                fixed.append(_model(given, placement, more, rematch, running, stack, terminal))
        repository.open_folder()
        for model in (*fixed, *repository.models):
            for line in _joined(model):
                typer.echo(line, err=True)
        with ended_by(ending.open), NetworkServer(fixed, options, repository) as server:
            typer.echo(f"http: {server.url}", err=True)
            if server.grpc_address is not None:
                typer.echo(f"grpc: {server.grpc_address}", err=True)
            ending.wait()
        data: dict[str, Any] = {
            "http": server.url,
            "grpc": server.grpc_address,
            "models": [_counted(model) for model in server.models],
        }
    answer = ", ".join(f"{model['succeeded']} of {model['name']}" for model in data["models"])
    return Output(data, partial(_show, data=data), answer=f"requests succeeded: {answer}")


def _joined(model: ServedModel) -> Iterator[str]:
    """Say how many rows, or steps of texts, run as one on each replica of a model, if its batch size is open."""
    for batches in model.server.batches:
        if batches.most:
            padded = "" if batches.padding is None else ", shorter texts padded"
            yield f"batches: {model.name}: up to {batches.most} rows{padded}"
        elif batches.why is not None:
            yield f"batches: {model.name}: none, as {batches.why}"
    for stepping in model.server.stepping:
        said = f"up to {stepping.most} texts" if stepping.most else f"one text, as {stepping.why}"
        yield f"steps: {model.name}: {said}"


def _named(given: str) -> tuple[Path, str]:
    """Return the path of an argument, and the name that it gives the model; empty for the model's name."""
    from placeit.serve.served_model import is_name

    name, equals, rest = given.partition("=")
    return (Path(rest), name) if equals and is_name(name) else (Path(given), "")


def _bundle(path: Path, name: str, version: str, *, rematch: str | None, running: RunOptions) -> Opened:
    """Open a bundle, check it by its samples, and serve it."""
    from placeit.backends.bundle.files import is_bundle
    from placeit.backends.bundle.model import open_bundle
    from placeit.serve.repository import Opened
    from placeit.serve.served_model import ServedModel

    if not is_bundle(path):
        raise UsageError(
            f"{path} is not a bundle: give the placement of a model with --placement, or --devices to run it whole on, or "
            "'placeit build' a bundle."
        )
    bundle = open_bundle(path)
    with contextlib.ExitStack() as stack:
        app = stack.enter_context(open_application(CheckedOptions(path), bundle, rematch))
        app.check()
        server = stack.enter_context(app.server(**running.of_server(app.placement)))
        model = ServedModel(name or app.name, server, app.inputs, app.outputs, version, **running.of_sequences())
        return Opened(model, stack.pop_all().close, lambda: bundle.files.replaced)


def _model(
    given: str,
    placement: Path | None,
    more: Mapping[str, Any],
    rematch: str | None,
    running: RunOptions,
    stack: contextlib.ExitStack,
    terminal: Terminal,
    priority: int = 0,
) -> ServedModel:
    """Open a model with a placement, or whole on a device, and serve it until the stack is closed."""
    from placeit.backends.folder import TOKENIZER, tokenizer_folder
    from placeit.serve.served_model import ServedModel

    path, name = _named(given)
    what = to_run(CheckedOptions(path, **more), placement, rematch)
    session, chosen = stack.enter_context(what.open())
    with terminal.progress() as progress:
        known(session, chosen, progress, costs=running.moves)
    with naming(what.path):
        server = stack.enter_context(session.serve(chosen, **running.of_server(chosen, priority)))
    model, text = session.model, None
    if path.is_dir() and (tokenizer_folder(model.path) / TOKENIZER).is_file():
        name = name or path.name
        try:
            need("Text", "text", "tokenizers", "jinja2")
            from placeit.text.generating import TextModel

            text = TextModel(server, model)
        except PlaceitError as error:  # such as a model that makes vectors of texts
            typer.echo(f"texts: none: {error}", err=True)
    return ServedModel(name or model.name, server, model.inputs, model.outputs, text=text, **running.of_sequences())


def _workload(
    path: Path, more: Mapping[str, Any], running: RunOptions, stack: contextlib.ExitStack, terminal: Terminal
) -> list[ServedModel]:
    """Open the models of a placed workload, on shared devices, and serve them until the stack is closed."""
    from placeit.runtime.device_pool import shared_devices
    from placeit.workload.entries import Workload
    from placeit.workload.options import naming as naming_model

    stack.enter_context(shared_devices())
    served = []
    workload = Workload.load(path)
    for entry, priority in zip(workload, workload.priorities, strict=True):
        if entry.placement is None:
            raise UsageError(
                f"{path}: the model '{entry.name}' has no 'placement': serve the file that 'placeit optimize {path}' writes."
            )
        with naming_model(entry):
            options = {**more, "inputs": entry.inputs}
            name = f"{entry.name}={entry.model}"
            served.append(_model(name, entry.placement, options, None, running, stack, terminal, priority))
    return served


def _counted(model: ServedModel) -> dict[str, Any]:
    """Return the numbers of a model's requests by outcome, and their latencies."""
    stats = model.server.stats()
    p50, p95, p99 = stats.percentiles(0.5, 0.95, 0.99)
    latency = {"p50": p50, "p95": p95, "p99": p99}
    batches, steps = ({str(rows): runs for rows, runs in sorted(one.items())} for one in (stats.batches, stats.steps))
    return {"name": model.name, **stats.outcomes, "latency_s": latency, "batches": batches, "steps": steps}


def _show(console: Console, data: Mapping[str, Any]) -> None:
    from placeit.serving.stats import OUTCOMES

    for model in data["models"]:
        text.paragraph(console, f"{model['name']}: {', '.join(f'{model[what]} {what}' for what in OUTCOMES)}", indent=2)
