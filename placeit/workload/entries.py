"""A workload: models that share devices, with the requests and the limits of each; and its file."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Self

import yaml

from placeit.core.errors import UsageError, WorkloadError
from placeit.core.files import write_text
from placeit.core.nearest import nearest
from placeit.core.placement import Placement
from placeit.core.strictyaml import Node, StrictYaml
from placeit.serving.latency import LatencyLimit

__all__ = ["LARGEST", "Entry", "LoadReader", "Workload", "largest"]

_RENAMED = {"limit": "latency_limit", "shapes": "input_shapes"}  # attributes of a model that have another key in the file
_NAME = re.compile(r"\.*[\w-][\w.-]*", re.ASCII)  # what a server can serve (placeit.serve.served_model.is_name)
_SIZE = re.compile(r"\d+(\.\.\d+(@\d+)?)?", re.ASCII)
_MOST = 64  # requests of one model that are under way
_MODELS = 1000  # of a workload
_BOUNDS = (1e-12, 1e12)  # of rates and weights, far beyond which sums of them are not numbers any more
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
            raise UsageError(f"'in_flight' of '{self.name}' is {self.in_flight}; it must be 1 to {_MOST}.")
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

    Raises:
        UsageError: there is no model, there are more than 1000, or two have one name.
    """

    entries: tuple[Entry, ...]
    path: Path | None = None

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
        reader = _Reader(Path(path))
        try:
            return cls(reader.entries(), Path(path))
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
        """Return it with all rates multiplied by a factor."""
        return self.at({entry.name: factor * entry.rate for entry in self if entry.rate is not None})

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
        write_text(path, yaml.safe_dump({"models": models}, sort_keys=False, allow_unicode=True, width=math.inf))


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


class LoadReader(StrictYaml):
    """Reader of numbers of requests, and limits on their latency."""

    error = WorkloadError

    def number(self, node: Node, entry: str, what: str) -> float:
        """Read a ``rate``, ``in_flight`` or ``weight``."""
        value = self.quantity(node, entry, "number")
        if value <= 0 or (what == "in_flight" and not value.is_integer()):
            self.fail(node, f"{entry} is {value:g}; it must be {_NUMBERS[what]}")
        return value

    def limit(self, node: Node, entry: str) -> LatencyLimit:
        """Read a limit, of which ``entry`` is the model."""
        try:
            return LatencyLimit.parse(self.text(node, f"'{entry}.latency_limit'"))
        except UsageError as error:
            self.fail(node, f"'{entry}.latency_limit': {str(error).rstrip('.')}")


class _Reader(LoadReader):
    def entries(self) -> tuple[Entry, ...]:
        top = self.mapping(self.root(), "the file", ("models",), ("models",))
        nodes = self.items(top["models"], "'models'")
        return tuple(self.entry(node, f"models[{number}]") for number, node in enumerate(nodes))

    def entry(self, node: Node, entry: str) -> Entry:
        keys = [_RENAMED.get(one.name, one.name) for one in fields(Entry)]
        given = self.mapping(node, f"'{entry}'", keys, ("model",))
        model = self.file(given["model"], f"'{entry}.model'")
        numbers = {key: self.number(given[key], f"'{entry}.{key}'", key) for key in _NUMBERS if key in given}
        try:
            return Entry(
                name=self.text(given["name"], f"'{entry}.name'") if "name" in given else model.stem,
                model=model,
                rate=numbers.get("rate"),
                in_flight=int(numbers["in_flight"]) if "in_flight" in numbers else None,
                limit=self.limit(given["latency_limit"], entry) if "latency_limit" in given else None,
                weight=numbers.get("weight", 1.0),
                inputs=self.file(given["inputs"], f"'{entry}.inputs'") if "inputs" in given else None,
                placement=self.file(given["placement"], f"'{entry}.placement'") if "placement" in given else None,
                devices=tuple(self.names(given["devices"], f"'{entry}.devices'")) if "devices" in given else (),
                arrives_at=self.text(given["arrives_at"], f"'{entry}.arrives_at'") if "arrives_at" in given else None,
                shapes=self.shapes(given["input_shapes"], f"'{entry}.input_shapes'") if "input_shapes" in given else {},
            )
        except UsageError as error:
            self.fail(node, str(error).rstrip("."))

    def file(self, node: Node, entry: str) -> Path:
        return self.path.parent / self.text(node, entry)

    def names(self, node: Node, entry: str) -> list[str]:
        names = self.texts(node, entry)
        if not names:
            self.fail(node, f"{entry} names no device")
        if twice := [name for k, name in enumerate(names) if name in names[:k]]:
            self.fail(node, f"{entry} names '{twice[0]}' twice")
        return names

    def shapes(self, node: Node, entry: str) -> dict[str, list[str]]:
        shapes = {name: self.texts(sizes, f"{entry} of '{name}'") for name, sizes in self.mapping(node, entry).items()}
        for name, sizes in shapes.items():
            if wrong := next((size for size in sizes if _SIZE.fullmatch(size) is None), None):
                self.fail(node, f"{entry} of '{name}' has '{wrong}'; sizes are numbers, or ranges such as 1..64@8")
        return shapes


_NUMBERS = {
    "rate": "above 0, in requests per second (0.01 for a model that is hardly ever asked)",
    "in_flight": "a whole number from 1 on",
    "weight": "above 0",
}
