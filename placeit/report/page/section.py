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
    """A table; all of it is shown as text.

    Attributes:
        columns: their titles.
        rows: cells, as many as columns.
        numbers: which columns hold numbers, which are aligned at their right.
        marked: which rows are emphasised.
        title: what it shows; empty for what its section says.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    marked: frozenset[int] = frozenset()
    title: str = ""


@dataclass(frozen=True)
class Picture:
    """Something that Bokeh draws.

    Attributes:
        model: what it draws.
        about: what it shows, for those who do not see it.
    """

    model: UIElement
    about: str


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        key: its address on the page.
        title: its heading.
        texts: paragraphs that come first.
        parts: pictures and tables, in their order.
    """

    key: str
    title: str
    texts: Sequence[str] = ()
    parts: Sequence[Picture | Table] = field(default=())
