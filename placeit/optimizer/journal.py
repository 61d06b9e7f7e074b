"""Keep the measurements of a search in a file, so that a later search can resume from them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import FileError, UsageError
from placeit.core.files import complete_lines
from placeit.core.records import RecordError, check_shape, parsed, plain, record
from placeit.core.version import __version__
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import Measurement
from placeit.optimizer.candidates import Candidate
from placeit.profiler.cache import Seconds
from placeit.profiler.cached_costs import cost_key
from placeit.simulator.objectives.base import Objective
from placeit.workbench import Workbench

__all__ = ["Journal", "Known", "kept_journal", "open_journal"]

_LOG = logging.getLogger("placeit")
_FORMAT, _VERSION = "placeit-search", 2
_MAX_BYTES = 1 << 23  # size of an automatically kept journal, beyond which it is replaced by an empty one
_BEGINNING = f'{{"format": "{_FORMAT}"'.encode()


class Placed(NamedTuple):
    """Placement of the groups in one replica: the device and the segment (in topological order) of each, ``int32[G]``."""

    devices: NDArray[np.int32]
    segment_of: NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Known:
    """Measurements of a placement.

    Attributes:
        name: name of the candidate.
        placer: name of the placer that proposed it.
        devices: ``int32[G]``, the device of each group.
        segment_of: ``int32[G]``, the segment of each group, in topological order.
        samples: seconds of each run.
        values: the objective of each run.
        cost: the objective in a form that compares across races (``Candidate.cost``); None if there is no such value.
        segment_s: seconds of each segment, ``float64[S]``; None if unknown.
        output_error: difference between its outputs and the outputs of the whole model.
        replicas: further replicas, which served whole requests at the same time on other devices.
    """

    name: str
    placer: str
    devices: NDArray[np.int32]
    segment_of: NDArray[np.int32]
    samples: Sequence[float]
    values: Sequence[float]
    cost: float | None
    segment_s: NDArray[np.float64] | None
    output_error: OutputDifference
    replicas: Sequence[Placed] = ()

    @property
    def every(self) -> list[Placed]:
        """The placement itself, and its replicas."""
        return [Placed(self.devices, self.segment_of), *self.replicas]

    @classmethod
    def of_candidate(
        cls, candidate: Candidate, measured: Measurement, value: Measurement, output_error: OutputDifference
    ) -> Known:
        """Return the measurements of a candidate."""
        samples, values = measured.samples.tolist(), value.samples.tolist()
        names, plan = (candidate.name, candidate.placer), candidate.plan
        segment_s, cost = candidate.segment_s, candidate.cost if candidate.steady else None
        replicas = [Placed(one.group_devices, one.segment_of) for one in candidate.replicas]
        return cls(*names, candidate.groups, plan.segment_of, samples, values, cost, segment_s, output_error, replicas)


class Journal:
    """A file of measurements: a first line with the conditions that they hold for, then a line of JSON for each placement.

    Each line is synced to disk before the search continues, so a search can be killed at any moment. An incomplete last line is
    dropped.

    Args:
        path: the file; it is created if it does not exist.
        key: the conditions that the measurements hold for, JSON-compatible.
        edges: ``int32[E, 2]``, edges of the graph of groups.
        shape: number of groups, and of devices.

    Raises:
        FileError: the file cannot be read or written, or is not a journal.
        UsageError: its measurements hold for other conditions.
    """

    def __init__(self, path: Path, key: Mapping[str, Any], edges: NDArray[np.int32], shape: tuple[int, int]) -> None:
        self.path = path
        self.known: list[Known] = []
        head = {"format": _FORMAT, "version": _VERSION, **_headed(key)}
        lines = self._lines()
        if lines:
            self._check(lines[0], head)
            for number, line in enumerate(lines[1:], 2):
                try:
                    self.known.append(_known(record(_Line, parsed(line)), edges, shape))
                except ValueError as error:
                    raise _damaged(path, number, error) from error
        else:
            self._append(head, "wb")

    def add(self, known: Known) -> None:
        """Append the measurements of a placement. Raises FileError if the file cannot be written."""
        error = known.output_error
        line = _Line(
            devices=known.devices.tolist(),
            segments=known.segment_of.tolist(),
            name=known.name,
            placer=known.placer,
            samples=tuple(known.samples),
            values=tuple(known.values),
            cost=known.cost,
            segment_s=None if known.segment_s is None else known.segment_s.tolist(),
            output_error=_Error(error.max_abs, error.max_rel, error.not_checked, error.rounding),
            replicas=tuple(_Placed(one.devices.tolist(), one.segment_of.tolist()) for one in known.replicas),
        )
        self._append(plain(line) | {"output_error": error.to_dict()}, "ab")

    def _lines(self) -> list[bytes]:
        """Return the complete lines of the file; cut an incomplete last line off the file."""
        try:
            if not self.path.exists():
                return []
            if not self.path.is_file():
                raise FileError(f"Cannot resume from {self.path}: it is not a regular file.")
            with self.path.open("rb") as stream:
                beginning = stream.read(len(_BEGINNING))
        except OSError as error:
            raise FileError(f"Cannot read {self.path}: {error.strerror or error}.") from error
        if not _BEGINNING.startswith(beginning):
            raise FileError(f"{self.path} is not a file that a search can be resumed from; nothing was changed in it.")
        return complete_lines(self.path)

    def _append(self, line: Mapping[str, Any], mode: str) -> None:
        try:
            with self.path.open(mode) as stream:
                stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise FileError(f"Cannot write {self.path}: {error.strerror or error}. The search cannot be resumed.") from error

    def _check(self, line: bytes, head: Mapping[str, Any]) -> None:
        try:
            found = record(dict[str, Any], parsed(line))
        except ValueError as error:
            raise _damaged(self.path, 1, error) from error
        if found.get("version") != _VERSION:
            raise FileError(f"{self.path} has version {found.get('version')!r}; this placeit reads version {_VERSION}.")
        for name, value in head.items():
            if found.get(name) != value:
                what = "" if name == "digest" else f": its {name} is {found.get(name)!r}, and now it is {value!r}"
                raise UsageError(
                    f"{self.path} has measurements of another search{what}. Name another file, or repeat the options that it "
                    "was made with (model, devices, precision, inputs, objective, groups)."
                )


def _headed(key: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text values of a key, and a digest of the whole key."""
    short = {name: value for name, value in key.items() if isinstance(value, str)}
    return {**short, "digest": hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()}


