"""Section with the task graph and the table of its ops, which share one selection."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from bokeh.models import (
    Button,
    Column,
    ColumnDataSource,
    CustomJS,
    DataTable,
    LegendItem,
    NumberFormatter,
    Range1d,
    Row,
    StringFormatter,
    TableColumn,
    TapTool,
    TextInput,
)
from bokeh.plotting import figure
from bokeh.transform import factor_cmap, factor_mark
from numpy.typing import NDArray

from placeit.profiler.recording import Recording
from placeit.report.kernels import kernels, kinds
from placeit.report.layers import draw
from placeit.report.page.drawing import hover, legend_below, plain_text, plot
from placeit.report.page.section import Picture, Section, Table
from placeit.report.shown import OpRow, device_names, name_of, op_rows
from placeit.report.style import BETWEEN, GREY, looks, shortened
from placeit.report.text import NOTHING, amount, in_one_unit, percent, seconds

__all__ = ["graph"]

_MAX_OPS, _MAX_KERNELS = 8_000, 10  # maximum number of ops on a page, and of kernels in a table
_NONE = "no device"

_SEARCH = """
const wanted = input.value_input.trim().toLowerCase();
const {name, kind, x, y} = ops.data;
const found = [];
if (wanted != "")
  for (let i = 0; i < name.length; i++)
    if (name[i].toLowerCase().includes(wanted) || kind[i].toLowerCase().includes(wanted)) found.push(i);
ops.selected.indices = found;
told.text = wanted == "" ? "" : found.length == 1 ? "1 op found" : `${found.length} ops found`;
const drawn = found.filter((i) => Number.isFinite(x[i]));
if (drawn.length > 0) {
  const ends = (values, least) => {
    let low = Infinity, high = -Infinity;
    for (const i of drawn) { low = Math.min(low, values[i]); high = Math.max(high, values[i]); }
    const space = Math.max(least, (high - low) * 0.1);
    return {start: low - space, end: high + space};
  };
  xs.setv(ends(x, 6));
  ys.setv(ends(y, 3));
}
for (const view of cb_context.index.all_views())  // the table has taken the focus
  if (view.model == input) view.input_el.focus({preventScroll: true});
