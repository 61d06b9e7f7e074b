"""Common parts of the plots of a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bokeh.layouts import GridPlot, gridplot
from bokeh.models import (
    BoxZoomTool,
    Button,
    CustomJS,
    Div,
    FixedTicker,
    HoverTool,
    Legend,
    LegendItem,
    PanTool,
    PlainText,
    Range1d,
    ResetTool,
    Row,
    SaveTool,
    UIElement,
    WheelZoomTool,
)
from bokeh.plotting import figure

__all__ = ["hover", "legend_below", "plain_text", "plot", "rows", "stacked", "time_unit", "zoom_buttons"]

_LABEL, _TITLE = 24, 24  # pixels of an axis label, and of a title
_LEGEND = """
.bk-grid { display: flex; flex-wrap: wrap; width: fit-content; max-width: min(1080px, 100vw - 130px); }
.bk-item .bk-label { color: var(--ink) !important; }
"""
_ZOOM = """
const span = range.end - range.start;
const by = {in: [0.25, -0.25], out: [-0.5, 0.5], back: [-0.5, -0.5], on: [0.5, 0.5]}[what];
if (by == null) range.setv({start: first, end: last});
else range.setv({start: range.start + by[0] * span, end: range.end + by[1] * span});
"""
_BUTTONS = {"Zoom in": "in", "Zoom out": "out", "Earlier": "back", "Later": "on", "Show all": "all"}


def plot(
    *, height: int | None = None, x_label: str = "", y_label: str = "", tools: Sequence[Any] = (), **options: Any
) -> figure:
    """Return an empty plot as wide as the page, which zooms with Ctrl and the mouse wheel, not with the wheel alone.

    Set ``frame_height`` instead of ``height`` if a legend of several lines must not make the frame smaller.
    """
    made = figure(
        height=height,
        sizing_mode="stretch_width",
        min_width=200,
        x_axis_label=x_label,
        y_axis_label=y_label,
        tools=[PanTool(), BoxZoomTool(), WheelZoomTool(modifiers="ctrl"), ResetTool(), SaveTool(), *tools],
        active_scroll="auto",
        toolbar_location="above",
        **options,
    )
    made.toolbar.logo = None
    return made


def hover(columns: Mapping[str, str], renderers: Sequence[Any]) -> HoverTool:
    """Return a tool that shows columns of a source at the pointer, by title. A column can have a format (``us{0.0}``)."""
    parts = {title: column.partition("{") for title, column in columns.items()}
    shown = [(title, f"@{{{name}}}{brace}{form}") for title, (name, brace, form) in parts.items()]
    return HoverTool(tooltips=shown, renderers=list(renderers), visible=False)


def rows(picture: figure, names: Sequence[str]) -> None:
    """Label the tracks of a plot from top to bottom; track ``i`` is at ``y = -i``."""
    picture.yaxis.ticker = FixedTicker(ticks=[-i for i in range(len(names))])
    labels: dict[Any, Any] = {-i: PlainText(text=name) for i, name in enumerate(names)}
    picture.yaxis.major_label_overrides = labels
    picture.yaxis.major_tick_line_color = None
    picture.yaxis.minor_tick_line_color = None
    picture.ygrid.grid_line_color = None


def time_unit(seconds: float) -> tuple[float, str]:
    """Return the unit for an axis that ends at ``seconds``: its number per second, and its name."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 2:
            return factor, unit
    return 1e6, "us"


def zoom_buttons(x_range: Range1d, first: float, last: float) -> Row:
    """Return buttons that zoom and move an axis, for use with the keyboard."""
    buttons = []
    for label, what in _BUTTONS.items():
        button = Button(label=label, width=84, height=30)
        button.js_on_click(CustomJS(args={"range": x_range, "first": first, "last": last, "what": what}, code=_ZOOM))
        buttons.append(button)
    return Row(*buttons, styles={"flex-wrap": "wrap"}, sizing_mode="stretch_width")


def legend_below(picture: figure, items: Sequence[LegendItem] = ()) -> None:
    """Place a legend below a plot, wrapped to the width of the page. Without ``items``, it has all renderers with a label."""
    legend = Legend(items=list(items)) if items else picture.legend[0]
    legend.update(orientation="horizontal", location="center", margin=4, padding=0, spacing=8, stylesheets=[_LEGEND])
    legend.update(border_line_color=None, background_fill_color=None, label_text_font_size="12px")
    picture.add_layout(legend, "below")


def plain_text(text: str, **options: Any) -> Div:
    """Return a text without markup, wrapped to the width of the page."""
    return Div(text=text, render_as_text=True, disable_math=True, **options)


def stacked(pictures: Sequence[figure], label: str) -> GridPlot:
    """Stack plots with a common x axis and one toolbar; ``label`` names the axis.

    Titles are texts above the plots, since plots would truncate them on narrow pages.
    """
    pictures[-1].xaxis.axis_label = label
    pictures[-1].height += _LABEL
    parts: list[UIElement] = []
    for one in pictures:
        one.title.visible = False
        one.height -= _TITLE
        parts += [
            plain_text(one.title.text, sizing_mode="stretch_width", css_classes=["title"], styles={"font-weight": "600"}),
            one,
        ]
    return gridplot(parts, ncols=1, sizing_mode="stretch_width", merge_tools=True, toolbar_options={"logo": None})
