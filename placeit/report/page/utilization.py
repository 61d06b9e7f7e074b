"""Sections with the time that devices spent in each state, and with samples of meters during the runs."""

from __future__ import annotations

from bokeh.models import ColumnDataSource, LegendItem, Range1d

from placeit.devices.meters import Series
from placeit.profiler.recording import Recording
from placeit.report.page.drawing import hover, legend_below, plot, rows, stacked, time_unit
from placeit.report.page.section import Picture, Section, Table
from placeit.report.shown import name_of, share, states
from placeit.report.style import STATES
from placeit.report.text import in_one_unit, seconds

__all__ = ["samples", "utilization"]

_TRACK_PX = 34  # height of a track


def utilization(recording: Recording) -> Section | None:
    """Return a stacked bar for each device with the time in each state, and a table; None if nothing ran."""
    if not recording.states or recording.wall_s <= 0:
        return None
    names = [name_of(one.device) for one in recording.states]
    times = [states(one) for one in recording.states]
    shown = [state for state in STATES if any(one[state] > 0 for one in times)]
    picture = plot(
        frame_height=_TRACK_PX * len(names),
        x_label="share of the time, %",
        x_range=Range1d(start=0, end=100),
        y_range=Range1d(start=-len(names) + 0.4, end=0.6),
    )
    left, items, bars = [0.0] * len(names), [], []
    for state in shown:
        right = [at + 100 * one[state] / recording.wall_s for at, one in zip(left, times, strict=True)]
        data = {
            "left": left,
            "right": right,
            "y": [-i for i in range(len(names))],
            "device": names,
            "state": [state] * len(names),
            "took": [seconds(one[state]) for one in times],
            "share": [share(one[state], recording.wall_s) for one in times],
        }
        look = STATES[state]
        bar = picture.hbar(
            y="y",
            left="left",
            right="right",
            height=0.7,
            fill_color=look.color,
            line_color=None,
            hatch_pattern=look.pattern or " ",
            hatch_color="white",
            hatch_alpha=0.6,
            hatch_scale=8,
            source=ColumnDataSource(data),
        )
        items.append(LegendItem(label=state, renderers=[bar]))
        bars.append(bar)
        left = right
    picture.add_tools(hover({"": "state", "device": "device", "took": "took", "share": "share"}, bars))
    legend_below(picture, items)
    rows(picture, names)
    written = in_one_unit(sum(one.values()) for one in times)
    table = Table(
        ("state", *names),
        [
            *((state, *(f"{written(one[state])} ({share(one[state], recording.wall_s)})" for one in times)) for state in shown),
            ("all", *(written(sum(one.values())) for one in times)),
        ],
        frozenset(range(1, len(names) + 1)),
    )
    busy = (f"{name}: executing {share(one['executing'], recording.wall_s)}" for name, one in zip(names, times, strict=True))
    about = "; ".join(busy)
    many = f"What each device did in the {seconds(recording.wall_s)} of {len(recording.requests)} requests."
    return Section("utilization", "Utilisation", [many], [Picture(picture, about), table])


def samples(recording: Recording) -> Section | None:
    """Return plots of the samples of CPU and memory of the process and of device meters; None without samples."""
    series = [one for one in recording.samples if one.time_s]
    if not series:
        return None
    factor, unit = time_unit(max(one.time_s[-1] for one in series))
    first, last = min(one.time_s[0] for one in series), max(one.time_s[-1] for one in series)
    axis = Range1d(start=first * factor, end=max(last * factor, first * factor + 1e-9))
    pictures = []
    for one in series:
        scale, named = _scale(one.unit, max(one.values))
        what = one.name if one.device is None else f"{one.name}, {one.device}"
        picture = plot(height=150, x_range=axis, title=f"{name_of(what)}, {named}")
        values = [value * scale for value in one.values]
        picture.y_range = Range1d(start=min(0.0, *values), end=max(*values, 0.0) * 1.08 or 1.0)
        source = ColumnDataSource({"x": [at * factor for at in one.time_s], "y": values})
        drawn = picture.line("x", "y", source=source, line_color="#0f7fc4", line_width=1.5)
        picture.add_tools(hover({f"time, {unit}": "x", named: "y"}, [drawn]))
        pictures.append(picture)
    grid = stacked(pictures, f"time, {unit}")
    table = Table(("meter", "of", "least", "mean", "most"), [_extremes(one) for one in series], frozenset({2, 3, 4}))
    return Section("meters", "Meters", (), [Picture(grid, "Values over time; the table has their extremes."), table])


def _extremes(series: Series) -> tuple[str, ...]:
    values = series.values
    found = (min(values), sum(values) / len(values), max(values))
    return (name_of(series.name), name_of(series.device or "the process"), *(_value(value, series.unit) for value in found))


def _scale(unit: str, most: float) -> tuple[float, str]:
    if unit == "share":
        return 100.0, "%"
    if unit == "B":
        return (1e-9, "GB") if most >= 1e9 else (1e-6, "MB")
    return 1.0, unit


def _value(value: float, unit: str) -> str:
    scale, named = _scale(unit, value)
    return f"{value * scale:.3g} {named}"
