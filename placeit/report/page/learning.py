"""Section with the learning curves of placers that learn from measured runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np
from bokeh.models import ColumnDataSource, Range1d

from placeit.profiler.recording import Recording
from placeit.report.page.drawing import hover, legend_below, plot
from placeit.report.page.section import Picture, Section
from placeit.report.shown import name_of, number
from placeit.report.style import GREY

__all__ = ["learning"]


def learning(recording: Recording) -> Section | None:
    """Return a plot for each placer: measured placements, and the best so far; None without measurements for learning."""
    search = recording.search or {}
    curves = search.get("curves")
    unit = name_of(search.get("objective_unit") or "s")
    parts, texts = [], []
    for name, values in curves.items() if isinstance(curves, Mapping) else ():
        known = [value for one in values if (value := number(one)) is not None] if isinstance(values, Sequence) else []
        if len(known) < 2:
            continue
        factor, named = (1e3, "ms") if unit == "s" and max(known) < 2 else (1.0, unit)
        data = {
            "x": np.arange(1, len(known) + 1),
            "y": np.array(known) * factor,
            "best": np.array(list(accumulate(known, min))) * factor,
        }
        picture = plot(
            height=260,
            title=name_of(name),
            x_label="measured placement",
            y_label=f"objective, {named}",
            x_range=Range1d(start=0, end=len(known) + 1),
            y_range=Range1d(start=0, end=max(known) * factor * 1.05),
        )
        source = ColumnDataSource(data)
        dots = picture.scatter("x", "y", source=source, size=6, color=GREY, legend_label="measured")
        picture.step(
            "x", "best", source=source, mode="after", line_color="#0f7fc4", line_width=2, legend_label="best until then"
        )
        picture.add_tools(hover({"placement": "x", named: "y{0.000}", f"best, {named}": "best{0.000}"}, [dots]))
        legend_below(picture)
        first, best = known[0] * factor, min(known) * factor
        texts.append(
            f"{name_of(name)} measured {len(known)} placements: the first took {first:.3g} {named}, the best {best:.3g}."
        )
        parts.append(Picture(picture, texts[-1]))
    return Section("learning", "Learning", texts, parts) if parts else None
