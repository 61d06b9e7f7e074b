"""CPU core sets that PyTorch drives."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.backends.checking import numpy_can_hold
from placeit.backends.torch.precision import in_precision
from placeit.backends.torch.state import state_updates, with_states
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, first_line
from placeit.core.narrowing import narrowed
from placeit.core.sizes import fits
from placeit.core.telemetry import import_openvino
from placeit.core.threads import Worker
from placeit.devices.host import one_per_physical_core
from placeit.runtime.devices.base import Buffer, BufferSpec, Program, SegmentSource
from placeit.runtime.devices.failing import failing_op
from placeit.runtime.devices.state import OTHER_FORM, fetched
from placeit.runtime.devices.worker import OnWorker

__all__ = ["FAILURES", "TorchBuffer", "TorchDevice", "TorchInstance", "TorchProgram", "explaining", "module_of", "use_threads"]

FAILURES = (RuntimeError, ValueError, TypeError, LookupError, MemoryError)
"""Errors that PyTorch raises when it runs ops."""

_default_threads = threading.Lock()


def use_threads(count: int) -> None:
    """Set the number of threads that PyTorch uses for calls from this thread. They inherit its core affinity.

    ``torch.set_num_threads`` also sets the number for every thread that has not computed yet. This function restores that.
    """
    with _default_threads:
        before: list[int] = []
        _on_other_thread(lambda: before.append(torch.get_num_threads()))
        torch.set_num_threads(count)
        torch.get_num_threads()  # the first call in a thread fixes its number
        _on_other_thread(lambda: torch.set_num_threads(before[0]))


def _on_other_thread(job: Callable[[], None]) -> None:
    thread = threading.Thread(target=job)
    thread.start()
    thread.join()


def _torch_dtype(spec: BufferSpec) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return dtype


class TorchBuffer:
    """A tensor in host memory. Runs that write to the buffer replace the tensor, without a copy.

    Attributes:
        fixed_memory: whether runs write to the memory of the tensor instead, so that the memory stays the same.
    """

    space = "host"
    fixed_memory = False

    def __init__(self, spec: BufferSpec, tensor: torch.Tensor | None = None) -> None:
        layout = torch.channels_last if spec.channels_last else torch.contiguous_format
        self.spec = spec
        self.tensor = torch.zeros(spec.shape, dtype=_torch_dtype(spec)).to(memory_format=layout) if tensor is None else tensor

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.tensor.nbytes

    def array(self) -> NDArray[np.generic]:
        """Return a view of the value, or a copy as float32 if NumPy lacks its type."""
        tensor = self.tensor if numpy_can_hold(self.spec.dtype) or self.tensor.is_complex() else self.tensor.float()
        value: NDArray[np.generic] = tensor.numpy(force=True)
        return value

    def memory(self) -> NDArray[np.generic] | None:
        """Return the memory in memory order; None if the value is not contiguous, or NumPy lacks its type."""
        tensor = self.tensor.permute(0, 2, 3, 1) if self.spec.channels_last else self.tensor
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or not numpy_can_hold(self.spec.dtype):
            return None
        value: NDArray[np.generic] = tensor.numpy(force=True)
        return value

    def fill(self, value: NDArray[np.generic]) -> None:
        """Copy a value into the tensor, converted from the type that :meth:`array` returns."""
        if tuple(self.tensor.shape) != value.shape:  # sizes are open
            self.tensor = TorchBuffer(replace(self.spec, shape=value.shape)).tensor
        self.tensor.copy_(torch.from_numpy(value))

    def blank(self, sentinel: int) -> None:
        """Replace the tensor, since its memory may belong to an input or a weight."""
        value = float("nan") if self.tensor.is_floating_point() or self.tensor.is_complex() else sentinel
        self.tensor = torch.full_like(self.tensor, value)


class Forwards(Protocol):
    """A PyTorch module, or another object with a method ``forward``."""

    @property
    def forward(self) -> Callable[..., Any]:
        """Function that computes a sequence of tensors from tensors."""


class TorchProgram:
    """A segment as a module, or as another object with a method ``forward``.

    Attributes:
        states: initial values of its states, by name. The last inputs of the module are states, and its last outputs are their
            next values.
    """

    def __init__(self, segment: SegmentSource, module: Forwards) -> None:
        self.inputs = segment.inputs
        self.outputs = segment.outputs
        self.states: dict[str, torch.Tensor] = {}
        if isinstance(module, torch.fx.GraphModule) and state_updates(module):
            module, self.states = with_states(module)
        self.forward: Callable[..., Sequence[torch.Tensor]] = module.forward


class TorchInstance:
    """A module with its input and output buffers."""

    def __init__(self, program: TorchProgram) -> None:
        self._forward = program.forward
        self._inputs = [TorchBuffer(spec, torch.empty(0)) for spec in program.inputs]
        self._outputs: list[Buffer] = [TorchBuffer(spec) for spec in program.outputs]
        self._movable: dict[int, Buffer] = {}  # bound buffers of other types whose memory may change between runs

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run. Raises DeviceError if it does not fit."""
        spec = self._inputs[index].spec
        source = buffer if isinstance(buffer, TorchBuffer) else TorchBuffer(spec, torch.from_numpy(buffer.array()))
        self._movable.pop(index, None)
        if not fits(source.tensor.shape, spec.shape, spec.limits) or source.tensor.dtype is not _torch_dtype(spec):
            raise DeviceError(
                f"A buffer does not fit input {index} of a segment, {spec.dtype} {list(spec.shape)}: it holds "
                f"{source.tensor.dtype} {list(source.tensor.shape)}."
            )
        self._inputs[index] = source
        if source is not buffer and spec.limits is not None:
            self._movable[index] = buffer

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Copy output ``index`` to ``buffer`` in every later run, for readers that need it at a fixed address."""
        self._outputs[index] = buffer

    def output(self, index: int) -> Buffer:
        """Return the buffer that holds output ``index`` after a run."""
        return self._outputs[index]

    def run(self) -> None:
        """Compute the outputs, on a thread in inference mode."""
        for index, source in [*self._movable.items()]:
            self.bind(index, source)
        outputs = self._call([buffer.tensor for buffer in self._inputs])
        # an output may be an input, whose memory the next run may overwrite
        reused = {buffer.tensor.untyped_storage().data_ptr() for buffer in self._inputs if buffer.fixed_memory}
        for buffer, tensor in zip(self._outputs, outputs, strict=True):
            if isinstance(buffer, TorchBuffer):
                buffer.tensor = tensor.clone() if reused and tensor.untyped_storage().data_ptr() in reused else tensor
            else:
                torch.from_numpy(buffer.array()).copy_(tensor)

    def _call(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        return self._forward(*inputs)


class StatefulTorchInstance(TorchInstance):
    """An instance of a module with state. It passes the current or the initial states, and stores their next values."""

    def __init__(self, program: TorchProgram) -> None:
        super().__init__(program)
        self._initial, self._keep = program.states, False
        self._states = dict(self._initial)

    def _call(self, inputs: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if not self._keep:
            self.reset_state()
        results = self._forward(*inputs, *self._states.values())
        count = len(results) - len(self._states)
        reused = {tensor.untyped_storage().data_ptr() for tensor in inputs}  # callers may overwrite these before the next run
        states = (state.clone() if state.untyped_storage().data_ptr() in reused else state for state in results[count:])
        self._states = dict(zip(self._states, states, strict=True))
        return results[:count]

    def keep_state(self, *, keep: bool) -> None:
        """Choose whether later runs continue from the current state, or each start from the initial one."""
        self._keep = keep

    def reset_state(self) -> None:
        """Return to the initial state."""
        self._states = dict(self._initial)

    def states(self) -> dict[str, Any]:
        """Return copies of the states by name, as bytes, since NumPy and OpenVINO lack some types."""
        tensor = import_openvino().Tensor
        return {
            name: tensor(np.frombuffer(value.contiguous().flatten().view(torch.uint8).numpy(force=True).tobytes(), np.uint8))
            for name, value in self._states.items()
        }

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Set the states to values from ``states``. Raises DeviceError."""
        if not self._initial.keys() <= states.keys():
            raise DeviceError(OTHER_FORM)
        for name, initial in self._initial.items():
            value = torch.from_numpy(np.array(fetched(states[name]).data))
            self._states[name] = value.view(initial.dtype).reshape(initial.shape)

    def state_bytes(self) -> int:
        """Return the size of its state in bytes."""
        return sum(value.nbytes for value in self._states.values())


