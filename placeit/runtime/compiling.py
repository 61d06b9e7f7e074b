"""Record the seconds of compiling by kind of device, and predict them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from placeit.core.cluster import Device

__all__ = ["Compiled", "Compiling"]

_PRIOR_S = {"GPU": 0.1, "NPU": 0.1}
_OTHERS_S = 0.002
"""Seconds to compile an op before anything was compiled, by kind of device: OpenVINO's GPU and NPU plugins generate kernels."""
_LOADING_S = 0.1  # to load a program from disk, before any was
_PRIOR_OPS, _PRIOR_PROGRAMS = 4, 2  # as many are supposed to have been seen to take that


@dataclass
class Compiled:
    """Programs of one kind of device.

    Attributes:
        compiled: how many were compiled.
        from_disk: how many had been compiled by an earlier process, or for an equal device, and were kept on disk.
        reused: how often one was needed that was still there.
        seconds: spent on the first two; of those that are compiled at the same time, each counts for its share.
    """

    compiled: int = 0
    from_disk: int = 0
    reused: int = 0
    seconds: float = 0.0


class Compiling:
    """Counts programs, and estimates from what they took how long others will take.

    Attributes:
        kinds: what was compiled, by :meth:`kind`.
        progress: told what is being compiled, while somebody waits for it: ``progress(what, share)``; None for nobody.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, Compiled] = {}
        self.progress: Callable[[str, float], object] | None = None
        self._ops: dict[str, int] = {}
        self._compiling_s: dict[str, float] = {}

    @staticmethod
    def kind(device: Device) -> str:
        """Kind of a device: ``CPU``, ``GPU``; ``ort:CPU`` if OpenVINO does not drive it."""
        family = "" if device.address is None else device.address.family
        return family if family and device.kind in ("openvino", family) else ":".join(filter(None, (device.kind, family)))

    @property
    def seconds(self) -> float:
        """Seconds spent on all of it."""
        return sum(one.seconds for one in self.kinds.values())

    def book(self, kind: str, seconds: float, ops: int, *, from_disk: bool = False) -> None:
        """Count a program of so many ops."""
        one = self.kinds.setdefault(kind, Compiled())
        one.seconds += seconds
        if from_disk:
            one.from_disk += 1
        else:
            one.compiled += 1
            self._ops[kind] = self._ops.get(kind, 0) + ops
            self._compiling_s[kind] = self._compiling_s.get(kind, 0.0) + seconds

    def reuse(self, kind: str) -> None:
        """Count a program that was there."""
        self.kinds.setdefault(kind, Compiled()).reused += 1

    def takes(self, kind: str, ops: int, *, on_disk: bool = False) -> float:
        """Seconds that a program of so many ops takes, by those of its kind so far."""
        compiling, seen = self._compiling_s.get(kind, 0.0), self._ops.get(kind, 0)
        each = (_PRIOR_OPS * _PRIOR_S.get(kind, _OTHERS_S) + compiling) / (_PRIOR_OPS + seen)
        if not on_disk:
            return each * ops
        one = self.kinds.get(kind, Compiled())
        loading = (_PRIOR_PROGRAMS * _LOADING_S + one.seconds - compiling) / (_PRIOR_PROGRAMS + one.from_disk)
        return min(loading, each * ops)
