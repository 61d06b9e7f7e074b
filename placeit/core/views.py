"""Base classes of what shows itself: results in a notebook, as a table, as figures and as a page, servers while they serve.

What draws them is in a layer above them all, :mod:`placeit.report.views`. As commands and placers are, it is found by name when
it is asked for, so that no result imports it.
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
    """A result that can be drawn. What needs a run of its answer runs it, once, and keeps what that showed.

    Figures are of matplotlib, and belong to no window: ``savefig`` writes them as PNG, SVG or PDF.
    """

    def report(self, path: str | Path) -> None:
        """Write the result as a page for browsers: one HTML file that loads nothing.

        Raises:
            UsageError: Bokeh is not installed.
            FileError: the file cannot be written.
        """
        _view("page")(self, path)

    def plot_timeline(self) -> Any:
        """Return a figure of what ran when: measured, on the best single device, and simulated, on one time axis.

        Raises:
            UsageError: matplotlib is not installed, or nothing ran.
        """
        return _view("timeline")(self)

    def plot_utilization(self) -> Any:
        """Return a figure of the share of the time that each device spent in each state.

        Raises:
            UsageError: matplotlib is not installed, or nothing ran.
        """
        return _view("utilization")(self)

    def plot_candidates(self) -> Any:
        """Return a figure of what was simulated and measured of each candidate of a search, with 95 % intervals.

        Raises:
            UsageError: matplotlib is not installed, or nothing was searched for.
        """
        return _view("candidates")(self)

    def plot_pareto(self) -> Any:
        """Return a figure of the front of latency and energy of a search that was asked for it.

        Raises:
            UsageError: matplotlib is not installed, or no front was searched for.
        """
        return _view("pareto")(self)

    def plot_graph(self) -> Any:
        """Return a figure of the task graph by layers, each op in the colour and shape of its device.

        Raises:
            UsageError: matplotlib is not installed.
        """
        return _view("graph")(self)


class Closable(Protocol):
    """What shows the numbers of a server until it is closed. A context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None: ...

    def close(self) -> None:
        """End; a second call has no effect."""
        ...


class MetricsPage(Closable, Protocol):
    """A page of metrics."""

    @property
    def port(self) -> int:
        """Number of its port."""
        ...

    @property
    def url(self) -> str:
        """Its address."""
        ...


class Watched(ABC):
    """A server whose numbers can be watched while it serves."""

    @abstractmethod
    def stats(self) -> Any:
        """Return the numbers."""

    @abstractmethod
    def watch(self, watcher: Closable) -> None:
        """Close a watcher when the server is closed."""

    def live(self) -> Closable:
        """Show throughput, latencies, the queue and devices on standard error until the server, or what is returned, is closed.

        On a terminal, a view that changes twice a second; elsewhere a line every five seconds.

        Raises:
            ExecutionError: the server is closed.
        """
        view = _view("LiveView", _LIVE)(self.stats)
        self.watch(view)  # and from now on, the server ends it in any case
        view.start()
        watcher: Closable = view
        return watcher

    def metrics(self, port: int = 0) -> MetricsPage:
        """Serve the same numbers to Prometheus until the server, or what is returned, is closed.

        Args:
            port: of 127.0.0.1, so that nothing but this machine can read them; 0 for any that is free.

        Raises:
            UsageError: there is no such port, it is taken, or prometheus-client is not installed; says how to install it.
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
