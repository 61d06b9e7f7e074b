"""Serve the numbers of a server to Prometheus, in its text format or OpenMetrics', on a port of this machine."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from placeit.core.errors import UsageError
from placeit.core.extras import import_extra
from placeit.core.threads import Worker
from placeit.runtime.stats import ServerStats

if TYPE_CHECKING:
    from prometheus_client import Metric

__all__ = ["HOST", "Metrics"]

HOST = "127.0.0.1"  # nothing but this machine reaches it
_QUANTILES = 0.5, 0.95, 0.99
_LOOK_S, _SILENT_S = 0.1, 5.0  # between two looks whether to end, and until a client that says nothing is left


class Metrics:
    """A page of the numbers of a server, for Prometheus, until it is closed. A context manager.

    Args:
        port: of 127.0.0.1; 0 for any that is free.
        read: gives the numbers; None for an empty page until :attr:`read` is set.

    Attributes:
        read: gives the numbers.

    Raises:
        UsageError: prometheus-client is not installed, there is no such port, or it is taken.
    """

    def __init__(self, port: int = 0, read: Callable[[], ServerStats] | None = None) -> None:
        client, self._core = (
            import_extra("A page of metrics", "metrics", module) for module in ("prometheus_client", "prometheus_client.core")
        )
        if not 0 <= port <= 65535:
            raise UsageError(f"There is no port {port}: ports are numbers from 1 to 65535, and 0 stands for any that is free.")
        self.read = read
        registry = client.CollectorRegistry()
        registry.register(self)
        try:
            self._http = _Http((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(f"Metrics cannot be served on port {port}: {error.strerror}. Choose another one, or 0.") from error
        self._http.set_app(client.make_wsgi_app(registry))
        self._lock, self._closed = threading.Lock(), False
        self._worker = Worker("placeit metrics")
        self._worker.submit(partial(self._http.serve_forever, _LOOK_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Number of its port."""
        return self._http.server_port

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://{HOST}:{self.port}/metrics"

    def close(self) -> None:
        """End all threads and release the port; a second call has no effect."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self._http.shutdown()
        finally:
            self._http.server_close()
            self._worker.close()

    def collect(self) -> Iterator[Metric]:
        """Return the metrics, as collectors of prometheus-client do."""
        if self.read is None:
            return
        stats, core = self.read(), self._core
        outcomes = core.CounterMetricFamily("placeit_requests", "Requests that have ended, by outcome.", labels=["outcome"])
        for what, count in stats.outcomes.items():
            outcomes.add_metric([what], count)
        yield outcomes
        yield core.GaugeMetricFamily("placeit_queue_requests", "Requests that wait.", stats.waiting)
        yield core.GaugeMetricFamily("placeit_queue_limit_requests", "Requests that may wait.", stats.queue)
        yield core.GaugeMetricFamily("placeit_in_flight_requests", "Requests that have begun and not ended.", stats.in_flight)
        said = "Seconds from the arrival of a request to its end; quantiles are of the last thousand requests."
        latency = core.SummaryMetricFamily(
            "placeit_request_latency_seconds",
            said,
            count_value=stats.outcomes["succeeded"],
            sum_value=stats.latency_s,
        )
        for share, value in zip(_QUANTILES, stats.percentiles(*_QUANTILES), strict=True):
            latency.add_sample("placeit_request_latency_seconds", {"quantile": str(share)}, value)
        yield latency
        yield core.CounterMetricFamily(
            "placeit_replacements", "Placements that took the place of one that served.", stats.replacements
        )
        families: list[tuple[Any, str, str, Callable[[Any], float]]] = [
            (core.CounterMetricFamily, "placeit_device_busy_seconds", "Seconds that segments ran.", lambda one: one.busy_s),
            (core.GaugeMetricFamily, "placeit_device_up", "1 if the device is there, 0 if it is lost.", lambda one: one.up),
            (core.CounterMetricFamily, "placeit_device_losses", "How often the device was lost.", lambda one: one.losses),
            (core.CounterMetricFamily, "placeit_device_returns", "How often the device came back.", lambda one: one.returns),
        ]
        for family, name, about, value_of in families:
            metric = family(name, about, labels=["device", "node"])
            for device in stats.devices:
                metric.add_metric([device.name, device.node], float(value_of(device)))
            yield metric


class _Handler(WSGIRequestHandler):
    timeout = _SILENT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


class _Http(ThreadingMixIn, WSGIServer):
    """Answers each client on a thread of its own; those threads end when it is closed."""

    def __init__(self, *args: Any) -> None:
        self._clients: set[Any] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client."""
        self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Leave a client."""
        self._clients.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Leave all clients, and release the port."""
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have gone, or said nothing."""
