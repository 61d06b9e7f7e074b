"""Write results for people: units, tables, lists of facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.core.cluster import Cluster
    from placeit.runtime.check import OutputDifference
    from placeit.runtime.measure import Measurement, Ratio

__all__ = [
    "NOTHING",
    "amount",
    "duration",
    "error",
    "facts",
    "interval",
    "ops_by_device",
    "paragraph",
    "percent",
    "printable",
    "rate",
    "ratio",
    "seconds",
    "shape",
    "show_failures",
    "show_notes",
    "show_unchecked",
    "signed_seconds",
    "table",
    "tables",
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


def signed_seconds(value: float | None) -> str:
    """Write a time that may be negative, such as what a cut adds, which is a difference of measured times."""
    return seconds(value) if value is None or value >= 0 else f"-{seconds(-value)}"


def duration(value: float) -> str:
    """Write how long something took, in seconds of one decimal, so that rows of it can be added up: ``12.3 s``."""
    return f"{value:.1f} s"


def interval(measured: Measurement | None) -> str:
    """Write the confidence interval of a measurement in the unit of its ends: ``46.1 ms .. 47.5 ms``."""
    if measured is None or not math.isfinite(measured.ci_high):
        return NOTHING
    return f"{seconds(measured.ci_low)} .. {seconds(measured.ci_high)}"


def rate(value: float | None) -> str:
    """Write how many requests there are per second: ``0.25``, ``33.1``, ``9.56 k``."""
    return f"{value:.3g}" if value is not None and value < 999.5 else amount(value)


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


def error(value: OutputDifference | None) -> str:
    """Write how far outputs are from the reference, relative to its largest value: ``1.2e-07``, ``exact``, ``not checked``.

    In another precision than float32, that against float32 comes first, and then that against the whole model in the same
    precision. An error that was found is written also where the absence of one would prove little, and so is which share of the
    values are no numbers on either side, so that they have no error.
    """
    if value is None:
        return NOTHING
    figure = "exact" if value.max_abs == 0 else f"{value.max_rel:.1e}"
    if value.not_finite == 1:
        figure = "all NaN or infinite" if value.max_abs == 0 else f"{figure}, one all NaN or infinite"
    elif value.not_finite > 0:
        figure += f", {percent(value.not_finite)} NaN or infinite"
    if value.alike is not None:
        figure += f", {'exact' if value.alike == 0 else f'{value.alike:.1e}'} in its own precision"
    return figure if value.not_checked is None else f"not checked ({figure})"


def show_unchecked(console: Console, errors: Iterable[OutputDifference | None]) -> None:
    """Say why right outputs prove little, where that is so."""
    for why in dict.fromkeys(value.not_checked for value in errors if value is not None):
        if why is not None:
            paragraph(console, f"Outputs are not checked: {why}.")


def show_failures(console: Console, failed: Mapping[str, str | None], *, title: str = "failed") -> None:
    """Say why something failed (or what the title says), if anything did: what did for the same reason, together."""
    names: dict[str, list[str]] = {}
    for name, why in failed.items():
        if why is not None:
            names.setdefault(why, []).append(name)
    if names:
        console.print(f"\n{title}", style="bold")
    for why, some in names.items():
        paragraph(console, f"{', '.join(some)}: {why}", indent=2)


def shape(sizes: Sequence[int]) -> str:
    """Write a tensor's sizes: ``1x3x224x224``, ``scalar``."""
    return "x".join(map(str, sizes)) or "scalar"


def ops_by_device(counts: Mapping[str, int]) -> str:
    """Write where ops are, devices without any left out: ``CPU@0 120, CPU@1 58``."""
    return ", ".join(f"{device} {ops}" for device, ops in counts.items() if ops)


def table(
    console: Console,
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    title: str = "",
    left: int = 1,
    spare: Sequence[str] = (),
) -> None:
    """Print a table; see :func:`tables`."""
    tables(console, columns, {title: rows}, left=left, spare=spare)


