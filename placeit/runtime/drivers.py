"""Choice of the runtime that compiles and runs a model's segments on each device."""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from pathlib import Path

from placeit.backends.base import Format, Model, NotByOpenVino
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.devices.discovery import driven_by
from placeit.devices.kinds import driven_by_openvino, kind_of, kinds
from placeit.devices.names import hardware_kind
from placeit.runtime.devices.kinds import device_kind

__all__ = ["choose_driver", "drive"]

_LOG = logging.getLogger("placeit")


def choose_driver(
    device: Device, formats: frozenset[Format], path: Path, why: str = "", convertible: frozenset[Format] = frozenset()
) -> Device:
    """Return a device with the ``kind`` and ``driver`` that run models whose segments have the given formats.

    A device keeps its kind if its name has a runtime (``ort:CPU@0``, ``torch:CPU@0``), if only a plug-in's kind knows it, or if
    its kind takes one of the formats. Otherwise, another kind for the hardware drives it that takes one of the formats: CPU
    core sets and NVIDIA GPUs go to PyTorch or ONNX Runtime. Hardware without such a kind keeps its kind if the model can be
    converted to a format of that kind.

    Args:
        device: the device as it was found.
        formats: formats of the model.
        path: path of the model, for the error.
        why: why OpenVINO does not run the model, as a sentence; empty if it does, or if the file makes that clear.
        convertible: further formats that the model can be converted to.

    Raises:
        DeviceError: no runtime runs the model on the device; the message says what to do.
    """
    kind, where = kind_of(device), device.address
    if where is None:
        return device
    if device.kind == hardware_kind(where) and not where.runtime and formats.isdisjoint(kind.formats):
        others = ((name, other) for name, other in kinds() if name != device.kind)
        candidates = [(name, other) for name, other in others if other.hardware and where.family in other.hardware]
        if candidates:
            name, other = next((c for c in candidates if not formats.isdisjoint(c[1].formats)), candidates[0])
            return driven_by(device, name, other)
    if formats == {"onnx"} and "onnx" not in kind.formats:
        raise DeviceError(
            f"{device.name} cannot run {path}: {why}. ONNX Runtime runs it: choose CPU core "
            "sets or its devices, as in -d ort:CPU or -d ort:CPU@0,ort:CPU@1."
        )
    if driven_by_openvino(device) and (formats | convertible).isdisjoint(kind.formats):
        raise DeviceError(
            f"OpenVINO drives {device.name}, and {path} is a PyTorch model, which runs on CPU core sets and NVIDIA "
            "GPUs: choose those, or convert the model with `placeit export` to ONNX or OpenVINO IR, which runs on any."
        )
    return device


def drive(cluster: Cluster, model: Model) -> Cluster:
    """Return a cluster with the driver of each device chosen for a model; see :func:`choose_driver`.

    Devices that cannot run the model are left out, with a warning for each. If OpenVINO does not run the model, core sets of
    OpenVINO that are in the cluster for ONNX Runtime as well are left out, too.

    Raises:
        DeviceError: no device can run the model; two core sets have the same cores and the same runtime; or a device runs
            fixed sizes only, and sizes of the model are open.
    """
    why = model.why if isinstance(model, NotByOpenVino) else ""
    chosen: list[Device] = []
    refused: dict[str, DeviceError] = {}
    for device in cluster.devices:
        try:
            driven = choose_driver(device, model.formats, model.path, why, model.convertible)
            if why and driven.kind != device.kind and any(_are_one(driven, other) for other in cluster.devices):
                raise DeviceError(f"{device.name} cannot run {model.path}: {why}.")
            chosen.append(driven)
        except DeviceError as error:
            refused[device.name] = error
    if not chosen:
        raise next(iter(refused.values()))
    for name, reason in refused.items():
        _LOG.warning("%s is left out. %s", name, reason)
    links = {ends: link for ends, link in cluster.links.items() if refused.keys().isdisjoint(ends)}
    devices = tuple(chosen)
    for device, other in itertools.combinations(devices, 2):
        if _are_one(device, other):
            raise DeviceError(
                f"For {model.path} the devices '{device.name}' and '{other.name}' are one: the same cores, the same runtime. "
                "Leave one of them out."
            )
    for device in devices if model.has_open_sizes else ():
        if not (device.described or device_kind(device).open_sizes(device)):
            raise DeviceError(
                f"{device.name} runs a model at one size, and inputs of {model.path} have ranges of sizes: give one size for "
                "each, or choose other devices."
            )
    if len(devices) == 1 and devices[0].core_set and not devices[0].emulated and kind_of(devices[0]).whole_file:
        devices = (replace(devices[0], plain=True),)
    return replace(cluster, devices=devices, links=links)


def _are_one(device: Device, other: Device) -> bool:
    """Return whether two core sets with different addresses are the same cores, driven by the same runtime."""
    if device.kind != other.kind or not (device.core_set and other.core_set) or device.address == other.address:
        return False
    return replace(device.where, runtime="") == replace(other.where, runtime="")
