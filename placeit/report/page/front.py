"""Section with the Pareto front of latency and energy of a search."""

from __future__ import annotations

from bokeh.models import ColumnDataSource
from bokeh.plotting import figure

from placeit.profiler.recording import Recording
from placeit.report.page.drawing import hover, legend_below, plot, time_unit
from placeit.report.page.section import Picture, Section, Table
from placeit.report.shown import FrontRow, front
from placeit.report.style import GREY
from placeit.report.text import amount, seconds

__all__ = ["front_section"]

_BLUE = "#0f7fc4"


def front_section(recording: Recording) -> Section | None:
    """Return a plot of the front, and a table of its points; None if the search has no front."""
    found = front(recording.search)
    if not found:
        return None
    about = "; ".join(f"{row.name}: {seconds(row.latency_s)}, {amount(row.energy_j, 'J')}" for row in found)
    titles = ("point", "placement", "ops by device", "latency", "energy", "values are", "file")
    table = [
        (
            str(number),
            f"{row.name} (chosen)" if row.chosen else row.name,
            row.where,
            seconds(row.latency_s),
            amount(row.energy_j, "J"),
            row.source,
            row.file,
        )
        for number, row in enumerate(found, 1)
    ]
    chosen = frozenset(i for i, row in enumerate(found) if row.chosen)
    text = "No placement that was found is better than one of these in latency or energy without being worse in the other."
    parts: list[Picture | Table] = [Picture(_picture(found), about), Table(titles, table, frozenset({0, 3, 4}), chosen)]
    return Section("front", "Latency and energy", [text], parts)


def _picture(shown: list[FrontRow]) -> figure:
    factor, unit = time_unit(max(row.latency_s for row in shown))
    picture = plot(height=320, x_label=f"latency, {unit}", y_label="energy, J")
    picture.step([row.latency_s * factor for row in shown], [row.energy_j for row in shown], mode="after", color=GREY)
    for known in ("measured", "simulated"):
        mine = [row for row in shown if row.source.startswith(known)]
        data = ColumnDataSource(
            {
                "x": [row.latency_s * factor for row in mine],
                "y": [row.energy_j for row in mine],
                "name": [row.name for row in mine],
                "where": [row.where for row in mine],
                "color": [_BLUE if row.chosen else GREY for row in mine],
                "fill": [1.0 if known == "measured" else 0.0] * len(mine),
            }
        )
        if mine:
            dots = picture.scatter(
                "x", "y", source=data, size=11, color="color", fill_alpha="fill", line_width=2, legend_label=known
            )
            picture.add_tools(hover({"": "name", "on": "where", f"latency, {unit}": "x", "energy, J": "y"}, [dots]))
    legend_below(picture)
    return picture
