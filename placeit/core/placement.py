"""Placements and placement files."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import PlacementError, UsageError
from placeit.core.files import write_text
from placeit.core.records import RecordError, read_json, record
from placeit.core.sizes import SizeRange

__all__ = ["NOT_SEGMENTS", "Conditions", "Placement", "Serving", "are_segments"]

NOT_SEGMENTS = "'segments' has a number for each op, from 0 on, and the ops of a segment are on one device."
"""What does not hold where :func:`are_segments` is false."""


@dataclass(frozen=True)
class Conditions:
    """The conditions under which a placement was found.

    Attributes:
        precision: precision of the devices.
        compression: type in which float32 tensors were sent between nodes; ``none`` if they were sent unchanged.
        shapes: shapes of the model's inputs, by name; ranges as :class:`placeit.core.sizes.SizeRange` spells them.
        state: outputs of the model's file that become the next state, by the name of their state input.
        logits: tokens of a step whose logits the model computes, if it is a decoder: ``last`` or ``all``.
    """

    precision: str = "f32"
    compression: str = "none"
    shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)
    logits: str = "last"

    def to_dict(self) -> dict[str, Any]:
        """Return the conditions as a placement file stores them."""
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        state = {"state": dict(self.state)} if self.state else {}
        logits = {"logits": self.logits} if self.logits != "last" else {}
        return {"precision": self.precision, "compression": self.compression, "input_shapes": shapes} | state | logits


@dataclass(frozen=True)
class Serving:
    """Settings of a server, as :func:`placeit.tuning.tune` or :func:`placeit.text.optimizing.optimize_texts` found them.

    Attributes:
        in_flight: requests in flight on each replica; None for as many as the placement's highest throughput needs.
        max_batch: largest number of rows of requests that are joined and run as one; 0 if each request runs alone.
        chunk: tokens of a long prompt that a decoder reads in one step; None for the default.
    """

    in_flight: int | None = None
    max_batch: int = 0
    chunk: int | None = None

    @property
    def valid(self) -> bool:
        """True if all numbers are possible."""
        return self.max_batch >= 0 and all(one is None or one >= 1 for one in (self.in_flight, self.chunk))


@dataclass(frozen=True, eq=False)
class Placement:
    """A device for every op, by name.

    Attributes:
        op_names: the ops.
        devices: ``int32[V]``, index into ``device_names`` for each op.
        device_names: the devices that could have been used.
        graph_hash: identity of the task graph that the ops belong to: :attr:`placeit.core.graph.OpGraph.structure`, which fits
            the graph at all sizes, or :attr:`~placeit.core.graph.OpGraph.hash`. If it is empty, the names of the ops decide.
        segments: ``int32[V]``, the segment of each op, in an order in which they can run; None to plan them anew.
        replicas: further placements of the same ops on other devices, each of which also serves whole requests; a replica has
            no replicas.
        conditions: conditions under which it was found; None if unknown.
        result: facts about the search that found it, from :meth:`placeit.Optimized.to_dict`; None if unknown.
        serving: settings of a server of this placement, unless it is given others; None if they were not tuned.
    """

    op_names: tuple[str, ...]
    devices: NDArray[np.int32]
    device_names: tuple[str, ...]
    graph_hash: str = ""
    segments: NDArray[np.int32] | None = None
    replicas: tuple[Placement, ...] = ()
    conditions: Conditions | None = None
    result: Mapping[str, Any] | None = None
    serving: Serving | None = None

    def __repr__(self) -> str:
        more = f", {len(self.every)} replicas" if self.replicas else ""
        return f"<Placement of {len(self)} ops{more}: {self.ops_by_device or 'nowhere'}>"

    @property
    def every(self) -> tuple[Placement, ...]:
        """All placements that serve whole requests: this one, and its replicas."""
        return (self, *self.replicas)

    def __len__(self) -> int:
        return len(self.op_names)

    def as_dict(self) -> dict[str, str]:
        """Return the device name of each op, by op name."""
        return {name: self.device_names[d] for name, d in zip(self.op_names, self.devices.tolist(), strict=True)}

    def counts(self) -> dict[str, int]:
        """Return the number of ops on each device, replicas included; zero for a device without ops."""
        used = np.concatenate([replica.devices for replica in self.every])
        counts = np.bincount(used, minlength=len(self.device_names)).tolist()
        return dict(zip(self.device_names, counts, strict=True))

    @property
    def chunk(self) -> int | None:
        """Tokens of a chunk of a prompt, of the server's settings; None for the default."""
        return None if self.serving is None else self.serving.chunk

    @property
    def used(self) -> list[str]:
        """The names of the devices that have ops, replicas included."""
        return [device for device, ops in self.counts().items() if ops]

    @property
    def ops_by_device(self) -> str:
        """The number of ops on each device that has ops, as text: ``CPU@0 120, CPU@1 58``."""
        return ", ".join(f"{device} {ops}" for device, ops in self.counts().items() if ops)

    def save(self, path: str | Path) -> None:
        """Write the placement as JSON, one op per line, so that ``diff`` can compare two placements.

        The file has version 3 with replicas, version 2 with segments only, and version 1 without both. The result, if known,
        takes a line per entry.
        """
        write_text(Path(path), self._text())

    def runs_like(self, other: Placement) -> bool:
        """Return whether another placement has the same devices and segments of ops, replicas, conditions and settings."""
        first, second = ({**one.to_dict(), "devices": None, "graph": None, "result": None} for one in (self, other))
        return first == second

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file that :meth:`save` writes, as a dict for JSON."""
        found: dict[str, Any] = json.loads(self._text())
        return found

    def _text(self) -> str:
        version = 3 if self.replicas else 1 if self.segments is None else 2
        head = {"format": "placeit-placement", "version": version, "graph": self.graph_hash, "devices": list(self.device_names)}
        if self.conditions is not None:
            head |= self.conditions.to_dict()
        if self.serving is not None:
            head["serving"] = vars(self.serving)
        text = json.dumps(head, indent=2)[:-2] + ",\n" + self._body()
        if self.result is not None:
            lines = (f"    {json.dumps(name)}: {json.dumps(value)}" for name, value in self.result.items())
            text += ',\n  "result": {\n' + ",\n".join(lines) + "\n  }"
        if self.replicas:
            text += ',\n  "replicas": [' + ", ".join("{\n" + one._body() + "\n  }" for one in self.replicas) + "]"
        return text + "\n}\n"

    def _body(self) -> str:
        text = '  "ops": ' + json.dumps(self.as_dict(), indent=4)[:-1] + "  }"
        return text if self.segments is None else text + ',\n  "segments": ' + json.dumps(self.segments.tolist())

    @classmethod
    def of(cls, given: Placement | str | Path) -> Placement:
        """Return ``given`` if it is a placement, else read the file that it names. Raises FileError or PlacementError."""
        return given if isinstance(given, Placement) else cls.load(given)

    @classmethod
    def load(cls, path: str | Path) -> Placement:
        """Read a placement. Raises FileError or PlacementError, naming the file, if it is not a placement."""
        return cls.from_dict(read_json(Path(path), "placeit-placement", (1, 2, 3)), path)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], path: str | Path) -> Placement:
        """Return the placement in a file's content (:meth:`to_dict`). Raises PlacementError, naming the file."""
        try:
            found = record(_File, data)
        except RecordError as error:
            raise _invalid(path, error) from None
        devices = found.devices
        if not devices:
            raise _invalid(path, RecordError("devices", "is empty"))
        twice = [name for i, name in enumerate(devices) if name in devices[:i]]
        if twice:
            raise PlacementError(f"{path}: 'devices' lists the device '{twice[0]}' twice.")
        first, *others = (_read(path, one, devices, found.graph) for one in (found, *found.replicas))
        used = np.concatenate([np.unique(one.devices) for one in (first, *others)])
        shared = [devices[d] for d in np.flatnonzero(np.bincount(used) > 1)]
        if shared:
            raise PlacementError(f"{path}: replicas must be on different devices, but two of them use {shared[0]}.")
        if any(set(one.op_names) != set(first.op_names) for one in others):
            raise PlacementError(f"{path}: replicas place the same ops, and one of them places others than the first.")
        if found.serving is not None and not found.serving.valid:
            raise _invalid(path, RecordError("serving", "has other numbers"))
        return replace(
            first, replicas=tuple(others), conditions=_conditions(path, found), result=found.result, serving=found.serving
        )

    def segments_for(self, op_names: Sequence[str]) -> NDArray[np.int32] | None:
        """Return the segment of each op in ``op_names``, ``int32[V]``; None if the placement has no segments."""
        if self.segments is None:
            return None
        number = dict(zip(self.op_names, self.segments.tolist(), strict=True))
        return np.array([number[name] for name in op_names], np.int32)

    def for_ops(self, op_names: Sequence[str], device_names: Sequence[str], *identities: str) -> NDArray[np.int32]:
        """Return the number in ``device_names`` of the device of each op in ``op_names``, ``int32[V]``.

        Args:
            op_names: names of the ops.
            device_names: names of the devices.
            *identities: identities of the ops' graph. The placement's ``graph_hash`` has to be one of them, unless it or one of
                them is empty.

        Raises:
            PlacementError: the placement belongs to another graph, does not cover it, or uses an unknown device.
        """
        if self.graph_hash and all(identities) and self.graph_hash not in identities:
            raise PlacementError(
                f"The placement belongs to another model: its graph is {self.graph_hash}, this model's is {identities[0]}."
            )
        placed: Mapping[str, str] = self.as_dict()
        missing = [name for name in op_names if name not in placed]
        if missing:
            raise PlacementError(
                f"The placement does not cover op '{missing[0]}' ({len(missing)} of {len(op_names)} ops missing)."
            )
        unknown = placed.keys() - set(op_names)
        if unknown:
            raise PlacementError(
                f"The placement belongs to another model: it places op '{min(unknown)}', which the model does not have."
            )
        numbers = {name: d for d, name in enumerate(device_names)}
        for name in op_names:
            if placed[name] not in numbers:
                raise PlacementError(
                    f"The placement puts op '{name}' on '{placed[name]}', which is not one of the devices "
                    f"{', '.join(device_names)}."
                )
        return np.array([numbers[placed[name]] for name in op_names], np.int32)


