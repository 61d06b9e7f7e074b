"""Connect commands to the Ray cluster whose nodes they use."""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.values import duration
from placeit.core.errors import DeviceError, FileError, UsageError
from placeit.core.interrupts import at_end

if TYPE_CHECKING:
    from placeit.devices.nodes.local import LocalCluster

__all__ = [
    "TIMEOUT_S",
    "Compress",
    "CompressOption",
    "OnLoss",
    "OnLossOption",
    "PatienceOption",
    "RayOption",
    "end_at_once",
    "left_behind",
    "reach_nodes",
]


class Compress(StrEnum):
    """Types that float32 tensors can be converted to when they are sent between nodes."""

    NONE = "none"
    FP16 = "fp16"
    INT8 = "int8"


CompressOption = Annotated[Compress, typer.Option("--compress", help="Format in which float32 tensors are sent between nodes.")]

TIMEOUT_S = 5.0

PatienceOption = Annotated[
    float,
    typer.Option(
        "--patience",
        metavar="TIME",
        parser=duration,
        help="Time without a sign of life after which a device of a node counts as lost, at least 1s; default: 5s.",
        show_default=False,
    ),
]


class OnLoss(StrEnum):
    """What a server does after the loss of a device."""

    FAIL = "fail"
    REPLACE = "replace"


OnLossOption = Annotated[
    OnLoss, typer.Option("--on-loss", help="After the loss of a device: run on the replicas that are left, or place anew.")
]

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Ray cluster with the nodes that devices name (edge1/CPU); default: one on this machine.",
    ),
]


def reach_nodes(
    devices: str | Sequence[str] | None,
    address: str | None,
    compress: Compress = Compress.NONE,
    patience: float = TIMEOUT_S,
    *,
    start: bool = True,
) -> str | Sequence[str] | None:
    """Connect to the Ray cluster whose nodes the devices are on; do nothing if no device is on a node.

    Without an address, connect to the cluster that ``placeit cluster up`` has started. If no such cluster runs and ``start`` is
    true, start a cluster that ends with this process.

    Returns:
        The devices. If an address is given without devices, they are all whole devices that OpenVINO finds on the nodes.

    Raises:
        DeviceError, FileError, ClusterError, UsageError: the cluster cannot be reached, or the devices cannot be read.
        DeviceError: no cluster runs, and none may be started.
        UsageError: compression between nodes, or a patience for them, is given, and no device is on a node.
    """
    nodes, whole_cluster = _nodes(devices), devices is None and address is not None
    if not nodes and not whole_cluster:
        for option, given in (("--compress", compress != Compress.NONE), ("--patience", patience != TIMEOUT_S)):
            if given:
                raise UsageError(f"{option} is about nodes, and no device is on one: leave it out.")
    if not nodes and address is None:
        return devices
    from placeit.devices.nodes import connection, local

    try:
        running = local.running()
    except FileError:  # without a home folder, no cluster is remembered in it
        if address is None:
            raise
        running = None
    if address is None:
        started = local.running(_state_file_of(os.getpid()))  # started by this command, as for another model
        running = next(
            (cluster for cluster in (running, started) if cluster is not None and (cluster.starting or cluster.pids())), None
        )
        if running is None:
            if not start:
                raise DeviceError(
                    f"Devices of the nodes {', '.join(nodes)} are needed, and no cluster runs: start one with 'placeit cluster "
                    "up', name one with --ray-address, or name other devices with --rematch."
                )
            running = _start(["head", *(name for name in nodes if name != "head")])
        address = running.address
    if running is not None and running.address == address:
        running.check()
    token = running.token if running is not None and running.address == address else None
    connected = connection.connect(address, token=token, compress=compress.value, patience=patience)
    atexit.register(connection.disconnect)
    return connected.automatic() if whole_cluster else devices


def _start(nodes: Sequence[str]) -> LocalCluster:
    """Start a cluster for this process alone, which ends with it."""
    from placeit.devices.nodes import local

    file = _state_file_of(os.getpid())
    if (left := local.running(file)) is not None:  # started by a process that was killed and had the same id
        left.stop(file)
    at_end(functools.partial(end_at_once, file))
    started = local.start(nodes, file)
    atexit.register(started.stop, file)
    return started


def end_at_once(file: Path) -> None:
    """End the cluster that a file describes, if there is one."""
    from placeit.devices.nodes import local

    cluster = local.running(file)
    if cluster is not None:
        cluster.stop(file, at_once=True)


def _state_file_of(pid: int | str) -> Path:
    """Return the path of the state file of the cluster that a command with this process id has started."""
    from placeit.devices.nodes import local

    return local.state_file().with_name(f"command-{pid}.json")


def left_behind() -> list[Path]:
    """Return the state files of clusters whose commands were killed."""
    files = _state_file_of("*")
    found = {file: file.stem.rpartition("-")[2] for file in sorted(files.parent.glob(files.name))}
    return [file for file, pid in found.items() if not Path("/proc", pid).exists()]


def _nodes(devices: str | Sequence[str] | None) -> list[str]:
    """Return the names of the nodes that the devices, or the devices of a cluster file, are on."""
    from placeit.devices.clusterfile import names_file, read_cluster
    from placeit.devices.names import parse_devices

    if isinstance(devices, str) and names_file(devices):
        addresses = [device.address for device in read_cluster(devices, check=False).devices]
    elif devices is None or "/" not in "".join(devices):
        return []
    else:
        addresses = [*parse_devices(devices)]
    return list(dict.fromkeys(address.node for address in addresses if address is not None and address.node))
