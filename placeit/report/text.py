"""Formatting of values with units, and printing of tables, lists and paragraphs to a console."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING

from placeit.core.units import percentage

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.core.cluster import Cluster
    from placeit.measuring.check import OutputDifference
    from placeit.measuring.statistics import Measurement, Ratio

__all__ = [
    "LOST",
    "NOTHING",
    "amount",
    "duration",
    "error",
    "facts",
    "in_one_unit",
    "interval",
    "paragraph",
    "percent",
    "printable",
    "rate",
    "ratio",
    "seconds",
    "shape",
    "shortened",
    "show_failures",
    "show_notes",
    "show_unchecked",
    "signed_seconds",
    "table",
    "tables",
    "watts",
]

NOTHING = "-"
"""Text for a value that was not measured."""

_PREFIXES = {-3: "n", -2: "u", -1: "m", 0: "", 1: "k", 2: "M", 3: "G", 4: "T", 5: "P"}


def amount(value: float | None, unit: str = "", *, least: int = 0) -> str:
    """Format a quantity with three digits and a decimal prefix: ``1.23 GFLOP``.

    Args:
        value: at least 0; None or not finite if it was not measured.
        unit: unit of the value.
        least: smallest prefix, as a power of 1000.
    """
    if value is None or not math.isfinite(value):
        return NOTHING
    rounded = float(f"{value:.3g}")
    power = min(5, max(least, math.floor(math.log10(rounded) / 3))) if rounded else 0
    digits = f"{rounded:g}" if not rounded or power == least == 0 else f"{rounded / 1000.0**power:#.3g}".rstrip(".")
    return f"{digits} {_PREFIXES[power]}{unit}".strip()


def seconds(value: float | None) -> str:
    """Format a time: ``46.8 ms``, ``25.1 us``."""
    return amount(value, "s", least=-3)


def in_one_unit(column: Iterable[float | None]) -> Callable[[float | None], str]:
    """Return a function that formats the times of a column in one unit, with three digits of the largest: ``0.14 ms``."""
    largest = max((value for value in column if value is not None and math.isfinite(value)), default=0.0)
    number, _, unit = seconds(largest).partition(" ")
    factor, decimals = float(number) / largest if largest > 0 else 1.0, len(number.partition(".")[2])
    return lambda value: NOTHING if value is None or not math.isfinite(value) else f"{value * factor:.{decimals}f} {unit}"


def signed_seconds(value: float | None) -> str:
    """Format a time that may be negative, such as the cost of a cut, which is a difference of measured times."""
    return seconds(value) if value is None or value >= 0 else f"-{seconds(-value)}"


def duration(value: float) -> str:
    """Format a duration in seconds with one decimal, so that rows of durations can be added up: ``12.3 s``."""
    return f"{value:.1f} s"


def interval(measured: Measurement | None) -> str:
    """Format the confidence interval of a measurement in the unit of its ends: ``46.1 ms .. 47.5 ms``."""
    if measured is None or not math.isfinite(measured.ci_high):
        return NOTHING
    return f"{seconds(measured.ci_low)} .. {seconds(measured.ci_high)}"


def rate(value: float | None) -> str:
    """Format a number of requests per second: ``0.25``, ``33.1``, ``9.56 k``."""
    return f"{value:.3g}" if value is not None and value < 999.5 else amount(value)


def ratio(value: Ratio | None) -> str:
    """Format a ratio with its confidence interval: ``1.21 (1.18 .. 1.24)``."""
    if value is None:
        return NOTHING
    ends = f" ({value.ci_low:.2f} .. {value.ci_high:.2f})" if math.isfinite(value.ci_high) else ""
    return f"{value.ratio:.2f}{ends}"


def percent(share: float | None) -> str:
    """Format a share: ``83 %``; with one decimal below ten percent."""
    if share is None or not math.isfinite(share):
        return NOTHING
    return percentage(share, ".1%" if abs(share) < 0.0995 else ".0%")


def watts(power: float | None) -> str:
    """Format a power: ``72 W``."""
    return NOTHING if power is None else f"{power:.0f} W"


_GIVE_INPUTS = "Values that occur in use may lead to others: --inputs FILE takes an array for each input, by name (.npz)."


def error(value: OutputDifference | None) -> str:
    """Format the error of outputs, relative to the reference's largest value: ``1.2e-07``, ``exact``, ``not checked``.

    In a precision other than float32, the error against float32 is followed by the error against the whole model in that
    precision. A non-zero error is shown even if the outputs count as not checked. The share of values that are NaN or infinite
    in both outputs, and so have no error, is shown as well.
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
    if value.not_checked is None:
        return figure
    return "not checked" if figure == "exact" else f"not checked ({figure})"


