"""Options of ``placeit serve``: how requests run, which models are loaded and unloaded, and network access."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from placeit.cli.nodes import OnLoss, OnLossOption
from placeit.cli.values import duration
from placeit.core.errors import UsageError

if TYPE_CHECKING:
    from placeit.core.placement import Placement
    from placeit.serve.network import Options

__all__ = ["NetworkOptions", "RepositoryOptions", "RunOptions", "read_token"]

_MAX_INT = (1 << 31) - 1  # of options of gRPC


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
        ),
    ] = None
    refine: Annotated[
        bool, typer.Option("--refine", help="Look for a better placement while serving, with a small share of the requests.")
    ] = False
    on_loss: OnLossOption = OnLoss.FAIL
    state_memory: Annotated[
        str | None,
        typer.Option(
            "--state-memory",
            metavar="SIZE",
            help="Memory for the states of all sequences of a model, such as 2GB; default: half of what is free.",
        ),
    ] = None
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Keep the inputs of sequences, to recompute states that are lost.")
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
        """True if the server may change its placement, for which it needs costs."""
        return self.refine or self.on_loss is OnLoss.REPLACE

    def of_server(self, placement: Placement, priority: int = 0) -> dict[str, Any]:
        """Return the options of :meth:`placeit.Session.serve` for a placement and a priority."""
        return {
            "queue": self.queue,
            "max_batch": self._rows(tuned=placement.serving is not None),
            "batch_delay": self.batch_delay,
            "in_flight": self.in_flight,
            "refine": self.refine,
            "on_loss": self.on_loss.value,
            "state_memory": self.state_memory,
            "priority": priority,
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
    """Options of models that are loaded and unloaded."""

    repository: Annotated[
        Path | None,
        typer.Option(
            "--repository", metavar="DIR", help="Serve the bundles of a folder: NAME.placeit, or NAME/VERSION.placeit."
        ),
    ] = None
    watch: Annotated[
        bool, typer.Option("--watch", help="Load bundles that come or change, and unload bundles that leave the folder.")
    ] = False
    control: Annotated[
        bool, typer.Option("--control", help="Let clients load and unload bundles, by /v2/repository/models/NAME/load.")
    ] = False
    follow_rates: Annotated[
        bool,
        typer.Option(
            "--follow-rates",
            help="Place a workload anew when requests arrive at other rates than it was placed for, and move what that moves.",
        ),
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
    no_grpc: Annotated[bool, typer.Option("--no-grpc", help="Serve HTTP only.")] = False
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
    priority_levels: Annotated[
        int,
        typer.Option(
            "--priority-levels",
            metavar="N",
            min=0,
            max=_MAX_INT,
            help="Let clients ask for a priority of 1, which goes first, to N, which is the default; 0: all have the same one.",
        ),
    ] = 0
    max_request_bytes: Annotated[
        int, typer.Option("--max-request-bytes", metavar="N", min=1, max=_MAX_INT, help="Most bytes of a request.")
    ] = 64 << 20
    request_memory: Annotated[
        str | None,
        typer.Option(
            "--request-memory",
            metavar="SIZE",
            help="Memory for requests and their answers, over both protocols together; default: 16MiB, or as much as "
            "--max-request-bytes.",
        ),
    ] = None
    max_connections: Annotated[
        int | None,
        typer.Option(
            "--max-connections",
            metavar="N",
            min=1,
            max=_MAX_INT,
            help="Open connections of each protocol; default: 1024, or what the limit on open files allows.",
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
        from placeit.core.units import parse_quantity
        from placeit.serve.network import Options

        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError("TLS needs both a certificate and its key: give --tls-cert and --tls-key, or neither.")
        if not 1 <= self.client_timeout * 1e3 <= _MAX_INT:
            raise UsageError(f"--client-timeout is {self.client_timeout:g} seconds; it must be from 1 ms to 24 days.")
        return Options(
            host=self.host,
            port=self.port,
            grpc_port=None if self.no_grpc else self.grpc_port,
            tls=None if self.tls_cert is None or self.tls_key is None else (self.tls_cert, self.tls_key),
            token=None if self.token_file is None else read_token(self.token_file).encode(),
            max_bytes=self.max_request_bytes,
            room_bytes=None if self.request_memory is None else int(parse_quantity(self.request_memory, "memory")),
            connections=self.max_connections,
            timeout_s=self.client_timeout,
            allowed_hosts=tuple(self.allow_host or ()),
            shared_memory=self.shared_memory,
            priority_levels=self.priority_levels,
        )


def read_token(path: Path) -> str:
    """Return the token in a file. Raises UsageError if it holds anything else, or FileError."""
    from placeit.core.files import read_text

    token = read_text(path).strip()
    if not token.isascii() or len(token.split()) != 1:
        raise UsageError(f"{path} is to hold a token: ASCII text without spaces, and nothing else.")
    return token
