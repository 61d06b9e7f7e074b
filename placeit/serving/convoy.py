"""A convoy: several sequences whose states are the rows of one slot, so that a single run steps all of them."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.backends.base import Arrays, TensorSpec
from placeit.core.telemetry import import_openvino
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.state import Fetched
from placeit.runtime.slots import Slot
from placeit.serving.line import Line

__all__ = ["BEAMS", "KNOWN", "MASK", "TOKENS", "Convoy", "Row", "row_of", "step_inputs"]

TOKENS, MASK, BEAMS = "input_ids", "attention_mask", "beam_idx"
"""Inputs of joined decoders: the tokens of a step, the mask of the text so far and, of some, the rows of the state."""
KNOWN = (TOKENS, MASK, "position_ids", BEAMS, "token_type_ids")
"""Inputs of decoders whose meaning is known."""
_MISSED = 16  # runs in a row without a step of a sequence, after which it leaves
_SPARE = 64  # columns that no row needs, beyond half of all, from which on they are removed

Row: TypeAlias = dict[str, NDArray[Any]]
"""State of one sequence, by the names of the model's variables; its first size is 1."""


def step_inputs(
    tokens: ArrayLike,
    past: int,
    specs: Mapping[str, TensorSpec] | Mapping[str, BufferSpec],
    hidden: Sequence[int] = (),
) -> dict[str, NDArray[np.generic]]:
    """Return the inputs of a decoder for a step of one text.

    Args:
        tokens: ``int[N]``, tokens of the step.
        past: number of tokens of the text before them.
        specs: the decoder's inputs, by name; those that are not in :data:`KNOWN` are left out.
        hidden: columns of the state that hold no token of the text, beside the columns of the ``past`` tokens.
    """
    step = np.asarray(tokens)[None]
    end = past + step.shape[1]
    mask = np.ones((1, end + len(hidden)))
    mask[0, [*hidden]] = 0
    every = step, mask, np.arange(past, end)[None], np.zeros(1), np.zeros(step.shape)
    return {name: value.astype(specs[name].dtype) for name, value in zip(KNOWN, every, strict=True) if name in specs}


def row_of(slot: Slot) -> Row:
    """Return the state in a slot of one sequence, on which nothing runs."""
    return {name: _array(value) for name, value in slot.states().items()}