def _damaged(path: Path, number: int, error: ValueError) -> FileError:
    advice = "name another file" if number == 1 else "delete that line, or name another file"
    return FileError(f"{path}, line {number} is damaged ({error}): {advice}.")


@dataclass(frozen=True)
class _Placed:
    """Placement of the groups in one replica, in a line of the file."""

    devices: tuple[int, ...]
    segments: tuple[int, ...]


@dataclass(frozen=True)
class _Error:
    """The output error in a line of the file."""

    max_abs: Seconds
    max_rel: Seconds
    not_checked: str | None
    rounding: Seconds = 0.0


@dataclass(frozen=True)
class _Line(_Placed):
    """A line of the file; see :class:`Known`."""

    name: str
    placer: str
    samples: tuple[Seconds, ...]
    values: tuple[Seconds, ...]
    cost: Seconds | None
    segment_s: tuple[Seconds, ...] | None
    output_error: _Error
    replicas: tuple[_Placed, ...] = ()


def _known(found: _Line, edges: NDArray[np.int32], shape: tuple[int, int]) -> Known:
    """Return the measurements in a line. Raises RecordError if they are inconsistent, or do not fit groups and devices."""
    first, *others = (_placed(one, edges, shape) for one in (found, *found.replicas))
    used = [d for one in (first, *others) for d in set(one.devices.tolist())]
    if len(set(used)) < len(used):
        raise RecordError("replicas", "must be on different devices")
    if not found.name:
        raise RecordError("name", "must not be empty")
    if not found.samples or min(found.samples) <= 0:
        raise RecordError("samples", "must be positive, and at least one")
    check_shape("values", found.values, len(found.samples))
    if found.segment_s is not None:
        check_shape("segment_s", found.segment_s, int(first.segment_of.max()) + 1)
    error = found.output_error
    return Known(
        found.name,
        found.placer,
        first.devices,
        first.segment_of,
        found.samples,
        found.values,
        found.cost,
        None if found.segment_s is None else np.array(found.segment_s),
        OutputDifference(error.max_abs, error.max_rel, None, error.not_checked, rounding=error.rounding),
        others,
    )


