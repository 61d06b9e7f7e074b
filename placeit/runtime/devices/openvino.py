"""Devices that OpenVINO drives: CPU core sets, GPUs and NPUs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from platform import machine
from typing import Any

import numpy as np

from placeit.backends.openvino.state import expose_growing_states
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.core.telemetry import import_openvino
from placeit.core.threads import Worker
from placeit.devices.compiled import is_kept
from placeit.devices.openvino import (
    compile_model,
    compile_properties,
    explaining,
    for_model,
    openvino_core,
    target_name,
    what_openvino_says,
)
from placeit.runtime.devices.base import Buffer, BufferSpec, Program, SegmentSource
from placeit.runtime.devices.by_size import MAX_PROGRAMS, BySize, BySizeInstance, times_slower
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.openvino_c import (
    NativeContext,
    NativeModel,
    NativeOpenVino,
    NativeRequest,
    Spec,
    native_openvino,
)
from placeit.runtime.devices.openvino_paged import PagedInstance, PagedProgram, compile_paged
from placeit.runtime.devices.openvino_requests import OpenVinoInstance, OpenVinoProgram, copied, fetched
from placeit.runtime.devices.state import MayBePaged
from placeit.runtime.devices.worker import MAX_LENT_ALL_CORES_S, MAX_LENT_S, OnWorker

__all__ = ["HostBuffer", "NativeInstance", "OpenVinoDevice", "OpenVinoInstance", "OpenVinoProgram"]

_SLOWER = 1.1  # times the seconds of a program for one size: the most that a program for all sizes may take

_log = logging.getLogger("placeit")


class NativeInstance:
    """An infer request of the C library, which a loop without Python can run. Its tensors are set once.

    Tensors that a GPU's plugin has allocated for the same GPU are not copied.

    Attributes:
        run: runs it from Python.
    """

    rebinds = True  # may read and write other buffers from one run to the next

    def __init__(self, program: OpenVinoProgram) -> None:
        self.program = program
        self.request: NativeRequest = program.compiled.request()
        self.run = self._infer = self.request.infer
        self._outputs: list[HostBuffer] = []
        for i, spec in enumerate(program.outputs):
            own = spec.limits is None and not program.is_open
            self._outputs.append(HostBuffer(spec, self.request.output(i) if own else None))
            if not own:
                self.write_to(i, self._outputs[i])

    @property
    def native(self) -> tuple[int, int] | None:
        """C function that runs it, and its argument; None if ``run`` has been replaced."""
        return self.request.entry if self.run is self._infer else None

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` from now on."""
        self.request.set_input(index, _memory(narrowed(HostBuffer, buffer), self.program.compiled.inputs[index]))

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` from now on."""
        made = narrowed(HostBuffer, buffer)
        self.request.set_output(index, _memory(made, self.program.compiled.outputs[index]))
        self._outputs[index] = made

    def output(self, index: int) -> HostBuffer:
        """Return the buffer that output ``index`` is written to."""
        return self._outputs[index]


def _memory(buffer: HostBuffer, port: Spec) -> Any:
    """Return a buffer as the C library takes it: Python's tensor if sizes are open, else the library's own, or an array."""
    if port[0] is None:
        return buffer.tensor
    return buffer.tensor.data if buffer.native is None else buffer.native


class CopiedInstance(OpenVinoInstance):
    """An infer request that writes outputs to its own memory, from which they are copied.

    The GPU plugin fails, or ends the process, if a program for open sizes has to write to memory that it was given.
    """

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` from now on."""
        self._outputs[index] = narrowed(HostBuffer, buffer)

    def run(self) -> None:
        """Run, and copy the outputs. Raises RuntimeError."""
        for index, buffer in self._bound.items():
            self.request.set_input_tensor(index, buffer.tensor)
        super().run()
        for index, buffer in enumerate(self._outputs):
            buffer.copy(self.request.get_output_tensor(index).data)


class CachingInstance(CopiedInstance):
    """An infer request that gets growing states as inputs, and keeps the new states that it returns as outputs.

    Where two requests of a program have variables that grow, OpenVINO's GPU plugin (2026.4) mixes them up: it computes with the
    state of another request, or fails ("Layout mismatch"), whenever a run has the sizes of the one before.
    """

    def __init__(self, program: OpenVinoProgram) -> None:
        super().__init__(program)
        self._states = dict(program.states)

    def run(self) -> None:
        """Run, and copy outputs and states. Raises RuntimeError."""
        if not self._keep:
            self._states = dict(self.program.states)
        inputs, outputs = len(self.program.inputs), len(self.program.outputs)
        for index, value in enumerate(self._states.values()):
            self.request.set_input_tensor(inputs + index, value)
        super().run()
        for index, name in enumerate(self._states):
            self._states[name] = copied(self.request.get_output_tensor(outputs + index))

    def reset_state(self) -> None:
        """Return to the initial state."""
        super().reset_state()
        self._states = dict(self.program.states)

    def states(self) -> dict[str, Any]:
        """Return the variables' values, as ``openvino.Tensor`` by name; later runs do not write to them."""
        return super().states() | self._states

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Set its variables to values from ``states``. Raises DeviceError."""
        super().set_states(states)
        self._states = {name: fetched(states[name]) for name in self._states}

    def state_bytes(self) -> int:
        """Return the bytes of its variables' values."""
        return super().state_bytes() + sum(int(value.byte_size) for value in self._states.values())


