"""The story of a search: its events, with the time, the stage and the reason of each."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from placeit.core import clock
from placeit.core.records import RecordError, record
from placeit.optimizer.candidate_state import StateDict

__all__ = ["Event", "OnEvent", "Story", "What", "events_of", "happen", "replay"]

What: TypeAlias = Literal[
    "stage begins",
    "stage skipped",
    "proposed",
    "proposed again",
    "no placement",
    "skipped",
    "measured",
    "compared",
    "failed",
    "undone",
    "race begins",
    "race ends",
    "interrupted",
    "chosen",
]
"""Kinds of events."""


@dataclass(frozen=True)
class Event:
    """An event of a search.

    Attributes:
        at_s: seconds since the search was requested.
        stage: name of the stage at that time.
        what: kind of the event.
        candidate: name of the candidate; None if the event concerns the whole search.
        reason: the reason or the result; None without one.
        state: new state of the candidate; None if it does not change.
        simulated_value: simulated objective of a proposed candidate; None if unknown.
    """

    at_s: float
    stage: str
    what: What
    candidate: str | None = None
    reason: str | None = None
    state: StateDict | None = None
    simulated_value: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return it as a dict for JSON output."""
        return dict(vars(self))


OnEvent: TypeAlias = Callable[[Event], object]
"""A function that is called with each event of a search."""


class Story:
    """The events of a search so far.

    Args:
        begin: when the search was requested, by :func:`placeit.core.clock.now`; None for now.
        on_event: called with each event, in the thread of the search; None for no calls.

    Attributes:
        events: in the order in which they happened.
        stage: name of the current stage.
    """

    def __init__(self, begin: float | None = None, on_event: OnEvent | None = None) -> None:
        self.events: list[Event] = []
        self.stage = "race"
        self._begin = clock.now() if begin is None else begin
        self._on_event = on_event

    def tell(
        self,
        what: What,
        candidate: str | None = None,
        reason: str | None = None,
        state: StateDict | None = None,
        simulated_value: float | None = None,
    ) -> None:
        """Add an event that happens now."""
        event = Event(clock.now() - self._begin, self.stage, what, candidate, reason, state, simulated_value)
        self.events.append(event)
        if self._on_event is not None:
            self._on_event(event)

    def begin(self, stage: str) -> None:
        """Begin a stage."""
        self.stage = stage
        self.tell("stage begins")


def happen(states: Mapping[str, StateDict], event: Event) -> Mapping[str, StateDict]:
    """Return the states of all candidates after an event, given the states before it."""
    if event.candidate is None or event.state is None:
        return states
    return {**states, event.candidate: event.state}


def replay(events: Iterable[Event]) -> Mapping[str, StateDict]:
    """Return the states of all candidates, by name, after the events of a search."""
    start: Mapping[str, StateDict] = {}
    return functools.reduce(happen, events, start)


def events_of(found: object) -> list[Event]:
    """Return the events in the JSON of a search in a recording; entries that are not events are left out."""
    events = list[Event]()
    for one in found if isinstance(found, list) else ():
        with contextlib.suppress(RecordError):
            events.append(record(Event, one))
    return events
