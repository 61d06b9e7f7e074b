"""OpenVINO's own modes that run a whole model on several devices, or serve many requests, as one would without placeit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from placeit.core.cluster import Device
from placeit.devices.openvino import openvino_core, target_name

__all__ = ["OwnMode", "own_modes"]

_VIRTUAL_DEVICES = (
    # name, whether it serves many requests, and whether each of its devices has to run the whole model
    ("AUTO", False, True),
    ("HETERO", False, False),
    ("MULTI", True, True),  # AUTO with CUMULATIVE_THROUGHPUT; with THROUGHPUT, AUTO uses one device only
    ("HETERO", True, False),
)
_BATCHES = "OPTIMAL_BATCH_SIZE"  # property of plugins that work with auto-batching
_CPU_BATCH = 8  # requests in a batch on a CPU, whose plugin does not say which number is best


@dataclass(frozen=True)
class OwnMode:
    """A way in which OpenVINO itself can run a whole model.

    Attributes:
        name: its name in reports.
        target: device name that OpenVINO compiles for, such as ``AUTO:GPU.0,CPU``.
        devices: the real devices that it may use.
        steady: whether it serves many requests, with OpenVINO's throughput hint; else one at a time, with the latency hint.
        same: text that names the single device to which it is equivalent, and why; None if none is known without a run.
    """

    name: str
    target: str
    devices: tuple[Device, ...]
    steady: bool
    same: str | None = None


def own_modes(devices: Sequence[Device], whole: Collection[Device], *, steady: bool, single: bool = False) -> list[OwnMode]:
    """Return the ways in which OpenVINO itself would run a model.

    Args:
        devices: devices of different hardware that OpenVINO drives, the whole CPU in place of core sets. HETERO prefers the
            first; the other modes have OpenVINO's order of preference.
        whole: the devices among them that can run the whole model.
        steady: whether to serve many requests instead of one.
        single: whether the model has a batch size of 1, so that OpenVINO can collect requests in batches on a CPU, too.
    """
    able = sorted((device for device in devices if device in whole), key=_rank)
    modes: list[OwnMode] = []
    for virtual, many_requests, each_whole in _VIRTUAL_DEVICES:
        used = tuple(able if each_whole else devices)
        if many_requests == steady and len(used) > 1:
            target, first = f"{virtual}:{','.join(map(target_name, used))}", target_name(used[0])
            same = f"{first} can run every op, so this is {first} alone" if not each_whole and used[0] in whole else None
            modes.append(OwnMode(target, target, used, steady, same))
    for device in able if steady else ():
        target = target_name(device)
        batched = _BATCHES in openvino_core().get_property(target, "SUPPORTED_PROPERTIES")
        name, target = (f"BATCH:{target}",) * 2 if batched else (f"{target} in throughput mode", target)
        modes.append(OwnMode(name, target, (device,), steady))
        if single and device.core_set:
            batched_target = f"BATCH:{target}({_CPU_BATCH})"
            modes.append(OwnMode(batched_target, batched_target, (device,), steady))
    return modes


def _rank(device: Device) -> int:
    """Return a device's position in AUTO's order of preference: discrete GPUs, other GPUs, the CPU, anything else."""
    if device.where.family != "GPU":
        return 2 if device.core_set else 3
    kind = openvino_core().get_property(target_name(device), "DEVICE_TYPE")
    return 0 if str(kind).upper().endswith("DISCRETE") else 1
