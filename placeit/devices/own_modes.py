"""OpenVINO's own ways to run a whole model on several devices, or for many requests: what one would use without placeit."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from placeit.core.cluster import Device
from placeit.devices.openvino import openvino_core, target_name

__all__ = ["OwnMode", "own_modes"]

_VIRTUAL = (
    # name, whether it serves many requests, and whether each of its devices has to run the whole model
    ("AUTO", False, True),
    ("HETERO", False, False),
    ("MULTI", True, True),  # AUTO with the hint CUMULATIVE_THROUGHPUT; with THROUGHPUT, AUTO is one of its devices alone
    ("HETERO", True, False),
)
_BATCHES = "OPTIMAL_BATCH_SIZE"  # property of plugins that auto-batching works with


@dataclass(frozen=True)
class OwnMode:
    """A way of OpenVINO's own to run a whole model.

    Attributes:
        name: what reports call it.
        target: what OpenVINO compiles for, such as ``AUTO:GPU.0,CPU``.
        devices: the real devices that it may use.
        steady: whether it serves many requests, with OpenVINO's throughput hint; one at a time, with the latency hint, if not.
        same: which device alone it is, and why, if that is known without a run; None if it is not.
    """

    name: str
    target: str
    devices: tuple[Device, ...]
    steady: bool
    same: str | None = None


def own_modes(devices: Sequence[Device], whole: Collection[Device], *, steady: bool) -> list[OwnMode]:
    """List what OpenVINO would do by itself.

    Args:
        devices: devices of different hardware that OpenVINO drives, the whole CPU in place of core sets. HETERO prefers the
            first; the others prefer what OpenVINO prefers by itself.
        whole: those of them that can run the whole model.
        steady: for many requests instead of one.
    """
    able = sorted((device for device in devices if device in whole), key=_rank)
    modes: list[OwnMode] = []
    for virtual, many, each_whole in _VIRTUAL:
        used = tuple(able if each_whole else devices)
        if many == steady and len(used) > 1:
            target, first = f"{virtual}:{','.join(map(target_name, used))}", target_name(used[0])
            same = f"{first} can run every op, so this is {first} alone" if not each_whole and used[0] in whole else None
            modes.append(OwnMode(target, target, used, steady, same))
    for device in able if steady else ():
        target = target_name(device)
        batched = _BATCHES in openvino_core().get_property(target, "SUPPORTED_PROPERTIES")
        name, target = (f"BATCH:{target}",) * 2 if batched else (f"{target} in throughput mode", target)
        modes.append(OwnMode(name, target, (device,), steady))
    return modes


def _rank(device: Device) -> int:
    """Position in the order in which AUTO prefers devices: discrete GPUs, other GPUs, the CPU, anything else."""
    if device.where.family != "GPU":
        return 2 if device.core_set else 3
    kind = openvino_core().get_property(target_name(device), "DEVICE_TYPE")
    return 0 if str(kind).upper().endswith("DISCRETE") else 1
