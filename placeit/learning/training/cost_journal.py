"""A journal of costs that are not simulated, so that no cost is measured twice."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import FileError, TrainingError, UsageError
from placeit.core.files import complete_lines
from placeit.core.problem import CostFunction, Problem
from placeit.core.records import parsed, plain, record
from placeit.learning.training.logs import writing

__all__ = ["CostJournal"]

_FORMAT, _VERSION = "placeit-training-costs", 1

_Key: TypeAlias = tuple[str, str, bytes]
"""Name of the cost, key of the problem, bytes of the placement."""


@dataclass(frozen=True)
class _Line:
    """A line of the file; a value that is not finite is written as text."""

    cost: str
    problem: str
    placement: tuple[int, ...]
    value: float | str


class CostJournal:
    """Costs of placements, in the order in which training received them.

    A known cost of a placement never changes. A cost of NaN means not measured; such a placement is measured again the next
    time. The file has a line of JSON for each cost, and lines are synced to the disk before training continues. When training
    resumes from a saved state, it receives the costs after that state again, in the same order. Only costs beyond the end of
    the file are measured.

    Args:
        path: the file, which is created with the first cost; None for no file.
        training: identity of the training that the file belongs to.
        position: number of costs in the file at the time of the saved state.

    Attributes:
        position: number of costs that training has received so far.

    Raises:
        FileError: the file cannot be read, is damaged, or lacks costs.
        UsageError: the file belongs to another training.
    """

    def __init__(self, path: Path | None, training: str, position: int) -> None:
        self._path, self._head = path, {"format": _FORMAT, "version": _VERSION, "training": training}
        self._costs: dict[_Key, list[tuple[int, float]]] = {}  # line and cost of each measurement of a placement
        self._received: dict[_Key, int] = {}  # number of these costs that training has received
        self._count = 0
        for number, line in enumerate(complete_lines(path) if path is not None and path.exists() else []):
            if number:
                self._enter(*self._read(number + 1, line))
            else:
                self._check(line)
        if self._count < position:
            raise FileError(
                f"{path} holds {self._count} costs, and training had received {position} when its state was saved: restore "
                "the file, or train anew in another folder."
            )
        self.position = position
        for key, costs in self._costs.items():
            self._received[key] = sum(index < position for index, _ in costs)

    def cached(self, name: str, problem: Problem, cost: CostFunction) -> CostFunction:
        """Return a cost function that calls ``cost`` only for placements that are not in the journal.

        Args:
            name: name of the cost, as in the stage.
            problem: problem of the placements.
            cost: function that measures the placements.
        """

        def cached_cost(placements: NDArray[np.int32]) -> NDArray[np.float64]:
            keys = [(name, problem.key, np.ascontiguousarray(row, "<i4").tobytes()) for row in placements]
            first: dict[_Key, int] = {}
            for number, key in enumerate(keys):
                first.setdefault(key, number)
            found = {key: self._look_up(key) for key in first}
            new = [key for key, value in found.items() if value is None]
            if new:
                rows = [first[key] for key in new]
                costs = np.asarray(cost(placements[rows]), np.float64)
                if costs.shape != (len(rows),):
                    raise TrainingError(
                        f"The cost '{name}' gave {costs.shape} values for {len(rows)} placements; it must give one for each."
                    )
                self._add(name, problem.key, placements[rows], costs)
                found |= {key: self._look_up(key) for key in new}
            return np.array([found[key] for key in keys], np.float64)

        return cached_cost

    def _look_up(self, key: _Key) -> float | None:
        """Return the cost of a placement that training has received, or the next one in the file; None if there is no cost."""
        costs, received = self._costs.get(key, []), self._received.get(key, 0)
        if received and not math.isnan(costs[received - 1][1]):
            return costs[received - 1][1]
        if received == len(costs):
            return None
        index, cost = costs[received]
        self._received[key] = received + 1
        self.position = max(self.position, index + 1)
        return cost

    def _add(self, name: str, problem: str, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Append costs to the journal and its file."""
        lines: list[dict[str, Any]] = [] if self._count else [self._head]
        for placement, cost in zip(placements.tolist(), costs.tolist(), strict=True):
            value = cost if math.isfinite(cost) else str(cost)
            lines.append(plain(_Line(name, problem, tuple(placement), value)))
            self._enter((name, problem, np.array(placement, "<i4").tobytes()), cost)
        if self._path is None:
            return
        with writing(str(self._path)), self._path.open("ab" if self._count > len(placements) else "wb") as stream:
            stream.write(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
            stream.flush()
            os.fsync(stream.fileno())

    def _enter(self, key: _Key, cost: float) -> None:
        self._costs.setdefault(key, []).append((self._count, cost))
        self._count += 1

    def _check(self, line: bytes) -> None:
        """Check the first line of the file. Raises FileError and UsageError."""
        try:
            head = record(dict[str, Any], parsed(line))
        except ValueError as error:
            raise self._damaged(1, error) from error
        if {name: head.get(name) for name in ("format", "version")} != {"format": _FORMAT, "version": _VERSION}:
            raise FileError(f"{self._path} is not a file of costs that this placeit wrote: choose another folder.")
        if head != self._head:
            raise UsageError(
                f"{self._path} holds the costs of another training: resume with the same configuration, or in another folder."
            )

    def _read(self, number: int, line: bytes) -> tuple[_Key, float]:
        """Parse a line of the file. Raises FileError."""
        try:
            found = record(_Line, parsed(line))
            placement = np.array(found.placement, "<i4")
            return (found.cost, found.problem, placement.tobytes()), float(found.value)
        except (ValueError, OverflowError) as error:
            raise self._damaged(number, error) from error

    def _damaged(self, number: int, error: Exception) -> FileError:
        return FileError(f"{self._path}, line {number} is damaged ({error}): train anew in another folder.")
