"""Cluster files: devices and links as YAML, real, emulated or described. See ``docs/devices.md``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link, Power
from placeit.core.errors import DeviceError, UsageError
from placeit.core.files import write_text
from placeit.core.nearest import nearest
from placeit.core.strictyaml import Node, StrictYaml
from placeit.core.units import format_quantity
from placeit.devices.described import FIGURES, catalog
from placeit.devices.discovery import named, resolve
from placeit.devices.names import check_distinct, hardware_kind, parse_device

__all__ = ["cluster_text", "discover", "names_file", "read_cluster", "write_cluster"]

_DEVICE_KEYS = ("runs_on", "slowdown", "catalog", "full_name", *FIGURES, "tags")
_FIELDS = {
    "flops": "flops_per_s",
    "memory_bandwidth": "bytes_per_s",
    "memory": "memory_bytes",
    "op_overhead": "op_overhead_s",
}  # fields of Device, by key of the file; both powers are one field
_DEFAULTS = {"memory": float("inf"), "op_overhead": 0.0, "idle_power": 0.0}
_LINK_KEYS = ("bandwidth", "latency")


def discover(spec: Cluster | str | Path | Sequence[str] | None = None, *, precision: str = "f32") -> Cluster:
    """Return a cluster, from a cluster file (``*.yaml``, ``*.yml``), device names, or ``auto``, the default.

    ``auto`` leaves out devices that do not compute in ``precision``. Raises the errors of :func:`read_cluster` and of
    :func:`placeit.devices.discovery.named`, and UsageError for a value of another type.
    """
    if isinstance(spec, Cluster):
        return spec
    if isinstance(spec, Path) or (isinstance(spec, str) and names_file(spec)):
        return read_cluster(spec)
    if spec is not None and not (isinstance(spec, Sequence) and all(isinstance(name, str) for name in spec)):
        raise UsageError(
            f"Devices are names, a cluster file or a cluster, and not a {type(spec).__name__}. Arguments of a PyTorch module "
            "are given by name: example=(x,)."
        )
    return named(spec, precision=precision)


def names_file(spec: str) -> bool:
    """Return whether a text names a cluster file instead of devices."""
    return spec.strip().lower().endswith((".yaml", ".yml"))


def read_cluster(path: str | Path, *, check: bool = True, text: str | None = None) -> Cluster:
    """Read a cluster file.

    Args:
        path: the file.
        check: whether to find the real devices on this machine and fill in their properties. If False, the file may describe
            another machine: its devices have the cores and the memory that the file states.
        text: content to read in place of the file's; ``path`` then names it in messages.

    Raises:
        FileError: the file cannot be read.
        ClusterError: the file has an error; the message names the file, the line and the key.
        DeviceError: a real device does not exist, or is named twice.
    """
    return _Reader(Path(path), text).cluster(check)


def write_cluster(cluster: Cluster, path: str | Path) -> None:
    """Write a cluster file from which :func:`read_cluster` reads an equal cluster. Raises FileError."""
    write_text(Path(path), cluster_text(cluster))


def cluster_text(cluster: Cluster) -> str:
    """Return the content of the file that :func:`write_cluster` writes."""
    lines = ["devices:"]
    for device in cluster.devices:
        lines.append(f"  {_scalar(device.name)}:")
        lines += [f"    {key}: {value}" for key, value in _device_fields(device)]
    links = dict(cluster.links)
    if links:
        lines.append("links:")
    while links:
        (src, dst), link = next(iter(links.items()))
        del links[src, dst]
        ends = f"from: {_scalar(src)}, to: {_scalar(dst)}"
        if links.get((dst, src)) == link:
            del links[dst, src]
            ends = f"between: [{_scalar(src)}, {_scalar(dst)}]"
        speed = f"bandwidth: {format_quantity(link.bandwidth, 'bandwidth')}, latency: {format_quantity(link.latency, 'time')}"
        lines.append(f"  - {{{ends}, {speed}{', measured: true' if link.origin == 'measured' else ''}}}")
    return "\n".join(lines) + "\n"


def _device_fields(device: Device) -> Iterator[tuple[str, str]]:
    if device.described and device.full_name:
        yield "full_name", _scalar(device.full_name)
    if not device.described:
        yield "runs_on", _scalar(str(device.where))
    if device.emulated:
        yield "slowdown", repr(device.slowdown)
    figures = {key: getattr(device, field) for key, field in _FIELDS.items()}
    if device.power is not None:
        figures |= {"idle_power": device.power.idle_w, "busy_power": device.power.busy_w}
    for key, value in figures.items():
        if value not in (None, _DEFAULTS.get(key)):
            yield key, format_quantity(value, FIGURES[key])
    if device.tags:
        yield "tags", f"[{', '.join(_scalar(tag) for tag in sorted(device.tags))}]"


def _scalar(text: str) -> str:
    """Return a string for YAML, quoted as in JSON, which YAML reads, unless it is a plain word."""
    word = text.translate({ord(mark): "x" for mark in "@.-_+"})
    return text if text[:1].isalnum() and word.isascii() and word.isalnum() else json.dumps(text, ensure_ascii=False)


class _Reader(StrictYaml):
    """Reader of one cluster file.

    Attributes:
        real: addresses of the real devices, by name.
    """

    def __init__(self, path: Path, text: str | None) -> None:
        super().__init__(path, text)
        self.real: dict[str, Address] = {}

    def cluster(self, check: bool) -> Cluster:
        top = self.mapping(self.root(), "the file", ("devices", "links", "default_link"), ("devices",))
        entries = self.mapping(top["devices"], "'devices'")
        if not entries:
            self.fail(top["devices"], "'devices' is empty; a cluster needs at least one")
        drafts = {name: self.device(name, node) for name, node in entries.items()}
        links = self.links(
            top.get("links"), top.get("default_link"), {name: draft[0].described for name, draft in drafts.items()}
        )
        try:
            check_distinct(list(self.real.items()))
            found = dict(zip(self.real, resolve(list(self.real.values())), strict=True)) if check and self.real else {}
        except DeviceError as error:
            raise DeviceError(f"{self.path}: {error}") from error
        devices = (dataclasses.replace(found.get(name, base), **stated) for name, (base, stated) in drafts.items())
        return Cluster(tuple(devices), links)

    def device(self, name: str, node: Node) -> tuple[Device, dict[str, Any]]:
        """Return the device of an entry, and the fields that the entry itself states."""
        entry = f"devices.{name}"
        if not name.strip() or "," in name:
            self.fail(node, f"'{name}' cannot name a device: a name is not empty and has no comma")
        fields = self.mapping(node, f"'{entry}'", _DEVICE_KEYS)
        values = {key: self.quantity(fields[key], f"'{entry}.{key}'", dim) for key, dim in FIGURES.items() if key in fields}
        stated: dict[str, Any] = {_FIELDS[key]: value for key, value in values.items() if key in _FIELDS} | {"name": name}
        if "busy_power" in values:
            stated["power"] = Power(values.get("idle_power", 0.0), values["busy_power"])
        elif "idle_power" in values:
            self.fail(fields["idle_power"], f"'{entry}.idle_power' needs 'busy_power' beside it")
        if "tags" in fields:
            stated["tags"] = frozenset(self.texts(fields["tags"], f"'{entry}.tags'"))
        if "full_name" in fields:
            stated["full_name"] = self.text(fields["full_name"], f"'{entry}.full_name'")
        if "runs_on" not in fields:
            return self.described(entry, node, fields), stated
        for key in ("flops", "memory_bandwidth", "op_overhead", "catalog", "full_name"):
            if key in fields:
                self.fail(fields[key], f"'{entry}.{key}' describes a device, and '{name}' is a real one (runs_on)")
        if "slowdown" in fields:
            stated["slowdown"] = self.quantity(fields["slowdown"], f"'{entry}.slowdown'", "number")
            if stated["slowdown"] < 1:
                self.fail(
                    fields["slowdown"],
                    f"'{entry}.slowdown' is {stated['slowdown']:g}; it must be 1 or more: a device can only be slowed down",
                )
        address = self.real[name] = self.address(fields["runs_on"], f"'{entry}.runs_on'")
        return Device(name, address.runtime or hardware_kind(address), address), stated

    def address(self, node: Node, entry: str) -> Address:
        try:
            return parse_device(self.text(node, entry))
        except UsageError as error:
            self.fail(node, f"{entry}: {str(error).rstrip('.')}")

    def described(self, entry: str, node: Node, fields: Mapping[str, Node]) -> Device:
        if "slowdown" in fields:
            self.fail(fields["slowdown"], f"'{entry}.slowdown' slows a real device, and this one has no 'runs_on'")
        if "catalog" in fields:
            key = self.text(fields["catalog"], f"'{entry}.catalog'")
            if key not in catalog():
                self.fail(fields["catalog"], f"'{entry}.catalog': no entry '{key}'; the catalogue has {', '.join(catalog())}")
            return catalog()[key][0]
        if not {"flops", "memory_bandwidth"} <= fields.keys():
            self.fail(
                node,
                f"'{entry}' has neither 'runs_on' (a real device) nor 'catalog' (a known one) nor both of 'flops' and "
                f"'memory_bandwidth' (its own figures)",
            )
        return Device(entry, "described")

    def links(self, nodes: Node | None, default: Node | None, described: Mapping[str, bool]) -> dict[tuple[str, str], Link]:
        links: dict[tuple[str, str], Link] = {}
        for number, node in enumerate(self.items(nodes, "'links'") if nodes is not None else ()):
            entry = f"links[{number}]"
            fields = self.mapping(node, f"'{entry}'", ("between", "from", "to", *_LINK_KEYS, "measured"), _LINK_KEYS)
            measured = "measured" in fields and self.flag(fields["measured"], f"'{entry}.measured'")
            for a, b in self.pairs(node, entry, fields, described):
                if (a, b) in links:
                    self.fail(node, f"'{entry}' gives the link {a} -> {b} a second time")
                if measured and (described[a] or described[b]):
                    self.fail(fields["measured"], f"'{entry}.measured': the link {a} -> {b} exists in simulation only")
                origin = "described" if described[a] or described[b] else "measured" if measured else "emulated"
                links[a, b] = self.link(entry, fields, origin)
        if default is not None:
            fields = self.mapping(default, "'default_link'", _LINK_KEYS, _LINK_KEYS)
            shared = self.link("default_link", fields, "emulated")
        for a, b in ((a, b) for a in described for b in described if a != b and (a, b) not in links):
            simulated = described[a] or described[b]
            if default is not None:
                links[a, b] = dataclasses.replace(shared, origin="described") if simulated else shared
            elif simulated:
                self.fail(
                    nodes,
                    f"the link {a} -> {b} is missing, and it cannot be measured: one end exists in simulation only. Add it "
                    f"under 'links', or add a 'default_link'",
                )
        return links

    def pairs(self, node: Node, entry: str, fields: Mapping[str, Node], devices: Collection[str]) -> list[tuple[str, str]]:
        """Return the ordered pairs of devices that an entry links."""
        if "between" in fields and not {"from", "to"} & fields.keys():
            ends = self.texts(fields["between"], f"'{entry}.between'")
            if len(ends) != 2:
                self.fail(fields["between"], f"'{entry}.between' has {len(ends)} devices; a link has two ends")
        elif {"from", "to"} <= fields.keys() and "between" not in fields:
            ends = [self.text(fields[key], f"'{entry}.{key}'") for key in ("from", "to")]
        else:
            self.fail(node, f"'{entry}' needs either 'between: [A, B]' (both directions) or 'from' and 'to' (one direction)")
        for end in ends:
            if end not in devices:
                self.fail(node, f"'{entry}' names '{end}', which is not under 'devices'{nearest(end, devices)}")
        a, b = ends
        if a == b:
            self.fail(node, f"'{entry}' links '{a}' to itself")
        return [(a, b), (b, a)] if "between" in fields else [(a, b)]

    def link(self, entry: str, fields: Mapping[str, Node], origin: str) -> Link:
        bandwidth = self.quantity(fields["bandwidth"], f"'{entry}.bandwidth'", "bandwidth")
        return Link(bandwidth, self.quantity(fields["latency"], f"'{entry}.latency'", "time"), origin)
