"""Record of a sequence: where its state is, what runs of it, and what is left of it after a failure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from placeit.backends.base import Arrays
from placeit.core.errors import PlaceitError, SequenceError
from placeit.core.threads import Gate
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.slots import Slot

__all__ = ["Home", "Line"]


class Home(Protocol):
    """What runs the requests of a sequence: a replica.

    Attributes:
        executor: has its slot.
    """

    executor: PlanExecutor

    @property
    def able(self) -> bool:
        """True if it may take requests."""
        ...


@dataclass(eq=False)
class Line:
    """The requests of a sequence, of which one runs at a time; for the server's lock.

    Attributes:
        number: of the sequence, from 1.
        recompute: whether inputs are kept since the last reset, to compute a state anew that was lost.
        replica: the one whose executor has the slot; None if there is no slot.
        slot: keeps its state; None before it has one, and after that was lost.
        flying: whether a request of it is in flight.
        moving: who copies or resets its state just now; None if nobody does.
        holds: numbers of requests, after each of which the next ones have to wait.
        noted: for threads that wait for something of it to end; None if none does.
        submitted: how many requests it has had.
        resets: how often it was reset.
        begun: how many of these resets have been carried out.
        fresh: whether nothing has run since the last one.
        lost: why its state is not known; None if it is, or can be computed anew.
        closed: whether it takes no more requests.
        inputs: since the last reset, if they are kept.
        ran: of how many of these the slot has the state.
        least: bytes of its initial state, by device name.
        runs: how many requests have run since the last reset.
        bytes: of its state, by device name: as measured, and what it has grown by since then.
        growth: bytes that a request adds to it, by device name.
        measured: after how many runs it was measured last, and what it was then.
    """

    number: int
    recompute: bool = False
    replica: Home | None = None
    slot: Slot | None = None
    flying: bool = False
    moving: object = None
    holds: list[int] = field(default_factory=list)
    noted: Gate | None = None
    submitted: int = 0
    resets: int = 0
    begun: int = 0
    fresh: bool = True
    lost: str | None = None
    closed: bool = False
    inputs: list[Arrays] = field(default_factory=list)
    ran: int = 0
    least: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    bytes: Counter[str] = field(default_factory=Counter)
    growth: Counter[str] = field(default_factory=Counter)
    measured: tuple[int, Counter[str]] = (0, Counter())

    def check_open(self) -> None:
        """Raise SequenceError if it is closed."""
        if self.closed:
            raise SequenceError(f"Sequence {self.number} is closed: make a new one.")

    def check_known(self) -> None:
        """Raise SequenceError if its state is not known."""
        if self.lost is not None:
            raise SequenceError(self.lost)

    def may_begin(self, position: int) -> bool:
        """Return whether its request of a position among all of them, which waits, may begin."""
        return not self.flying and self.moving is None and all(position <= hold for hold in self.holds)

    @property
    def behind(self) -> bool:
        """True if inputs have to run again before the next request."""
        return self.lost is None and self.ran < len(self.inputs)

    def note(self) -> None:
        """Have threads that wait for something of it to end look again."""
        if self.noted is not None:
            self.noted.open()
            self.noted = None

    def reset(self, resets: int) -> None:
        """Take note that the slot has the initial state, by the last one of so many resets."""
        self.begun, self.fresh, self.lost, self.ran = resets, True, None, 0
        self.inputs.clear()
        self.empty()

    def empty(self) -> None:
        """Take note that it has its initial state."""
        self.runs, self.bytes, self.growth, self.measured = 0, self.least.copy(), Counter(), (0, self.least)

    def copy(self, other: Line) -> None:
        """Take over what is known of the state of another one."""
        self.fresh, self.inputs, self.ran, self.least = other.fresh, other.inputs.copy(), other.ran, other.least
        self.runs, self.bytes, self.growth, self.measured = other.runs, other.bytes.copy(), other.growth, other.measured

    def grown(self, found: Counter[str] | None) -> None:
        """Take note of a run, and of the size that its state has now; None if that was not measured."""
        self.runs += 1
        if found is None:
            self.bytes = self.bytes + self.growth
        else:
            runs, before = self.measured
            self.growth = Counter({name: (found[name] - before[name]) // (self.runs - runs) for name in found})
            self.bytes, self.measured = found, (self.runs, found)

    @property
    def due(self) -> bool:
        """True if its state is to be measured after its next run: ever more rarely, as that may copy it."""
        return self.runs + 1 >= 2 * self.measured[0]

    def ended(self, inputs: Arrays, *, replay: bool) -> None:
        """Take note that a request has ended well, which may have been there only for the state that it leaves."""
        self.fresh = False
        if self.recompute:
            if not replay:
                self.inputs.append({name: np.array(value) for name, value in inputs.items()})
            self.ran += 1

    def failed(self, why: PlaceitError, *, for_good: bool = False) -> None:
        """Take note that nobody knows what its slot holds, as a request failed that had begun, or the slot was lost.

        Args:
            why: what has happened.
            for_good: whether its state is not computed anew.
        """
        if self.recompute and not for_good:
            self.ran = 0
            self.empty()
        elif self.lost is None and not (self.fresh and self.slot is None):
            self.lost = (
                f"The state of sequence {self.number} is not known any more: {why} Call reset() to have it begin anew. With "
                "recompute=True, a sequence computes its state anew by itself."
            )