class TorchDevice(OnWorker):
    """A CPU core set that runs one PyTorch segment at a time, on its own thread, bound to the cores.

    A set of several cores gets as many threads as it has cores. The worker starts them, and they inherit its cores.

    Args:
        device: the device.
        precision: type in which products of float32 are computed; see :func:`placeit.backends.torch.precision.in_precision`.

    Attributes:
        threads: number of threads that compute an op.
        precision: the precision.
        program_key: key of its programs; see :class:`placeit.runtime.devices.base.RuntimeDevice`.

    Raises:
        DeviceError: this process may not use the cores.
    """

    space = "host"

    def __init__(self, device: Device, *, precision: str = "f32") -> None:
        self.name, self.precision = device.name, precision
        self.worker = Worker(f"placeit {device.name}", device.cores, torch.inference_mode)
        # PyTorch's default for the whole machine is one thread for each physical core
        self.threads = max(1, len(one_per_physical_core(device.cores) if device.where.whole_cpu else device.cores))
        self.worker.submit(functools.partial(use_threads, self.threads))
        self.program_key = "torch cpu"  # all core sets can run each other's programs

    def compile(self, segment: SegmentSource) -> TorchProgram:
        """Make a program of a segment's module. Raises DeviceError."""
        return TorchProgram(segment, module_of(segment, self.name, self.precision))

    def instance(self, program: Program) -> TorchInstance:
        """Make an instance of a program. Raises DeviceError if there is not enough memory for its buffers."""
        with explaining(f"PyTorch cannot make buffers for {self.name}"):
            made = narrowed(TorchProgram, program)
            return StatefulTorchInstance(made) if made.states else TorchInstance(made)

    def allocate(self, spec: BufferSpec) -> TorchBuffer:
        """Allocate host memory."""
        return TorchBuffer(spec)

    def _explain(self, error: BaseException) -> str:
        op = failing_op(error)
        return f"Inference failed on {self.name}{f' in op {op}' if op else ''}: {first_line(error)}"


def module_of(segment: SegmentSource, device: str, precision: str) -> torch.nn.Module:
    """Return a segment as a module for a device, in a precision.

    Raises:
        DeviceError: the module has another number of inputs or outputs than the segment, or the precision is not available.
    """
    module: torch.nn.Module = segment.in_format("torch")
    if isinstance(module, torch.fx.GraphModule):
        (output,) = module.graph.find_nodes(op="output")
        inputs, outputs = len(module.graph.find_nodes(op="placeholder")), len(output.args[0])
        if (inputs, outputs) != (len(segment.inputs), len(segment.outputs)):
            raise DeviceError(
                f"{device} cannot run a segment of {len(segment.inputs)} inputs and {len(segment.outputs)} outputs whose "
                f"module takes {inputs} and gives {outputs}."
            )
    return in_precision(module, precision)


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Convert exceptions of PyTorch in the block to a DeviceError that names what failed, and the op."""
    try:
        yield
    except FAILURES as error:
        op = failing_op(error)
        raise DeviceError(f"{what}{f' (op {op})' if op else ''}: {first_line(error)}") from error