class Convoy:
    """Sequences whose states are the rows of one slot.

    All rows have the same length along the dimension in which states grow: one column for each token. A column that holds no
    token of a row is hidden from the row by the attention mask: columns in front of shorter rows, and columns of runs in which
    the sequence had no step. While ``flying``, only the thread that runs the convoy changes it. Otherwise, changes are made
    with the server's lock.

    Args:
        slot: holds the rows.
        axes: the dimension that grows, by the name of each variable.
        emptied: called when the last sequence has left.

    Attributes:
        lines: the sequences, one for each row.
        flying: whether a run is being prepared or is in flight.
        sound: whether the rows are known; False after an error while they were replaced.
        column: bytes of a column of a row, by device name.
    """

    def __init__(self, slot: Slot, axes: Mapping[str, int], emptied: Callable[[Convoy], object]) -> None:
        self.slot, self._axes, self._emptied = slot, axes, emptied
        self.lines: list[Line] = []
        self.flying, self.sound = False, True
        self.column = Counter[str]()
        self._places: list[int] = []  # of each sequence's row in the slot, whose other rows the next run drops
        self._seen = np.zeros((0, 0), bool)  # by row in the slot and column: whether it is a token of the row
        self._missed = Counter[Line]()
        self._reading = threading.Lock()

    @property
    def free(self) -> bool:
        """True if a run may begin: none is in flight, and no thread copies the state of a sequence; with the lock."""
        return not self.flying and all(line.moving is None for line in self.lines)

    @property
    def bytes(self) -> Counter[str]:
        """Bytes of a row, by device name."""
        return Counter({device: size * self._seen.shape[1] for device, size in self.column.items()})

    def land(self) -> None:
        """End a run, and wake threads that wait for the state of a sequence."""
        self.flying = False
        for line in [*self.lines]:
            line.note()

    def leave(self, line: Line) -> None:
        """Remove a sequence. Its row takes part in no further run."""
        with self._reading:
            place = self.lines.index(line)
            del self.lines[place], self._places[place]
            del self._missed[line]
            line.convoy = None
        if not self.lines:
            self._emptied(self)

    def rows(self, lines: Sequence[Line]) -> list[Row]:
        """Return copies of the states of some of the sequences, without columns that hold no token."""
        if not lines:
            return []
        with self._reading:
            values = {name: _array(value) for name, value in self.slot.states().items()}
            return [self._row(self._places[self.lines.index(line)], values) for line in lines]

    def states_of(self, line: Line) -> dict[str, Any]:
        """Return a copy of the state of a sequence, as :meth:`placeit.runtime.slots.Slot.states` returns it."""
        (row,) = self.rows([line])
        return {name: _tensor(value) for name, value in row.items()}

    def _row(self, place: int, values: Mapping[str, NDArray[Any]]) -> Row:
        columns = np.flatnonzero(self._seen[place])
        return {name: np.take(value[place : place + 1], columns, self._axes[name]) for name, value in values.items()}

    def set_rows(self, lines: Sequence[Line], rows: Sequence[Row]) -> None:
        """Replace all rows by the states of some sequences. Raises DeviceError, after which they may not be :attr:`sound`."""
        lengths = [self._length(row) for row in rows]
        longest = max(lengths)
        states = {}
        for name, first in rows[0].items():
            axis, shape = self._axes[name], [len(rows), *first.shape[1:]]
            shape[axis] = longest
            states[name] = stacked = np.zeros(shape, first.dtype)
            for place, row in enumerate(rows):
                end = [slice(None)] * len(shape)
                end[0], end[axis] = slice(place, place + 1), slice(longest - lengths[place], None)
                stacked[tuple(end)] = row[name]
        self.sound = False
        self.slot.set_states({name: _tensor(value) for name, value in states.items()})
        if not self.column:
            size = len(rows) * longest
            self.column = Counter({device: total // size for device, total in self.slot.state_bytes().items()})
        self.lines, self._places = [*lines], [*range(len(lines))]
        self._seen = np.arange(longest) >= longest - np.array(lengths)[:, None]
        self._missed.clear()
        self.sound = True

    def _length(self, row: Row) -> int:
        name, value = next(iter(row.items()))
        return int(value.shape[self._axes[name]])

    def is_wasteful(self, steps: Mapping[Line, Arrays]) -> bool:
        """Return whether rows are to be replaced before a run.

        This is so if most of the columns hold no token of any sequence's row, or if sequences have left and the decoder has no
        list of beams that drops their rows.
        """
        drops = BEAMS in next(iter(steps.values()))
        longest = self._seen[self._places].sum(1).max()
        return bool(self._seen.shape[1] > 2 * longest + _SPARE) or len(self.lines) < (0 if drops else len(self._seen))

    def leaving(self, steps: Mapping[Line, Arrays]) -> list[Line]:
        """Return the sequences that leave before a run: they had no steps lately, or a thread waits for their state."""
        return [line for line in self.lines if line not in steps and (line.holds or self._missed[line] >= _MISSED)]

    def inputs(self, steps: Mapping[Line, Arrays]) -> Row:
        """Return the inputs of a run.

        Args:
            steps: inputs of the next step of each sequence that has one; each has a single token.
        """
        filler, length = next(iter(steps.values())), self._seen.shape[1]
        each = [steps.get(line, filler) for line in self.lines]
        found = {name: np.concatenate([one[name] for one in each]) for name in filler if name != MASK}
        if BEAMS in filler:
            found[BEAMS] = np.array(self._places, filler[BEAMS].dtype)
        found[MASK] = mask = np.zeros((len(self.lines), length + 1), filler[MASK].dtype)
        for number, (line, place) in enumerate(zip(self.lines, self._places, strict=True)):
            columns = np.flatnonzero(self._seen[place])
            if line in steps:
                mask[number, [*columns, length]] = steps[line][MASK][0]
            else:
                mask[number, columns] = 1
        return found

    def ran(self, steps: Mapping[Line, Arrays]) -> None:
        """Record that a run has ended well."""
        stepped = np.array([line in steps for line in self.lines])
        self._seen = np.concatenate([self._seen[self._places], stepped[:, None]], 1)
        self._places = [*range(len(self.lines))]
        for line in self.lines:
            self._missed[line] = 0 if line in steps else self._missed[line] + 1


def _array(value: Any) -> NDArray[Any]:
    tensor = value.fetch() if isinstance(value, Fetched) else value
    return np.asarray(tensor.data)


def _tensor(value: NDArray[Any]) -> Any:
    return import_openvino().Tensor(np.ascontiguousarray(value), shared_memory=True)
