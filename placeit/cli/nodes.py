"""The Ray cluster whose nodes a command uses."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated

import typer

from placeit.core.errors import UsageError

__all__ = ["Compress", "CompressOption", "RayOption", "reach_nodes"]


class Compress(StrEnum):
    """What float32 tensors are sent as from node to node."""

    NONE = "none"
    FP16 = "fp16"
    INT8 = "int8"


CompressOption = Annotated[Compress, typer.Option("--compress", help="What float32 tensors are sent as between nodes.")]

RayOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address",
        metavar="HOST:PORT",
        help="Ray cluster with the nodes that devices name (edge1/CPU); default: one on this machine.",
        show_default=False,
    ),
]


def reach_nodes(devices: str | Sequence[str] | None, address: str | None, compress: Compress = Compress.NONE) -> None:
    """Connect to the Ray cluster with the nodes that devices are on; nothing happens if they are on none.

    Without an address, that is the cluster that ``placeit cluster up`` has started, or else one that ends with this process.

    Raises:
        DeviceError, FileError, ClusterError, UsageError: the cluster cannot be reached, or the devices cannot be read.
        UsageError: something is to be compressed between nodes, and there are none.
    """
    nodes = _nodes(devices)
    if not nodes and compress != Compress.NONE:
        raise UsageError("--compress is about tensors between nodes, and no device is on one: leave it out.")
    if not nodes and address is None:
        return
    from placeit.devices.nodes import connection, local

    here = local.running()
    if address is None:
        if here is None or not here.pids():
            here = local.start(["head", *(name for name in nodes if name != "head")])
            atexit.register(here.stop, local.state_file())
        address = here.address
    token = here.token if here is not None and here.address == address else None
    connection.connect(address, token=token, compress=compress.value)
    atexit.register(connection.disconnect)


def _nodes(devices: str | Sequence[str] | None) -> list[str]:
    """The nodes that devices, or those of a cluster file, are on."""
    from placeit.devices.clusterfile import names_file, read_cluster
    from placeit.devices.names import parse_devices

    if isinstance(devices, str) and names_file(devices):
        addresses = [device.address for device in read_cluster(devices, check=False).devices]
    elif devices is None or "/" not in "".join(devices):
        return []
    else:
        addresses = [*parse_devices(devices)]
    return list(dict.fromkeys(address.node for address in addresses if address is not None and address.node))
