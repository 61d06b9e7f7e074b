"""The history of kernel times: a database with the times of ops on this machine's devices, from all profiled models."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.records import parsed, record
from placeit.profiler.links import device_key
from placeit.profiler.op_traits import OpTraits

__all__ = ["History", "Overheads", "ProfiledModel", "history_key"]

_log = logging.getLogger("placeit")
_VERSION = 1
_FILE_NAME = "kernels.sqlite3"
_TIMEOUT_S = 5.0  # maximum seconds to wait while another process writes
_MAX_MODELS = 48  # maximum number of models for each device; older ones are deleted
_MAX_SECONDS = 1e6  # maximum time of a model
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
class Overheads:
    """Costs of a model's groups on a device, in addition to their time inside the whole model.

    Attributes:
        dispatch: seconds to start a segment.
        cut_each: seconds that cutting off a group adds, independent of its size.
        cut_byte: additional seconds for each byte at the border of the group.
        load: additional time while other devices work, as a share of the time without them.
        read: additional seconds for each byte that another device wrote.
    """

    dispatch: float
    cut_each: float
    cut_byte: float
    load: float
    read: float


@dataclass(frozen=True)
class ProfiledModel:
    """A model that was profiled on a device.

    Attributes:
        identity: identity of the model, which equal models share.
        name: name of its file.
        seconds: time of all its ops inside the whole model.
        overheads: additional costs of its groups.
        traits: the N distinct traits of its ops.
        ops: ``float64[N]``, number of ops with these traits.
        fused: ``float64[N]``, number of these ops that were fused into the kernel of another op, and so took no time.
        taken: ``float64[N]``, mean seconds of the other ops.
    """

    identity: str
    name: str
    seconds: float
    overheads: Overheads
    traits: OpTraits
    ops: NDArray[np.float64]
    fused: NDArray[np.float64]
    taken: NDArray[np.float64]


class History:
    """The database of kernel times, in the folder of the cost cache.

    A device is identified by everything that its times depend on: the machine, the runtime and its version, the driver, cores,
    precision. Times from another machine or another version are therefore not found. Several processes can share the file. If
    it cannot be read or written, one warning is logged, and the program continues without it. A damaged file is renamed, with a
    warning that states the new name, and a new file is created.

    Args:
        folder: folder of the cost cache.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / _FILE_NAME
        self._works = True

    def add(self, device: Mapping[str, Any], profiled: ProfiledModel) -> None:
        """Store the times of a model on a device, and delete earlier times of the same model on that device."""
        with self._open(create=True) as connection:
            if connection is None:
                return
            key = _canonical(device)
            connection.execute("DELETE FROM model WHERE device = ? AND model = ?", (key, profiled.identity))
            (model_id,) = connection.execute(
                "INSERT INTO model (device, model, name, seconds, dispatch, cut_each, cut_byte, load, read, written) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
                (key, profiled.identity, profiled.name, profiled.seconds, *astuple(profiled.overheads), time.time()),
            ).fetchone()
            rows = profiled.traits.rows()
            counts = zip(profiled.ops.tolist(), profiled.fused.tolist(), profiled.taken.tolist(), strict=True)
            connection.executemany(
                "INSERT INTO kernel VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [
                    (model_id, kind, fed, read_by, json.dumps(size), int(ops), int(fused), taken)
                    for (kind, fed, read_by, size), (ops, fused, taken) in zip(rows, counts, strict=True)
                ],
            )
            connection.execute(
                "DELETE FROM model WHERE device = ? AND id NOT IN "
                "(SELECT id FROM model WHERE device = ? ORDER BY id DESC LIMIT ?)",
                (key, key, _MAX_MODELS),
            )

    def of(self, device: Mapping[str, Any]) -> list[ProfiledModel]:
        """Return the models that were profiled on a device, oldest first."""
        models: list[ProfiledModel] = []
        with self._open(create=False) as connection:
            if connection is None:
                return []
            rows = connection.execute(
                "SELECT id, model, name, seconds, dispatch, cut_each, cut_byte, load, read FROM model WHERE device = ? "
                "ORDER BY id",
                (_canonical(device),),
            ).fetchall()
            for model_id, identity, name, seconds, *overheads in rows:
                kernels = connection.execute(
                    "SELECT kind, fed, read_by, size, ops, fused, seconds FROM kernel WHERE of = ? ORDER BY rowid", (model_id,)
                ).fetchall()
                models.append(_profiled_model(identity, name, seconds, overheads, kernels))
        return models

    @contextlib.contextmanager
    def _open(self, *, create: bool) -> Iterator[sqlite3.Connection | None]:
        """Open the database for one transaction; yield None if it does not exist or cannot be used."""
        if not self._works or not (create or self.path.exists()):
            yield None
            return
        try:
            connection = self._connect(create)
        except (OSError, sqlite3.Error, ValueError) as error:
            self._give_up(error)
            yield None
            return
        try:
            with contextlib.closing(connection), connection:  # commits, or rolls back
                yield connection
        except (sqlite3.DatabaseError, ValueError, TypeError) as error:
            self._give_up(error)

    def _connect(self, create: bool) -> sqlite3.Connection:
        if create:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        connection = sqlite3.connect(self.path, timeout=_TIMEOUT_S)
        try:
            connection.execute("PRAGMA foreign_keys = ON")
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not connection.execute("SELECT name FROM sqlite_master").fetchall():
                connection.executescript(f"BEGIN; {_TABLES} PRAGMA user_version = {_VERSION}; COMMIT;")
            elif version != _VERSION:
                raise ValueError(f"it is of version {version}, and this is version {_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def _give_up(self, error: Exception) -> None:
        """Log a warning, and rename the file if it is damaged; a file that cannot be read or written stays."""
        if isinstance(error, OSError | sqlite3.OperationalError) and "malformed" not in str(error):
            self._works = False
            _log.warning("The history of kernel times %s cannot be used: %s", self.path, error)
            return
        aside = self.path.with_suffix(".damaged")
        with contextlib.suppress(OSError):
            self.path.replace(aside)
        _log.warning("The history of kernel times %s is damaged (%s). It is now %s.", self.path, error, aside)


def _profiled_model(
    identity: str, name: str, seconds: float, overheads: Sequence[float], kernels: Sequence[tuple[Any, ...]]
) -> ProfiledModel:
    """Convert rows of the database to a model. Raises ValueError for values that placeit never writes."""
    numbers = np.array([(ops, fused, taken) for *_, ops, fused, taken in kernels], float).reshape(-1, 3)
    sizes = np.array([record(tuple[float, ...], parsed(row[3])) for row in kernels], float).reshape(len(kernels), -1)
    arrays = (np.array([seconds, *overheads], float), numbers, sizes)
    if not kernels or not all(np.isfinite(values).all() and (values >= 0).all() for values in arrays) or seconds > _MAX_SECONDS:
        raise ValueError(f"the times of the model {name!r} are not valid")
    rows = zip(kernels, sizes.tolist(), strict=True)
    traits = OpTraits.from_rows([(kind, fed, read_by, size) for (kind, fed, read_by, *_), size in rows])
    return ProfiledModel(identity, name, seconds, Overheads(*overheads), traits, *numbers.T)


def history_key(device: Device, precision: str) -> dict[str, Any]:
    """Return the key of a device in the history: everything that the times of its ops depend on."""
    return device_key(device) | {"precision": precision}


def _canonical(device: Mapping[str, Any]) -> str:
    return json.dumps(device, sort_keys=True)