@dataclass(frozen=True, kw_only=True)
class _Replica:
    """A replica in a placement file: the device of each op, and the segment of each op if segments are stored."""

    ops: Mapping[str, str]
    segments: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class _File(_Replica):
    """The content of a placement file; the fields from ``precision`` on are conditions and the result, if they are known."""

    devices: tuple[str, ...]
    graph: str = ""
    replicas: tuple[_Replica, ...] = ()
    precision: str | None = None
    compression: str = "none"
    input_shapes: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    state: Mapping[str, str] = field(default_factory=dict)
    logits: str = "last"
    result: Mapping[str, Any] | None = None
    serving: Serving | None = None


_PLACEMENT = "a placement has a list 'devices' of names and a mapping 'ops' from op to device"
_CONDITIONS = (
    "'precision', 'compression' and 'logits' are names, 'input_shapes' has a list of sizes for each input, and 'state' the "
    "name of an output for each input that is kept"
)
_EXPECTED = {
    "segments": "'segments' is the number of a segment for each op",
    "replicas": "'replicas' is a list of replicas, which have a mapping 'ops', and 'segments' if they are known",
    "result": "'result' is a mapping, as of 'placeit optimize --json'",
    "serving": "'serving' has 'in_flight' and 'chunk', at least 1 or null, and 'max_batch', at least 0",
} | dict.fromkeys(("precision", "compression", "input_shapes", "state", "logits"), _CONDITIONS)


