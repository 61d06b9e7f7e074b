"""Read fleet files: sites, classes of nodes, nodes, and models with their rates, as YAML. See ``docs/scale.md``."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError, WorkloadError
from placeit.core.files import read_text
from placeit.core.nearest import nearest
from placeit.core.strictyaml import Node
from placeit.workload.entries import Entry, EntryReader, Workload
from placeit.workload.fleet import Demand, Fleet, Sites

__all__ = ["read_fleet"]

_LINK = ("latency", "bandwidth")
_SITE_LINK = (1e-4, 1e9 / 8)  # seconds, and bytes per second, between nodes of one site: Gigabit Ethernet
_MAX_NODES = 100_000  # nodes of a fleet
_PARTS = ("sites", "classes", "nodes", "models")
_MODEL = ("name", "seconds", "memory", "request", "rates")
_SHARED = ("latency_limit", "weight")  # keys of a model that workloads have as well


def read_fleet(path: str | Path) -> tuple[Fleet, Demand, NDArray[np.float64]]:
    """Read a fleet file. Files with measured seconds are relative to its folder.

    Returns:
        The fleet, the demand, and the requests per second of each source, ``float64[Q]``.

    Raises:
        FileError: a file cannot be read.
        WorkloadError: the file has an error; the message names the file, and the line and the key if it is about one.
    """
    reader = _Reader(Path(path))
    top = reader.mapping(reader.root(), "the file", (*_PARTS, "site_link"), _PARTS)
    try:
        fleet = reader.fleet(*(reader.filled(top[key], f"'{key}'") for key in _PARTS[:3]))
        return fleet, *reader.demand(top["models"], top.get("site_link"), fleet)
    except (UsageError, WorkloadError) as error:
        raise WorkloadError(str(error) if str(error).startswith(str(path)) else f"{path}: {error}") from None


class _Reader(EntryReader):
    """Reads the parts of a fleet file."""

    def filled(self, node: Node, entry: str, known: Sequence[str] | None = None) -> dict[str, Node]:
        """Return the values of a mapping that is not empty, by key."""
        values = self.mapping(node, entry, known)
        if not values:
            self.fail(node, f"{entry} is empty")
        return values

    def index_of(self, node: Node, entry: str, names: Collection[str]) -> int:
        """Read a name, and return its index among the known names."""
        name = self.text(node, entry)
        if name not in names:
            self.fail(node, f"{entry} is '{name}', which the file does not describe{nearest(name, names)}")
        return [*names].index(name)

    def link(self, fields: Mapping[str, Node], entry: str) -> tuple[float, float]:
        """Read the latency and the bandwidth of a link."""
        latency = self.quantity(fields["latency"], f"'{entry}.latency'", "time")
        return latency, self.quantity(fields["bandwidth"], f"'{entry}.bandwidth'", "bandwidth")

    def fleet(self, sites: Mapping[str, Node], classes: Mapping[str, Node], nodes: Mapping[str, Node]) -> Fleet:
        """Read the sites, the classes and the nodes."""
        memory = []
        for name, node in classes.items():
            fields = self.mapping(node, f"'classes.{name}'", ("memory",), ("memory",))
            memory.append(self.quantity(fields["memory"], f"'classes.{name}.memory'", "memory"))
        names, site, class_of = list[str](), list[int](), list[int]()
        for name, node in nodes.items():
            fields = self.mapping(node, f"'nodes.{name}'", ("site", "class", "count"), ("site", "class"))
            count = self.whole(fields["count"], f"'nodes.{name}.count'") if "count" in fields else 1
            if count == 0:
                self.fail(node, f"'nodes.{name}.count' is 0; it must be at least 1")
            if len(names) + count > _MAX_NODES:
                self.fail(node, f"with 'nodes.{name}', there are {len(names) + count} nodes; a fleet has {_MAX_NODES} at most")
            names += [f"{name}-{number + 1}" for number in range(count)] if "count" in fields else [name]
            site += [self.index_of(fields["site"], f"'nodes.{name}.site'", sites)] * count
            class_of += [self.index_of(fields["class"], f"'nodes.{name}.class'", classes)] * count
        node_class = np.array(class_of, np.int32)
        return Fleet(self.sites(sites), names, np.array(site, np.int32), [*classes], node_class, np.array(memory)[node_class])

    def sites(self, nodes: Mapping[str, Node]) -> Sites:
        """Read the sites, and the link of each to its parent; a site without keys is the root."""
        parent, links = list[int](), list[tuple[float, float]]()
        for name, node in nodes.items():
            keys = ("parent", *_LINK)
            fields = self.mapping(node, f"'sites.{name}'", keys, keys if self.mapping(node, f"'sites.{name}'") else ())
            parent.append(self.index_of(fields["parent"], f"'sites.{name}.parent'", nodes) if fields else -1)
            links.append(self.link(fields, f"sites.{name}") if fields else (0.0, math.inf))
        latency, bandwidth = np.array(links).T
        return Sites([*nodes], np.array(parent, np.int32), latency, bandwidth)

    def demand(self, models: Node, link: Node | None, fleet: Fleet) -> tuple[Demand, NDArray[np.float64]]:
        """Read the models, and return them with the requests per second of each source, ``float64[Q]``."""
        hop = _SITE_LINK if link is None else self.link(self.mapping(link, "'site_link'", _LINK, _LINK), "site_link")
        entries, sizes = list[Entry](), list[list[float]]()
        nodes, sources = self.items(models, "'models'"), list[tuple[int, int, float]]()
        if not nodes:
            self.fail(models, "'models' is empty")
        seconds = np.full((len(nodes), len(fleet.classes)), np.inf)
        for number, node in enumerate(nodes):
            entry = f"models[{number}]"
            fields = self.mapping(node, f"'{entry}'", (*_MODEL, *_SHARED, "between"), _MODEL)
            fields.setdefault("between", fields["request"])
            sizes.append([self.quantity(fields[key], f"'{entry}.{key}'", "memory") for key in ("memory", "request", "between")])
            if math.inf in sizes[-1]:
                self.fail(node, f"'{entry}' has a size that is infinite")
            for name, value in self.filled(fields["seconds"], f"'{entry}.seconds'", fleet.classes).items():
                seconds[number, fleet.classes.index(name)] = self.seconds(value, f"'{entry}.seconds.{name}'")
            own = self.filled(fields["rates"], f"'{entry}.rates'", fleet.sites.names)
            rates = [self.positive(value, f"'{entry}.rates.{name}'") for name, value in own.items()]
            sources += zip([number] * len(own), map(fleet.sites.names.index, own), rates, strict=True)
            given = {key: value for key, value in fields.items() if key in ("name", *_SHARED)}
            entries.append(self.entry(node, entry, given, model=Path(), rate=sum(rates)))
        model, site, source_rates = (np.array(column) for column in zip(*sources, strict=True))
        weights, sent, between = np.array(sizes).T
        return Demand(Workload(tuple(entries)), seconds, weights, sent, between, model, site, hop), source_rates

    def seconds(self, node: Node, entry: str) -> float:
        """Read the seconds of a request: a time, or the path of a file with a measured time."""
        text = self.text(node, entry)
        if text.endswith(".json"):
            return _measured(self.path.parent / text)
        value = self.quantity(node, entry, "time")
        if value == 0:
            self.fail(node, f"{entry} is zero; it must be positive. Leave out a class that cannot run the model")
        return value


def _measured(path: Path) -> float:
    """Read the seconds of a request from the output of ``placeit run --json`` or ``placeit profile --json``."""
    try:
        data = json.loads(read_text(path))
        times = [device["whole_model_s"] for device in data["devices"]] if "groups" in data else [data["latency_s"]["median"]]
        if len(times) == 1 and data.get("failed") is None and 0 < float(times[0]) < math.inf:
            return float(times[0])
    except (ValueError, LookupError, TypeError, AttributeError):
        pass
    raise WorkloadError(
        f"{path} does not have the time of a model on one device: write it by 'placeit run MODEL -d DEVICE --json', or by "
        "'placeit profile'."
    )
