"""Choice of the runtime that compiles and runs a model's segments on each device."""

from __future__ import annotations

import itertools
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from placeit.backends.base import Format, Model
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.devices.onnxruntime import onnxruntime
from placeit.runtime.devices.kinds import device_kind

__all__ = ["choose_driver", "drive"]


def choose_driver(device: Device, formats: Collection[Format], path: Path, why: str = "") -> Device:
    """Return a device with the ``kind`` and ``driver`` that run models whose segments come in the given formats.

    A device whose name asks for a runtime (``ort:CPU@0``, ``torch:CPU@0``) keeps it, and so does one that only a plug-in's kind
    knows, and one that OpenVINO drives if it can be given segments. CPU core sets go to PyTorch otherwise, or to ONNX Runtime.
    NVIDIA GPUs go to PyTorch, or else to ONNX Runtime.

    Args:
        device: the device as it was found.
        formats: formats of the model.
        path: path of the model, for the error.
        why: why OpenVINO does not run the model, for the error; empty if it does, or if the file makes that clear.

    Raises:
        DeviceError: nothing runs such a model there; says what to do.
    """
    if formats == {"onnx"} and device.kind == "openvino" and device.core_set and not device.where.node:
        return replace(device, kind="ort", driver=f"ONNX Runtime {onnxruntime().__version__}")
    if formats == {"onnx"} and device.kind not in ("ort", "cuda", "described"):
        raise DeviceError(
            f"{device.name} cannot run {path}, as OpenVINO cannot read it: {why}. ONNX Runtime runs it: choose CPU core "
            "sets or its devices, as in -d ort:CPU or -d ort:CPU@0,ort:CPU@1."
        )
    if device.address is not None and device.address.node and "openvino" not in formats:
        raise DeviceError(
            f"{device.name} is a device of another node, which runs what OpenVINO reads, and {path} is a PyTorch model: "
            "convert it with `placeit export`, or choose devices of this machine."
        )
    match device.kind:
        case "cuda" if "torch" in formats:
            return replace(device, kind="torch", driver=f"{_pytorch()}, {device.driver}")
        case "cuda":
            return replace(device, kind="ort", driver=f"ONNX Runtime {onnxruntime().__version__}, {device.driver}")
        case "openvino" if "openvino" not in formats:
            if not device.core_set:
                raise DeviceError(
                    f"OpenVINO drives {device.name}, and {path} is a PyTorch model, which runs on CPU core sets and NVIDIA "
                    "GPUs: choose those, or convert the model with `placeit export` to ONNX or OpenVINO IR, which runs on any."
                )
            return replace(device, kind="torch", driver=_pytorch())
        case _:
            return device


def drive(cluster: Cluster, model: Model) -> Cluster:
    """Return a cluster with the driver of each device chosen for a model; see :func:`choose_driver`.

    Raises:
        DeviceError: a device cannot run the model; two core sets have the same cores and the same runtime; or a device runs
            fixed sizes only, and sizes of the model are open.
    """
    devices = tuple(choose_driver(device, model.formats, model.path, getattr(model, "why", "")) for device in cluster.devices)
    for device, other in itertools.combinations((device for device in devices if device.core_set), 2):
        one, two = device.where, other.where
        if device.kind == other.kind and one != two and replace(one, runtime="") == replace(two, runtime=""):
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
    if len(devices) == 1 and devices[0].kind == "ort" and devices[0].core_set and not devices[0].emulated:
        devices = (replace(devices[0], plain=True),)
    return replace(cluster, devices=devices)


def _pytorch() -> str:
    import torch

    return f"PyTorch {torch.__version__}"
