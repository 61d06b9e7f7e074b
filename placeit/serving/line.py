"""Record of a sequence: the slots that share its state, its requests in flight, and its state after a failure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from placeit.backends.base import Arrays
from placeit.core.errors import PlaceitError, SequenceError, StateLostError
from placeit.core.threads import Gate
from placeit.runtime.plan_executor import PlanExecutor
from placeit.runtime.slots import Slot

__all__ = ["Company", "Home", "Line"]

_TOKENS = "input_ids"
_UNMEASURED = 16  # requests by which the measurement of a state may be late, as it needs a moment with none in flight


class Home(Protocol):
    """A replica, as the record of a sequence uses it: it runs the requests of the sequence.

    Attributes:
        executor: has the slot of the sequence.
    """

    executor: PlanExecutor

    @property
    def able(self) -> bool:
        """True if the replica may take requests."""
        ...


class Company(Protocol):
    """Sequences whose states are the rows of one slot (:class:`placeit.serving.convoy.Convoy`), as one of them uses it.

    Attributes:
        flying: whether a run is being prepared or is in flight.
    """

    flying: bool

    @property
    def bytes(self) -> Counter[str]:
        """Bytes of a row, by device name."""
        ...

    @property
    def column(self) -> Counter[str]:
        """Bytes that a run adds to a row, by device name."""
        ...

    def leave(self, line: Line) -> None:
        """Remove a sequence."""
        ...

    def states_of(self, line: Line) -> Mapping[str, Any]:
        """Return a copy of the state of a sequence."""
        ...


class Flying(Protocol):
    """A request in flight, as the record of its sequence uses it.

    Attributes:
        inputs: by name.
    """

    inputs: Arrays


@dataclass(eq=False)
class Line:
    """Record of a sequence. The caller holds the server's lock.

    Several requests are in flight only if their slots share the state: each device then runs them in order.

    Attributes:
        number: of the sequence, from 1.
        recompute: whether inputs are kept since the last reset, to recompute a state that was lost.
        replica: the replica whose executor has the slot; None if there is no slot.
        slot: keeps the state; None before the sequence has a slot, and after the slot was lost.
        more: further slots that share the state, for requests that begin while others are in flight.
        alone: whether no request begins while another is in flight, as there was no room for a further slot.
        convoy: has the state as a row among rows of other sequences; None if the slot has the state.
        flying: the requests in flight, in order, with their slots; None for a request that is not ready yet.
        moving: token of the thread that copies or resets the state; None without one.
        holds: positions; requests at higher positions wait.
        noted: gate for threads that wait for the end of a request, a copy or a reset; None if no thread waits.
        submitted: number of requests submitted so far.
        resets: number of resets so far.
        begun: number of these resets that have been carried out.
        fresh: whether nothing has run since the last reset.
        lost: why the state is not known; None if it is known or can be recomputed.
        lost_at: position of the request that has failed; requests in flight behind it compute with a wrong state.
        closed: whether the sequence takes no more requests.
        inputs: inputs of each request since the last reset, if they are kept.
        ran: number of these inputs that the state in the slot includes.
        tokens: number of tokens that the state includes, of a decoder.
        least: bytes of the initial state, by device name.
        runs: number of requests that have run since the last reset.
        bytes: bytes of the state, by device name: the last measurement, and the expected growth since then.
        units: tokens that have run since the last reset or, for a model without tokens, requests.
        growth: bytes that a token, or such a request, is expected to add to the state, by device name.
        measured: runs and units at the last measurement, and the bytes that were measured, by device name.
    """

    number: int
    recompute: bool = False
    replica: Home | None = None
    slot: Slot | None = None
    more: list[Slot] = field(default_factory=list)
    alone: bool = False
    convoy: Company | None = None
    flying: dict[Flying, Slot | None] = field(default_factory=dict)
    moving: object = None
    holds: list[int] = field(default_factory=list)
    noted: Gate | None = None
    submitted: int = 0
    resets: int = 0
    begun: int = 0
    fresh: bool = True
    lost: str | None = None
    lost_at: int = 0
    closed: bool = False
    inputs: list[Arrays] = field(default_factory=list)
    ran: int = 0
    tokens: int = 0
    least: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    bytes: Counter[str] = field(default_factory=Counter)
    units: int = 0
    growth: Counter[str] = field(default_factory=Counter)
    measured: tuple[int, int, Counter[str]] = (0, 0, Counter())

    def check_open(self) -> None:
        """Raise SequenceError if the sequence is closed."""
        if self.closed:
            raise SequenceError(f"Sequence {self.number} is closed: make a new one.")

    def check_known(self) -> None:
        """Raise SequenceError if the state of the sequence is not known."""
        if self.lost is not None:
            raise StateLostError(self.number, self.lost)

    def may_begin(self, position: int) -> bool:
        """Return whether the waiting request at a position may begin, with none in flight."""
        return not self.busy and self._is_free(position)

    def may_follow(self, position: int, resets: int) -> bool:
        """Return whether a waiting request may begin while others are in flight.

        A state that was lost cannot be recomputed while other requests run, and it is measured only while none runs.

        Args:
            position: of the request in the sequence.
            resets: number of resets before it was submitted.
        """
        known = self.convoy is None and resets == self.begun and self.runs < 2 * self.measured[0] + _UNMEASURED
        return known and 0 < len(self.flying) < self.at_once and self._is_free(position)

    @property
    def at_once(self) -> int:
        """Most requests that may be in flight."""
        return 1 if self.slot is None or self.recompute or self.alone else self.slot.at_once

    def _is_free(self, position: int) -> bool:
        return self.moving is None and all(position <= hold for hold in self.holds)

    @property
    def busy(self) -> bool:
        """True if a run uses the state."""
        convoy = self.convoy
        return bool(self.flying) or (convoy is not None and convoy.flying)

    @property
    def coming(self) -> Counter[str]:
        """Bytes that the requests in flight are expected to add to the state, by device name."""
        units = sum(_units(request.inputs) for request in [*self.flying])
        return Counter({device: units * size for device, size in self.growth.items()})

    @property
    def free_slot(self) -> Slot | None:
        """A slot without a request in flight; None if all are taken."""
        slots = () if self.slot is None else (self.slot, *self.more)
        return next((slot for slot in slots if slot not in self.flying.values()), None)

    def let_go(self) -> list[Slot]:
        """Remove all slots, and return them."""
        slots = [] if self.slot is None else [self.slot, *self.more]
        self.replica = self.slot = None
        self.more.clear()
        return slots

    @property
    def states(self) -> Mapping[str, Any] | None:
        """Copies of the values of the model's variables, by name; None without a slot. The state must not be in use."""
        if self.convoy is not None:
            return self.convoy.states_of(self)
        return None if self.slot is None else self.slot.states()

    def separate(self) -> None:
        """Move the state, which must not be in use, from the convoy to the slot."""
        if self.convoy is not None and self.slot is not None:
            self.slot.set_states(self.convoy.states_of(self))
            self.leave()

    def leave(self) -> None:
        """Leave the convoy, if the state is in one; the state there is lost."""
        if self.convoy is not None:
            self.convoy.leave(self)

    @property
    def behind(self) -> bool:
        """True if kept inputs have to run again to restore the state before the next request."""
        return self.lost is None and self.ran < len(self.inputs)

    def note(self) -> None:
        """Wake the threads that wait for a request, a copy or a reset of the sequence to end."""
        if self.noted is not None:
            self.noted.open()
            self.noted = None

    def reset(self, resets: int) -> None:
        """Record that the slot has the initial state, and that ``resets`` resets have been carried out."""
        self.begun, self.fresh, self.lost, self.ran, self.tokens = resets, True, None, 0, 0
        self.inputs.clear()
        self.empty()

    def empty(self) -> None:
        """Record the size of the initial state as the size of the state."""
        self.runs, self.units, self.bytes, self.growth = 0, 0, self.least.copy(), Counter()
        self.measured = 0, 0, self.least

    def copy(self, other: Line) -> None:
        """Copy the record of another sequence's state."""
        self.fresh, self.inputs, self.ran, self.least = other.fresh, other.inputs.copy(), other.ran, other.least
        self.tokens = other.tokens
        self.runs, self.units, self.growth, self.measured = other.runs, other.units, other.growth, other.measured
        self.bytes = other.bytes.copy()

    def grown(self, inputs: Arrays, found: Counter[str] | None) -> None:
        """Record a run.

        Args:
            inputs: of the run, by name.
            found: bytes of the state after it, by device name; None if they were not measured.
        """
        self.runs += 1
        self.units += _units(inputs)
        if self.convoy is not None:
            self.growth, self.bytes = self.convoy.column, self.convoy.bytes
            self.measured = self.runs, self.units, self.bytes
        elif found is None:
            self.bytes = self.bytes + Counter({device: _units(inputs) * size for device, size in self.growth.items()})
        else:
            _, units, before = self.measured
            self.growth = Counter({name: (found[name] - before[name]) // max(1, self.units - units) for name in found})
            self.bytes, self.measured = found, (self.runs, self.units, found)

    @property
    def due(self) -> bool:
        """True if the state is to be measured after the next run. Measuring may copy it, so the intervals double."""
        return self.runs + 1 >= 2 * self.measured[0]

    def ended(self, inputs: Arrays, *, replay: bool) -> None:
        """Record that a request has ended well.

        Args:
            inputs: of the request, by name.
            replay: whether the request ran a kept input again.
        """
        self.fresh = False
        self.tokens += _units(inputs) if _TOKENS in inputs else 0
        if self.recompute:
            if not replay:
                self.inputs.append({name: np.array(value) for name, value in inputs.items()})
            self.ran += 1

    def failed(self, why: PlaceitError, *, at: int = 0, for_good: bool = False) -> None:
        """Record that the state in the slot is not known: a request failed after it had begun, or the slot was lost.

        Args:
            why: the reason.
            at: position of the request that has failed; 0 if all in flight compute with a wrong state.
            for_good: whether the state cannot be recomputed, even if inputs are kept.
        """
        if self.recompute and not for_good:
            self.ran = self.tokens = 0
            self.empty()
        elif self.lost is not None:
            self.lost_at = min(self.lost_at, at)
        elif not (self.fresh and self.slot is None):
            self.lost, self.lost_at = str(why), at


def _units(inputs: Arrays) -> int:
    return sum(inputs[_TOKENS].shape[-1:]) if _TOKENS in inputs else 1
