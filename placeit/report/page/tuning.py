"""Section of ``placeit tune``: latency over rate for each configuration of a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bokeh.models import ColumnDataSource, Span
from bokeh.plotting import figure

from placeit.profiler.recording import Recording
from placeit.report.page.drawing import hover, legend_below, plot, time_unit
from placeit.report.page.section import Picture, Section, Table
from placeit.report.shown import name_of, number, records
from placeit.report.style import CRITICAL, looks
from placeit.report.text import NOTHING, rate, seconds

__all__ = ["tuning_section"]

_MAX_DRAWN = 8  # maximum number of configurations in the plot


@dataclass(frozen=True)
class _Point:
    """Latency of a configuration at a rate, in seconds, its 95 % interval (empty if unknown), and whether it kept the limit."""

    rate: float
    latency: float
    low: float
    high: float
    kept: bool


def tuning_section(recording: Recording) -> Section | None:
    """Return a plot of latency over rate, and tables; None if no server was tuned."""
    found = recording.tuning or {}
    limit = found.get("limit")
    if not isinstance(limit, Mapping):
        return None
    percentile, most = number(limit.get("percentile")), number(limit.get("seconds"))
    if percentile is None or most is None:
        return None
    name = f"p{percentile:.0f}"
    rows = [(name_of(one.get("name")), one, _points(one, name)) for one in records(found.get("configurations"))]
    marked = frozenset(i for i, (_, one, _) in enumerate(rows) if one.get("name") == found.get("chosen"))
    titles = ("configuration", "in flight", "batch", "host per request", "predicted", "capacity", "rate in limit", "failed")
    table = [
        (
            of,
            str(one.get("in_flight") or NOTHING),
            str(one.get("max_batch") or 1),
            seconds(number(one.get("host_s"))),
            rate(number(one.get("predicted_per_s")) or None),
            rate(number(one.get("capacity_per_s")) or None),
            rate(number(one.get("rate_within_limit_per_s"))),
            name_of(one.get("failed") or ""),
        )
        for of, one, _ in rows
    ]
    points = [
        (of, rate(point.rate), seconds(point.latency), _interval(point), "yes" if point.kept else "no")
        for of, _, some in rows
        for point in some
    ]
    text = (
        f"Requests arrive at random times at each rate. The limit is {seconds(most)} for {name}; a configuration keeps it up "
        "to the highest rate at which its median over turns is within it, and the server keeps up."
    )
    drawn = [(of, some) for of, _, some in rows if some][:_MAX_DRAWN]
    parts: list[Picture | Table] = [Table(titles, table, frozenset({1, 2, 3, 4, 5}), marked)]
    if drawn:
        about = "; ".join(f"{of}: {', '.join(f'{rate(p.rate)} {seconds(p.latency)}' for p in some)}" for of, some in drawn)
        parts.insert(0, Picture(_picture(drawn, name, most), about))
        of_points = ("configuration", "rate", name, "95 % interval", "in limit")
        parts.append(Table(of_points, points, frozenset({1, 2, 3}), title="Latency by rate"))
    return Section("tuning", "Latency by rate", [text], parts)


def _points(one: Mapping[str, Any], percentile: str) -> list[_Point]:
    found = []
    for point in records(one.get("points")):
        at, latencies, ends = number(point.get("rate_per_s")), point.get("latency_s"), point.get("limited_ci_s")
        latency = number(latencies.get(percentile)) if isinstance(latencies, Mapping) else None
        low, high = (number(end) for end in ends) if isinstance(ends, Sequence) and len(ends) == 2 else (None, None)
        if at is not None and latency is not None:
            ends = (latency, latency) if low is None or high is None else (low, high)
            found.append(_Point(at, latency, *ends, point.get("kept") is True))
    return found


def _picture(drawn: Sequence[tuple[str, Sequence[_Point]]], percentile: str, limit: float) -> figure:
    factor, unit = time_unit(limit)
    picture = plot(height=360, x_label="requests per second", y_label=f"{percentile}, {unit}", y_axis_type="log")
    picture.add_layout(Span(location=limit * factor, dimension="width", line_color=CRITICAL, line_dash="dashed"))
    for (name, points), look in zip(drawn, looks(name for name, _ in drawn).values(), strict=True):
        data = ColumnDataSource(
            {
                "x": [point.rate for point in points],
                "y": [point.latency * factor for point in points],
                "low": [point.low * factor for point in points],
                "high": [point.high * factor for point in points],
                "fill": [1.0 if point.kept else 0.0 for point in points],
            }
        )
        picture.segment("x", "low", "x", "high", source=data, color=look.color)
        picture.line("x", "y", source=data, color=look.color, legend_label=name)
        dots = picture.scatter(
            "x", "y", source=data, size=9, marker=look.marker, color=look.color, fill_alpha="fill", legend_label=name
        )
        picture.add_tools(hover({"requests per second": "x{0.0}", f"{percentile}, {unit}": "y{0.00}"}, [dots]))
    legend_below(picture)
    return picture


def _interval(point: _Point) -> str:
    return f"{seconds(point.low)} .. {seconds(point.high)}" if point.low < point.high else NOTHING
