"""Base classes of results, which show themselves in a notebook, as a table, as figures and as a page.

What draws them is in a layer above them all, :mod:`placeit.report.views`. As commands and placers are, it is found by name when
it is asked for, so that no result imports it.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

from placeit.core.registry import load_entry

__all__ = ["Drawn", "Shown"]

_HOME = "placeit.report.views"


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

    def plot_graph(self) -> Any:
        """Return a figure of the task graph by layers, each op in the colour and shape of its device.

        Raises:
            UsageError: matplotlib is not installed.
        """
        return _view("graph")(self)


def _view(name: str) -> Any:
    return load_entry("view", {name: EntryPoint(name, f"{_HOME}:{name}", "placeit.views")}, name)
