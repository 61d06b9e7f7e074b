"""Live view of a search: the best candidate so far, measured and predicted candidates, and the remaining time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from placeit.core import clock
from placeit.optimizer.candidate_state import StateDict
from placeit.optimizer.story import Event, happen
from placeit.report import text

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["SearchView"]

_MAX_CANDIDATES, _BAR = 3, 20  # maximum number of candidates in a line; columns of the bar


class SearchView:
    """View of a search. The searching thread reports events and progress to it.

    Args:
        budget: budget of the search, in seconds.
        unit: unit of the objective.
        now: clock, in seconds.
    """

    def __init__(self, budget: float, unit: str, now: Callable[[], float] = clock.now) -> None:
        self._budget, self._unit, self._now, self._begin = budget, unit, now, now()
        self._states: Mapping[str, StateDict] = {}
        self._simulated: dict[str, float] = {}
        self._racing = ""
        self._what, self._share = "starting", 0.0

    def __call__(self, what: str, share: float) -> None:
        """Show the current step, and the share of it that is done."""
        self._what, self._share = what, share

    def event(self, event: Event) -> None:
        """Update the view after an event."""
        self._states = happen(self._states, event)
        if event.candidate is not None and event.simulated_value is not None:
            self._simulated = {**self._simulated, event.candidate: event.simulated_value}
        if event.what in ("race begins", "race ends"):
            self._racing = (event.reason or "").partition(": ")[2] if event.what == "race begins" else ""

    def render(self) -> Table:
        """Return the view, as wide as the console that it is printed to."""
        from rich.table import Table
        from rich.text import Text

        page = Table.grid(padding=(0, 2), expand=True)
        page.add_column(no_wrap=True, min_width=len("measured now"))
        page.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        for name, value in self._lines().items():
            page.add_row(name, Text(text.printable(value)))
        return page

    def _lines(self) -> dict[str, str]:
        values = {name: state.get("cost") or state.get("value") for name, state in self._states.items()}
        measured = {name: value for name, value in values.items() if isinstance(value, float)}
        waiting = [name for name, state in self._states.items() if state["kind"] == "proposed" and name in self._simulated]
        passed = self._now() - self._begin
        done = round(_BAR * min(max(self._share, 0.0), 1.0))
        return {
            "best so far": self._listed(measured, sorted(measured, key=measured.__getitem__)[:1]) or "nothing is measured yet",
            "now": f"[{'#' * done}{'.' * (_BAR - done)}] {self._what}",
            "measured now": self._racing or text.NOTHING,
            "predicted": self._listed(self._simulated, sorted(waiting, key=self._simulated.__getitem__)) or text.NOTHING,
            "time left": f"{max(0.0, self._budget - passed):.0f} s of {self._budget:g} s",
        }

    def _listed(self, values: Mapping[str, float], names: list[str]) -> str:
        listed = ", ".join(f"{name} {text.amount(values[name], self._unit, least=-3)}" for name in names[:_MAX_CANDIDATES])
        return f"{listed}, and {len(names) - _MAX_CANDIDATES} more" if len(names) > _MAX_CANDIDATES else listed
