"""CPU core sets on which Inductor compiles the segments of PyTorch programs."""

from __future__ import annotations

import math

from placeit.backends.torch.inductor import CompiledSegment, compile_segment, is_kept
from placeit.backends.torch.state import kept
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.runtime.devices.base import SegmentSource
from placeit.runtime.devices.pytorch import TorchDevice, TorchProgram, module_of

__all__ = ["InductorDevice"]


class InductorProgram(TorchProgram):
    """A segment that Inductor has compiled.

    Attributes:
        from_disk: whether it was compiled before.
    """

    def __init__(self, segment: SegmentSource, compiled: CompiledSegment) -> None:
        super().__init__(segment, compiled)
        self.from_disk = compiled.from_disk


class InductorDevice(TorchDevice):
    """A CPU core set that runs one compiled segment at a time, on its thread, bound to the cores.

    Kernels are divided among as many threads as a :class:`TorchDevice` has, and compiled for that number.
    """

    one_at_a_time = True

    def __init__(self, device: Device, *, precision: str = "f32") -> None:
        super().__init__(device, precision=precision)
        self._refused: dict[str, str] = {}  # why, by the identity of a segment

    @property
    def program_key(self) -> str:
        """Key of its programs: their kernels are for a number of threads."""
        return f"inductor cpu {self.threads}"

    def compile(self, segment: SegmentSource) -> InductorProgram:
        """Compile a segment, which takes many seconds, or load it from disk. Raises DeviceError."""
        return self.compile_within(segment, math.inf)

    def compile_within(self, segment: SegmentSource, seconds: float) -> InductorProgram:
        """Compile a segment. Raises DeviceError, or ExecutionError after some seconds; what was refused once stays refused."""
        module = module_of(segment, self.name, self.precision)
        if kept(module) or any(spec.limits is not None for spec in segment.inputs):
            raise DeviceError(f"{self.name} compiles programs for one size and without state: choose torch:CPU devices.")
        if (why := self._refused.get(segment.identity)) is not None:
            raise DeviceError(why)
        try:
            return InductorProgram(segment, compile_segment(module, self.threads, seconds))
        except DeviceError as error:
            why = self._refused[segment.identity] = f"{self.name}: {error}"
            raise DeviceError(why) from error

    def keeps(self, segment: SegmentSource) -> bool:
        """Return whether the program of a segment is on disk."""
        return is_kept(module_of(segment, self.name, self.precision), self.threads)