def _invalid(path: str | Path, error: RecordError) -> PlacementError:
    """Return an error about a field of a placement file: what it has to hold, and what is wrong with it."""
    return PlacementError(f"{path}: {_EXPECTED.get(error.field.replace('[', '.').split('.')[0], _PLACEMENT)}; {error}.")


def _conditions(path: str | Path, found: _File) -> Conditions | None:
    """Return the conditions under which a placement was found; None if the file states none."""
    if found.precision is None:
        return None
    for name, shape in found.input_shapes.items():
        for size in shape:
            if not _is_size(size):
                raise _invalid(path, RecordError(f"input_shapes.{name}", f"has {size!r}, which is no size"))
    return Conditions(found.precision, found.compression, found.input_shapes, found.state, found.logits)


def _is_size(size: int | str) -> bool:
    if isinstance(size, int):
        return size >= 0
    with contextlib.suppress(UsageError):
        return bool(SizeRange.parse(size))
    return False


def are_segments(segments: Sequence[int], devices: Sequence[int]) -> bool:
    """Return whether segments of ops are numbered from 0 on without gaps, and the ops of each are on one device."""
    if len(segments) != len(devices):
        return False
    return set(segments) == set(range(len(set(zip(segments, devices, strict=True)))))


def _read(path: str | Path, found: _Replica, devices: tuple[str, ...], graph: str) -> Placement:
    """Return a placement that serves whole requests: the placement itself, or a replica."""
    ops = found.ops
    if not ops:
        raise _invalid(path, RecordError("ops", "is empty"))
    unknown = [(op, device) for op, device in ops.items() if device not in devices]
    if unknown:
        raise PlacementError(
            f"{path}: op '{unknown[0][0]}' is on the unknown device '{unknown[0][1]}'; its devices are {', '.join(devices)}."
        )
    numbers = np.array([devices.index(device) for device in ops.values()], np.int32)
    if found.segments is None:
        return Placement(tuple(ops), numbers, devices, graph)
    segments = found.segments
    if not are_segments(segments, numbers.tolist()):
        raise PlacementError(f"{path}: {NOT_SEGMENTS} Without 'segments' they are planned anew.")
    return Placement(tuple(ops), numbers, devices, graph, np.array(segments, np.int32))
