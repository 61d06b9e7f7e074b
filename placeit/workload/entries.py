"""A workload: models that share devices, with the requests and the limits of each; and its file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

import yaml

from placeit.core.errors import UsageError, WorkloadError
from placeit.core.files import write_text
from placeit.core.nearest import nearest
from placeit.core.placement import Placement
from placeit.core.strictyaml import Node, StrictYaml
from placeit.serving.latency import LatencyLimit
from placeit.workload.interference import Pair

__all__ = ["LARGEST", "Entry", "EntryReader", "Workload", "largest"]

_RENAMED = {"limit": "latency_limit", "shapes": "input_shapes"}  # attributes of a model that have another key in the file
_NAME = re.compile(r"\.*[\w-][\w.-]*", re.ASCII)  # what a server can serve (placeit.serve.served_model.is_name)
_SIZE = re.compile(r"\d+(\.\.\d+(@\d+)?)?", re.ASCII)
_MOST = 64  # requests of one model that are under way
_MODELS = 1000  # of a workload
_BOUNDS = (1e-12, 1e12)  # of rates and weights, far beyond which sums of them are not numbers any more
_SLOWEST = 1000.0  # factor by which a model slows another one
LARGEST = 8.0
"""The largest factor on rates that is tried."""


@dataclass(frozen=True)
class Entry:
    """A model of a workload.

    Attributes:
        name: unique in the workload.
        model: path of the model.
        rate: requests per second that arrive, at random times (a Poisson process); None if ``in_flight`` is given.
        in_flight: requests that are under way at any time, each submitted as soon as another one has ended; None with a rate.
        limit: the limit on its latency; None without any.
        weight: importance of its latency beside the other models'.
        inputs: path of a NumPy archive with its inputs; None for random inputs.
        placement: path of its placement, which is kept; None to look for one.
        devices: names of the devices that it may use; empty for all.
        arrives_at: name of a device that it may use, or of a node, where its inputs arrive and its outputs are wanted; None if
            it does not matter.
        shapes: sizes of inputs that the model leaves open, by input name (:class:`placeit.workbench.options.Inputs`).
    """

    name: str
    model: Path
    rate: float | None = None
    in_flight: int | None = None
    limit: LatencyLimit | None = None
    weight: float = 1.0
    inputs: Path | None = None
    placement: Path | None = None
    devices: tuple[str, ...] = ()
    arrives_at: str | None = None
    shapes: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if _NAME.fullmatch(self.name) is None:
            raise UsageError(
                f"'{self.name}' cannot name a model: a name has letters, digits, '-', '_' and '.', and not only dots. Give a "
                "'name'."
            )
        if (self.rate is None) == (self.in_flight is None):
            raise UsageError(f"The model '{self.name}' needs either 'rate' or 'in_flight': how its requests come.")
        if self.in_flight is not None and not 1 <= self.in_flight <= _MOST:
            raise UsageError(f"'in_flight' of '{self.name}' is {self.in_flight:g}; it must be 1 to {_MOST}.")
        for what, value in (("rate", self.rate), ("weight", self.weight)):
            if value is not None and not _BOUNDS[0] <= value <= _BOUNDS[1]:
                raise UsageError(f"'{what}' of '{self.name}' is {value:g}; it must be from {_BOUNDS[0]:g} to {_BOUNDS[1]:g}.")

    @property
    def limited(self) -> LatencyLimit:
        """The limit, or one on the 95th percentile that every request keeps."""
        return LatencyLimit(95, math.inf) if self.limit is None else self.limit

    @property
    def load(self) -> str:
        """How its requests come, in words."""
        return f"{self.in_flight} under way" if self.rate is None else f"{self.rate:g} requests/s"


@dataclass(frozen=True)
class Workload:
    """Models that share devices.

    Attributes:
        entries: the models, at least one.
        path: the file; None if it was made otherwise.
        slowdowns: how models slow each other, as far as that was measured when they were placed.

    Raises:
        UsageError: there is no model, there are more than 1000, or two have one name.
    """

    entries: tuple[Entry, ...]
    path: Path | None = None
    slowdowns: tuple[Pair, ...] = ()

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if not 1 <= len(names) <= _MODELS:
            raise UsageError(f"A workload has 1 to {_MODELS} models; got {len(names)}.")
        if twice := [name for k, name in enumerate(names) if name in names[:k]]:
            raise UsageError(f"Two models of the workload are named '{twice[0]}': give one of them another 'name'.")

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a workload file; paths in it are relative to its folder.

        Raises:
            FileError: the file cannot be read.
            WorkloadError: the file has an error; the message names the file, the line and the key.
        """
        reader = EntryReader(Path(path))
        top = reader.mapping(reader.root(), "the file", ("models", "slowdowns"), ("models",))
        slowdowns = reader.items(top["slowdowns"], "'slowdowns'") if "slowdowns" in top else ()
        pairs = tuple(reader.pair(node, f"slowdowns[{number}]") for number, node in enumerate(slowdowns))
        keys, entries = [_RENAMED.get(one.name, one.name) for one in fields(Entry)], list[Entry]()
        for number, node in enumerate(reader.items(top["models"], "'models'")):
            name = f"models[{number}]"
            entries.append(reader.entry(node, name, reader.mapping(node, f"'{name}'", keys, ("model",))))
        try:
            return cls(tuple(entries), Path(path), pairs)
        except UsageError as error:
            raise WorkloadError(f"{path}: {error}") from None

    @classmethod
    def of(cls, given: Workload | str | Path) -> Workload:
        """Return a workload that is given as such, or as the path of its file."""
        return given if isinstance(given, Workload) else cls.load(given)

    @property
    def priorities(self) -> list[int]:
        """The priority of each model's server: the shorter its limit, the lower the number, and the sooner it goes; 0 at most.

        This is deadline-monotonic scheduling (Leung and Whitehead 1982).
        """
        longest_first = sorted({entry.limited.seconds for entry in self.entries}, reverse=True)
        return [-longest_first.index(entry.limited.seconds) for entry in self.entries]

    def placed(self) -> Self:
        """Return it. Raises UsageError if a model has no placement."""
        for entry in self.entries:
            if entry.placement is None:
                raise UsageError(
                    f"{self.path}: the model '{entry.name}' has no 'placement': take the file that 'placeit optimize "
                    f"{self.path}' writes."
                )
        return self

    def used(self) -> list[str]:
        """Return the devices that its placements are on. Raises UsageError, FileError or PlacementError."""
        counts = [Placement.load(entry.placement).counts() for entry in self.placed() if entry.placement is not None]
        return list(dict.fromkeys(name for each in counts for name, ops in each.items() if ops))

    def scaled(self, factor: float) -> Self:
        """Return it with all rates multiplied by a factor, as far as a rate may be that high or low."""
        low, high = _BOUNDS
        return self.at({entry.name: min(max(factor * entry.rate, low), high) for entry in self if entry.rate is not None})

    def at(self, rates: Mapping[str, float]) -> Self:
        """Return it with other rates of some models, by name. Raises UsageError if there is no such model with a rate."""
        known = [entry.name for entry in self if entry.rate is not None]
        if unknown := [name for name in rates if name not in known]:
            hint = nearest(unknown[0], known) or f": it has {', '.join(known) or 'none'}"
            raise UsageError(f"The workload has no model '{unknown[0]}' with a rate{hint}.")
        return replace(self, entries=tuple(replace(entry, rate=rates.get(entry.name, entry.rate)) for entry in self))

    def placements(self, path: Path) -> list[Path]:
        """Return the files of the models' placements beside a file of the placed workload."""
        return [path.with_name(f"{path.stem}.{entry.name}.placement.json") for entry in self.entries]

    def files(self) -> list[Path]:
        """Return the files that are read for it."""
        every = [self.path, *(file for one in self.entries for file in (one.model, one.inputs, one.placement))]
        return [file for file in every if file is not None]

    def save(self, path: Path) -> None:
        """Write a workload file, with paths relative to its folder. Raises FileError."""
        models = []
        for entry in self.entries:
            said = vars(entry) | {
                "limit": None if entry.limit is None else str(entry.limit),
                "weight": None if entry.weight == 1 else entry.weight,
                "devices": [*entry.devices] or None,
                "shapes": {name: [*sizes] for name, sizes in entry.shapes.items()} or None,
            }
            said |= {key: os.path.relpath(value, path.parent) for key, value in said.items() if isinstance(value, Path)}
            models.append({_RENAMED.get(key, key): value for key, value in said.items() if value is not None})
        slowdowns = [{key: [*values] for key, values in pair._asdict().items()} for pair in self.slowdowns]
        file = {"models": models} | ({"slowdowns": slowdowns} if slowdowns else {})
        write_text(path, yaml.safe_dump(file, sort_keys=False, allow_unicode=True, width=math.inf))


