"""The grammar of device names: ``CPU``, ``GPU.0``, ``CPU@0-3``, ``cuda:0``, ``ort:CPU@0``, ``torch:CPU@0``, ``auto``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from placeit.core.errors import DeviceError, UsageError

__all__ = ["DeviceName", "check_disjoint", "format_cores", "parse_device", "parse_devices"]

_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)
_OPENVINO = re.compile(r"[A-Z][A-Z_]*(\.\d+){0,2}", re.ASCII)
_CUDA = re.compile(r"cuda:\d{1,4}", re.ASCII)
_VIRTUAL = ("AUTO", "HETERO", "MULTI", "BATCH")
_MOST_CORES = 8192  # the most that Linux can be built for; keeps 'CPU@0-999999999' from eating the memory

_FORMS = "CPU, GPU.0, NPU, CPU@0-3, cuda:0, ort:CPU@0, torch:CPU@0, NODE/CPU or auto"
_RUNTIMES = {"ort": "ONNX Runtime", "torch": "PyTorch"}


@dataclass(frozen=True)
class DeviceName:
    """A device name, taken apart. ``str()`` gives its canonical spelling.

    Attributes:
        base: ``CPU``, ``GPU.0``, ``NPU``, ``cuda:0``, or ``auto``.
        cores: cores of a CPU core set, in ascending order; empty for anything else.
        node: the Ray node that has the device; empty for this machine.
        runtime: one that is asked for by name: ``ort`` (``ort:CPU@0``) or ``torch``; empty if none is.
    """

    base: str
    cores: tuple[int, ...] = ()
    node: str = ""
    runtime: str = ""

    @property
    def kind(self) -> str:
        """Runtime that drives it: ``openvino``, ``ort``, ``torch``, ``cuda`` or ``ray``."""
        if self.node:
            return "ray"
        if self.runtime:
            return self.runtime
        return "cuda" if self.base.startswith("cuda:") else "openvino"

    def __str__(self) -> str:
        cores = f"@{format_cores(self.cores)}" if self.cores else ""
        device = f"{self.runtime}:{self.base}{cores}" if self.runtime else f"{self.base}{cores}"
        return f"{self.node}/{device}" if self.node else device


def format_cores(cores: Sequence[int]) -> str:
    """Write ascending core numbers as the grammar has them: ``(0, 1, 2, 4)`` is ``0-2+4``."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][1] + 1:
            runs[-1][1] = core
        else:
            runs.append([core, core])
    return "+".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def parse_device(text: str) -> DeviceName:
    """Parse one device name. Raises UsageError, quoting what is wrong with it."""
    whole = text.strip()
    if whole == "auto":
        return DeviceName("auto")
    node, slash, rest = whole.rpartition("/")
    if slash and not _NODE.fullmatch(node):
        raise _error(whole, f"'{node}' is not the name of a node (letters, digits, '_', '.' and '-')")
    runtime, colon, device = rest.partition(":")
    if not colon or runtime not in _RUNTIMES:
        runtime, device = "", rest
    base, at, cores = device.partition("@")
    if _CUDA.fullmatch(base):
        base = f"cuda:{int(base[5:])}"
    elif base == "auto":
        raise _error(whole, "'auto' is written by itself, and stands for the devices that OpenVINO finds; name the devices")
    elif base.split(".")[0].split(":")[0].upper() in _VIRTUAL:
        raise _error(
            whole, f"'{base}' is one of OpenVINO's virtual devices, which choose among devices themselves; name the devices"
        )
    elif not _OPENVINO.fullmatch(base):
        hint = f"did you mean '{base.upper()}'" if _OPENVINO.fullmatch(base.upper()) else f"a device is {_FORMS}"
        raise _error(whole, f"'{base}' is not a device ({hint})")
    elif base.startswith("CPU."):
        raise _error(whole, "OpenVINO has one CPU device, without a number; parts of it are core sets, such as CPU@0-3")
    if runtime and base != "CPU" and not base.startswith("cuda:"):
        where = f"{runtime}:CPU@0, {runtime}:cuda:0"
        raise _error(whole, f"{_RUNTIMES[runtime]} runs on the CPU and on NVIDIA GPUs ({where}), not on '{base}'")
    if at and base != "CPU":
        raise _error(whole, f"only the CPU has core sets, not '{base}'")
    return DeviceName(base, _cores(whole, cores) if at else (), node, runtime)


def parse_devices(spec: str | Sequence[str]) -> list[DeviceName]:
    """Parse a list of device names: ``"CPU@0,CPU@1"`` or ``["CPU@0", "CPU@1"]``.

    Raises:
        UsageError: a malformed name, the same device twice, or ``auto`` beside other names.
        DeviceError: two of the devices use the same cores.
    """
    text = spec if isinstance(spec, str) else ",".join(spec)
    if not text.strip():
        raise UsageError(f"The list of devices is empty; a device is {_FORMS}.")
    names = [parse_device(part) for part in text.split(",")]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise UsageError(f"The device '{name}' is listed twice in '{text}'.")
        if name.base == "auto" and len(names) > 1:
            raise UsageError(f"'auto' stands for all devices that are found; it cannot be combined with others in '{text}'.")
    check_disjoint([(str(name), name) for name in names])
    return names


def check_disjoint(devices: Sequence[tuple[str, DeviceName]]) -> None:
    """Check that no two devices share hardware: they would slow each other down, and no cost would hold.

    Args:
        devices: what each is called, and the real device behind it.

    Raises:
        DeviceError: names the two devices and what they share.
    """
    for i, (one, a) in enumerate(devices):
        for other, b in devices[:i]:
            if a.node != b.node or _hardware(a) != _hardware(b):
                continue
            common = sorted(set(a.cores) & set(b.cores))
            if a.base == "CPU" and a.cores and b.cores and not common:
                continue
            shared = f"core{'s' if len(common) > 1 else ''} {format_cores(common)}" if common else f"the device {a.base}"
            if a.base == "CPU" and not common:
                shared = "cores: plain CPU is all of them"
            raise DeviceError(
                f"The devices '{other}' and '{one}' share {shared}. Work on one would slow the other down, so that no measured "
                f"cost would hold; choose devices that share nothing."
            )


def _hardware(name: DeviceName) -> str:
    """OpenVINO calls its first GPU both ``GPU`` and ``GPU.0``."""
    return name.base.removesuffix(".0")


def _cores(whole: str, text: str) -> tuple[int, ...]:
    cores: list[int] = []
    for part in text.split("+"):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part, re.ASCII)
        if match is None:
            raise _error(
                whole, f"'{part}' is not a core or a range of cores; a core set is written CPU@2, CPU@0-3 or CPU@0-1+4"
            )
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise _error(whole, f"the range {part} runs backwards")
        if last >= _MOST_CORES:
            raise _error(whole, f"there is no core {last}")
        cores += range(first, last + 1)
    for core in cores:
        if cores.count(core) > 1:
            raise _error(whole, f"core {core} is named twice")
    return tuple(sorted(cores))


def _error(whole: str, why: str) -> UsageError:
    return UsageError(f"Cannot read the device name '{whole}': {why}.")
