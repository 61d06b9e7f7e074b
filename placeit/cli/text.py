"""How results are written for people: units, tables, lists of facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from placeit.cli.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.cluster import Cluster
    from placeit.runtime.measure import Measurement, Ratio
    from placeit.runtime.segments import Plan
    from placeit.session import OutputError

__all__ = [
    "NOTHING",
    "amount",
    "emulated",
    "error",
    "facts",
    "interval",
    "ops_by_device",
    "percent",
    "programs",
    "ratio",
    "seconds",
    "shape",
    "show_notes",
    "table",
    "watts",
]

NOTHING = "-"
"""Stands for what was not measured."""

_PREFIXES = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}


def amount(value: float | None, unit: str = "", *, least: int = 0) -> str:
    """Write a quantity with three digits and a decimal prefix: ``1.23 GFLOP``.

    Args:
        value: at least 0; None or not finite if it was not measured.
        unit: of the value.
        least: smallest prefix, as a power of 1000; what has no prefix comes in whole numbers.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    rounded = float(f"{value:.3g}")
    power = min(5, max(least, math.floor(math.log10(rounded) / 3))) if rounded else 0
    digits = f"{value:g}" if not rounded or power == least == 0 else f"{rounded / 1000.0**power:#.3g}".rstrip(".")
    return f"{digits} {_PREFIXES[power]}{unit}".strip()


def seconds(value: float | None) -> str:
    """Write a time: ``46.8 ms``, ``25.1 us``."""
    return amount(value, "s", least=-3)


def interval(measured: Measurement | None) -> str:
    """Write the confidence interval of a measurement in the unit of its ends: ``46.1 ms .. 47.5 ms``."""
    if measured is None or not math.isfinite(measured.ci_high):
        return NOTHING
    return f"{seconds(measured.ci_low)} .. {seconds(measured.ci_high)}"


def ratio(value: Ratio | None) -> str:
    """Write a ratio with its confidence interval: ``1.21 (1.18 .. 1.24)``."""
    if value is None:
        return NOTHING
    ends = f" ({value.ci_low:.2f} .. {value.ci_high:.2f})" if math.isfinite(value.ci_high) else ""
    return f"{value.ratio:.2f}{ends}"


def percent(share: float | None) -> str:
    """Write a share: ``83 %``; with one decimal below ten percent."""
    if share is None or not math.isfinite(share):
        return NOTHING
    return f"{share:.1%}".replace("%", " %") if abs(share) < 0.0995 else f"{share:.0%}".replace("%", " %")


def watts(power: float | None) -> str:
    """Write a power: ``72 W``."""
    return NOTHING if power is None else f"{power:.0f} W"


def error(value: OutputError | None) -> str:
    """Write how far outputs are from the reference, relative to its largest value: ``1.2e-07``, ``exact``."""
    if value is None:
        return NOTHING
    return "exact" if value.max_abs == 0 else f"{value.max_rel:.1e}"


def shape(sizes: Sequence[int]) -> str:
    """Write a tensor's sizes: ``1x3x224x224``, ``scalar``."""
    return "x".join(map(str, sizes)) or "scalar"


def ops_by_device(counts: Mapping[str, int]) -> str:
    """Write where ops are, devices without any left out: ``CPU@0 120, CPU@1 58``."""
    return ", ".join(f"{device} {ops}" for device, ops in counts.items() if ops)


def table(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "", left: int = 1) -> None:
    """Print a table.

    Args:
        console: where to.
        columns: headings.
        rows: cells.
        title: a line above it.
        left: how many columns, from the left, are text; the rest are figures and aligned to the right.
    """
    from rich import box
    from rich.table import Table

    if title:
        console.print(title, style="bold")
    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for number, heading in enumerate(columns):
        grid.add_column(heading, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        grid.add_row(*map(printable, row))
    console.print(grid)


def facts(console: Console, lines: Mapping[str, str]) -> None:
    """Print names and what they are, in two columns."""
    width = max(map(len, lines), default=0)
    for name, value in lines.items():
        console.print(f"{name:{width}}  {printable(value)}")


def programs(plan: Plan) -> int:
    """Count the segments that run something."""
    return sum(not segment.free for segment in plan.segments)


def emulated(cluster: Cluster) -> list[str]:
    """Names of devices and links that are slowed on purpose."""
    devices = [device.name for device in cluster.devices if device.emulated]
    return devices + [f"{src} -> {dst}" for (src, dst), link in cluster.links.items() if link.origin == "emulated"]


def show_notes(console: Console, cluster: Cluster) -> None:
    """Say which devices and links are not what a real one would be."""
    notes = [
        f"{device.name} is emulated: {device.runs_on}, slowed {device.slowdown:g} times."
        for device in cluster.devices
        if device.emulated
    ]
    notes += [f"{device.name} is described: it exists in simulation only." for device in cluster.devices if device.described]
    notes += [
        f"The link {src} -> {dst} is emulated: {amount(link.bandwidth, 'B/s')}, {seconds(link.latency)}."
        for (src, dst), link in cluster.links.items()
        if link.origin == "emulated"
    ]
    if notes:
        console.print()
    for note in notes:
        console.print(printable(note))