"""
_DETAILS = """
const lines = [];
const amount = (column, i, unit) => {
  const value = ops.data[column][i];
  return Number.isFinite(value) ? `${Number(value.toPrecision(4))} ${unit}` : "-";
};
for (const i of ops.selected.indices.slice(0, 8)) {
  const text = (column) => ops.data[column][i];
  const segment = text("segment") < 0 ? text("device") : `segment ${text("segment")} on ${text("device")}`;
  lines.push(text("name") || "(no op)", `  ${text("kind")}, ${segment}`,
    `  makes ${text("shapes") || "-"}; ${amount("mflop", i, "MFLOP")}; ${amount("kb", i, "kB")}`,
    `  measured ${amount("us", i, "us")}, predicted ${amount("us_predicted", i, "us")}`,
    `  reached ${amount("gflops", i, "GFLOP/s")}, ${amount("gbytes", i, "GB/s")}`,
    ...(text("group") < 0 ? [] : [`  group ${groups.name[text("group")]}: ` +
      `measured ${groups.measured[text("group")]}, predicted ${groups.predicted[text("group")]}`]),
    ...(text("kernel") ? [`  kernel ${text("kernel")}`] : []));
}
const more = ops.selected.indices.length - 8;
if (more > 0) lines.push(`and ${more} more`);
details.text = lines.length > 0 ? lines.join("\\n") : nothing;
"""
_SIZES = """
const pixels = frame.inner_width / (xs.end - xs.start);
runs.visible = pixels < 5;
for (const edge of edges) edge.glyph.line_alpha = runs.visible ? 0.2 : 0.8;
marks.visible = !runs.visible || ops.selected.indices.length > 0;
marks.glyph.size = Math.max(5, Math.min(26, pixels * 0.55));
names.visible = pixels > 90;
"""
_DETAILS_STYLE = ":host { white-space: pre-wrap; overflow-wrap: anywhere; min-height: 5.5em; font-size: 13px; }"
_ALL = "xs.setv(x); ys.setv(y);"
_NOTHING = "Select an op, in the picture or in the table below, to see its details."


def graph(recording: Recording) -> Section | None:
    """Return a plot of the task graph, and a table of its ops by time; None without ops."""
    if not recording.graph.ops:
        return None
    found = op_rows(recording)
    listed = found[:_MAX_OPS]
    names = [*device_names(recording), _NONE]
    look = looks(names[:-1])
    drawing = draw(len(recording.graph.ops), [(u, v) for u, v, _ in recording.graph.edges])
    total = sum(row.measured_s for row in found if row.measured_s is not None)
    at = np.array([-1 if row.op is None else row.op for row in listed])
    drawn = at >= 0
    source = ColumnDataSource(
        {
            "x": np.where(drawn, drawing.x[at], math.nan).astype(np.float32),
            "y": np.where(drawn, -drawing.y[at], math.nan).astype(np.float32),
            "name": [row.name for row in listed],
            "kind": [row.kind for row in listed],
            "device": [row.device or _NONE for row in listed],
            "segment": np.array([-1 if row.segment is None else row.segment for row in listed], np.int32),
            "group": np.array([-1 if row.op is None else recording.graph.ops[row.op].group for row in listed], np.int32),
            "shapes": [row.shapes for row in listed],
            "kernel": ["" if row.kernel == row.name else row.kernel for row in listed],
            "mflop": _numbers([row.flops for row in listed], 1e-6),
            "kb": _numbers([row.bytes for row in listed], 1e-3),
            "us": _numbers([row.measured_s for row in listed], 1e6),
            "us_predicted": _numbers([row.predicted_s for row in listed], 1e6),
            "share": _numbers([row.measured_s for row in listed], 100 / total if total > 0 else math.nan),
            "gflops": _numbers([row.flops_per_s for row in listed], 1e-9),
            "gbytes": _numbers([row.bytes_per_s for row in listed], 1e-9),
        }
    )
    wide = (-1.0, float(drawing.x.max()) + 1.0)
    high = (-float(drawing.y.max()) - 1.0, -float(drawing.y.min()) + 1.0)
    picture = plot(
        height=420,
        x_range=Range1d(start=wide[0], end=wide[1], min_interval=1.0),
        y_range=Range1d(start=high[0], end=high[1], min_interval=1.0),
        name="graph",
        tools=[tap := TapTool()],
    )
    picture.axis.visible = False
    picture.grid.visible = False
    edges = _edges(picture, recording, drawing.lines, listed)
    shapes = [look[name].marker if name in look else "circle_x" for name in names]
    colors = [look[name].color if name in look else GREY for name in names]
    marks = picture.scatter(
        "x",
        "y",
        source=source,
        size=7,
        marker=factor_mark("device", shapes, names),
        color=factor_cmap("device", colors, names),
        line_color="rgba(128,128,128,0.6)",
        nonselection_alpha=0.25,
    )
    runs = picture.segment(
        "x0",
        "y",
        "x1",
        "y",
        source=_runs(source),
        line_width=4,
        line_cap="square",
        color=factor_cmap("device", colors, names),
        visible=False,
    )
    labels = picture.text(
        "x", "y", text="kind", source=source, y_offset=18, text_align="center", text_color=GREY, visible=False
    )
    labels.glyph.text_font_size = "11px"
    tap.renderers = [marks]
    groups = {group.group: group for group in recording.groups}
    known = [groups.get(g) for g in range(len(recording.graph.groups))]
    of_groups = {
        "name": [name_of(name) for name in recording.graph.groups],
        "measured": [NOTHING if one is None else seconds(one.measured_s) for one in known],
        "predicted": [NOTHING if one is None else seconds(one.predicted_s) for one in known],
    }
    told = {"": "name", "kind": "kind", "on": "device", "segment": "segment", "makes": "shapes", "MFLOP": "mflop{0.00}"}
    told |= {"kB": "kb{0.0}", "measured, us": "us{0.0}"}
    if any(row.predicted_s is not None for row in listed):
        told["predicted, us"] = "us_predicted{0.0}"
    picture.add_tools(hover(told, [marks]))
    _legend(picture, recording, listed)

    details = plain_text(_NOTHING, sizing_mode="stretch_width", css_classes=["details"], stylesheets=[_DETAILS_STYLE])
    shown = CustomJS(args={"ops": source, "groups": of_groups, "details": details, "nothing": _NOTHING}, code=_DETAILS)
    source.selected.js_on_change("indices", shown)
    parts_of = {"frame": picture, "xs": picture.x_range, "ops": source, "marks": marks, "names": labels}
    sizes = CustomJS(args=parts_of | {"runs": runs, "edges": edges}, code=_SIZES)
    source.selected.js_on_change("indices", sizes)
    picture.x_range.js_on_change("start", sizes)
    picture.x_range.js_on_change("end", sizes)
    picture.js_on_change("inner_width", sizes)

    box = TextInput(placeholder="Search ops by name or kind", width=300, name="search", html_attributes={"role": "search"})
    said = plain_text(
        "", width=120, css_classes=["found"], html_attributes={"aria-live": "polite"}, styles={"align-self": "center"}
    )
    ranges = {"xs": picture.x_range, "ys": picture.y_range}
    box.js_on_change("value_input", CustomJS(args={"input": box, "ops": source, "told": said, **ranges}, code=_SEARCH))
    whole = Button(label="Show all", width=84, height=30)
    ends = {"x": {"start": wide[0], "end": wide[1]}, "y": {"start": high[0], "end": high[1]}}
    whole.js_on_click(CustomJS(args=ranges | ends, code=_ALL))
    bar = Row(box, whole, said, styles={"flex-wrap": "wrap"}, sizing_mode="stretch_width")
    text = (
        "Ops by layers: what an op reads is left of it. Thick red lines are between devices. Zoom in (Ctrl and the "
        "wheel, or the tool for boxes), and the kinds of the ops appear. "
        "In a large graph, short lines stand for the ops until there is room for them."
    )
    texts = [text]
    if len(found) > len(listed):
        texts.append(f"The {len(listed)} most expensive of {len(found)} ops are shown.")
    about = f"Task graph of {len(recording.graph.ops)} ops; the table below has the same ops."
    parts: list[Picture | Table] = [
        Picture(Column(bar, picture, details, sizing_mode="stretch_width"), about),
        Picture(_table(source), "All ops, the most expensive first; a click on a heading sorts by its column."),
    ]
    parts += _spent(recording)
    return Section("graph", "Task graph and ops", texts, parts)


def _numbers(values: list[float | None], factor: float = 1.0) -> NDArray[np.float32]:
    return np.array([math.nan if value is None else value * factor for value in values], np.float32)


def _runs(source: ColumnDataSource) -> ColumnDataSource:
    """Return lines that replace the marks of consecutive ops on one device, when marks would overlap."""
    columns = (source.data["y"].tolist(), source.data["x"].tolist(), source.data["device"])
    ops = sorted(op for op in zip(*columns, strict=True) if not math.isnan(op[0]))
    first = [n for n, (y, x, device) in enumerate(ops) if n == 0 or ops[n - 1] != (y, x - 1, device)]
    last = [n - 1 for n in first[1:]] + [len(ops) - 1] * bool(ops)
    ends = {"x0": [ops[n][1] - 0.5 for n in first], "x1": [ops[n][1] + 0.5 for n in last]}
    return ColumnDataSource(ends | {"y": [ops[n][0] for n in first], "device": [ops[n][2] for n in first]})


def _edges(picture: figure, recording: Recording, lines: list[NDArray[np.float64]], listed: list[OpRow]) -> list[Any]:
    """Draw all edges as one line with gaps, which is fast, and edges between devices as a second one."""
    drawn = []
    device = {row.op: row.device for row in listed if row.op is not None}
    for cut, color, width in ((False, GREY, 0.8), (True, BETWEEN, 1.6)):
        corners = [
            np.vstack([_bent(line), [math.nan, math.nan]])
            for (u, v, _), line in zip(recording.graph.edges, lines, strict=True)
            if u in device and v in device and (device[u] != device[v]) == cut
        ]
        if corners:
            x, y = np.vstack(corners).astype(np.float32).T
            drawn.append(picture.line(x, -y, line_color=color, line_width=width, line_alpha=0.8))
    return drawn


def _bent(line: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the line of an edge without the points at which its direction does not change."""
    steps = np.diff(line, axis=0)
    turns = steps[1:, 0] * steps[:-1, 1] != steps[:-1, 0] * steps[1:, 1]
    bent: NDArray[np.float64] = line[np.concatenate([[True], turns, [True]])]
    return bent


