"""Workloads: models that share devices, the requests and the limit of each, and workload files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import yaml

from placeit.core.errors import UsageError, WorkloadError
from placeit.core.files import write_text
from placeit.core.nearest import nearest
from placeit.core.placement import Placement
from placeit.core.strictyaml import Node, StrictYaml
from placeit.serving.latency import LatencyLimit
from placeit.workload.interference import Pair

__all__ = ["MAX_FACTOR", "Correction", "Entry", "EntryReader", "Workload", "search_factor"]

_RENAMED = {"limit": "latency_limit", "shapes": "input_shapes"}  # attributes of a model that have another key in the file
_NAME = re.compile(r"\.*[\w-][\w.-]*", re.ASCII)  # names that a server can serve (placeit.serve.served_model.is_name)
_SIZE = re.compile(r"\d+(\.\.\d+(@\d+)?)?", re.ASCII)
_MAX_IN_FLIGHT = 64  # requests of one model that are under way
_MAX_MODELS = 1000  # models of a workload
_MIN_RATE, _MAX_RATE = 1e-12, 1e12  # of rates and weights; sums of much larger numbers overflow
_MAX_SLOWDOWN = 1000.0  # factor by which a model slows another one
_MAX_WAIT, _MAX_SCALE = 1e9, 100.0  # seconds; factor on the times of a model
MAX_FACTOR = 8.0
"""The largest factor on rates that is tried."""


@dataclass(frozen=True)
class Entry:
    """A model of a workload.

    Attributes:
        name: unique in the workload.
        model: path of the model.
        rate: requests per second that arrive at random times (a Poisson process); None if ``in_flight`` is given.
        in_flight: number of requests under way at any time, each submitted as soon as another one has ended; None if ``rate``
            is given.
        limit: the limit on its latency; None for no limit.
        weight: importance of its latency relative to the other models.
        inputs: path of a NumPy archive with its inputs; None for random inputs.
        placement: path of its placement, which is kept; None to search for one.
        devices: names of the devices that it may use; empty for all.
        arrives_at: name of the device or node where its inputs arrive and its outputs are sent to; the model may use that
            device, or a device of that node. None if transfers of inputs and outputs do not count.
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
        if self.in_flight is not None and not 1 <= self.in_flight <= _MAX_IN_FLIGHT:
            raise UsageError(f"'in_flight' of '{self.name}' is {self.in_flight:g}; it must be 1 to {_MAX_IN_FLIGHT}.")
        for what, value in (("rate", self.rate), ("weight", self.weight)):
            if value is not None and not _MIN_RATE <= value <= _MAX_RATE:
                raise UsageError(f"'{what}' of '{self.name}' is {value:g}; it must be from {_MIN_RATE:g} to {_MAX_RATE:g}.")

    @property
    def limited(self) -> LatencyLimit:
        """The limit; without one, an infinite limit on the 95th percentile."""
        return LatencyLimit(95, math.inf) if self.limit is None else self.limit

    def rate_at(self, seconds: float) -> float:
        """Return its requests per second; of a number of requests under way, if each takes ``seconds``."""
        return self.rate if self.rate is not None else (self.in_flight or 1) / max(seconds, 1e-9)

    @property
    def load(self) -> str:
        """How its requests come, in words."""
        return f"{self.in_flight} under way" if self.rate is None else f"{self.rate:g} requests/s"


class Correction(NamedTuple):
    """How measured latencies of a model, in the mix of all models, differ from simulated ones.

    Attributes:
        waits: seconds that are added to the percentiles 50, 95 and 99 of its simulated latency.
        host: CPU seconds of each request besides the work of devices, of which the cores have less time for segments.
    """

    waits: tuple[float, float, float] = (0.0, 0.0, 0.0)
    host: float = 0.0