def _placed(found: _Placed, edges: NDArray[np.int32], shape: tuple[int, int]) -> Placed:
    """Return the placement of groups in a line. Raises RecordError if it is not a valid one."""
    for name, numbers, limit in (("devices", found.devices, shape[1]), ("segments", found.segments, shape[0])):
        check_shape(name, numbers, shape[0])
        if not all(0 <= one < limit for one in numbers):
            raise RecordError(name, f"must be numbers below {limit}")
    place, of = np.array(found.devices, np.int32), np.array(found.segments, np.int32)
    is_consistent = len(np.unique(of)) == int(of.max()) + 1 == len(np.unique(np.column_stack([of, place]), axis=0))
    if not is_consistent or not (of[edges[:, 0]] <= of[edges[:, 1]]).all():
        raise RecordError("segments", "must be in an order in which they can run, each on one device")
    return Placed(place, of)


def open_journal(path: Path, session: Workbench, objective: Objective) -> Journal:
    """Open the journal of a search by an objective; create it if it does not exist.

    Raises:
        UsageError: a device exists in simulation only, so that nothing is measured; or the file belongs to another search.
        FileError: the file cannot be read or written, or is not a journal.
    """
    if not session.cluster.executable:
        raise UsageError("A search on devices that are only described measures nothing, so there is nothing to resume.")
    return _opened(Journal, path, session, _key(session, objective))


def kept_journal(session: Workbench, objective: Objective) -> Journal | None:
    """Open the journal of earlier searches with the same costs, in the folder of the cost cache.

    Newly profiled costs start another file, since the machine has changed. A file that is damaged or belongs to another search
    is set aside with a warning, and a new one is started. If the file cannot be written, a warning is logged, and measurements
    are no longer kept.

    Returns:
        The journal; None if nothing is measured or kept.
    """
    profiled = session.costs.profiled
    if not session.cluster.executable or session.cache is None or profiled is None:
        return None
    key = _key(session, objective) | {"profiled": profiled.at}
    if (path := session.cache.runs_file(key)) is None:
        return None
    for again in (True, False):
        try:
            if path.is_file() and path.stat().st_size > _MAX_BYTES:
                path.unlink()
            return _opened(_Kept, path, session, key)
        except (FileError, UsageError) as error:
            aside = path.with_name(f"{path.name}.damaged")
            if again and path.exists():
                with contextlib.suppress(OSError):
                    path.replace(aside)
                _LOG.warning("Runs of earlier searches are set aside as %s, and others kept from now on: %s", aside, error)
            elif not again:
                _LOG.warning("Runs of placements are not kept: %s", error)
    return None


class _Kept(Journal):
    """A journal that the user did not request: if it cannot be written, the search continues without it."""

    _works = True

    def add(self, known: Known) -> None:
        """Append the measurements of a placement, unless writing has failed before."""
        if self._works:
            try:
                super().add(known)
            except FileError as error:
                self._works = False
                _LOG.warning("Runs of placements are not kept: %s", error)


def _opened(kind: type[Journal], path: Path, session: Workbench, key: Mapping[str, Any]) -> Journal:
    groups = session.grouping.groups
    return kind(path, key, groups.edges, (len(groups), len(session.cluster)))


def _key(session: Workbench, objective: Objective) -> dict[str, Any]:
    """Return the conditions that measurements hold for."""
    grouping, cluster = session.grouping, session.cluster
    return {
        "placeit": __version__,
        "graph": grouping.graph.hash,
        "groups": str(len(grouping.groups)),
        "devices": ", ".join(cluster.names),
        "precision": session.precision,
        "objective": objective.kept_as,
        "power": [None if device.power is None else [device.power.idle_w, device.power.busy_w] for device in cluster.devices],
        "links": sorted(
            [src, dst, link.bandwidth, link.latency] for (src, dst), link in cluster.links.items() if link.origin == "emulated"
        ),
        "costs": cost_key(grouping, cluster, session.runtime),
    }
