"""What placers answered, by placer and problem, in a file that a run goes on from."""

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
    """What was asked.

    Attributes:
        unit: of the budget; ``reference`` for the long runs that only say what is possible, ``measured`` for seconds in which
            placements were run, ``race`` for the last race of a measured case.
        problem: its name, unique among all families; it changes where the problem does.
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
    """What a placer answered to a budget.

    Attributes:
        value: makespan of its placement, seconds; None if it gave none.
        took_s: seconds that it took.
        evaluations: placements that it asked the cost function about; a compiled search asks about fewer than it looks at.
        why: why there is no value.
        bound: a lower bound of all values, seconds, of a reference.
        devices: the placement, of a measured answer.
        commit: by which it was answered.
    """

    value: float | None
    took_s: float
    evaluations: int
    why: str | None = None
    bound: float | None = None
    devices: tuple[int, ...] | None = None
    commit: str | None = None


class Journal(Mapping[Key, Answer]):
    """Answers by key. Each is on disk before the next is waited for; half a line at the end, of a process killed, is dropped.

    Args:
        path: a file, which is made with the first answer; None to keep nothing.

    Raises:
        FileError: the file is no such journal.
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
