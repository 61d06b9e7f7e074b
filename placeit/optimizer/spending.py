"""Report the time of each step and each placer of a search, and the results of each placer."""

from __future__ import annotations

import math

from placeit.optimizer.candidates import Candidate, value_of
from placeit.optimizer.ledger import COMPILING, DECIDING, FRONT, LOADING, MEASURING, PROFILING, REST, Item
from placeit.optimizer.result import Spent
from placeit.optimizer.search import Search

__all__ = ["spending"]

_ORDER = (LOADING, PROFILING)  # steps before the placers
_AFTER = (COMPILING, MEASURING, DECIDING, FRONT, REST)  # steps after them


def spending(search: Search, chosen: Candidate) -> tuple[Spent, ...]:
    """Return the time spent so far by steps and placers, in the order of the search."""
    search.ledger.book()
    seconds = search.ledger.seconds
    before = _ancestors(search, chosen)
    asked = [item for item in seconds if item.placer]
    asked += [Item(name, placer=True) for name in search.notes if Item(name, placer=True) not in asked]
    steps = [[Spent(item.what, False, seconds[item]) for item in some if item in seconds] for some in (_ORDER, _AFTER)]
    placers = [_of_placer(search, item.what, seconds.get(item, 0.0), chosen, before) for item in asked]
    return (*steps[0], *placers, *steps[1])


def _of_placer(search: Search, name: str, seconds: float, chosen: Candidate, before: set[str]) -> Spent:
    own = [one for one in search.proposals if one.placer == name]
    candidates = [search.known[one.candidate] for one in own]
    simulated = [one.simulated_value for one in candidates if one.simulated_value is not None]
    measured = [value for one in candidates if math.isfinite(value := value_of(one))]
    measured += [one.measured for one in own if one.measured is not None]
    found = {one.candidate for one in own if not one.same and search.known[one.candidate].placer != "single"}
    return Spent(
        what=name,
        placer=True,
        seconds=seconds,
        proposed=len(own),
        new=sum(one.fresh for one in own),
        simulated_value=min(simulated, default=None),
        measured_value=min(measured, default=None),
        role="answer" if chosen.name in found else "start" if before & found else None,
        note=search.notes.get(name),
    )


def _ancestors(search: Search, chosen: Candidate) -> set[str]:
    """Return the names of the candidates that the search for the answer started from, directly or indirectly."""
    names: set[str] = set()
    start = chosen.start
    while start is not None and start not in names:
        names.add(start)
        start = search.known[start].start
    return names