@dataclass(frozen=True)
class Workload:
    """Models that share devices.

    Attributes:
        entries: the models, at least one.
        path: the file that it was read from; None if it was not read from a file.
        slowdowns: measured factors by which pairs of models slow each other.
        corrections: measured corrections of simulated latencies, by the name of the model.

    Raises:
        UsageError: there is no model, there are more than 1000 models, or two models have the same name.
    """

    entries: tuple[Entry, ...]
    path: Path | None = None
    slowdowns: tuple[Pair, ...] = ()
    corrections: Mapping[str, Correction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [entry.name for entry in self.entries]
        if not 1 <= len(names) <= _MAX_MODELS:
            raise UsageError(f"A workload has 1 to {_MAX_MODELS} models; got {len(names)}.")
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
        top = reader.mapping(reader.root(), "the file", ("models", "slowdowns", "corrections"), ("models",))
        slowdowns = reader.items(top["slowdowns"], "'slowdowns'") if "slowdowns" in top else ()
        pairs = tuple(reader.pair(node, f"slowdowns[{number}]") for number, node in enumerate(slowdowns))
        of_models = reader.mapping(top["corrections"], "'corrections'") if "corrections" in top else {}
        corrections = {name: reader.correction(node, f"corrections.{name}") for name, node in of_models.items()}
        keys, entries = [_RENAMED.get(field.name, field.name) for field in fields(Entry)], list[Entry]()
        for number, node in enumerate(reader.items(top["models"], "'models'")):
            name = f"models[{number}]"
            entries.append(reader.entry(node, name, reader.mapping(node, f"'{name}'", keys, ("model",))))
        try:
            return cls(tuple(entries), Path(path), pairs, corrections)
        except UsageError as error:
            raise WorkloadError(f"{path}: {error}") from None

    @classmethod
    def of(cls, workload: Workload | str | Path) -> Workload:
        """Return a workload as it is, or read it from the path of its file."""
        return workload if isinstance(workload, Workload) else cls.load(workload)

    @property
    def priorities(self) -> list[int]:
        """The priority of each model's server, 0 or less; of models with a shorter limit it is lower, and they run first.

        This is deadline-monotonic scheduling (Leung and Whitehead 1982).
        """
        longest_first = sorted({entry.limited.seconds for entry in self.entries}, reverse=True)
        return [-longest_first.index(entry.limited.seconds) for entry in self.entries]

    def placed(self) -> Self:
        """Return the workload itself. Raises UsageError if a model has no placement."""
        for entry in self.entries:
            if entry.placement is None:
                raise UsageError(
                    f"{self.path}: the model '{entry.name}' has no 'placement': take the file that 'placeit optimize "
                    f"{self.path}' writes."
                )
        return self

    def used(self) -> list[str]:
        """Return the names of the devices that its placements use. Raises UsageError, FileError or PlacementError."""
        placements = [Placement.load(entry.placement) for entry in self.placed() if entry.placement is not None]
        return list(dict.fromkeys(name for placement in placements for name in placement.used))

    def scaled(self, factor: float) -> Self:
        """Return a workload with all rates multiplied by a factor, and clipped to the range of valid rates."""
        return self.at(
            {entry.name: min(max(factor * entry.rate, _MIN_RATE), _MAX_RATE) for entry in self if entry.rate is not None}
        )

    def at(self, rates: Mapping[str, float]) -> Self:
        """Return a workload with other rates, by model. Raises UsageError if it has no such model with a rate."""
        known = [entry.name for entry in self if entry.rate is not None]
        if unknown := [name for name in rates if name not in known]:
            hint = nearest(unknown[0], known) or f": it has {', '.join(known) or 'none'}"
            raise UsageError(f"The workload has no model '{unknown[0]}' with a rate{hint}.")
        return replace(self, entries=tuple(replace(entry, rate=rates.get(entry.name, entry.rate)) for entry in self))

    def placements(self, path: Path) -> list[Path]:
        """Return the paths of the models' placements, which are saved beside the file of the placed workload."""
        return [path.with_name(f"{path.stem}.{entry.name}.placement.json") for entry in self.entries]

    def files(self) -> list[Path]:
        """Return the paths of the workload file, and of all files that it names."""
        paths = [self.path, *(path for entry in self for path in (entry.model, entry.inputs, entry.placement))]
        return [path for path in paths if path is not None]

    def save(self, path: Path) -> None:
        """Write a workload file, with paths relative to its folder. Raises FileError."""
        models = []
        for entry in self.entries:
            values = vars(entry) | {
                "limit": None if entry.limit is None else str(entry.limit),
                "weight": None if entry.weight == 1 else entry.weight,
                "devices": [*entry.devices] or None,
                "shapes": {name: [*sizes] for name, sizes in entry.shapes.items()} or None,
            }
            values |= {key: os.path.relpath(value, path.parent) for key, value in values.items() if isinstance(value, Path)}
            models.append({_RENAMED.get(key, key): value for key, value in values.items() if value is not None})
        slowdowns = [{key: [*values] for key, values in pair._asdict().items()} for pair in self.slowdowns]
        corrections = {name: each._asdict() | {"waits": [*each.waits]} for name, each in self.corrections.items()}
        measured = {key: values for key, values in (("slowdowns", slowdowns), ("corrections", corrections)) if values}
        write_text(path, yaml.safe_dump({"models": models} | measured, sort_keys=False, allow_unicode=True, width=math.inf))


def search_factor(is_kept: Callable[[float], bool], max_factor: float) -> float:
    """Search by bisection for the largest factor at which limits are kept, to about 2 %.

    Returns 0 if they are kept at no factor above a thousandth of ``max_factor``.
    """
    low, high, factor = 0.0, max_factor, max_factor
    while high > 1.02 * low and high > max_factor / 1000:
        kept = is_kept(factor)
        if kept and factor == max_factor:
            return factor
        low, high = (factor, high) if kept else (low, factor)
        factor = (low * high) ** 0.5 if low > 0 else high / 2
    return low


class EntryReader(StrictYaml):
    """Reads models from workload files and fleet files."""

    error = WorkloadError

    def entry(self, node: Node, name: str, nodes: Mapping[str, Node], **attributes: Any) -> Entry:
        """Read a model.

        Args:
            node: the node of the model.
            name: name of the node in messages.
            nodes: the nodes of attributes, by their keys in the file.
            attributes: further attributes of the model.
        """
        read: dict[str, Callable[[Node, str], Any]] = dict.fromkeys(nodes, self.text)
        read |= dict.fromkeys(("model", "inputs", "placement"), self.file)
        read |= dict.fromkeys(("rate", "weight"), self.positive)
        read |= {"in_flight": self.whole, "devices": self.names, "input_shapes": self.shapes, "latency_limit": self.limit}
        values = {key: read[key](value, f"'{name}.{key}'") for key, value in nodes.items()}
        values |= {attribute: values.pop(key) for attribute, key in _RENAMED.items() if key in values}
        if "model" in values:
            values.setdefault("name", values["model"].stem)
        try:
            return Entry(**attributes | values)
        except UsageError as error:
            self.fail(node, str(error).rstrip("."))

    def pair(self, node: Node, name: str) -> Pair:
        """Read a measured slowdown."""
        nodes, entry = self.mapping(node, f"'{name}'", Pair._fields, Pair._fields), f"'{name}.slowdown'"
        models, devices = (tuple(self.texts(nodes[key], f"'{name}.{key}'")) for key in Pair._fields[:2])
        factors = tuple(self.positive(factor, entry) for factor in self.items(nodes["slowdown"], entry))
        if not len(models) == len(devices) == len(factors) == 2 or max(factors) > _MAX_SLOWDOWN:
            self.fail(node, f"'{name}' does not have two models, two devices, and two factors of {_MAX_SLOWDOWN:g} at most")
        return Pair(models, devices, factors)

    def correction(self, node: Node, name: str) -> Correction:
        """Read the measured correction of a model."""
        nodes, entry = self.mapping(node, f"'{name}'", Correction._fields, Correction._fields), f"'{name}.waits'"
        waits = [self.quantity(time, entry, "time") for time in self.items(nodes["waits"], entry)]
        if len(waits) != 3 or max(waits) > _MAX_WAIT:
            self.fail(node, f"{entry} does not have three times of at most {_MAX_WAIT:g} s, at the percentiles 50, 95 and 99")
        host = self.quantity(nodes["host"], f"'{name}.host'", "time")
        if host > _MAX_WAIT:
            self.fail(node, f"'{name}.host' is {host:g} s; it must be at most {_MAX_WAIT:g} s")
        return Correction((waits[0], waits[1], waits[2]), host)

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
        """Read a path that is relative to the folder of the file."""
        if not (text := self.text(node, entry)):
            self.fail(node, f"{entry} is empty; it must be a path")
        return self.path.parent / text

    def names(self, node: Node, entry: str) -> tuple[str, ...]:
        """Read the names of at least one device, each once."""
        names = self.texts(node, entry)
        if not names:
            self.fail(node, f"{entry} names no device")
        if twice := [name for k, name in enumerate(names) if name in names[:k]]:
            self.fail(node, f"{entry} names '{twice[0]}' twice")
        return tuple(names)

    def shapes(self, node: Node, entry: str) -> dict[str, list[str]]:
        """Read the sizes of inputs, by input name."""
        shapes = {name: self.texts(sizes, f"{entry} of '{name}'") for name, sizes in self.mapping(node, entry).items()}
        for name, sizes in shapes.items():
            if wrong := next((size for size in sizes if _SIZE.fullmatch(size) is None), None):
                self.fail(node, f"{entry} of '{name}' has '{wrong}'; sizes are numbers, or ranges such as 1..64@8")
        return shapes
