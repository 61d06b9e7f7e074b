"""Placements that a search is to begin with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import PlacementError
from placeit.core.placement import Placement
from placeit.session import Session

__all__ = ["Start", "divide_for", "fitted", "read_starts", "without_plain"]

Start = Placement | str | Path
"""A placement, or the file of one."""


def read_starts(start: Start | Sequence[Start] | None) -> dict[str, Placement]:
    """Read placements: each with the name that it has as a candidate.

    Raises:
        FileError, PlacementError: a file cannot be read, or is no placement; names it.
    """
    given = [] if start is None else [start] if isinstance(start, Placement | str | Path) else start
    found: dict[str, Placement] = {}
    for number, one in enumerate(given, 1):
        if isinstance(one, Placement):
            found["start" if len(given) == 1 else f"start {number}"] = one
        else:
            found[f"start {one}"] = Placement.load(one)
    return found


def without_plain(session: Session, starts: dict[str, Placement]) -> dict[str, Placement]:
    """Leave out placements on a plain device: what is there without placeit is a candidate in any case.

    Raises:
        PlacementError: one of those that are left out belongs to another model; names it.
    """
    plain = {name: home for name, placement in starts.items() if (home := session.home_of(placement)) is not session}
    for name, home in plain.items():
        with _naming(name):
            home.placing.groups_of(starts[name])
    return {name: placement for name, placement in starts.items() if name not in plain}


def divide_for(session: Session, starts: dict[str, Placement]) -> None:
    """Split the groups that placements divide. Raises PlacementError, which names the placement, if they do not fit."""
    for name, placement in starts.items():
        with _naming(name):
            session.divide(placement)


def fitted(session: Session, starts: dict[str, Placement]) -> dict[str, NDArray[np.int32]]:
    """Device of each group by the name of each placement, ``int32[G]``, by the session's costs.

    Raises:
        PlacementError: a placement belongs to another model or to other devices, or breaks a pin or a limit; names it.
    """
    groups: dict[str, NDArray[np.int32]] = {}
    for name, placement in starts.items():
        with _naming(name):
            groups[name] = session.segmenter.problem().check(session.placing.groups_of(placement))
    return groups


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    try:
        yield
    except PlacementError as error:
        raise PlacementError(f"The search cannot begin with '{name.removeprefix('start ')}': {error}") from error