def show_unchecked(console: Console, errors: Iterable[OutputDifference | None]) -> None:
    """Print why outputs count as not checked, if they do."""
    for why in dict.fromkeys(value.not_checked for value in errors if value is not None):
        if why is not None:
            paragraph(console, f"Outputs are not checked: {why}. {_GIVE_INPUTS}")


def show_failures(console: Console, failed: Mapping[str, str | None], *, title: str = "failed") -> None:
    """Print the reasons of failures (or of what the title says), grouped by reason; nothing if there are none."""
    names: dict[str, list[str]] = {}
    for name, why in failed.items():
        if why is not None:
            names.setdefault(why, []).append(name)
    if names:
        console.print(f"\n{title}", style="bold")
    for why, affected in names.items():
        paragraph(console, f"{', '.join(affected)}: {why}", indent=2)


def shape(sizes: Sequence[int | str]) -> str:
    """Format a tensor's sizes: ``1x3x224x224``, ``1x[1..512@128]``, ``scalar``."""
    return "x".join(f"[{size}]" if isinstance(size, str) else str(size) for size in sizes) or "scalar"


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
    """Print several tables with the same columns below each other.

    Each row is one line. If lines are too wide, spare columns are left out, then columns on the right, and a note names them.
    On a terminal, headings and text are wrapped first. Otherwise, for tools such as `grep` and `awk`, text is shortened, and
    an empty cell is a dash, so that the cells of a line are always separated by two or more spaces. If the console has less
    than 70 columns, rows are stacked, with one line for each cell.

    Args:
        console: console to print to.
        columns: headings.
        sections: rows of each table, by title. An empty title is not printed, and neither is a table without rows.
        left: number of text columns at the left; the other columns are numbers, aligned to the right.
        spare: headings of columns that may be left out, the least important first.
    """
    folded = console.is_terminal

    def cleaned(cell: str) -> str:
        cell = printable(cell).replace("\n", " ")
        return cell if folded else " ".join(cell.split()) or NOTHING

    cells = {title: [[cleaned(cell) for cell in row] for row in rows] for title, rows in sections.items()}
    cells = {title: some for title, some in cells.items() if some}
    shown, widths = _layout(console, columns, [row for some in cells.values() for row in some], left, spare)
    first = True
    for title, some in cells.items():
        if not first:
            console.print()
        first = False
        if title:
            paragraph(console, title, style="bold")
        if widths is None:
            _stack(console, [columns[i] for i in shown], [[row[i] for i in shown] for row in some])
            continue
        _row(console, widths, [cleaned(columns[i]) for i in shown], left, folded=folded, heading=True)
        if folded:
            console.print("-" * _total_width(widths) if console.options.ascii_only else "─" * _total_width(widths))
        for row in some:
            _row(console, widths, [row[i] for i in shown], left, folded=folded)
    lacking = [heading.strip() for i, heading in enumerate(columns) if i not in shown]
    if lacking and cells:
        paragraph(console, f"(--wide shows {', '.join(lacking)}, too)", style="dim")


_GAP = 2
"""Spaces between two columns of a table."""
_MIN_WIDTH = 70
"""Width of the console below which tables that do not fit are stacked."""
_NARROW, _NARROWEST = 24, 16
"""Widths to which text is wrapped or shortened before a spare column, and before any other column, is left out."""


def _layout(
    console: Console, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int, spare: Sequence[str]
) -> tuple[list[int], list[int] | None]:
    """Return the columns to show, and their widths, or None if rows have to be stacked."""
    shown = list(range(len(columns)))
    widths = _widths(console, shown, columns, rows, left, console.width)
    if widths is not None:
        return shown, widths
    if console.width < _MIN_WIDTH:
        return [i for i in shown if columns[i] not in spare], None
    for narrowest, dropped in ((_NARROW, spare), (_NARROWEST, columns[:0:-1])):
        for heading in (None, *dropped):
            shown = [i for i in shown if columns[i] != heading]
            widths = _widths(console, shown, columns, rows, left, narrowest)
            if widths is not None:
                return shown, widths
    return shown, [console.width]


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _widths(
    console: Console, shown: Sequence[int], columns: Sequence[str], rows: Sequence[Sequence[str]], left: int, narrowest: int
) -> list[int] | None:
    """Return the width of each shown column; None if they do not fit.

    If they are too wide, headings are wrapped on a terminal, and then text columns are narrowed, to ``narrowest`` at least.
    """
    from rich.cells import cell_len

    heads = [columns[i].split() or [""] if console.is_terminal else [columns[i]] for i in shown]
    widths = [max(cell_len(cell) for cell in (*head, *(row[i] for row in rows))) for i, head in zip(shown, heads, strict=True)]
    texts = [at for at, i in enumerate(shown) if i < left]
    while _total_width(widths) > console.width:
        widest = max(texts, key=widths.__getitem__)
        if widths[widest] <= narrowest:
            return None
        widths[widest] -= 1
    for at, i in enumerate(shown):  # if there is room, headings stay on one line
        widths[at] += max(0, min(cell_len(columns[i]) - widths[at], console.width - _total_width(widths)))
    return widths