def tables(
    console: Console,
    columns: Sequence[str],
    sections: Mapping[str, Iterable[Sequence[str]]],
    *,
    left: int = 1,
    spare: Sequence[str] = (),
) -> None:
    """Print tables of the same columns below each other.

    Where they are too wide for the terminal, spare columns are left out, then headings and text are broken, and what is too
    wide even then is stacked: a line for each cell.

    Args:
        console: where to.
        columns: headings.
        sections: cells of each table, by the line above it; an empty line is left out, and so is a table without rows.
        left: how many columns, from the left, are text; the rest are figures and aligned to the right.
        spare: headings of columns that can be left out, the least needed first.
    """
    cells = {title: [[printable(cell) for cell in row] for row in rows] for title, rows in sections.items()}
    rows = [row for some in cells.values() for row in some]
    shown, widths = _layout(console.width, columns, rows, left, spare)
    first = True
    for title, some in cells.items():
        if not some:
            continue
        if not first:
            console.print()
        first = False
        if title:
            paragraph(console, title, style="bold")
        if widths is None:
            _stack(console, [columns[i] for i in shown], [[row[i] for i in shown] for row in some])
        else:
            _grid(console, widths, shown, columns, some, left)
    if len(shown) < len(columns):
        more = len(columns) - len(shown)
        paragraph(console, f"(--wide shows {more} more column{'s' if more > 1 else ''})", style="dim")


_GAP = 2
"""Columns of the terminal between two of a table."""
_TABLES = 70
"""Columns of the terminal below which tables that do not fit as they are get stacked."""
_NARROW, _NARROWEST = 24, 16
"""To what text is broken before a column is left out, and before a table is stacked."""


def _layout(
    room: int, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int, spare: Sequence[str]
) -> tuple[list[int], dict[int, int] | None]:
    """Return which columns to show, and how wide each is to be; None for the latter if they are to be stacked."""
    shown = list(range(len(columns)))
    widths = _widths(room, shown, columns, rows, left, room)
    for heading in ("", *spare):
        if widths is None:
            shown = [i for i in shown if columns[i] != heading]
            widths = _widths(room, shown, columns, rows, left, _NARROW) if room >= _TABLES else None
    if widths is None and room >= _TABLES:
        widths = _widths(room, shown, columns, rows, left, _NARROWEST)
    return shown, widths


def _widths(
    room: int, shown: Sequence[int], columns: Sequence[str], rows: Sequence[Sequence[str]], left: int, narrowest: int
) -> dict[int, int] | None:
    """Return how wide each column that is shown is to be, None if there is no room for all of them.

    Where there is little, headings are broken, and then text, to columns that are as wide as ``narrowest``.
    """
    from rich.cells import cell_len

    room -= _GAP * (len(shown) - 1)
    needed = {i: max((cell_len(row[i]) for row in rows), default=0) for i in shown}
    widths = {i: max(needed[i], *map(cell_len, columns[i].split() or [""])) for i in shown}
    texts = [i for i in shown if i < left]
    while sum(widths.values()) > room:
        widest = max(texts, key=widths.__getitem__)
        if widths[widest] <= narrowest:
            return None
        widths[widest] -= 1
    for i in shown:  # where there is room, headings stay in one line
        widths[i] += max(0, min(cell_len(columns[i]) - widths[i], room - sum(widths.values())))
    return widths


def _grid(
    console: Console,
    widths: Mapping[int, int],
    shown: Sequence[int],
    columns: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: int,
) -> None:
    from rich import box
    from rich.table import Table

    grid = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for i in shown:
        grid.add_column(columns[i], justify="left" if i < left else "right", overflow="fold", width=widths[i])
    for row in rows:
        grid.add_row(*(row[i] for i in shown))
    console.print(grid)


def _stack(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        paragraph(console, row[0])
        facts(console, {f"  {heading}": cell for heading, cell in zip(columns[1:], row[1:], strict=True) if cell})


def facts(console: Console, lines: Mapping[str, str]) -> None:
    """Print names and what they are, in two columns."""
    width = max(map(len, lines), default=0)
    for name, value in lines.items():
        paragraph(console, value, label=f"{name:{width}}  ")


def paragraph(console: Console, text: str, *, label: str = "", indent: int = 0, style: str = "") -> None:
    """Print text, in lines as long as the terminal is wide; words that are longer, such as paths, are not broken.

    Args:
        console: where to.
        text: the text.
        label: stands before it; the other lines begin below its end.
        indent: where all lines but the first begin, without a label.
        style: for the terminal.
    """
    import textwrap

    after = min(len(label) or indent, console.width // 2)
    lines = textwrap.wrap(
        printable(text),
        max(console.width, after + 1),
        initial_indent=label,
        subsequent_indent=" " * after,
        break_long_words=False,
        break_on_hyphens=False,
    )
    console.print("\n".join(lines) or label, style=style or None)


def show_notes(console: Console, cluster: Cluster) -> None:
    """Say which devices and links are not what a real one would be."""
    notes = [
        f"{device.name} is emulated: {device.address}, slowed {device.slowdown:g} times."
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
        paragraph(console, note)


def printable(text: str) -> str:
    """Replace what could upset a terminal (control characters, names that are not Unicode) by question marks."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
