"""Section with the timelines of the measured request, the best single device and the simulated request, on one axis."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import Column, ColumnDataSource, Range1d
from bokeh.plotting import figure
from bokeh.transform import factor_cmap

from placeit.profiler.recording import Recording
from placeit.report.page.drawing import hover, plot, rows, stacked, time_unit, zoom_buttons
from placeit.report.page.section import Picture, Section, Table
from placeit.report.shown import PATH, Bar, Timeline, device_names, share, timelines
from placeit.report.style import CRITICAL, GREY, Look, looks
from placeit.report.text import in_one_unit, seconds

__all__ = ["timeline"]

_TRACK_PX = 26  # height of a track
_MAX_BARS = 3_000  # maximum number of bars in a timeline


def timeline(recording: Recording) -> Section | None:
    """Return the timelines, and a table of the parts of the critical path; None if nothing ran."""
    shown = timelines(recording)
    if not shown:
        return None
    last = max(one.seconds for one in shown)
    factor, unit = time_unit(last)
    end = last * factor * 1.02
    axis = Range1d(start=0, end=end, bounds=None, min_interval=end * 1e-4)
    pictures = [_picture(one, axis, factor, unit, recording) for one in shown]
    drawn = stacked(pictures, f"time, {unit}")
    about = "; ".join(f"{one.title}: {seconds(one.seconds)}" for one in shown)
    text = (
        "The request of median latency, the median of the best single device in its race, and what was simulated, as far as "
        "these are known, on one time axis. Bars on the critical path have a thick border, and the line 'critical path' says "
        "what the latency consists of. Drag to move, Ctrl and the wheel to zoom, or use the buttons."
    )
    if any(len(one.bars) > _MAX_BARS for one in shown):
        text += f" Of each timeline, {_MAX_BARS} bars are drawn, those on the critical path and the longest."
    parts: list[Picture | Table] = [Picture(Column(zoom_buttons(axis, 0, end), drawn, sizing_mode="stretch_width"), about)]
    if (path := recording.critical_path) is not None:
        written = in_one_unit([path.latency_s])
        parts.append(
            Table(
                ("part of the critical path", "time", "share"),
                [
                    (what, written(took), share(took, path.latency_s))
                    for what, took in (
                        ("computing", path.computing_s),
                        ("cuts", path.cuts_s),
                        ("transfers", path.transfers_s),
                        ("waiting", path.waiting_s),
                        ("latency", path.latency_s),
                    )
                    if took is not None
                ],
                frozenset({1, 2}),
                title=f"What the latency consists of, mean of {len(recording.requests)} requests",
            )
        )
    return Section("timeline", "Timeline", [text], parts)


def _picture(shown: Timeline, axis: Range1d, factor: float, unit: str, recording: Recording) -> figure:
    picture = plot(
        height=_TRACK_PX * len(shown.tracks) + 52,
        x_range=axis,
        y_range=Range1d(start=-len(shown.tracks) + 0.4, end=0.6),
        title=f"{shown.title}: {seconds(shown.seconds)}",
    )
    of: dict[str | None, list[Bar]] = {}
    # critical bars are drawn last, above the others
    for bar in sorted(shown.bars, key=lambda bar: (bar.critical, bar.finish_s - bar.start_s))[-_MAX_BARS:]:
        of.setdefault(bar.device, []).append(bar)
    found = looks(device_names(recording))
    # a renderer for each device, since Bokeh would create a pattern for each bar if patterns differed within a renderer
    drawn = [_bars(picture, shown, bars, found.get(device or "", Look(GREY)), factor) for device, bars in of.items()]
    told = {"": "what", "of": "about", "on": "track", f"begun, {unit}": "left{0.000}", f"took, {unit}": "took{0.000}"}
    picture.add_tools(hover({**told, "request": "request"}, drawn))
    rows(picture, shown.tracks)
    return picture


def _bars(picture: figure, shown: Timeline, bars: list[Bar], look: Look, factor: float) -> Any:
    at = {track: -i for i, track in enumerate(shown.tracks)}
    marked = [bar.critical and bar.track != PATH for bar in bars]
    data = {
        "left": np.array([bar.start_s * factor for bar in bars]),
        "right": np.array([bar.finish_s * factor for bar in bars]),
        "bottom": np.array([at[bar.track] - 0.4 for bar in bars], np.float32),
        "top": np.array([at[bar.track] + 0.4 for bar in bars], np.float32),
        "alpha": np.array([0.35 if bar.other or bar.what == "waiting" else 1.0 for bar in bars], np.float32),
        "border": ["path" if one else "other" for one in marked],
        "width": np.array([2.5 if one else 0.5 for one in marked], np.float32),
        "what": [bar.what for bar in bars],
        "about": [bar.about for bar in bars],
        "track": [bar.track for bar in bars],
        "took": np.array([(bar.finish_s - bar.start_s) * factor for bar in bars], np.float32),
        "request": np.array([bar.request + 1 for bar in bars], np.int32),
    }
    return picture.quad(
        left="left",
        right="right",
        bottom="bottom",
        top="top",
        fill_color=look.color,
        fill_alpha="alpha",
        hatch_pattern=look.pattern or None,
        hatch_color="white",
        hatch_alpha=0.55,
        hatch_scale=8,
        line_color=factor_cmap("border", [CRITICAL, "rgba(128,128,128,0.6)"], ["path", "other"]),
        line_width="width",
        source=ColumnDataSource(data),
    )
