"""The history of kernel times: the times of ops on this machine's devices, in every model that was profiled there."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.records import parsed, record
from placeit.profiler.links import device_key
from placeit.profiler.op_traits import OpTraits

__all__ = ["Beyond", "History", "Profiled", "history_key"]

_log = logging.getLogger("placeit")
_VERSION = 1
_FILE = "kernels.sqlite3"
_TIMEOUT_S = 5.0  # seconds to wait for another process that writes
_MAX_MODELS = 48  # most models kept for each device; older ones are deleted
_LONGEST_S = 1e6  # most seconds of a model
_TABLES = """
CREATE TABLE model (
  id INTEGER PRIMARY KEY, device TEXT NOT NULL, model TEXT NOT NULL, name TEXT NOT NULL, seconds REAL NOT NULL,
  dispatch REAL NOT NULL, cut_each REAL NOT NULL, cut_byte REAL NOT NULL, load REAL NOT NULL, read REAL NOT NULL,
  written REAL NOT NULL, UNIQUE (device, model)
);
CREATE TABLE kernel (
  of INTEGER NOT NULL REFERENCES model (id) ON DELETE CASCADE,
  kind TEXT NOT NULL, fed TEXT NOT NULL, read_by TEXT NOT NULL, size TEXT NOT NULL,
  ops INTEGER NOT NULL, fused INTEGER NOT NULL, seconds REAL NOT NULL
);
CREATE INDEX kernel_of ON kernel (of);
"""


@dataclass(frozen=True)
class Beyond:
    """Costs of a model's groups on a device beyond their time inside the whole model.

    Attributes:
        dispatch: seconds to start a segment.
        cut_each: seconds that cutting off a group adds, whatever its size.
        cut_byte: further seconds for each byte at the border of the group.
        load: additional time while other devices work, as a share of the other times.
        read: additional seconds for each byte that another device wrote.
    """

    dispatch: float
    cut_each: float
    cut_byte: float
    load: float
    read: float


@dataclass(frozen=True)
class Profiled:
    """A model that was profiled on a device.

    Attributes:
        identity: identity of the model; models of equal identity are the same.
        name: name of its file.
        seconds: time of all its ops inside the whole model.
        beyond: costs of its groups beyond that.
        traits: traits of its ops, each sort of op once.
        ops: ``float64[N]``, number of ops of each sort.
        fused: ``float64[N]``, number of these that the kernel of another op computed, so that they took no time.
        taken: ``float64[N]``, mean seconds of the others.
    """

    identity: str
    name: str
    seconds: float
    beyond: Beyond
    traits: OpTraits
    ops: NDArray[np.float64]
    fused: NDArray[np.float64]
    taken: NDArray[np.float64]


class History:
    """The database of kernel times, in the folder of the cost cache.

    A device is identified by everything that its times depend on: the machine, the runtime and its version, the driver, cores,
    precision. So times from elsewhere, or from another version, are not found. Processes may share the file. A history that
    cannot be read or written is no error: one warning is logged, and the work goes on without it. A damaged file is set aside,
    with a warning that says where, and a new one is started.

    Args:
        folder: folder of the cost cache.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE
        self._works = True

    def add(self, device: Mapping[str, Any], profiled: Profiled) -> None:
        """Store the times of a model on a device, in place of earlier ones of the same model there."""
        with self._open(make=True) as base:
            if base is None:
                return
            key, beyond = _canonical(device), profiled.beyond
            base.execute("DELETE FROM model WHERE device = ? AND model = ?", (key, profiled.identity))
            (number,) = base.execute(
                "INSERT INTO model (device, model, name, seconds, dispatch, cut_each, cut_byte, load, read, written) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
                (
                    *(key, profiled.identity, profiled.name, profiled.seconds),
                    *(beyond.dispatch, beyond.cut_each, beyond.cut_byte, beyond.load, beyond.read, time.time()),
                ),
            ).fetchone()
            sorts = profiled.traits.sorts()
            counts = zip(profiled.ops.tolist(), profiled.fused.tolist(), profiled.taken.tolist(), strict=True)
            base.executemany(
                "INSERT INTO kernel VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (number, kind, fed, read_by, json.dumps(size), int(ops), int(fused), taken)
                    for (kind, fed, read_by, size), (ops, fused, taken) in zip(sorts, counts, strict=True)
                ],
            )
            base.execute(
                "DELETE FROM model WHERE device = ? AND id NOT IN "
                "(SELECT id FROM model WHERE device = ? ORDER BY id DESC LIMIT ?)",
                (key, key, _MAX_MODELS),
            )

    def of(self, device: Mapping[str, Any]) -> list[Profiled]:
        """Return the models that were profiled on a device, oldest first."""
        models: list[Profiled] = []
        with self._open(make=False) as base:
            if base is None:
                return []
            rows = base.execute(
                "SELECT id, model, name, seconds, dispatch, cut_each, cut_byte, load, read FROM model WHERE device = ? "
                "ORDER BY id",
                (_canonical(device),),
            ).fetchall()
            for number, identity, name, seconds, *beyond in rows:
                kernels = base.execute(
                    "SELECT kind, fed, read_by, size, ops, fused, seconds FROM kernel WHERE of = ? ORDER BY rowid", (number,)
                ).fetchall()
                models.append(_profiled(identity, name, seconds, beyond, kernels))
        return models

    @contextlib.contextmanager
    def _open(self, *, make: bool) -> Iterator[sqlite3.Connection | None]:
        """Open the database for one transaction; yield None if it does not exist, or does not work."""
        if not self._works or not (make or self.path.exists()):
            yield None
            return
        try:
            base = self._connect(make)
        except (OSError, sqlite3.Error, ValueError) as error:
            self._give_up(error)
            yield None
            return
        try:
            with contextlib.closing(base), base:  # commits, or rolls back
                yield base
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            self._give_up(error)

    def _connect(self, make: bool) -> sqlite3.Connection:
        if make:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        base = sqlite3.connect(self.path, timeout=_TIMEOUT_S)
        try:
            base.execute("PRAGMA foreign_keys = ON")
            version = base.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not base.execute("SELECT name FROM sqlite_master").fetchall():
                base.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
            elif version != _VERSION:
                raise ValueError(f"it is of version {version}, and this is version {_VERSION}")
        except BaseException:
            base.close()
            raise
        return base

    def _give_up(self, error: Exception) -> None:
        """Warn, and set the file aside if it is damaged; a file that cannot be read or written is left alone."""
        if isinstance(error, OSError | sqlite3.OperationalError) and "malformed" not in str(error):
            self._works = False
            _log.warning("The history of kernel times %s cannot be used: %s", self.path, error)
            return
        aside = self.path.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
        _log.warning("The history of kernel times %s is damaged (%s). It is now %s.", self.path, error, aside)


