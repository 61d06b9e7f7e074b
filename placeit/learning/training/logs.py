"""Logs of training as a table (CSV) and for TensorBoard."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from placeit.core.errors import FileError, UsageError
from placeit.core.files import replacing

__all__ = ["Logs", "Record", "writing"]


@dataclass(frozen=True)
class Record:
    """Figures of an update, or of the evaluation before the first update of a stage; None for missing figures.

    Attributes:
        stage: number of the stage, from 1.
        update: number of the update within its stage, from 1; zero for the evaluation before the first update.
        seconds: seconds of training so far.
        loss: the minimised value; with several epochs, of the last epoch, like the entropy and the gradient norm.
        reward: mean reward of a decision, in multiples of the instance's unit.
        episode_return: mean over episodes of the discounted sum of rewards.
        entropy: mean entropy of the distributions from which decisions were drawn.
        gradient_norm: norm of the gradient before clipping.
        learning_rate: learning rate of the update.
        evaluation: mean over the held-out problems of the lowest cost met, by the cost of the stage and in multiples of the
            problems' units; lower is better. None also if a problem could not be measured.
        dropped: number of decisions that were left out because a cost that they led to could not be measured.
    """

    stage: int
    update: int
    seconds: float
    loss: float | None = None
    reward: float | None = None
    episode_return: float | None = None
    entropy: float | None = None
    gradient_norm: float | None = None
    learning_rate: float | None = None
    evaluation: float | None = None
    dropped: int | None = None


_COLUMNS = {
    field.name: {"episode_return": "return"}.get(field.name, field.name.replace("_", " "))
    for field in dataclasses.fields(Record)
}


class Logs:
    """Writes records to ``log.csv`` in a folder, and logs for TensorBoard to its sub-folder ``tensorboard``.

    Args:
        folder: folder to write to; None to write nothing.
        history: the records so far, with which the table is written anew.
        tensorboard: whether to write logs for TensorBoard.

    Raises:
        FileError: the table cannot be written.
        UsageError: ``tensorboard`` is set without a folder, or TensorBoard is not installed.
    """

    def __init__(self, folder: Path | None, history: Sequence[Record], tensorboard: bool) -> None:
        self._folder, self._table = folder, None if folder is None else folder / "log.csv"
        with writing(f"TensorBoard's logs in {self._folder}"):
            self._board = _board(folder, len(history)) if tensorboard else None
        self._count = len(history)
        if self._table is not None:
            with replacing(self._table) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
                rows = csv.writer(file)
                rows.writerow(_COLUMNS.values())
                rows.writerows(dataclasses.astuple(record) for record in history)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        if self._board is not None:
            with writing(f"TensorBoard's logs in {self._folder}"):
                self._board.close()

    def write(self, record: Record) -> None:
        """Add a record. Raises FileError."""
        if self._table is not None:
            # opened for each record, so that a failing write raises here, not where the file is closed
            with writing(str(self._table)), self._table.open("a", newline="", encoding="utf-8") as file:
                csv.writer(file).writerow(dataclasses.astuple(record))
        if self._board is not None:
            with writing(f"TensorBoard's logs in {self._folder}"):
                for name, column in _COLUMNS.items():
                    value = getattr(record, name)
                    if value is not None:
                        self._board.add_scalar(column, value, self._count)
        self._count += 1


@contextlib.contextmanager
def writing(what: str) -> Iterator[None]:
    """Raise FileError in place of an OSError in this context; ``what`` names what could not be written."""
    try:
        yield
    except OSError as error:
        raise FileError(
            f"Cannot write {what}: {error.strerror or error}. Training has stopped; free some space, then resume it from the "
            "state in that folder."
        ) from error


def _board(folder: Path | None, step: int) -> Any:
    """Return TensorBoard's writer, which continues at a step. Raises UsageError."""
    if folder is None:
        raise UsageError("TensorBoard logs need a folder to be written to: give one.")
    try:
        module = importlib.import_module("torch.utils.tensorboard")
    except ImportError as error:
        raise UsageError(
            f"TensorBoard logs were asked for, but TensorBoard cannot be used here ({error}). Install it (`pip install "
            "tensorboard`), or do without: log.csv holds the same figures."
        ) from error
    return module.SummaryWriter(str(folder / "tensorboard"), purge_step=step)