def largest(kept: Callable[[float], bool], most: float) -> float:
    """Return the largest factor that is kept, to about 2 %, ``most`` at most; 0 if none above a thousandth of that is."""
    low, high, factor = 0.0, most, most
    while high > 1.02 * low and high > most / 1000:
        good = kept(factor)
        if good and factor == most:
            return factor
        low, high = (factor, high) if good else (low, factor)
        factor = (low * high) ** 0.5 if low > 0 else high / 2
    return low


class EntryReader(StrictYaml):
    """Reader of what files say of a model."""

    error = WorkloadError

    def entry(self, node: Node, name: str, given: Mapping[str, Node], **more: Any) -> Entry:
        """Return a model.

        Args:
            node: what the file says of it.
            name: of the node, in messages.
            given: values by key, as far as they are attributes of the model.
            more: attributes that ``given`` does not have.
        """
        read: dict[str, Callable[[Node, str], Any]] = dict.fromkeys(given, self.text)
        read |= dict.fromkeys(("model", "inputs", "placement"), self.file)
        read |= dict.fromkeys(("rate", "weight"), self.positive)
        read |= {"in_flight": self.whole, "devices": self.names, "input_shapes": self.shapes, "latency_limit": self.limit}
        said = {key: read[key](value, f"'{name}.{key}'") for key, value in given.items()}
        said |= {attribute: said.pop(key) for attribute, key in _RENAMED.items() if key in said}
        if "model" in said:
            said.setdefault("name", said["model"].stem)
        try:
            return Entry(**more | said)
        except UsageError as error:
            self.fail(node, str(error).rstrip("."))

    def pair(self, node: Node, name: str) -> Pair:
        """Read a measured slowdown."""
        given = self.mapping(node, f"'{name}'", Pair._fields, Pair._fields)
        models, devices = (tuple(self.texts(given[key], f"'{name}.{key}'")) for key in Pair._fields[:2])
        factors = tuple(self.positive(one, f"'{name}.slowdown'") for one in self.items(given["slowdown"], f"'{name}.slowdown'"))
        if not len(models) == len(devices) == len(factors) == 2 or max(factors) > _SLOWEST:
            self.fail(node, f"'{name}' does not have two models, two devices, and two factors of {_SLOWEST:g} at most")
        return Pair(models, devices, factors)

    def limit(self, node: Node, entry: str) -> LatencyLimit:
        """Read a limit on latency."""
        try:
            return LatencyLimit.parse(self.text(node, entry))
        except UsageError as error:
            self.fail(node, f"{entry}: {str(error).rstrip('.')}")

    def positive(self, node: Node, entry: str) -> float:
        """Read a number above 0."""
        value = self.quantity(node, entry, "number")
        if value == 0:
            self.fail(node, f"{entry} is 0; it must be above 0, such as 0.01")
        return value

    def whole(self, node: Node, entry: str) -> int:
        """Read a whole number."""
        value = self.quantity(node, entry, "number")
        if not value.is_integer():
            self.fail(node, f"{entry} is {value:g}; it must be a whole number")
        return int(value)

    def file(self, node: Node, entry: str) -> Path:
        """Read a path, which is relative to the folder of the file."""
        return self.path.parent / self.text(node, entry)

    def names(self, node: Node, entry: str) -> tuple[str, ...]:
        """Read names of devices."""
        names = self.texts(node, entry)
        if not names:
            self.fail(node, f"{entry} names no device")
        if twice := [name for k, name in enumerate(names) if name in names[:k]]:
            self.fail(node, f"{entry} names '{twice[0]}' twice")
        return tuple(names)

    def shapes(self, node: Node, entry: str) -> dict[str, list[str]]:
        """Read sizes of inputs."""
        shapes = {name: self.texts(sizes, f"{entry} of '{name}'") for name, sizes in self.mapping(node, entry).items()}
        for name, sizes in shapes.items():
            if wrong := next((size for size in sizes if _SIZE.fullmatch(size) is None), None):
                self.fail(node, f"{entry} of '{name}' has '{wrong}'; sizes are numbers, or ranges such as 1..64@8")
        return shapes
