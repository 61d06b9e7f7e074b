"""Section with the latencies of requests under load, and the numbers of waiting requests and requests in flight."""

from __future__ import annotations

import numpy as np
from bokeh.models import ColumnDataSource, Range1d
from numpy.typing import NDArray

from placeit.profiler.recording import Recording
from placeit.report.page.drawing import hover, legend_below, plot, stacked, time_unit
from placeit.report.page.section import Picture, Section, Table
from placeit.report.text import seconds

__all__ = ["requests"]

_SHARES = (0.5, 0.9, 0.95, 0.99, 1.0)


def requests(recording: Recording) -> Section | None:
    """Return plots of the latency of each request and of the queue; None if no two requests overlapped."""
    found = sorted(recording.requests, key=lambda one: one.arrived_s)
    ends = np.array([one.ended_s for one in found])
    arrived = np.array([one.arrived_s for one in found])
    begun = np.array([one.begun_s for one in found])
    if len(found) < 2 or not (arrived[1:] < np.maximum.accumulate(ends)[:-1]).any():
        return None
    took = ends - arrived
    factor, unit = time_unit(float(ends.max()))
    scale, of = time_unit(float(took.max()))
    axis = Range1d(start=float(arrived.min()) * factor, end=float(ends.max()) * factor)
    latency = plot(height=220, x_range=axis, y_label=f"latency, {of}", title="Latency, from arrival to end")
    latency.y_range = Range1d(start=0, end=float(took.max()) * scale * 1.08)
    data = {"x": arrived * factor, "y": took * scale, "request": np.arange(1, len(found) + 1)}
    data["took"] = np.array([seconds(one) for one in took.tolist()])
    dots = latency.scatter("x", "y", source=ColumnDataSource(data), size=5, color="#0f7fc4", alpha=0.7)
    latency.add_tools(hover({"request": "request", "latency": "took"}, [dots]))
    x, waiting = _steps(arrived, begun)
    also, flying = _steps(begun, ends)
    queue = plot(height=190, x_range=axis, y_label="requests", title="Waiting, and in flight")
    queue.y_range = Range1d(start=0, end=max(1.0, float(waiting.max()), float(flying.max())) * 1.08)
    queue.step(x * factor, waiting, mode="after", line_color="#d55e00", line_width=1.5, legend_label="waiting")
    flight = queue.step(also * factor, flying, mode="after", line_color="#0f7fc4", line_width=1.5, legend_label="in flight")
    flight.glyph.line_dash = "dashed"
    legend_below(queue)
    grid = stacked([latency, queue], f"time, {unit}")
    rate = len(found) / float(ends.max() - arrived.min())
    most = f"at most {waiting.max():.0f} waited, and {flying.max():.0f} were in flight"
    text = f"{len(found)} requests, {rate:.3g} a second; {most}."
    cells = [f"{seconds(float(np.quantile(took, part, method='inverted_cdf')))}" for part in _SHARES]
    titles = ("latency", "median", "90 %", "95 %", "99 %", "worst")
    table = Table(titles, [("from arrival to end", *cells)], frozenset(range(1, 6)))
    return Section("requests", "Requests under load", [text], [table, Picture(grid, text)])


def _steps(begins: NDArray[np.float64], ends: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sorted ends of intervals, and the number of intervals that are open from each of them on."""
    moments = np.concatenate([begins, ends])
    change = np.concatenate([np.ones(len(begins)), -np.ones(len(ends))])
    order = np.lexsort((change, moments))  # an interval that ends at a moment does not overlap one that begins then
    return moments[order], np.maximum(change[order].cumsum(), 0)