def _row(
    console: Console, widths: Sequence[int], cells: Sequence[str], left: int, *, folded: bool, heading: bool = False
) -> None:
    """Print a row of a table, with its cells wrapped to several lines, or shortened to one line."""
    from itertools import zip_longest

    from rich.cells import cell_len
    from rich.text import Text

    def lines(cell: str, width: int) -> list[str]:
        if folded:
            return [line.plain.rstrip() for line in Text(cell).wrap(console, width, overflow="fold")]
        return [shortened(cell, width)]

    broken = [lines(cell, width) for cell, width in zip(cells, widths, strict=True)]
    if heading:  # the last line of a heading is right above the cells
        broken = [[*[""] * (max(map(len, broken)) - len(one)), *one] for one in broken]
    for parts in zip_longest(*broken, fillvalue=""):
        padded = []
        for at, (part, width) in enumerate(zip(parts, widths, strict=True)):
            space = " " * (width - cell_len(part))
            padded.append(part + space if at < left else space + part)
        console.print((" " * _GAP).join(padded).rstrip(), style="bold" if heading else None)


def shortened(name: str, width: int) -> str:
    """Shorten a name to ``width`` columns, by replacing its middle by dots."""
    from rich.cells import cell_len

    if cell_len(name) <= width:
        return name
    kept = width - 3
    while True:
        short = f"{name[: kept - kept // 2]}...{name[len(name) - kept // 2 :]}"
        if cell_len(short) <= width:
            return short
        kept -= 1


def _stack(console: Console, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        paragraph(console, row[0])
        facts(console, {f"  {heading}": cell for heading, cell in zip(columns[1:], row[1:], strict=True) if cell})


LOST: ContextVar[frozenset[str]] = ContextVar("files that could not be written", default=frozenset())
"""Paths of the files that a command could not write."""


def facts(console: Console, lines: Mapping[str, str | Sequence[str]]) -> None:
    """Print names and values in two columns. A value that is a sequence is a command, printed for copying to a shell.

    Files that could not be written (:data:`LOST`), and commands that read such files, are left out.
    """
    lost = LOST.get()
    lines = {name: value for name, value in lines.items() if lost.isdisjoint([value] if isinstance(value, str) else value)}
    width = max(map(len, lines), default=0)
    for name, value in lines.items():
        label = f"{name:{width}}  "
        if isinstance(value, str):
            paragraph(console, value, label=label)
        else:
            console.print(_shell(value, label, console.width))


def _shell(words: Sequence[str], label: str, width: int) -> str:
    """Format a command for a shell, in lines that end with a backslash, except for the last one."""
    parts: list[str] = []
    for word in map(shlex.quote, words):
        if parts and parts[-1].startswith("-") and " " not in parts[-1]:  # the value of an option
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    line, lines = parts[0], list[str]()
    for part in parts[1:]:
        if len(label) + len(line) + len(part) > width - 3:
            lines.append(line)
            line = f"  {part}"
        else:
            line += f" {part}"
    return label + f" \\\n{' ' * len(label)}".join([*lines, line])


def paragraph(console: Console, text: str, *, label: str = "", indent: int = 0, style: str = "") -> None:
    """Print text, wrapped to the width of the console. Longer words, such as paths, are not broken.

    Args:
        console: console to print to.
        text: the text.
        label: text before the first line; the other lines are indented by its length.
        indent: indentation of all lines but the first, if there is no label.
        style: style on a terminal.
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
    """Print which devices and links are emulated or described."""
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
    """Replace characters that could break a terminal (control characters, invalid Unicode) by question marks."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)
