"""Figures as SVG files, drawn by matplotlib if it is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["Figures"]

_COLOURS = {
    "giph": "tab:blue",
    "giph carried on": "tab:cyan",
    "giph for latency": "tab:cyan",
    "giph paper": "tab:brown",
    "imitation": "tab:blue",
    "all-actions": "tab:cyan",
    "reinforce": "tab:red",
    "giph-task-eft": "tab:green",
    "random-task-eft": "tab:olive",
    "placeto": "tab:orange",
    "random": "tab:grey",
    "random placement": "tab:pink",
    "search": "tab:grey",
    "hdp": "tab:purple",
    "heft": "black",
    "heft, planned": "black",
}
_DASHED = "heft, planned"


class Figures:
    """Draws figures into a folder.

    Args:
        folder: the folder; None to draw nothing.

        Attributes:
            drawn: for each part, the names of its figures.
            missing: whether figures were left out because matplotlib is not installed.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self.drawn: dict[str, list[str]] = {}
        self.missing = folder is not None and find_spec("matplotlib") is None

    def lines(
        self,
        part: str,
        name: str,
        title: str,
        axes: tuple[str, str],
        series: Mapping[str, tuple[ArrayLike, ArrayLike]],
        *,
        levels: Mapping[str, float] | None = None,
        log: str = "",
        marked: bool = False,
    ) -> None:
        """Draw a line for each series, and horizontal lines at some levels; ``log`` names the axes that are logarithmic."""

        def draw(ax: Axes) -> None:
            for label, (x, y) in series.items():
                style = ("." if marked else "") + ("--" if label == _DASHED else "-")
                ax.plot(np.asarray(x), np.asarray(y), style, label=label, color=_COLOURS.get(label))
            for label, level in (levels or {}).items():
                ax.axhline(level, label=label, color="black", linestyle="--" if label == _DASHED else ":", linewidth=1)
            ax.set(**{f"{axis}scale": "log" for axis in log})
            ax.legend(fontsize="small")

        self._save(part, name, title, axes, draw)

    def bars(
        self, part: str, name: str, title: str, axes: tuple[str, str], ticks: Sequence[str], series: Mapping[str, ArrayLike]
    ) -> None:
        """Draw groups of bars, one bar of each series in each."""

        def draw(ax: Axes) -> None:
            width = 0.8 / len(series)
            at = np.arange(len(ticks))
            for i, (label, heights) in enumerate(series.items()):
                shift = (i - (len(series) - 1) / 2) * width
                ax.bar(at + shift, np.asarray(heights), width, label=label, color=_COLOURS.get(label))
            ax.set_xticks(at, ticks, rotation=30 if len(ticks) > 6 else 0)
            ax.legend(fontsize="small")

        self._save(part, name, title, axes, draw)

    def matrix(self, part: str, name: str, title: str, labels: Sequence[str], values: ArrayLike) -> None:
        """Draw a table of shares in [0, 1], coloured; NaN stays empty."""
        shares = np.asarray(values)

        def draw(ax: Axes) -> None:
            ax.imshow(shares, cmap="RdYlBu", vmin=0, vmax=1)
            ax.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize="small")
            ax.set_yticks(range(len(labels)), labels, fontsize="small")
            for i, j in np.argwhere(np.isfinite(shares)).tolist():
                ax.text(j, i, f"{100 * shares[i, j]:.0f}", ha="center", va="center", fontsize="small")

        self._save(part, name, title, ("", ""), draw)

    def _save(self, part: str, name: str, title: str, axes: tuple[str, str], draw: object) -> None:
        if self._folder is None or self.missing:
            return
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        # the same figures make the same files
        with rc_context({"svg.hashsalt": "placeit", "svg.fonttype": "none"}):
            figure = Figure(figsize=(6.4, 4.4), layout="constrained")
            ax = figure.add_subplot()
            ax.set_title(title)
            ax.set_xlabel(axes[0])
            ax.set_ylabel(axes[1])
            draw(ax)  # type: ignore[operator]
            figure.savefig(self._folder / f"{name}.svg", metadata={"Date": None})
        self.drawn.setdefault(part, []).append(name)
