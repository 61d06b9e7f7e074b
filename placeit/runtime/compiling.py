"""Counts of compiled programs by kind of device, and estimates of compile times from them."""

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
"""Prior estimates of the seconds to compile an op, by kind of device: OpenVINO's GPU and NPU plugins generate kernels."""
_PROGRAM_S = {"inductor:CPU": 15.0}
"""Seconds that each program takes besides its ops, by kind of device: a child process starts, and calls a C++ compiler."""
_LOADING_S = 0.1  # prior estimate of the seconds to load a program from disk
_PRIOR_OPS, _PRIOR_PROGRAMS = 4, 2  # weights of the prior estimates, in ops and in programs
_MIN_TIMEOUT_S, _TIMEOUT_FACTOR = 300.0, 10.0  # a compiler that takes more than both (seconds, times the estimate) hangs


@dataclass
class Compiled:
    """Counts of the programs for one kind of device.

    Attributes:
        compiled: number of programs that were compiled.
        from_disk: number of programs loaded from disk, compiled by an earlier process or for an equal device.
        reused: number of times that a needed program was still in memory.
        seconds: seconds spent on compiling and loading; programs that are compiled at the same time share the seconds.
    """

    compiled: int = 0
    from_disk: int = 0
    reused: int = 0
    seconds: float = 0.0


class Compiling:
    """Counts programs and their compile times, and estimates the compile times of other programs.

    Attributes:
        kinds: counts by :meth:`kind`.
        deadline: time at which slow compilers are stopped, by :func:`placeit.core.clock.now`.
        hung: by address of a device whose compiler hangs, a gate that opens if the compiler ends after all, and a message.
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
        """Return the kind of a device by which times are recorded: ``CPU``, ``GPU``, or ``ort:CPU`` for another runtime."""
        if device.address is None:
            return device.kind
        family = device.address.family
        return family if device.kind == hardware_kind(device.address) else f"{device.kind}:{family}"

    @property
    def seconds(self) -> float:
        """Seconds spent on all kinds."""
        return sum(one.seconds for one in self.kinds.values())

    def record(self, kind: str, seconds: float, ops: int, *, from_disk: bool = False, alone: float | None = None) -> None:
        """Count a program that was compiled, or loaded from disk.

        Args:
            kind: kind of its device; see :meth:`kind`.
            seconds: seconds that it took; if several programs were compiled at the same time, its share of them.
            ops: number of its ops.
            from_disk: whether it was loaded from disk.
            alone: seconds for estimates, if other programs do not reduce them; None for ``seconds``.
        """
        counts = self.kinds.setdefault(kind, Compiled())
        counts.seconds += seconds
        if from_disk:
            counts.from_disk += 1
        else:
            counts.compiled += 1
            self._ops[kind] = self._ops.get(kind, 0) + ops
            self._compiling_s[kind] = self._compiling_s.get(kind, 0.0) + (seconds if alone is None else alone)

    def reuse(self, kind: str) -> None:
        """Count a needed program that was still in memory."""
        self.kinds.setdefault(kind, Compiled()).reused += 1

    def expected_s(self, kind: str, ops: int, *, on_disk: bool = False) -> float:
        """Estimate the seconds to compile a program of ``ops`` ops, or to load it, from earlier programs of its kind."""
        total, seen = self._compiling_s.get(kind, 0.0), self._ops.get(kind, 0)
        counts, program, prior = self.kinds.get(kind, Compiled()), _PROGRAM_S.get(kind, 0.0), _PRIOR_S.get(kind, _OTHERS_S)
        if program:
            program = (program + max(0.0, total - prior * seen)) / (1 + counts.compiled)
        by_ops = max(0.0, total - program * counts.compiled)
        compiling = program + ops * (_PRIOR_OPS * prior + by_ops) / (_PRIOR_OPS + seen)
        if not on_disk:
            return compiling
        loading = (_PRIOR_PROGRAMS * _LOADING_S + max(0.0, counts.seconds - total)) / (_PRIOR_PROGRAMS + counts.from_disk)
        return min(loading, compiling)

    def timeout_s(self, device: Device, seconds: float) -> float:  # noqa: ARG002
        """Return the seconds after which a compiler counts as hanging; ``seconds`` is the estimate of its compile time."""
        return max(_MIN_TIMEOUT_S, _TIMEOUT_FACTOR * seconds)

    @contextlib.contextmanager
    def until(self, deadline: float) -> Iterator[None]:
        """Set the deadline for slow compilers in the block."""
        before, self.deadline = self.deadline, deadline
        try:
            yield
        finally:
            self.deadline = before