class OpenVinoDevice(OnWorker):
    """An OpenVINO device that runs one request at a time, on its own thread.

    A CPU core set of one core runs inference in its worker thread, which is bound to that core. A larger set gets as many
    inference threads as it has cores; only the calling one is bound, because OpenVINO's threads are shared by the process.
    ``CPU``, all cores, is left to OpenVINO with its latency hint: how many threads, and on which cores.

    A GPU allocates buffers in USM host memory, which an integrated GPU and the host use in place, and which is pinned for a
    discrete one. Inference blocks the worker thread, without Python's lock, until the GPU has ended: OpenVINO enqueues the
    kernels on the calling thread. In asynchronous mode, a thread of OpenVINO would enqueue them and block, and the time that
    both threads take to wake would be added.

    All of this goes through OpenVINO's C library, so that segments have native entries. Where the C library cannot be used or
    knows no such device, and for segments with state or counters, it goes through the Python binding.

    Args:
        device: the device; its address names the real one.
        precision: inference precision, ``f32`` unless asked otherwise: OpenVINO's default would be bf16 on some CPUs, and
            results of different devices could not be compared.
        properties: further ones that segments are compiled with.
    """

    space = "host"
    reads_in_place = True
    one_at_a_time = True
    """Requests of a program wait for each other: it has at most one stream, which OpenVINO locks during a run."""

    def __init__(self, device: Device, *, precision: str = "f32", properties: Mapping[str, Any] | None = None) -> None:
        self.name = device.name
        self._device, self._precision, self._properties = device, precision, dict(properties or {})
        self._configuration = compile_properties(device, precision) | self._properties
        self._compiled_as = target_name(device), self._configuration
        self.program_key = f"openvino {target_name(device)} {sorted(self._configuration.items())}"
        # further properties may ask for counters, which only Python reads
        self._native: NativeOpenVino | None = None if self._properties else native_openvino()
        self._context: Any = None  # of the same OpenVINO core as the compiled models
        if device.where.family == "GPU":
            with contextlib.suppress(DeviceError):
                self._context = None if self._native is None else self._native.context(target_name(device))
            if self._context is None:
                self._native = None
                with explaining(f"OpenVINO cannot allocate memory for {device.name}"):
                    self._context = openvino_core().get_default_context(target_name(device))
        self._warned = False  # whether it has been logged that this device compiles for each size
        self._worker = Worker(f"placeit {device.name}", device.cores)
        # a caller may run inference on its own thread, which is on the device's cores only if these are all cores
        self._worker.lane.lends = MAX_LENT_S if device.cores else MAX_LENT_ALL_CORES_S

    @property
    def shares_memory(self) -> bool:
        """True if it is a GPU, which uses the host memory of :meth:`allocate` directly."""
        return self._context is not None

    def compile(self, segment: SegmentSource) -> OpenVinoProgram | BySize[OpenVinoProgram]:
        """Compile a segment; one with open sizes in the way that is faster at the typical sizes. Raises DeviceError.

        On a CPU, it is compiled into one program for all sizes. On other devices, a program for all sizes and one for the
        typical sizes are compiled and timed: if the first takes more than 1.1 times as long, or fails, there is a program for
        each size.
        """
        if self.pages and isinstance(segment, MayBePaged):
            with explaining(f"OpenVINO cannot compile a segment for {self.name}"):
                if (model := segment.paged()) is not None:
                    return compile_paged(segment, model, self._device, self._precision, self._properties)
        if self._device.where.family == "CPU" or all(spec.limits is None for spec in segment.inputs):
            return self._compile_once(segment)
        per_size = BySize(segment, self._compile_once)
        if per_size.has_state:  # a single request has to keep the state for all sizes
            return self._compile_once(segment, native=False)
        typical = per_size.at_typical_sizes()
        if typical.is_open:  # sizes also enter as values
            return self._compile_once(segment, native=False)
        with contextlib.suppress(DeviceError):
            all_sizes = self._compile_once(segment, native=False)
            with explaining(f"A segment fails on {self.name}"):
                if times_slower(all_sizes, typical, self._runnable) <= _SLOWER:
                    return all_sizes
        if not self._warned:
            self._warned = True
            _log.warning(
                "%s runs a segment faster that is compiled for one size: it compiles anew for each size, of which %d are kept. "
                "The first request of a size waits for that.",
                self.name,
                MAX_PROGRAMS,
            )
        return per_size

    @property
    def pages(self) -> bool:
        """True if its segments can keep caches in blocks, as on a CPU of the x86-64 architecture."""
        return self._device.where.family == "CPU" and machine().lower() in ("x86_64", "amd64")

    def _compile_once(self, segment: SegmentSource, *, native: bool = True) -> OpenVinoProgram:
        with explaining(f"OpenVINO cannot compile a segment for {self.name}"):
            model = segment.in_format("openvino")
            if self._native is not None and native:
                target, config = self._compiled_as
                with contextlib.suppress(DeviceError):  # a model with state; any other error is raised below, too
                    compiled = self._native.compile(model, target, for_model(model, config), segment.identity)
                    return OpenVinoProgram(segment, compiled, is_open=model.is_dynamic())
            states = dict[str, Any]()
            if self._device.where.family == "GPU" and model.get_variables():
                model, states = expose_growing_states(model)
            compiled = compile_model(model, self._device, self._precision, identity=segment.identity, **self._properties)
            return OpenVinoProgram(segment, compiled, is_open=model.is_dynamic(), states=states)

    def keeps(self, segment: SegmentSource) -> bool:
        """Return whether the program of a segment is on disk, most likely."""
        return is_kept(*self._compiled_as, lambda: segment.identity)

    def instance(self, program: Program) -> OpenVinoInstance | NativeInstance | BySizeInstance:
        """Make an infer request. Raises DeviceError."""
        return BySizeInstance(program, self._runnable) if isinstance(program, BySize) else self._runnable(program)

    def _runnable(self, program: Program) -> OpenVinoInstance | NativeInstance:
        made = narrowed(OpenVinoProgram, program)
        with explaining(f"OpenVINO cannot make buffers for {self.name}"):
            if isinstance(made.compiled, NativeModel):
                return NativeInstance(made)
            if isinstance(made, PagedProgram):
                return PagedInstance(made)
            if made.states:
                return CachingInstance(made)
            if self._device.where.family != "CPU" and any(spec.limits is not None for spec in made.inputs):
                return CopiedInstance(made)
            return OpenVinoInstance(made)

    def explain(self) -> str:
        """Return a message about the last error of the C library."""
        return f"Inference failed on {self.name}: {'' if self._native is None else self._native.explain()}"

    def allocate(self, spec: BufferSpec) -> HostBuffer:
        """Allocate host memory; the plugin of a GPU allocates USM host memory, unless the GPU lacks it."""
        if self._context is None or not spec.nbytes or spec.limits is not None:
            return HostBuffer(spec)
        openvino, dtype = import_openvino(), np.dtype(spec.dtype)
        with explaining(f"OpenVINO cannot allocate {spec.nbytes} bytes of host memory for {self.name}"):
            if isinstance(self._context, NativeContext):
                return HostBuffer(spec, self._context.allocate(spec.memory_shape, dtype))
            tensor = self._context.create_host_tensor(openvino.Type(dtype), openvino.Shape(spec.memory_shape))
            tensor.data[...] = 0
            return HostBuffer(spec, tensor)

    def _explain(self, error: BaseException) -> str:
        return f"Inference failed on {self.name}: {what_openvino_says(error)}"
