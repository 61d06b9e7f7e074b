"""Record the seconds of compiling by kind of device, and predict them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.threads import Gate
from placeit.devices.names import hardware_kind

__all__ = ["Compiled", "Compiling"]

_PRIOR_S = {"GPU": 0.1, "NPU": 0.1, "inductor:CPU": 0.03}
_OTHERS_S = 0.002
"""Seconds to compile an op before anything was compiled, by kind of device: OpenVINO's GPU and NPU plugins generate kernels."""
_PROGRAM_S = {"inductor:CPU": 15.0}
"""Seconds that each program takes besides its ops, by kind of device: a child process starts, and calls a C++ compiler."""
_LOADING_S = 0.1  # seconds to load a program from disk, before any was loaded
_PRIOR_OPS, _PRIOR_PROGRAMS = 4, 2  # weight of these guesses, in ops and in programs
_TIMEOUT_S, _PATIENCE_TIMES = 300.0, 10.0  # a compiler hangs that takes more than both: seconds, and times the estimate


@dataclass
class Compiled:
    """Counts of the programs for one kind of device.

    Attributes:
        compiled: how many were compiled.
        from_disk: how many had been compiled by an earlier process, or for an equal device, and were kept on disk.
        reused: how often one was needed that was still there.
        seconds: seconds spent on the first two; programs that are compiled at the same time share the seconds.
    """

    compiled: int = 0
    from_disk: int = 0
    reused: int = 0
    seconds: float = 0.0


class Compiling:
    """Counts programs and their seconds, and estimates from these how long others will take.

    Attributes:
        kinds: counts by :meth:`kind`.
        deadline: when compilers that take many seconds are given up, by :func:`placeit.core.clock.now`.
        hung: by address of a device whose compiler hangs, the gate that opens if it ends after all, and a message about it.
        progress: called as ``progress(what, share)`` while a thread waits for segments to be compiled; None for no reports.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, Compiled] = {}
        self.hung: dict[Address | None, tuple[Gate, str]] = {}
        self.progress: Callable[[str, float], object] | None = None
        self.deadline = math.inf
        self._ops: dict[str, int] = {}
        self._compiling_s: dict[str, float] = {}

    @staticmethod
    def kind(device: Device) -> str:
        """Return the kind of a device: ``CPU``, ``GPU``; ``ort:CPU`` if the hardware's own kind does not drive it."""
        if device.address is None:
            return device.kind
        family = device.address.family
        return family if device.kind == hardware_kind(device.address) else f"{device.kind}:{family}"

    @property
    def seconds(self) -> float:
        """Seconds spent on all kinds."""
        return sum(one.seconds for one in self.kinds.values())

    def book(self, kind: str, seconds: float, ops: int, *, from_disk: bool = False, alone: float | None = None) -> None:
        """Count a program of ``ops`` ops that took some seconds to compile, or to load from disk.

        If it was compiled beside others, and estimates are for one alone, ``alone`` has the seconds that it took.
        """
        one = self.kinds.setdefault(kind, Compiled())
        one.seconds += seconds
        if from_disk:
            one.from_disk += 1
        else:
            one.compiled += 1
            self._ops[kind] = self._ops.get(kind, 0) + ops
            self._compiling_s[kind] = self._compiling_s.get(kind, 0.0) + (seconds if alone is None else alone)

    def reuse(self, kind: str) -> None:
        """Count a program that was needed and was there already."""
        self.kinds.setdefault(kind, Compiled()).reused += 1

    def takes(self, kind: str, ops: int, *, on_disk: bool = False) -> float:
        """Estimate the seconds that a program of ``ops`` ops takes, from the programs of its kind so far."""
        compiling, seen = self._compiling_s.get(kind, 0.0), self._ops.get(kind, 0)
        one, program, prior = self.kinds.get(kind, Compiled()), _PROGRAM_S.get(kind, 0.0), _PRIOR_S.get(kind, _OTHERS_S)
        if program:
            program = (program + max(0.0, compiling - prior * seen)) / (1 + one.compiled)
        by_ops = max(0.0, compiling - program * one.compiled)
        takes = program + ops * (_PRIOR_OPS * prior + by_ops) / (_PRIOR_OPS + seen)
        if not on_disk:
            return takes
        loading = (_PRIOR_PROGRAMS * _LOADING_S + max(0.0, one.seconds - compiling)) / (_PRIOR_PROGRAMS + one.from_disk)
        return min(loading, takes)

    def patience(self, device: Device, seconds: float) -> float:  # noqa: ARG002
        """Return for how many seconds a device may compile before it counts as hanging, by the estimated seconds."""
        return max(_TIMEOUT_S, _PATIENCE_TIMES * seconds)

    @contextlib.contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Give up compilers that take many seconds at a deadline, in the block."""
        before, self.deadline = self.deadline, deadline
        try:
            yield
        finally:
            self.deadline = before
