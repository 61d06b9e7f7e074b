"""Account for the time of a search, by step and by placer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from typing import NamedTuple

from placeit.core import clock
from placeit.runtime.compiling import Compiled

__all__ = ["COMPILING", "DECIDING", "FRONT", "LOADING", "MEASURING", "PROFILING", "REST", "Item", "Ledger", "compiled_since"]


class Item(NamedTuple):
    """A step or a placer that time is accounted to.

    Attributes:
        what: a step of the search, or the name of a placer.
        placer: whether it is a placer.
    """

    what: str
    placer: bool = False


LOADING, PROFILING, COMPILING = Item("loading"), Item("profiling"), Item("compiling")
MEASURING, DECIDING, FRONT, REST = Item("measuring"), Item("deciding"), Item("Pareto front"), Item("other steps")


class Ledger:
    """Accounts in which each second counts for one item: the innermost open one, or :data:`REST`.

    Attributes:
        seconds: seconds of each item, in the order in which the items were first opened.
    """

    def __init__(self) -> None:
        self.seconds: dict[Item, float] = {}
        self._open, self._since = [REST], clock.now()

    @contextlib.contextmanager
    def on(self, item: Item) -> Iterator[None]:
        """Account the time inside the context to an item."""
        self.book()
        self.seconds.setdefault(item, 0.0)
        self._open.append(item)
        try:
            yield
        finally:
            self.book()
            self._open.pop()

    def book(self) -> float:
        """Account the time until now, and return the sum over all items."""
        now = clock.now()
        item = self._open[-1]
        self.seconds[item] = self.seconds.get(item, 0.0) + now - self._since
        self._since = now
        return sum(self.seconds.values())


def compiled_since(before: Mapping[str, Compiled], now: Mapping[str, Compiled]) -> dict[str, Compiled]:
    """Return the programs that were compiled between two counts, by kind of device."""
    pairs = {kind: zip(astuple(one), astuple(before.get(kind, Compiled())), strict=True) for kind, one in now.items()}
    return {kind: Compiled(*(late - early for late, early in counts)) for kind, counts in pairs.items()}
