"""Base classes of objects with views: results as tables and pages, and servers while they serve.

The code that draws them is in a higher layer, :mod:`placeit.report.views`. It is found by name when it is needed, as commands
and placers are, so that no result imports it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib.metadata import EntryPoint
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from placeit.core.registry import load_entry

__all__ = ["Closable", "Drawn", "MetricsPage", "Shown", "Watched"]

_HOME, _LIVE, _METRICS = "placeit.report.views", "placeit.report.live", "placeit.report.metrics"


class Shown:
    """A result that notebooks show as a table."""

    def to_dataframe(self) -> Any:
        """Return the result as a table: a ``pandas.DataFrame``.

        Raises:
            UsageError: pandas is not installed; says how to install it.
        """
        return _view("frame")(self)

    def _repr_html_(self) -> str:
        text: str = _view("html")(self)
        return text


class Drawn(Shown):
    """A result that can be drawn. If that needs a run of the placement, it is run once, and its recording is kept."""

    def report(self, path: str | Path) -> None:
        """Write the result as a page for browsers: one HTML file that loads nothing.

        Raises:
            UsageError: Bokeh is not installed.
            FileError: the file cannot be written.
        """
        _view("page")(self, path)


class Closable(Protocol):
    """A view of a server's numbers until it is closed. A context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None: ...

    def close(self) -> None:
        """End the view; a second call has no effect."""
        ...


class MetricsPage(Closable, Protocol):
    """A page that serves metrics."""

    @property
    def port(self) -> int:
        """Port number of the page."""
        ...

    @property
    def url(self) -> str:
        """Address of the page."""
        ...


class Watched(ABC):
    """A server whose numbers can be watched while it serves."""

    @abstractmethod
    def stats(self) -> Any:
        """Return the server's statistics."""

    @abstractmethod
    def watch(self, watcher: Closable) -> None:
        """Register a watcher, which is closed with the server."""

    def live(self) -> Closable:
        """Show throughput, latencies, the queue and devices on standard error, until the server or the returned view is closed.

        On a terminal the view is updated twice a second; elsewhere a line is printed every five seconds.

        Raises:
            ExecutionError: the server is closed.
        """
        view = _view("LiveView", _LIVE)(self.stats)
        self.watch(view)  # from now on, the server closes the view in any case
        view.start()
        watcher: Closable = view
        return watcher

    def metrics(self, port: int = 0) -> MetricsPage:
        """Serve the server's statistics to Prometheus until the server, or the returned page, is closed.

        Args:
            port: port of 127.0.0.1, so that only this machine can read the page; 0 for any free port.

        Raises:
            UsageError: the port does not exist or is taken, or prometheus-client is not installed (says how to install it).
            ExecutionError: the server is closed.
        """
        page: MetricsPage = _view("Metrics", _METRICS)(port, self.stats)
        try:
            self.watch(page)
        except BaseException:
            page.close()
            raise
        return page


def _view(name: str, home: str = _HOME) -> Any:
    return load_entry("view", {name: EntryPoint(name, f"{home}:{name}", "placeit.views")}, name)
