"""Section that compares simulated with measured times."""

from __future__ import annotations

import numpy as np
from bokeh.models import ColumnDataSource, Range1d, Row
from bokeh.plotting import figure

from placeit.profiler.recording import Recording
from placeit.report.page.drawing import hover, plot
from placeit.report.page.section import Picture, Section
from placeit.report.shown import candidates, device_names, name_of, number
from placeit.report.style import GREY, looks
from placeit.report.text import percent, seconds

__all__ = ["prediction"]


def prediction(recording: Recording) -> Section | None:
    """Return a comparison of simulated and measured times of segments and candidates; None if there is nothing to compare."""
    pictures: list[figure] = []
    texts: list[str] = []
    segments = [
        (f"segment {s}", name_of(one.device), one.predicted_s, one.measured_s)
        for s, one in enumerate(recording.plan.segments if recording.plan is not None else ())
        if one.predicted_s and one.measured_s
    ]
    if segments:
        texts.append(_error("Segments", [(x, y) for _, _, x, y in segments if x and y]))
        look = looks(device_names(recording))
        rows = [(what, x, y, look[device].color, look[device].marker, device) for what, device, x, y in segments if x and y]
        pictures.append(_scatter(rows, "Segments"))
    if recording.predicted is not None and recording.critical_path is not None:
        simulated, measured = recording.predicted.makespan_s, recording.critical_path.latency_s
        off = f", {percent(abs(simulated - measured) / measured)} off" if measured > 0 else ""
        texts.append(f"A request: simulated {seconds(simulated)}, measured {seconds(measured)} in the mean{off}.")
    raced = [(row.name, row.simulated, row.measured) for row in candidates(recording.search) if row.simulated and row.measured]
    if raced and (recording.search or {}).get("objective_unit", "s") == "s":
        error = (recording.search or {}).get("simulator")
        known = error if isinstance(error, dict) else {}
        titles = {"mape": "mean error", "pearson": "Pearson", "spearman": "Spearman"}
        values = {title: value for key, title in titles.items() if (value := number(known.get(key))) is not None}
        figures = [f"{title} {percent(value) if title == 'mean error' else f'{value:.3g}'}" for title, value in values.items()]
        texts.append(f"Candidates, predicted before they ran: {', '.join(figures) or 'see the picture'}.")
        rows = [(name, x, y, "#0f7fc4", "circle", "") for name, x, y in raced if x and y]
        pictures.append(_scatter(rows, "Candidates"))
    if not texts:
        return None
    beside = Row(*pictures, styles={"flex-wrap": "wrap"}, sizing_mode="stretch_width")
    parts = [Picture(beside, " ".join(texts))] if pictures else []
    return Section("prediction", "Simulated against measured", texts, parts)


def _error(what: str, pairs: list[tuple[float, float]]) -> str:
    off = np.array([abs(x - y) / y for x, y in pairs])
    middle = f", median {percent(float(np.median(off)))}" if len(off) > 1 else ""
    return f"{what}, {len(off)}: mean error {percent(float(off.mean()))}{middle}."


def _scatter(rows: list[tuple[str, float, float, str, str, str]], title: str) -> figure:
    largest = max(max(x, y) for _, x, y, *_ in rows)
    factor, unit = (1e3, "ms") if largest >= 2e-3 else (1e6, "us")
    low, high = min(min(x, y) for _, x, y, *_ in rows) * factor / 1.3, largest * factor * 1.3
    picture = plot(
        height=360,
        title=title,
        x_label=f"simulated, {unit}",
        y_label=f"measured, {unit}",
        x_axis_type="log",
        y_axis_type="log",
        x_range=Range1d(start=low, end=high),
        y_range=Range1d(start=low, end=high),
    )
    data = {
        "x": [x * factor for _, x, *_ in rows],
        "y": [y * factor for _, _, y, *_ in rows],
        "what": [row[0] for row in rows],
        "simulated": [seconds(row[1]) for row in rows],
        "measured": [seconds(row[2]) for row in rows],
        "color": [row[3] for row in rows],
        "marker": [row[4] for row in rows],
        "device": [row[5] for row in rows],
        "off": [percent(abs(row[1] - row[2]) / row[2]) for row in rows],
    }
    picture.line([low, high], [low, high], line_color=GREY, line_dash="dashed")
    drawn = picture.scatter("x", "y", source=ColumnDataSource(data), size=9, marker="marker", color="color", fill_alpha=0.7)
    told = {"": "what", "on": "device", "simulated": "simulated", "measured": "measured", "error": "off"}
    picture.add_tools(hover(told, [drawn]))
    picture.update(min_width=300, max_width=520)
    return picture
