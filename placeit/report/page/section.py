"""Sections of a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bokeh.models import UIElement

__all__ = ["Picture", "Section", "Table"]


@dataclass(frozen=True)
class Table:
    """A table; all cells are shown as text.

    Attributes:
        columns: titles of the columns.
        rows: cells of each row, one per column.
        numbers: positions of columns that hold numbers, which are aligned to the right.
        marked: positions of rows that are emphasised.
        title: title of the table; empty if the title of the section is sufficient.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """A Bokeh plot.

    Attributes:
        model: the Bokeh model.
        about: alternative text, for screen readers.
    """

    model: UIElement
    about: str


@dataclass(frozen=True)
class Section:
    """A part of a page, with a heading.

    Attributes:
        key: its anchor on the page.
        title: its heading.
        texts: paragraphs at its beginning.
        parts: pictures and tables, in their order.
    """

    key: str
    title: str
    texts: Sequence[str] = ()
    parts: Sequence[Picture | Table] = field(default=())