def _legend(picture: figure, recording: Recording, listed: list[OpRow]) -> None:
    used = {row.device for row in listed}
    items = []
    for name, look in looks(device_names(recording)).items():
        if name in used:
            mark = picture.scatter([math.nan], [math.nan], size=10, marker=look.marker, color=look.color, line_color=GREY)
            items.append(LegendItem(label={"value": name}, renderers=[mark]))
    if items:
        legend_below(picture, items)


def _table(source: ColumnDataSource) -> DataTable:
    def numbers(field: str, title: str, form: str, width: int = 70) -> TableColumn:
        written = NumberFormatter(format=form, nan_format="-", text_align="right")
        return TableColumn(field=field, title=title, width=width, formatter=written)

    text = StringFormatter()
    return DataTable(
        source=source,
        columns=[
            TableColumn(field="name", title="op", width=260, formatter=text),
            TableColumn(field="kind", title="kind", width=100, formatter=text),
            TableColumn(field="device", title="device", width=90, formatter=text),
            numbers("us", "time, us", "0.0"),
            numbers("share", "share, %", "0.00"),
            numbers("us_predicted", "predicted, us", "0.0", 100),
            numbers("gflops", "GFLOP/s", "0.00"),
            numbers("gbytes", "GB/s", "0.00"),
            TableColumn(field="shapes", title="makes", width=220, formatter=text),
        ],
        height=330,
        sizing_mode="stretch_width",
        index_position=None,
        scroll_to_selection=True,
        reorderable=False,
        autosize_mode="none",
    )


