"""The answers of placers, by placer and problem, in a file from which a later run continues."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from placeit.core.errors import FileError

__all__ = ["Answer", "Journal", "Key", "Unit"]

Unit: TypeAlias = Literal["seconds", "evaluations", "reference", "measured", "race"]


@dataclass(frozen=True)
class Key:
    """A question to a placer.

    Attributes:
        unit: unit of the budget; ``reference`` for the long runs that only find the best known value, ``measured`` for seconds
            in which placements were run, ``race`` for the last race of a measured case.
        problem: its name, unique among all families. A changed problem has another name.
        placer: with options, as on the command line.
        budget: in the unit.
        seed: of the placer.
    """

    unit: Unit
    problem: str
    placer: str
    budget: float
    seed: int


@dataclass(frozen=True)
class Answer:
    """The answer of a placer to a budget.

    Attributes:
        value: makespan of its placement, seconds; None if it gave none.
        took_s: seconds that it took.
        evaluations: placements that it asked the cost function about; a compiled search asks about fewer than it examines.
        why: why there is no value.
        bound: a lower bound of all values, in seconds, if this is a reference.
        devices: the placement, if this is a measured answer.
        commit: the commit that gave the answer.
    """

    value: float | None
    took_s: float
    evaluations: int
    why: str | None = None
    bound: float | None = None
    devices: tuple[int, ...] | None = None
    commit: str | None = None


class Journal(Mapping[Key, Answer]):
    """Answers by key.

    Each answer is on disk before the next one is waited for. Half a line at the end, from a process that was killed, is
    dropped.

    Args:
        path: a file, which is made with the first answer; None to keep no answers.

    Raises:
        FileError: the file is not such a journal.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._answers: dict[Key, Answer] = {}
        if path is None or not path.exists():
            return
        text = path.read_text(encoding="utf-8")
        whole = text[: text.rfind("\n") + 1]
        if whole != text:
            path.write_text(whole, encoding="utf-8")
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry: dict[str, Any] = json.loads(line)
                devices = entry["answer"].pop("devices")
                answer = Answer(**entry["answer"], devices=None if devices is None else tuple(devices))
                self._answers[Key(**entry["key"])] = answer
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise FileError(f"Line {number} of {path} is no answer of benchmarks.anytime: move the file away.") from error

    def __getitem__(self, key: Key) -> Answer:
        return self._answers[key]

    def __iter__(self) -> Any:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def add(self, key: Key, answer: Answer) -> None:
        """Keep an answer."""
        self._answers[key] = answer
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": asdict(key), "answer": asdict(answer)}, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
