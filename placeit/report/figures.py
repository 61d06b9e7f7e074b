"""Figures of recordings for papers, by matplotlib; ``savefig`` writes each of them as PNG, SVG or PDF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from placeit.core.errors import UsageError
from placeit.core.extras import import_extra
from placeit.profiler.recording import Recording
from placeit.report.layers import draw
from placeit.report.shown import PATH, candidates, device_names, front, name_of, op_rows, states, timelines
from placeit.report.style import CRITICAL, GREY, STATES, looks, shortened
from placeit.report.text import seconds

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["candidates_figure", "graph_figure", "pareto_figure", "timeline_figure", "utilization_figure"]

_MOST = 30  # most candidates in a figure


def timeline_figure(recording: Recording) -> Figure:
    """Return a figure of the measured request, the best single device and the simulated request, as far as they are known.

    Raises:
        UsageError: matplotlib is not installed, or nothing ran.
    """
    shown = timelines(recording)
    if not shown:
        raise UsageError("There is no timeline: nothing ran in this recording. Record a placement.")
    lines = [len(one.tracks) for one in shown]
    figure, axes = _figure(8.0, 0.26 * sum(lines) + 0.55 * len(lines) + 0.4, len(shown), height_ratios=lines, sharex=True)
    factor, unit = (1e3, "ms") if max(one.seconds for one in shown) < 2 else (1.0, "s")
    found = looks(device_names(recording))
    for one, axis in zip(shown, axes, strict=True):
        for bar in sorted(one.bars, key=lambda bar: bar.critical):
            look = found.get(bar.device) if bar.device is not None else None
            place = (-one.tracks.index(bar.track), (bar.finish_s - bar.start_s) * factor, 0.8, bar.start_s * factor)
            dim = 0.35 if bar.other or bar.what == "waiting" else 1.0
            if look is None:
                axis.barh(*place, color=GREY, edgecolor=GREY, linewidth=0.5, alpha=dim)
            else:
                axis.barh(*place, color=look.color, edgecolor="white", linewidth=0.2, hatch=look.hatch or None, alpha=dim)
            if bar.critical and bar.track != PATH:
                axis.barh(*place, facecolor="none", edgecolor=CRITICAL, linewidth=1.2)
        _lines(axis, one.tracks)
        axis.set_title(f"{one.title}: {seconds(one.seconds)}", fontsize="small", loc="left", parse_math=False)
    axes[-1].set_xlabel(f"time, {unit}")
    axes[-1].set_xlim(0, max(one.seconds for one in shown) * factor * 1.02)
    return figure


def utilization_figure(recording: Recording) -> Figure:
    """Return a figure of the share of the time that each device spent in each state.

    Raises:
        UsageError: matplotlib is not installed, or nothing ran.
    """
    if not recording.states or recording.wall_s <= 0:
        raise UsageError("There is no utilisation: nothing ran in this recording. Record a placement.")
    names = [name_of(one.device) for one in recording.states]
    times = [states(one) for one in recording.states]
    figure, (axis,) = _figure(8.0, 0.36 * len(names) + 1.5, 1)
    left = np.zeros(len(names))
    for state, look in STATES.items():
        share = 100 * np.array([one[state] for one in times]) / recording.wall_s
        if share.any():
            drawn: dict[str, Any] = {"color": look.color, "hatch": look.hatch or None, "edgecolor": "white", "linewidth": 0}
            axis.barh(-np.arange(len(names)), share, 0.7, left, label=state, **drawn)
            left += share
    _lines(axis, names)
    axis.set_xlim(0, 100)
    axis.set_xlabel("share of the time, %")
    figure.legend(fontsize="x-small", ncols=3, loc="outside lower center", frameon=False)
    return figure


def candidates_figure(search: Mapping[str, Any] | None) -> Figure:
    """Return a figure of the simulated and measured values of each candidate, with the 95 % intervals.

    Raises:
        UsageError: matplotlib is not installed, or nothing was searched for.
    """
    shown = [row for row in candidates(search) if row.measured is not None or row.simulated is not None][:_MOST]
    if not shown:
        raise UsageError(
            "There are no candidates: this recording is not of a search. Record it by 'placeit optimize --record'."
        )
    unit = str((search or {}).get("objective_unit") or "s")
    factor, written = (1e3, "ms") if unit == "s" else (1.0, unit)
    figure, (axis,) = _figure(8.0, 0.26 * len(shown) + 1.2, 1)
    for i, row in enumerate(shown):
        if row.measured is not None:
            low, high = (row.measured if end is None else end for end in (row.low, row.high))
            errors = [[max(0.0, row.measured - low) * factor], [max(0.0, high - row.measured) * factor]]
            color = "#0f7fc4" if row.chosen else GREY
            label = "measured, 95 % interval" if row.chosen else None
            axis.errorbar(row.measured * factor, -i, xerr=errors, fmt="o", color=color, capsize=3, label=label)
        if row.simulated is not None:
            label = "simulated before" if i == 0 else None
            axis.plot(row.simulated * factor, -i, "D", markerfacecolor="none", color="#e69f00", label=label)
    _lines(axis, [f"{row.name} *" if row.chosen else row.name for row in shown])
    axis.set_xlim(left=0)
    axis.grid(axis="x", alpha=0.3)
    axis.set_xlabel(f"objective, {written}")
    axis.legend(fontsize="x-small", frameon=False)
    return figure


def pareto_figure(search: Mapping[str, Any] | None) -> Figure:
    """Return a figure of the front of latency and energy; measured points are filled, simulated ones are not.

    Raises:
        UsageError: matplotlib is not installed, or no front was searched for.
    """
    shown = front(search)
    if not shown:
        raise UsageError(
            "There is no front of latency and energy: ask for it by 'placeit optimize --pareto', or Candidates(pareto=True)."
        )
    factor, unit = (1e3, "ms") if max(row.latency_s for row in shown) < 2 else (1.0, "s")
    figure, (axis,) = _figure(6.0, 4.0, 1)
    axis.step([row.latency_s * factor for row in shown], [row.energy_j for row in shown], where="post", color=GREY, zorder=1)
    for source in dict.fromkeys(row.source for row in shown):
        mine = [row for row in shown if row.source == source]
        colors = ["#0f7fc4" if row.chosen else GREY for row in mine]
        filled = colors if source != "simulated" else "none"
        points = [row.latency_s * factor for row in mine], [row.energy_j for row in mine]
        axis.scatter(*points, facecolors=filled, edgecolors=colors, label=source, zorder=2)
    axis.set_xlabel(f"latency, {unit}")
    axis.set_ylabel("energy, J")
    axis.grid(alpha=0.3)
    axis.legend(fontsize="x-small", frameon=False)
    return figure


def graph_figure(recording: Recording) -> Figure:
    """Return a figure of the task graph by layers, each op in the colour and shape of its device.

    Raises:
        UsageError: matplotlib is not installed, or there are no ops.
    """
    ops = recording.graph.ops
    if not ops:
        raise UsageError("There is no task graph in this recording.")
    figure, (axis,) = _figure(10.0, 4.5, 1)
    drawing = draw(len(ops), [(u, v) for u, v, _ in recording.graph.edges])
    device = {row.op: row.device for row in op_rows(recording) if row.op is not None}
    for (u, v, _), line in zip(recording.graph.edges, drawing.lines, strict=True):
        cut = device[u] != device[v]
        axis.plot(
            line[:, 0],
            -line[:, 1],
            "--" if cut else "-",
            color="#e69f00" if cut else GREY,
            linewidth=0.8 if cut else 0.4,
            zorder=1,
        )
    size = float(np.clip(2000 / len(ops), 3, 30))
    for name, look in looks(device_names(recording)).items():
        here = [i for i in range(len(ops)) if device[i] == name]
        if here:
            axis.scatter(
                drawing.x[here], -drawing.y[here], size, c=look.color, marker=look.mark, label=shortened(name, 40), zorder=2
            )
    here = [i for i in range(len(ops)) if not device[i]]
    if here:
        axis.scatter(drawing.x[here], -drawing.y[here], size, c=GREY, label="no device", zorder=2)
    axis.set_axis_off()
    axis.legend(fontsize="small", frameon=False, loc="upper left")
    return figure


def _figure(width: float, height: float, parts: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """Return a figure without a window, and its axes, which are above each other."""
    made: Figure = import_extra("A figure", "plot", "matplotlib.figure").Figure(figsize=(width, height), layout="constrained")
    ratios = {"height_ratios": options.pop("height_ratios")} if "height_ratios" in options else {}
    axes = made.subplots(parts, squeeze=False, **options, **ratios)
    return made, [axis for (axis,) in axes]


def _lines(axis: Axes, names: Any) -> None:
    axis.set_yticks(
        [-i for i in range(len(names))], [shortened(name, 40) for name in names], fontsize="small", parse_math=False
    )
    axis.set_ylim(-len(names) + 0.4, 0.6)
