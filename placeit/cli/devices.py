"""``placeit devices``: list devices, and measure bandwidth and latency of the links between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.nodes import RayOption, reach_nodes
from placeit.cli.options import DevicesOption, NoCacheOption, cost_cache
from placeit.cli.terminal import Output, Terminal
from placeit.report import costs_as_text, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from placeit.core.cluster import Cluster, Device, Link
    from placeit.devices.nvml import GpuSample
    from placeit.profiler.cache import Cache

__all__ = ["EXAMPLES", "devices"]

EXAMPLES = """\b
Examples:
  placeit devices
  placeit devices --devices CPU@0,CPU@1 --no-cache
  placeit devices --devices cluster.yaml --json
  placeit devices --ray-address 127.0.0.1:6379
"""


def devices(
    *,
    devices: DevicesOption = None,
    ray_address: RayOption = None,
    links: Annotated[bool, typer.Option("--links/--no-links", help="Measure the links between the devices.")] = True,
    no_cache: NoCacheOption = False,
    terminal: Terminal,
) -> Output:
    """List devices and the links between them.

    Without --devices, all devices of this machine are listed, with the names that select another runtime
    (ort: for ONNX Runtime, torch: for PyTorch and its models), and the links between the devices of 'auto'.
    With --ray-address, the devices of the nodes of that Ray cluster are listed, and the runtimes that drive
    them. Each OpenVINO device runs one op first; if it cannot, the list says why.
    """
    from placeit.devices.discovery import other_names
    from placeit.devices.kinds import unusable_runtimes
    from placeit.devices.nvml import sample_gpus

    named = reach_nodes(devices, ray_address)
    with terminal.progress() as progress:
        if progress is not None:
            progress("trying devices", 0.0)
        if named is None:
            listed, cluster = _all_here()
            aliases = {device.name: other_names(device) for device in listed}
        elif devices is None:
            listed, cluster, aliases = _on_nodes(named)
        else:
            listed, cluster = _named_devices(named)
            aliases = {device.name: [] for device in listed}
        unusable = unusable_runtimes()
        samples = {sample.gpu: sample for sample in sample_gpus()}
        load = {
            device.name: samples.get(device.address.hardware)
            for device in listed
            if device.address is not None and not device.address.node
        }
        known_links = {} if cluster is None else dict(cluster.links)
        if links and cluster is not None:
            if progress is not None:
                progress("probing links", 0.0)
            known_links = _measured_links(cluster, cost_cache(no_cache)) | known_links

    def show(console: Console) -> None:
        heads = ("device", "also as", "kind", "cores", "memory", "full name", "tags")
        rows = [
            (
                device.name,
                " ".join(aliases[device.name]),
                _kind(device),
                str(len(device.cores)) if device.cores else "",
                text.amount(device.memory_bytes, "B"),
                device.full_name,
                " ".join(sorted(device.tags)),
            )
            for device in listed
        ]
        text.table(console, heads, rows, left=7, spare=["tags", "full name"])
        drivers: dict[str, list[str]] = {}
        for device in listed:
            if device.address is not None and device.address.node:
                drivers.setdefault(device.driver, []).append(device.name)
        if drivers:
            console.print()
            text.table(console, ("driver", "devices"), [(driver, " ".join(names)) for driver, names in drivers.items()], left=2)
        for device in listed:
            if device.unusable:
                console.print()
                text.paragraph(console, f"{device.name} cannot be used: {device.unusable}")
        for runtime, why in unusable.items():
            console.print()
            text.paragraph(console, f"{runtime} cannot be used: {why}.")
        loads = [_load_row(name, sample) for name, sample in load.items() if sample is not None]
        if loads:
            console.print()
            text.table(console, ("device", "busy", "memory in use", "power"), loads)
        if known_links:
            console.print()
            costs_as_text.links(console, known_links)

    from placeit.core.cluster import links_to_list

    listing = [_device(device) | {"also": aliases[device.name], "load": _load(load.get(device.name))} for device in listed]
    return Output({"devices": listing, "links": links_to_list(known_links), "unusable_runtimes": unusable}, show)


def _all_here() -> tuple[tuple[Device, ...], Cluster | None]:
    """Return all devices of this machine, and the cluster ``auto``; None in its place if no device is usable."""
    from placeit.devices.discovery import automatic, available
    from placeit.devices.kinds import driven_by_openvino

    listed = tuple(available())
    usable = [one for one in listed if driven_by_openvino(one) and not (one.unusable or one.where.cores)]
    return listed, automatic(usable) if usable else None


def _on_nodes(named: str | Sequence[str]) -> tuple[tuple[Device, ...], Cluster, dict[str, list[str]]]:
    """Return all devices of the connected nodes, a cluster of the named ones, and the other names of each device."""
    from placeit.devices.clusterfile import discover
    from placeit.devices.nodes.connection import connected

    found = connected().available()
    return tuple(device for device, _ in found), discover(named), {device.name: others for device, others in found}


def _named_devices(named: str | Sequence[str]) -> tuple[tuple[Device, ...], Cluster]:
    """Find named devices. Raises DeviceError if one of them cannot be used."""
    from placeit.core.errors import DeviceError
    from placeit.devices.clusterfile import discover
    from placeit.devices.discovery import tried

    cluster = discover(named)
    for device in map(tried, cluster.devices):
        if device.unusable:
            raise DeviceError(f"{device.name} cannot be used: {device.unusable}")
    return cluster.devices, cluster


def _measured_links(cluster: Cluster, cache: Cache | None) -> dict[tuple[str, str], Link]:
    """Measure the links between real devices that the cluster does not define."""
    from placeit.core.cluster import Cluster
    from placeit.devices.kinds import driven_by_openvino
    from placeit.devices.openvino import computes_in
    from placeit.profiler.links import probe

    real = tuple(device for device in cluster.devices if not device.described)
    names = {device.name for device in real}
    if not any(names.issuperset(pair) for pair in cluster.missing_links()):
        return {}
    known = {pair: link for pair, link in cluster.links.items() if names.issuperset(pair)}
    # most devices compute in f32, and NPUs in f16 only
    local = [device for device in real if not device.where.node]
    half = any(driven_by_openvino(device) and "f32" not in (computes_in(device) or ("f32",)) for device in local)
    return dict(probe(Cluster(real, known), cache=cache, precision="f16" if half else "f32").cluster.links)


def _load(sample: GpuSample | None) -> dict[str, float | None] | None:
    if sample is None:
        return None
    return {"utilization": sample.utilization, "memory_bytes": sample.memory_bytes, "power_w": sample.power_w}


def _load_row(name: str, sample: GpuSample) -> tuple[str, ...]:
    return name, text.percent(sample.utilization), text.amount(sample.memory_bytes, "B"), text.watts(sample.power_w)


def _kind(device: Device) -> str:
    if device.unusable:
        return f"{device.kind}, cannot be used"
    return f"{device.kind}, emulated: {device.address} slowed {device.slowdown:g}x" if device.emulated else device.kind


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "kind": device.kind,
        "full_name": device.full_name,
        "memory_bytes": device.memory_bytes,
        "cores": list(device.cores),
        "runs_on": None if device.address is None else str(device.address),
        "driver": device.driver or None,
        "unusable": device.unusable or None,
        "tags": sorted(device.tags),
        "slowdown": device.slowdown,
        "emulated": device.emulated,
        "described": device.described,
        "power_w": None if device.power is None else {"idle": device.power.idle_w, "busy": device.power.busy_w},
        "flops_per_s": device.flops_per_s,
        "bytes_per_s": device.bytes_per_s,
    }
