"""Section with the simulated and measured values of a search's candidates."""

from __future__ import annotations

from collections.abc import Mapping

from bokeh.models import ColumnDataSource, Range1d, Whisker
from bokeh.plotting import figure

from placeit.profiler.recording import Recording
from placeit.report.page.drawing import hover, legend_below, plot, rows
from placeit.report.page.section import Picture, Section, Table
from placeit.report.shown import CandidateRow, candidates
from placeit.report.style import GREY
from placeit.report.text import NOTHING, amount, in_one_unit

__all__ = ["candidate_section"]

_MAX_DRAWN = 30  # maximum number of candidates in the plot
_BLUE, _ORANGE = "#0f7fc4", "#c77f00"


def candidate_section(recording: Recording) -> Section | None:
    """Return a plot of the candidates with their intervals, and a table; None without a search."""
    found = candidates(recording.search)
    if not found:
        return None
    search = recording.search or {}
    unit = str(search.get("objective_unit") or "s")
    times = in_one_unit(value for row in found for value in (row.simulated, row.measured, row.high))
    written = times if unit == "s" else lambda value: amount(value, unit)
    parts: list[Picture | Table] = []
    drawn = [row for row in found if row.measured is not None or row.simulated is not None][:_MAX_DRAWN]
    if drawn:
        about = "; ".join(f"{row.name}: {written(row.measured)}" for row in drawn if row.measured is not None)
        parts.append(Picture(_picture(drawn, unit), about or "No candidate was measured."))
    titles = ["candidate", "placer", "ops by device", "segments", "simulated", "measured", "95 % interval", "race", "note"]
    by_meter = any(row.joules is not None for row in found)  # then the objective is measured by meters
    titles[7:7] = ["joules by the model"] if by_meter else []
    table = [
        (
            f"{row.name} (chosen)" if row.chosen else row.name,
            row.placer,
            row.where,
            NOTHING if row.segments is None else str(row.segments),
            written(row.simulated),
            written(row.measured),
            NOTHING if row.low is None or row.high is None else f"{written(row.low)} .. {written(row.high)}",
            *([written(row.modelled)] if by_meter else []),
            NOTHING if row.race is None else str(row.race + 1),
            row.note,
        )
        for row in found
    ]
    chosen = frozenset(i for i, row in enumerate(found) if row.chosen)
    parts.append(Table(titles, table, frozenset(range(3, len(titles) - 1)), chosen))
    texts = [f"Objective: {search.get('objective', 'latency')}. Times of different races do not compare; less is better."]
    if unit == "J" and isinstance(search.get("energy"), Mapping):
        by = "meters" if search["energy"].get("source") == "measured" else "a power model, as not every device has a meter"
        texts.append(f"Energy of runs is by {by}.")
    return Section("candidates", "Candidates", texts, parts)


def _picture(shown: list[CandidateRow], unit: str) -> figure:
    largest = max(value for row in shown for value in (row.simulated, row.measured, row.high) if value is not None)
    factor, named = (1e3, "ms") if unit == "s" and largest < 2 else (1.0, unit)
    names = [f"{row.name} *" if row.chosen else row.name for row in shown]
    picture = plot(
        frame_height=24 * len(shown) + 20,
        x_label=f"objective, {named}",
        x_range=Range1d(start=0, end=largest * factor * 1.05),
        y_range=Range1d(start=-len(shown) + 0.4, end=0.6),
    )
    measured = [(i, row) for i, row in enumerate(shown) if row.measured is not None]
    simulated = [(i, row) for i, row in enumerate(shown) if row.simulated is not None]
    data = ColumnDataSource(
        {
            "x": [(row.measured or 0.0) * factor for _, row in measured],
            "y": [-i for i, _ in measured],
            "low": [(row.low if row.low is not None else row.measured or 0.0) * factor for _, row in measured],
            "high": [(row.high if row.high is not None else row.measured or 0.0) * factor for _, row in measured],
            "name": [row.name for _, row in measured],
            "color": [_BLUE if row.chosen else GREY for _, row in measured],
        }
    )
    ends = Whisker(base="y", lower="low", upper="high", dimension="width", source=data, line_color=GREY, line_width=2)
    ends.level = "underlay"
    picture.add_layout(ends)
    dots = picture.scatter("x", "y", source=data, size=11, color="color", legend_label="measured, 95 % interval")
    other = ColumnDataSource(
        {
            "x": [(row.simulated or 0.0) * factor for _, row in simulated],
            "y": [-i for i, _ in simulated],
            "name": [row.name for _, row in simulated],
        }
    )
    marks = picture.scatter("x", "y", source=other, size=11, marker="diamond", legend_label="simulated before")
    marks.glyph.update(fill_color=None, line_color=_ORANGE, line_width=2)
    picture.add_tools(hover({"": "name", named: "x"}, [dots, marks]))
    legend_below(picture)
    rows(picture, names)
    return picture