def _spent(recording: Recording) -> list[Table]:
    """Return tables of the kernels that take the most time, and of the times by kind."""
    longest = kernels(recording)
    if not longest:
        return []
    written = in_one_unit([longest[0].seconds])
    rows = [
        (
            shortened(name_of(one.name), 80),
            name_of(one.kind),
            name_of(one.device),
            str(one.ops),
            written(one.seconds),
            percent(one.share),
            _of_peak(one.flops_per_s, "FLOP/s", one.flops_share),
            _of_peak(one.bytes_per_s, "B/s", one.bytes_share),
        )
        for one in longest[:_MAX_KERNELS]
    ]
    titles = ("kernel, by its main op", "kind", "device", "ops", "time", "share", "FLOP/s (of peak)", "B/s (of peak)")
    spent = kinds(recording)
    written = in_one_unit(one.seconds for one in spent)
    sums = [(name_of(one.kind), str(one.kernels), written(one.seconds), percent(one.share)) for one in spent]
    return [
        Table(titles, rows, frozenset({3, 4, 5, 6, 7}), title="The most expensive kernels"),
        Table(("kind", "kernels", "time", "share"), sums, frozenset({1, 2, 3}), title="By kind"),
    ]


def _of_peak(rate: float | None, unit: str, share: float | None) -> str:
    return amount(rate, unit) if share is None else f"{amount(rate, unit)} ({percent(share)})"
