"""CPU core sets that run segments of PyTorch programs after Inductor has compiled them."""

from __future__ import annotations

import ctypes
import functools
import logging
import math

import torch

from placeit import _core
from placeit.backends.torch.inductor import Boxed, CompiledSegment, compile_segment, is_kept
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.runtime.devices.base import Buffer, BufferSpec, Program, SegmentSource
from placeit.runtime.devices.pytorch import TorchBuffer, TorchDevice, TorchInstance, TorchProgram, explaining, module_of

__all__ = ["InPlace", "InductorDevice"]

_log = logging.getLogger("placeit")
_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class InductorProgram(TorchProgram):
    """A segment that Inductor has compiled, or that PyTorch runs op by op, since Inductor has refused it.

    Attributes:
        from_disk: whether an earlier compilation was loaded from disk.
        refused: why Inductor refused it; empty if it is compiled.
        library: library that runs it without Python; None if Python runs it.
    """

    def __init__(
        self, segment: SegmentSource, module: torch.nn.Module, compiled: CompiledSegment | None = None, *, refused: str = ""
    ) -> None:
        code = None if compiled is None else compiled.code
        super().__init__(segment, code if isinstance(code, Boxed) else module)
        self.from_disk, self.refused = compiled is not None and compiled.from_disk, refused
        self.library = None if isinstance(code, Boxed) else code


class InPlace(TorchBuffer):
    """A contiguous tensor in host memory. Runs write to its memory, which stays the same."""

    fixed_memory = True

    def __init__(self, spec: BufferSpec) -> None:
        super().__init__(spec, torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype)))

    def blank(self, sentinel: int) -> None:
        """Fill the tensor with NaN, or with the sentinel if its type has no NaN."""
        has_nan = self.tensor.is_floating_point() or self.tensor.is_complex()
        self.tensor.fill_(float("nan") if has_nan else sentinel)


class InductorInstance(TorchInstance):
    """A compiled segment with its input and output buffers.

    It runs without Python if its inputs have fixed addresses. Outputs of segments that run op by op have no fixed addresses:
    Python reads them before each run. Python's global interpreter lock is released while the segment runs.
    """

    def __init__(self, program: InductorProgram, library: _core.CompiledProgram) -> None:
        super().__init__(program)
        self._outputs: list[Buffer] = [InPlace(spec) for spec in program.outputs]
        self._library, self._specs = library, program.inputs
        self._input_tensors = [torch.empty(0)] * len(program.inputs)  # keeps the memory of inputs alive
        self._movable_inputs: set[int] = set()  # inputs whose address may change between runs
        self._open()

    def _open(self) -> None:
        self._compiled = _core.CompiledInstance(
            self._library,
            [(0, spec.dtype, spec.shape) for spec in self._specs],
            [(_address(one), one.spec.dtype, one.spec.shape) for one in self._outputs],
        )
        function, self._argument = self._compiled.entry
        self._enter = _ENTRY(function)

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` in every later run. This is called before ``bind``."""
        self._outputs[index] = buffer
        self._open()

    @property
    def native(self) -> tuple[int, int] | None:
        """Addresses of a C function that runs it, and of its argument; None if Python has to read addresses first."""
        return None if self._movable_inputs else self._compiled.entry

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run. Raises DeviceError if it does not fit."""
        super().bind(index, buffer)
        is_fixed = not isinstance(buffer, TorchBuffer) or buffer.fixed_memory
        if is_fixed and self._inputs[index].tensor.is_contiguous():
            self._movable_inputs.discard(index)
            self._read(index)
        else:
            self._movable_inputs.add(index)

    def run(self) -> None:
        """Compute the outputs. Raises RuntimeError."""
        for index in self._movable_inputs:
            self._read(index)
        if self._enter(self._argument):
            raise RuntimeError("the compiled code has written the reason to the standard error")

    def _read(self, index: int) -> None:
        self._input_tensors[index] = self._inputs[index].tensor.contiguous()
        self._compiled.read(index, self._input_tensors[index].data_ptr())


def _address(buffer: Buffer) -> int:
    tensor = buffer.tensor if isinstance(buffer, TorchBuffer) else torch.from_numpy(buffer.array())
    return tensor.data_ptr()


class InductorDevice(TorchDevice):
    """A CPU core set that runs one compiled segment at a time, on its thread, bound to the cores.

    Kernels are divided among as many threads as a :class:`TorchDevice` has, and compiled for that number. A segment that
    Inductor refuses runs op by op.
    """

    one_at_a_time = True

    def __init__(self, device: Device, *, precision: str = "f32") -> None:
        super().__init__(device, precision=precision)
        self.program_key = f"inductor cpu {self.threads}"  # kernels are compiled for a number of threads
        self._refused: dict[str, str] = {}  # reasons by segment identity: a refused segment is not compiled again

    def compile(self, segment: SegmentSource) -> InductorProgram:
        """Compile a segment, which takes many seconds, or load it from disk. Raises DeviceError."""
        return self.compile_within(segment, math.inf)

    def compile_within(self, segment: SegmentSource, seconds: float) -> InductorProgram:
        """Compile a segment, unless Inductor refuses it. Raises DeviceError, or ExecutionError after ``seconds``."""
        module = module_of(segment, self.name, self.precision)
        if (why := self._refused.get(segment.identity)) is None:
            try:
                found = compile_segment(module, self.threads, seconds)
            except DeviceError as error:
                why = self._refused[segment.identity] = str(error)
                _warn_refused(why)
            else:
                return InductorProgram(segment, module, found)
        return InductorProgram(segment, module, refused=why)

    def instance(self, program: Program) -> TorchInstance:
        """Make an instance of a program. Raises DeviceError if there is not enough memory for its buffers."""
        made = narrowed(InductorProgram, program)
        if made.library is None:
            return super().instance(program)
        with explaining(f"PyTorch cannot make buffers for {self.name}"):
            return InductorInstance(made, made.library)

    def explain(self) -> str:
        """Return the message of a compiled segment that failed."""
        return f"Inference failed on {self.name}: the compiled code has written the reason to the standard error"

    def keeps(self, segment: SegmentSource) -> bool:
        """Return whether the program of a segment is on disk, or Inductor has refused the segment."""
        if segment.identity in self._refused:
            return True
        return is_kept(module_of(segment, self.name, self.precision), self.threads)


@functools.cache
def _warn_refused(why: str) -> None:
    """Log, once for each reason, that a segment runs op by op."""
    _log.warning("PyTorch runs a segment op by op: %s", why)