def _profiled(
    identity: str, name: str, seconds: float, beyond: Sequence[float], kernels: Sequence[tuple[Any, ...]]
) -> Profiled:
    """Return a model from rows of the database. Raises ValueError for values that are never written."""
    numbers = np.array([(ops, fused, taken) for *_, ops, fused, taken in kernels], float).reshape(-1, 3)
    sizes = np.array([record(tuple[float, ...], parsed(row[3])) for row in kernels], float).reshape(len(kernels), -1)
    every = (np.array([seconds, *beyond], float), numbers, sizes)
    if not kernels or not all(np.isfinite(values).all() and (values >= 0).all() for values in every) or seconds > _LONGEST_S:
        raise ValueError(f"the times of the model {name!r} are not valid")
    sorts = zip(kernels, sizes.tolist(), strict=True)
    traits = OpTraits.of_sorts([(kind, fed, read_by, size) for (kind, fed, read_by, *_), size in sorts])
    return Profiled(identity, name, seconds, Beyond(*beyond), traits, *numbers.T)


def history_key(device: Device, precision: str) -> dict[str, Any]:
    """Return everything that the times of ops on a device depend on."""
    return device_key(device) | {"precision": precision}


def _canonical(device: Mapping[str, Any]) -> str:
    return json.dumps(device, sort_keys=True)
