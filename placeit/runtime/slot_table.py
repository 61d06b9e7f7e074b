"""The slots of an executor by number: one for each request in flight, and one for each open sequence."""

from __future__ import annotations

from collections.abc import Sequence

from placeit.runtime.engine_wiring import Wiring
from placeit.runtime.slots import Slot

__all__ = ["SlotTable"]


class SlotTable:
    """The slots that an engine runs requests in. The caller holds the executor's lock while it changes the table.

    Args:
        wiring: connects slots with the engine.
        slots: slots for requests outside sequences, in the order of their numbers.
    """

    def __init__(self, wiring: Wiring, slots: Sequence[Slot]) -> None:
        self._wiring, self._ordinary_count = wiring, len(slots)
        self._capacity, self._free = len(slots), list[int]()  # number of slots that the engine has room for; free numbers
        self._slots: dict[int, Slot] = {}
        for slot in slots:
            self.add(slot)

    def __getitem__(self, number: int) -> Slot:
        return self._slots[number]

    @property
    def ordinary(self) -> list[Slot]:
        """Slots for requests outside sequences; empty once the executor is closed."""
        return [slot for number, slot in [*self._slots.items()] if number < self._ordinary_count]

    def reserve(self) -> int:
        """Return a free number for another slot; the engine grows when all numbers are in use."""
        if self._free:
            return self._free.pop()
        number, capacity = self._capacity, 2 * self._capacity
        self._wiring.engine.grow(capacity)
        self._free += range(number + 1, capacity)[::-1]
        self._capacity = capacity
        return number

    def give_back(self, number: int) -> None:
        """Free a reserved number for which no slot was added."""
        self._free.append(number)

    def add(self, slot: Slot) -> None:
        """Connect a slot with the engine."""
        self._wiring.connect(slot)
        self._slots[slot.number] = slot

    def remove(self, slot: Slot) -> None:
        """Disconnect a slot and free its number, unless it was removed before, or an abandoned run is still in flight there."""
        if self._slots.get(slot.number) is slot and not self._wiring.engine.in_flight(slot.number):
            self._wiring.engine.forget(slot.number)
            del self._slots[slot.number]
            self._free.append(slot.number)

    def clear(self) -> None:
        """Disconnect all slots."""
        for number in [*self._slots]:
            self._wiring.engine.forget(number)
        self._slots.clear()
