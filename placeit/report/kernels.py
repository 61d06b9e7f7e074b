"""Summarise the kernels of a recording: their times, and their rates relative to the peak rates of their devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from placeit.profiler.recorded import OpTime
    from placeit.profiler.recording import Recording

__all__ = ["Kernel", "Kind", "kernels", "kinds"]


@dataclass(frozen=True)
class Kernel:
    """A kernel in a recording.

    Attributes:
        name: name of its op with the most operations, or of the kernel if it belongs to no op.
        kind: kind of that op, or of the kernel.
        device: device that it ran on.
        ops: number of ops that it computes.
        seconds: mean seconds per request.
        share: share of the time of all kernels.
        flops_per_s: achieved rate; None if it belongs to no op.
        bytes_per_s: achieved rate; None if it belongs to no op.
        flops_share: share of the measured peak of the device; None if the peak is unknown.
        bytes_share: share of the measured peak of the device; None if the peak is unknown.
    """

    name: str
    kind: str
    device: str
    ops: int
    seconds: float
    share: float
    flops_per_s: float | None
    bytes_per_s: float | None
    flops_share: float | None
    bytes_share: float | None


@dataclass(frozen=True)
class Kind:
    """All kernels of a kind: their number, seconds of a request, and share of the time of all kernels."""

    kind: str
    kernels: int
    seconds: float
    share: float


def kernels(recording: Recording) -> list[Kernel]:
    """Return the kernels of a recording, the longest first."""
    ops_of: dict[tuple[int, str], list[OpTime]] = {}
    for n, one in enumerate(recording.ops):
        if one.measured_s is not None:
            ops_of.setdefault((one.segment, one.kernel or f"#{n}"), []).append(one)
    total = sum(one.measured_s or 0.0 for some in ops_of.values() for one in some)
    found = [_kernel(recording, key[1], some, total) for key, some in ops_of.items()]
    return sorted(found, key=lambda one: -one.seconds)


def kinds(recording: Recording) -> list[Kind]:
    """Return the total times of the kernels of each kind, the longest first."""
    of: dict[str, list[Kernel]] = {}
    for one in kernels(recording):
        of.setdefault(one.kind, []).append(one)
    found = [Kind(kind, len(some), sum(k.seconds for k in some), sum(k.share for k in some)) for kind, some in of.items()]
    return sorted(found, key=lambda one: -one.seconds)


def _kernel(recording: Recording, name: str, some: Sequence[OpTime], total: float) -> Kernel:
    ops, first = recording.graph.ops, some[0]
    numbers = [one.op for one in some if one.op is not None]
    main = max(numbers, key=lambda v: ops[v].flops, default=None)
    device = next(device for device in recording.devices if device.name == first.device)
    seconds = sum(one.measured_s or 0.0 for one in some)
    return Kernel(
        name=name if main is None else ops[main].name,
        kind=first.kind if main is None else ops[main].kind,
        device=first.device,
        ops=len(numbers),
        seconds=seconds,
        share=seconds / total if total > 0 else 0.0,
        flops_per_s=first.flops_per_s,
        bytes_per_s=first.bytes_per_s,
        flops_share=_share(first.flops_per_s, device.peak_flops_per_s),
        bytes_share=_share(first.bytes_per_s, device.peak_bytes_per_s),
    )


def _share(rate: float | None, peak: float | None) -> float | None:
    return None if rate is None or not peak else rate / peak
