"""The sources of a server's models: bundles, and placed workloads, whose models can move while they are served."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from placeit.backends.bundle.files import stamp
from placeit.core.errors import PlacementError, UsageError
from placeit.core.placement import Placement
from placeit.core.records import parsed
from placeit.serve.served_model import ServedModel
from placeit.serving.server import Server
from placeit.session import Session
from placeit.workbench.serving import move
from placeit.workload.entries import Entry, Workload

__all__ = ["Key", "Mover", "Opened", "Opener", "Outcome", "Planned", "Source", "planned"]

Key: TypeAlias = tuple[str, str]
"""Name and version of a model."""
Outcome: TypeAlias = Literal["unchanged", "moved", "loaded"]
"""Result of loading a model: nothing changed, it moved to other devices or segments, or it was opened."""


@dataclass(frozen=True)
class Source:
    """The source of a model: a bundle, or as a subclass describes it.

    Attributes:
        path: the bundle, or the file of the model.
    """

    path: Path

    @property
    def stamp(self) -> tuple[object, ...] | None:
        """A value that changes when the file is replaced or written to; None if the file is missing."""
        return stamp(self.path)


@dataclass(frozen=True)
class Planned(Source):
    """A model of a placed workload.

    Attributes:
        entry: the model in its workload, with a placement.
        priority: of its segments; 0 or less.
    """

    entry: Entry
    priority: int = 0

    @property
    def stamp(self) -> tuple[object, ...] | None:
        """A value that changes with the files and the entry of the workload; None if a file is missing."""
        stamps = [stamp(file) for file in (self.path, self.entry.inputs, self.entry.placement) if file]
        return None if None in stamps else (self.entry, self.priority, *stamps)

    @property
    def file(self) -> Path:
        """The file of its placement."""
        return self.entry.placement or Path()

    @property
    def placement(self) -> Placement:
        """Its placement. Raises FileError or PlacementError."""
        return Placement.load(self.file)

    @property
    def identity(self) -> tuple[object, ...]:
        """The settings of its session: model, inputs, devices, and conditions. Raises as `placement`."""
        inputs = self.entry.inputs
        files = self.path, stamp(self.path), inputs, inputs and stamp(inputs)
        return *files, self.entry.devices, dict(self.entry.shapes), self.placement.conditions

    def place(self, text: str) -> Callable[[], None]:
        """Write another placement to the file of its placement, and return a function that restores the old one.

        Args:
            text: the content of a placement's file.

        Raises:
            PlacementError: the text is not a placement.
            FileError: the file cannot be read or written.
        """
        before, what = self.placement, f"The placement for '{self.entry.name}'"
        try:
            data = parsed(text)
        except ValueError as error:
            raise PlacementError(f"{what} is not JSON: {error}.") from None
        Placement.from_dict(data if isinstance(data, dict) else {}, what).save(self.file)
        return lambda: before.save(self.file)


def planned(workload: Workload) -> dict[Key, Planned]:
    """Return the models of a placed workload. Raises UsageError if one has no placement."""
    every = zip(workload.placed(), workload.priorities, strict=True)
    return {(entry.name, "1"): Planned(entry.model, entry, priority) for entry, priority in every}


@dataclass(frozen=True)
class Opened:
    """A model that is ready to serve.

    Attributes:
        model: the model.
        close: closes its server and its session.
        move: moves it to the placement of a source, and returns the outcome; None if it has to be reopened instead.
    """

    model: ServedModel
    close: Callable[[], object]
    move: Callable[[Source], Outcome | None] = lambda _: None


Opener: TypeAlias = Callable[[Source, str, str], Opened]
"""Opens a source as a name (empty for the model's name) and a version, and checks it. Called on any thread."""


class Mover:
    """Moves a model of a workload between placements while it is served.

    Args:
        session: has the model.
        server: serves it.
        source: source of the model.
        in_flight: most requests in flight on each replica; None for the placement's own.
    """

    def __init__(self, session: Session, server: Server, source: Planned, in_flight: int | None) -> None:
        self._session, self._server, self._in_flight = session, server, in_flight
        self._identity, self._now, self._executors = source.identity, (source.placement, source.priority), server.executors

    def __call__(self, source: Source) -> Outcome | None:
        """Move the model; see :attr:`Opened.move`. Raises PlaceitError."""
        if not isinstance(source, Planned) or source.identity != self._identity:
            return None
        placement, (now, priority) = source.placement, self._now
        same = placement.runs_like(now) and source.priority == priority
        if same and self._server.executors == self._executors:
            return "unchanged"
        tuned = None if placement.serving is None else placement.serving.in_flight
        try:
            move(self._session, self._server, placement, in_flight=self._in_flight or tuned, priority=source.priority)
        except (PlacementError, UsageError):  # with devices or groups that the session does not have, or too large
            return None
        self._now, self._executors = (placement, source.priority), self._server.executors
        return "moved"
