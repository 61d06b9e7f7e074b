"""The grammar of device names: ``CPU``, ``GPU.0``, ``CPU@0-3``, ``cuda:0``, ``ort:CPU@0``, ``torch:CPU@0``, ``NODE/CPU``.

``cuda:0@1of2`` is the first of two equal parts of an NVIDIA GPU: half of its SMs (streaming multiprocessors).

``throughput:CPU`` is the CPU in OpenVINO's throughput mode, which runs several requests at the same time.

The name of a plug-in's kind of device is a prefix as well: ``sleep:CPU@0`` asks for the kind ``sleep`` on known hardware, and
``sleep:0`` is hardware that only that kind knows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, UsageError
from placeit.core.nearest import nearest
from placeit.devices.kinds import KINDS, load_kind, plugin_kinds

__all__ = ["check_distinct", "hardware_kind", "parse_device", "parse_devices"]

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_OPENVINO = re.compile(r"(?!CUDA$)[A-Z][A-Z_]*(\.\d+){0,2}", re.ASCII)
_CUDA = re.compile(r"cuda:\d{1,4}", re.ASCII)
_PART = re.compile(r"(\d{1,3})of(\d{1,3})", re.ASCII)
_PLUGIN_HARDWARE = re.compile(r"[a-z0-9][A-Za-z0-9_.:-]*", re.ASCII)
_VIRTUAL_DEVICES = ("AUTO", "HETERO", "MULTI", "BATCH")
_MAX_CORES = 8192  # as many as Linux can be built for; keeps 'CPU@0-999999999' from using up the memory

_FAMILIES = ("CPU", "GPU", "NPU")
_FORMS = ("CPU", "GPU.0", "NPU", "CPU@0-3", "cuda:0", "ort:CPU@0", "torch:CPU@0", "NODE/CPU", "auto")
_FORMS_TEXT = f"{', '.join(_FORMS[:-1])} or {_FORMS[-1]}"


def parse_device(text: str) -> Address:
    """Return the address that a device name stands for. Raises UsageError, quoting the wrong part."""
    name = text.strip()
    node, slash, rest = name.rpartition("/")
    if slash and not _NODE.fullmatch(node):
        raise _error(name, f"'{node}' is not the name of a node (letters, digits, '_', '.' and '-')")
    runtime, device = _split_kind(rest)
    kind = load_kind(runtime) if runtime else None
    base, at, cores = device.partition("@")
    if _CUDA.fullmatch(base):
        base = f"cuda:{int(base[5:])}"
    elif runtime and runtime not in KINDS and _PLUGIN_HARDWARE.fullmatch(device):
        return Address(f"{runtime}:{device}", node=node)
    elif base == "auto":
        raise _error(name, "'auto' stands for several devices that OpenVINO finds, and is written by itself; name the devices")
    elif base.split(".")[0].split(":")[0].upper() in _VIRTUAL_DEVICES:
        raise _error(
            name, f"'{base}' is one of OpenVINO's virtual devices, which choose among devices themselves; name the devices"
        )
    elif not _OPENVINO.fullmatch(base):
        known = [f"{base}:CPU"] if base in KINDS else [base.upper()] if base.upper().split(".")[0] in _FAMILIES else _FORMS
        hint = nearest(device, known)
        raise _error(name, f"'{base}' is not a device; a device is {_FORMS_TEXT}{hint}")
    elif base.startswith("CPU."):
        raise _error(name, "OpenVINO has one CPU device, without a number; parts of it are core sets, such as CPU@0-3")
    if kind is not None and kind.hardware is not None and Address(base).family not in kind.hardware:
        raise _error(name, f"{kind.label or runtime} {kind.elsewhere.format(repr(base))}")
    if at and base.startswith("cuda:"):
        return Address(base, (), node, runtime, _part(name, cores))
    if at and base != "CPU":
        raise _error(name, f"only the CPU has core sets, not '{base}'")
    return Address(base, _cores(name, cores) if at else (), node, runtime)


def _split_kind(text: str) -> tuple[str, str]:
    """Split a name into the kind of device in its prefix, empty without one, and the rest."""
    kind, colon, rest = text.partition(":")
    # cuda:0 has no prefix, and looking for plug-ins takes a while
    if not colon or _CUDA.match(text) or (kind not in KINDS and kind not in plugin_kinds()):
        return "", text
    return kind, rest


def hardware_kind(address: Address) -> str:
    """Return the kind of device that finds the hardware at an address, whatever runtime the address names.

    The runtime that drives the hardware for a model is chosen by :func:`placeit.runtime.drivers.choose_driver`.
    """
    return Device.kind if _OPENVINO.fullmatch(address.hardware) else address.family


def parse_devices(spec: str | Sequence[str]) -> list[Address]:
    """Return the addresses in a list of device names: ``"CPU@0,CPU@1"`` or ``["CPU@0", "CPU@1"]``.

    Raises:
        UsageError: a name is malformed, a device occurs twice, or a name is ``auto``, which names no device.
        DeviceError: two names stand for one device (``GPU,GPU.0``).
    """
    text = spec if isinstance(spec, str) else ",".join(spec)
    if not text.strip():
        raise UsageError(f"The list of devices is empty; a device is {_FORMS_TEXT}.")
    parts = text.split(",")
    if len(parts) > 1 and "auto" in (part.strip() for part in parts):
        raise UsageError(f"'auto' stands for all devices that are found; it cannot be combined with others in '{text}'.")
    addresses = [parse_device(part) for part in parts]
    for i, address in enumerate(addresses):
        if address in addresses[:i]:
            raise UsageError(f"The device '{address}' is listed twice in '{text}'.")
    check_distinct([(str(address), address) for address in addresses])
    return addresses


def check_distinct(devices: Sequence[tuple[str, Address]]) -> None:
    """Check that no two names stand for the same hardware, since measured costs would hold for neither device.

    Core sets may share cores, and a GPU may stand beside its parts: devices that share hardware never work at the same time
    (:meth:`placeit.core.cluster.Cluster.conflicts`).

    Args:
        devices: name and address of each device. Devices of different nodes share nothing.

    Raises:
        DeviceError: two devices are the same hardware; the message names them and the hardware.
    """
    for i, (this, a) in enumerate(devices):
        for other, b in devices[:i]:
            if a == b or (a.node == b.node and a.unit == b.unit and not a.core_set and a.part == b.part):
                what = str(a) if a.core_set else f"the device {replace(a, node='', runtime='')}"
                hint = ", or core sets that share cores, which take turns" if a.core_set else ""
                raise DeviceError(
                    f"The devices '{other}' and '{this}' are both {what}. Work on one would slow the other down, so that no "
                    f"measured cost would hold; choose different devices{hint}."
                )


def _cores(name: str, text: str) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part, re.ASCII)
        if match is None:
            raise _error(name, f"'{part}' is not a core or a range of cores; a core set is written CPU@2, CPU@0-3 or CPU@0-1+4")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise _error(name, f"the range {part} runs backwards")
        if last >= _MAX_CORES:
            raise _error(name, f"there is no core {last}")
        cores += range(first, last + 1)
    for core in cores:
        if cores.count(core) > 1:
            raise _error(name, f"core {core} is named twice")
    return tuple(sorted(cores))


def _part(name: str, text: str) -> tuple[int, int]:
    match = _PART.fullmatch(text)
    if match is None:
        raise _error(name, f"'{text}' is not a part of a GPU; one of two equal parts is written cuda:0@1of2")
    number, count = int(match[1]), int(match[2])
    if not 1 <= number <= count or count < 2:
        raise _error(name, f"there is no part {number} of {count}; a GPU has two or more parts, counted from 1")
    return number, count


def _error(name: str, why: str) -> UsageError:
    return UsageError(f"Cannot read the device name '{name}': {why}.")
