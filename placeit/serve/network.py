"""A server on HTTP and gRPC ports: its sockets, certificates and thread."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import math
import resource
import socket
import ssl
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import grpc
import uvicorn
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from placeit.core.errors import ExecutionError, UsageError
from placeit.core.memory import own_use, trim_memory
from placeit.core.threads import Gate, Job, Worker
from placeit.report.metrics import registry_of
from placeit.serve.arriving import Room
from placeit.serve.http import application
from placeit.serve.http_connection import Connection, Crowd
from placeit.serve.repository import Repository
from placeit.serve.rpc import make_server
from placeit.serve.served_model import ServedModel
from placeit.serve.service import Service
from placeit.serve.tracing import traces_of
from placeit.serve.triton_metrics import TritonMetrics

__all__ = ["NetworkServer", "Options"]

_KEEP_ALIVE_S = 75  # seconds; longer than clients keep an idle connection
_BACKLOG = 2048
_ACCEPTS = 16  # most connections that are accepted between two rounds of the event loop
_TRIM_S, _TRIM_BYTES = 30.0, 32 << 20  # seconds between two looks at memory, and growth at which free memory is returned
_OTHER_FILES = 256  # most open files of a process besides connections
_CONNECTIONS = 1024  # of each protocol, if files allow; each takes 8 kB (HTTP) or 17 kB (gRPC) while nothing is sent
_ROOM_BYTES = 16 << 20  # of requests and their answers, if the largest request does not take more


@dataclass(frozen=True)
class Options:
    """Options of a network server: addresses, security and limits.

    Attributes:
        host: address or name of this machine.
        port: port of HTTP; 0 for any free port.
        grpc_port: port of gRPC; 0 for any free port, None for no gRPC.
        tls: files of a certificate chain and its private key (PEM); None for no TLS.
        token: token that clients have to send; None for no token.
        max_bytes: most bytes of a request; over gRPC, the limit is lower if the inputs of all models are smaller.
        room_bytes: most bytes of all unfinished requests and their answers, over both protocols; None for 16 MiB, or for
            ``max_bytes`` if that is more.
        timeout_s: seconds in which a request has to arrive, and in which the client has to receive its answer.
        allowed_hosts: names other than ``localhost`` and its addresses by which clients may call a server that listens on this
            machine alone. The rule protects the server from web pages.
        connections: most open connections of HTTP, and of gRPC. Beyond it, the HTTP connections that have been idle longest are
            closed, and new gRPC connections are refused. None for 1,024, or fewer if the limit on open files is lower.
        shared_memory: whether clients may pass tensors in shared memory of this machine, which they name: they can then read
            and write what this process can read and write there.
        priority_levels: number of priorities of requests, of which 1 goes first; 0 for no priorities. Requests without a valid
            priority have the last one.
        tracer_provider: OpenTelemetry's provider of tracers, for spans of requests; None for the one of this process, if any.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = 8001
    tls: tuple[Path, Path] | None = None
    token: bytes | None = None
    max_bytes: int = 64 << 20
    room_bytes: int | None = None
    timeout_s: float = 60.0
    allowed_hosts: tuple[str, ...] = ()
    connections: int | None = None
    shared_memory: bool = False
    priority_levels: int = 0
    tracer_provider: Any = None

    @property
    def max_connections(self) -> int:
        """Most open connections of each protocol."""
        if self.connections is not None:
            return self.connections
        return min(_CONNECTIONS, max(16, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _OTHER_FILES) // 2))

    def room(self) -> Room:
        """Return the room that requests share. Raises UsageError if it is smaller than one of them may be."""
        size = max(_ROOM_BYTES, self.max_bytes) if self.room_bytes is None else self.room_bytes
        if size < self.max_bytes:
            raise UsageError(
                f"Requests may have {size} bytes together, but each of them {self.max_bytes}: allow more (--request-memory), "
                "or only smaller requests (--max-request-bytes)."
            )
        return Room(size, "bytes of requests are being read")


class NetworkServer:
    """Serves models over HTTP and gRPC, on a separate thread, until it is closed. A context manager.

    The servers of the models stay open when it is closed.

    Args:
        models: the models to serve.
        options: addresses, security and limits.
        repository: has further models, and loads and unloads them; None if the models stay as they are.

    Attributes:
        port: port of HTTP.
        grpc_port: port of gRPC; None without gRPC.
        socket: socket of HTTP.

    Raises:
        UsageError: two models have the same name; a port is taken or not allowed; or the TLS files cannot be read, or are not a
            certificate chain and its private key.
    """

    def __init__(
        self, models: Sequence[ServedModel], options: Options = Options(), repository: Repository | None = None
    ) -> None:
        self._options, self._repository, self._room = options, repository, options.room()
        absent = repository.absent if repository is not None and repository.changes else None
        kept = [] if repository is None else repository.models
        traces = traces_of(options.tracer_provider)
        self._service = Service(
            [*models, *kept],
            absent,
            shared_memory=options.shared_memory,
            priority_levels=options.priority_levels,
            traces=traces,
        )
        most = math.inf if absent is not None else self._service.max_bytes
        self._rpc_bytes = int(min(options.max_bytes, most))  # gRPC may keep this much of each call
        served = self._service.models
        metrics = registry_of(lambda: [(_labels(model), model.counts.stats()) for model in served.running])
        metrics.register(TritonMetrics(served))
        metrics.register(_Planned(self._service))
        self._rpc_credentials = None if options.tls is None else _grpc_credentials(*options.tls)
        self.socket = _bound(options.host, options.port)
        app = application(
            self._service,
            metrics,
            max_bytes=options.max_bytes,
            room=self._room,
            token=options.token,
            hosts=_hosts(self.socket, options),
            repository=repository,
        )
        crowd = Crowd(options.max_connections)
        self._http = _Http(_configured(app, options, crowd), crowd)
        self.port: int = self.socket.getsockname()[1]
        self.grpc_port: int | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._up = Gate()
        self._job = Job(self._work)
        self._worker = Worker("placeit network")
        self._worker.submit(self._job)
        self._up.wait()
        if self._loop is None:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    @property
    def models(self) -> list[ServedModel]:
        """The models that are served."""
        return [*self._service.models]

    @property
    def url(self) -> str:
        """Address of HTTP."""
        return f"http{'s' * (self._options.tls is not None)}://{_host(self._options.host)}:{self.port}"

    @property
    def connections(self) -> int:
        """Number of open connections of HTTP."""
        return len(self._http.server_state.connections)

    @property
    def grpc_address(self) -> str | None:
        """Address of gRPC; None without gRPC."""
        return None if self.grpc_port is None else f"{_host(self._options.host)}:{self.grpc_port}"

    def close(self) -> None:
        """Stop accepting requests, finish those that were accepted, and release the ports; a second call has no effect."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._stop.set)
        self._job.ended.wait()
        self._worker.close()
        self.socket.close()
        self._service.regions.unregister()
        self._job.result()

    def _work(self) -> None:
        try:
            asyncio.run(self._serve())
        finally:
            self._up.open()

    async def _serve(self) -> None:
        options, self._stop = self._options, asyncio.Event()
        async with contextlib.AsyncExitStack() as stack:
            if options.grpc_port is not None:
                rpc = make_server(
                    self._service,
                    max_bytes=self._rpc_bytes,
                    room=self._room,
                    token=options.token,
                    timeout_s=options.timeout_s,
                    connections=options.max_connections,
                    repository=self._repository,
                )
                stack.push_async_callback(rpc.stop, options.timeout_s)
                address = f"{_host(options.host)}:{options.grpc_port}"
                if options.grpc_port:  # gRPC would log that the port is taken, without a reason
                    _bound(options.host, options.grpc_port, "gRPC").close()
                try:
                    if self._rpc_credentials is None:
                        self.grpc_port = rpc.add_insecure_port(address)
                    else:
                        self.grpc_port = rpc.add_secure_port(address, self._rpc_credentials)
                except RuntimeError as error:
                    raise UsageError(f"gRPC cannot be served at {address}: the port is taken or not allowed.") from error
                await rpc.start()
            http = asyncio.ensure_future(self._http.serve([self.socket]))
            stack.push_async_callback(asyncio.wait, [http])
            stack.callback(setattr, self._http, "should_exit", True)
            await _until(self._http.up, http)
            self._loop = asyncio.get_running_loop()
            self._up.open()
            trimming = asyncio.ensure_future(_trim())
            stack.callback(trimming.cancel)
            if self._repository is not None:
                watching = asyncio.ensure_future(self._repository.serve(self._service))
                stack.callback(watching.cancel)
            await _until(self._stop, http)
            await self._service.drain()


def _labels(model: ServedModel) -> dict[str, str]:
    return {"model": model.name, "version": model.version}


async def _trim() -> None:
    """Return free memory to the system when a burst of requests has left a lot of it."""
    base = own_use().bytes
    while True:
        await asyncio.sleep(_TRIM_S)
        if own_use().bytes > base + _TRIM_BYTES:
            await asyncio.to_thread(trim_memory)


class _Planned:
    """Collector for prometheus-client of replaced files and of planned and measured rates."""

    def __init__(self, service: Service) -> None:
        self._service = service

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        replaced, planned, arriving = (
            GaugeMetricFamily(f"placeit_{name}", about, labels=["model", "version"])
            for name, about in (
                ("model_replaced", "1 if the file of the model was replaced after it was loaded."),
                ("planned_rate", "Requests per second that the model was placed for."),
                ("arrival_rate", "Requests per second that arrived in the last minute."),
            )
        )
        for model in self._service.models:
            labels, rates = [*_labels(model).values()], model.rates
            replaced.add_metric(labels, float(model.replaced))
            if rates is not None:
                planned.add_metric(labels, rates.planned)
                arriving.add_metric(labels, math.nan if rates.rate is None else rates.rate)
        yield from (replaced, planned, arriving)


async def _until(event: asyncio.Event, running: asyncio.Future[None]) -> None:
    """Wait for an event; raise an error if the running task ends first."""
    waiting = asyncio.ensure_future(event.wait())
    both: list[asyncio.Future[Any]] = [waiting, running]
    await asyncio.wait(both, return_when="FIRST_COMPLETED")
    waiting.cancel()
    if running.done():
        running.result()
        raise ExecutionError("The server of HTTP has ended.")


class _Http(uvicorn.Server):
    """A uvicorn server that sets :attr:`up` once it listens. It handles no signals, since it is not on the main thread."""

    def __init__(self, config: uvicorn.Config, crowd: Crowd) -> None:
        super().__init__(config)
        self.up, self._crowd = asyncio.Event(), crowd

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and set :attr:`up`."""
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(_BACKLOG)
        self.up.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections when their requests have ended, also those whose acceptance is under way."""
        self._crowd.closing = True
        await super().shutdown(sockets)


def _configured(app: Any, options: Options, crowd: Crowd) -> uvicorn.Config:
    certificate, key = options.tls or (None, None)
    connection = functools.partial(Connection, timeout_s=options.timeout_s, max_bytes=options.max_bytes, crowd=crowd)
    return uvicorn.Config(
        app,
        http=connection,  # type: ignore[arg-type] # it is called like the class
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=_ACCEPTS,  # asyncio accepts as many connections at a time as the backlog that it sets
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(options.timeout_s),
        ssl_certfile=certificate,
        ssl_keyfile=key,
    )


def _hosts(listening: socket.socket, options: Options) -> frozenset[str] | None:
    """Return the names by which clients may call a server; None for any, unless it listens on this machine alone."""
    if not ipaddress.ip_address(listening.getsockname()[0]).is_loopback:
        return None
    return frozenset({"localhost", "127.0.0.1", "::1", options.host.lower(), *map(str.lower, options.allowed_hosts)})


def _host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bound(host: str, port: int, protocol: str = "HTTP") -> socket.socket:
    """Return a socket that listens at a port. Raises UsageError."""
    if not 0 <= port <= 65535:
        raise UsageError(f"There is no port {port}: ports are numbers from 1 to 65535, and 0 stands for any that is free.")
    try:
        family, kind, number, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        found = socket.socket(family, kind, number)  # asyncio sets TCP_NODELAY only if the protocol is given
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(place)
            found.listen(_BACKLOG)
        except BaseException:
            found.close()
            raise
    except OSError as error:
        address = f"{_host(host)}:{port}"
        raise UsageError(f"{protocol} cannot be served at {address}: {error.strerror}. Choose another one.") from error
    return found


def _grpc_credentials(certificate: Path, key: Path) -> grpc.ServerCredentials:
    """Return the credentials of a server that has a certificate. Raises UsageError."""
    texts = []
    for path in (certificate, key):
        try:
            texts.append(path.read_bytes())
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password=lambda: "")
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"{certificate} and {key} are not a certificate chain and its private key, without a password, in PEM: {error}."
        ) from error
    return grpc.ssl_server_credentials([(texts[1], texts[0])])
