"""Serve the statistics of a server to Prometheus, as a page in its text format or in OpenMetrics format."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from socketserver import ThreadingMixIn
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from placeit.core.errors import UsageError
from placeit.core.extras import import_extra
from placeit.core.threads import Worker
from placeit.serving.stats import ServerStats

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric

__all__ = ["HOST", "Metrics", "Numbered", "registry_of"]

HOST = "127.0.0.1"  # only this machine can reach it
_QUANTILES = 0.5, 0.95, 0.99
_POLL_S, _TIMEOUT_S = 0.1, 5.0  # seconds between checks for a shutdown, and until a silent client is disconnected


Numbered: TypeAlias = Sequence[tuple[Mapping[str, str], ServerStats]]
"""Labels and statistics of servers; all servers have the same label names."""


def registry_of(read: Callable[[], Numbered]) -> CollectorRegistry:
    """Create a registry of prometheus-client that contains only the statistics of servers.

    Raises:
        UsageError: prometheus-client is not installed.
    """
    client = import_extra("A page of metrics", "metrics", "prometheus_client")
    registry: CollectorRegistry = client.CollectorRegistry()
    registry.register(_Collector(read))
    return registry


class _Collector:
    """Collector of the statistics, for prometheus-client."""

    def __init__(self, read: Callable[[], Numbered]) -> None:
        self._read = read

    def collect(self) -> Iterator[Metric]:
        """Return the metrics."""
        from prometheus_client import core

        servers = self._read()
        if not servers:
            return
        names, rows = [*servers[0][0]], [([*labels.values()], stats) for labels, stats in servers]
        outcomes = core.CounterMetricFamily(
            "placeit_requests", "Requests that have ended, by outcome.", labels=[*names, "outcome"]
        )
        for labels, stats in rows:
            for what, count in stats.outcomes.items():
                outcomes.add_metric([*labels, what], count)
        yield outcomes
        for family, name, about, number in (
            (core.GaugeMetricFamily, "placeit_queue_requests", "Requests that wait.", "waiting"),
            (core.GaugeMetricFamily, "placeit_queue_limit_requests", "Requests that may wait.", "queue"),
            (core.GaugeMetricFamily, "placeit_in_flight_requests", "Requests that have begun and not ended.", "in_flight"),
            (core.GaugeMetricFamily, "placeit_sequences", "Sequences that are open.", "sequences"),
            (core.GaugeMetricFamily, "placeit_state_bytes", "Size of the states of sequences.", "state_bytes"),
            (core.CounterMetricFamily, "placeit_replacements", "Placements that replaced a served one.", "replacements"),
        ):
            metric = family(name, about, labels=names)
            for labels, stats in rows:
                metric.add_metric(labels, getattr(stats, number))
            yield metric
        about = "Seconds from the arrival of a request to its end; quantiles are of the last thousand requests."
        latency = core.SummaryMetricFamily("placeit_request_latency_seconds", about, labels=names)
        for labels, stats in rows:
            latency.add_metric(labels, stats.outcomes["succeeded"], stats.latency_s)
            for share, value in zip(_QUANTILES, stats.percentiles(*_QUANTILES), strict=True):
                by = dict(zip(names, labels, strict=True)) | {"quantile": str(share)}
                latency.add_sample("placeit_request_latency_seconds", by, value)
        yield latency
        for name, about, number in (
            ("placeit_batch_rows", "Rows of each run of a model whose requests are joined.", "batches"),
            ("placeit_step_texts", "Texts in each step of a decoder whose steps are joined.", "steps"),
        ):
            histogram = core.HistogramMetricFamily(name, about, labels=names)
            for labels, stats in rows:
                if counts := getattr(stats, number):
                    histogram.add_metric(labels, *_distribution(counts))
            yield histogram
        for family, name, about, number in (
            (core.CounterMetricFamily, "placeit_device_busy_seconds", "Seconds that segments ran.", "busy_s"),
            (core.GaugeMetricFamily, "placeit_device_up", "1 if the device is there, 0 if it is lost.", "up"),
            (core.CounterMetricFamily, "placeit_device_losses", "How often the device was lost.", "losses"),
            (core.CounterMetricFamily, "placeit_device_returns", "How often the device came back.", "returns"),
        ):
            metric = family(name, about, labels=[*names, "device", "node"])
            for labels, stats in rows:
                for device in stats.devices:
                    metric.add_metric([*labels, device.name, device.node], float(getattr(device, number)))
            yield metric


def _distribution(counts: Mapping[int, int]) -> tuple[list[tuple[str, float]], float]:
    """Convert counts by number to the cumulative buckets of a histogram, by powers of two, and the sum of all numbers."""
    bounds = [1 << k for k in range(max(counts).bit_length() + 1)]
    buckets = [(str(float(bound)), float(sum(often for one, often in counts.items() if one <= bound))) for bound in bounds]
    return [*buckets, ("+Inf", float(sum(counts.values())))], float(sum(one * often for one, often in counts.items()))


class Metrics:
    """HTTP server of a page with a server's statistics for Prometheus, until it is closed. A context manager.

    Args:
        port: port of 127.0.0.1; 0 for any free port.
        read: returns the statistics; None for an empty page until :attr:`read` is set.

    Attributes:
        read: returns the statistics.

    Raises:
        UsageError: prometheus-client is not installed, or the port does not exist or is taken.
    """

    def __init__(self, port: int = 0, read: Callable[[], ServerStats] | None = None) -> None:
        self.read = read
        registry = registry_of(lambda: [] if self.read is None else [({}, self.read())])
        if not 0 <= port <= 65535:
            raise UsageError(f"There is no port {port}: ports are numbers from 1 to 65535, and 0 stands for any that is free.")
        try:
            self._http = _Http((HOST, port), _Handler)
        except OSError as error:
            raise UsageError(f"Metrics cannot be served on port {port}: {error.strerror}. Choose another one, or 0.") from error
        self._http.set_app(import_module("prometheus_client").make_wsgi_app(registry))
        self._lock, self._closed = threading.Lock(), False
        self._worker = Worker("placeit metrics")
        self._worker.submit(partial(self._http.serve_forever, _POLL_S))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    @property
    def port(self) -> int:
        """Port number of the page."""
        return self._http.server_port

    @property
    def url(self) -> str:
        """Address of the page."""
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


class _Handler(WSGIRequestHandler):
    timeout = _TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Log nothing."""


class _Http(ThreadingMixIn, WSGIServer):
    """HTTP server with a thread per client; these threads end when it is closed."""

    def __init__(self, *args: Any) -> None:
        self._clients: set[Any] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client."""
        self._clients.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Disconnect a client."""
        self._clients.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Disconnect all clients, and release the port."""
        for client in list(self._clients):
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that have disconnected or timed out."""
