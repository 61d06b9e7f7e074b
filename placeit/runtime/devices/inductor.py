"""CPU core sets on which Inductor compiles the segments of PyTorch programs."""

from __future__ import annotations

import functools
import logging
import math

from placeit.backends.torch.inductor import compile_segment, is_kept
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import SegmentSource
from placeit.runtime.devices.pytorch import Forwards, TorchDevice, TorchProgram, module_of

__all__ = ["InductorDevice"]

_log = logging.getLogger("placeit")


class InductorProgram(TorchProgram):
    """A segment that Inductor has compiled, or has refused: PyTorch then runs it op by op.

    Attributes:
        from_disk: whether it was compiled before.
        refused: why Inductor refused it; empty if it is compiled.
    """

    def __init__(self, segment: SegmentSource, forwards: Forwards, *, from_disk: bool = False, refused: str = "") -> None:
        super().__init__(segment, forwards)
        self.from_disk, self.refused = from_disk, refused


class InductorDevice(TorchDevice):
    """A CPU core set that runs one compiled segment at a time, on its thread, bound to the cores.

    Kernels are divided among as many threads as a :class:`TorchDevice` has, and compiled for that number. A segment that
    Inductor refuses runs op by op.
    """

    one_at_a_time = True

    def __init__(self, device: Device, *, precision: str = "f32") -> None:
        super().__init__(device, precision=precision)
        self._refused: dict[str, str] = {}  # why, by the identity of a segment: none is tried twice

    @property
    def program_key(self) -> str:
        """Key of its programs: their kernels are for a number of threads."""
        return f"inductor cpu {self.threads}"

    def compile(self, segment: SegmentSource) -> InductorProgram:
        """Compile a segment, which takes many seconds, or load it from disk. Raises DeviceError."""
        return self.compile_within(segment, math.inf)

    def compile_within(self, segment: SegmentSource, seconds: float) -> InductorProgram:
        """Compile a segment, unless it is refused. Raises DeviceError, or ExecutionError after some seconds."""
        module = module_of(segment, self.name, self.precision)
        if (why := self._refused.get(segment.identity)) is None:
            try:
                compiled = compile_segment(module, self.threads, seconds)
                return InductorProgram(segment, compiled, from_disk=compiled.from_disk)
            except DeviceError as error:
                why = self._refused[segment.identity] = str(error)
                _say_refused(why)
        return InductorProgram(segment, module, refused=why)

    def keeps(self, segment: SegmentSource) -> bool:
        """Return whether the program of a segment is on disk, or will not be compiled."""
        if segment.identity in self._refused:
            return True
        return is_kept(module_of(segment, self.name, self.precision), self.threads)


@functools.cache
def _say_refused(why: str) -> None:
    """Log, once for each reason, that a segment runs op by op."""
    _log.warning("PyTorch runs a segment op by op: %s", why)
