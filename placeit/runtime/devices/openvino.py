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
from placeit.runtime.devices.openvino_c import NativeContext, NativeModel, NativeOpenVino, NativeRequest, Spec, native_openvino
from placeit.runtime.devices.openvino_paged import PagedInstance, PagedProgram, compile_paged
from placeit.runtime.devices.openvino_requests import OpenVinoInstance, OpenVinoProgram, RequestInstance, copied
from placeit.runtime.devices.state import MayBePaged, fetched
from placeit.runtime.devices.worker import MAX_LENT_ALL_CORES_S, MAX_LENT_S, OnWorker

__all__ = ["HostBuffer", "NativeInstance", "OpenVinoDevice", "OpenVinoInstance", "OpenVinoProgram"]

_MAX_SLOWDOWN = 1.1  # of a program for all sizes, relative to a program for one size

_log = logging.getLogger("placeit")


class NativeInstance(RequestInstance):
    """An infer request of the C library, which a loop without Python can run.

    Attributes:
        run: runs it from Python.
    """

    def __init__(self, program: OpenVinoProgram) -> None:
        self.program = program
        self.request: NativeRequest = program.compiled.request()
        self.run = self._infer = self.request.infer
        self._make_outputs(program, self.request.output)

    @property
    def native(self) -> tuple[int, int] | None:
        """C function that runs it, and its argument; None if ``run`` has been replaced."""
        return self.request.entry if self.run is self._infer else None

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run."""
        self.request.set_input(index, _memory(narrowed(HostBuffer, buffer), self.program.compiled.inputs[index]))

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` in every later run."""
        made = narrowed(HostBuffer, buffer)
        self.request.set_output(index, _memory(made, self.program.compiled.outputs[index]))
        self._outputs[index] = made


def _memory(buffer: HostBuffer, port: Spec) -> Any:
    """Return the memory of a buffer for the C library: Python's tensor if sizes are open, else the library's, or an array."""
    if port[0] is None:
        return buffer.tensor
    return buffer.tensor.data if buffer.native is None else buffer.native


class CopiedInstance(OpenVinoInstance):
    """An infer request that writes outputs to its own memory, from which they are copied.

    The GPU plugin fails, or ends the process, if a program for open sizes writes to memory of the caller.
    """

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` in every later run."""
        self._outputs[index] = narrowed(HostBuffer, buffer)

    def run(self) -> None:
        """Run, and copy the outputs. Raises RuntimeError."""
        for index, buffer in self._bound.items():
            self.request.set_input_tensor(index, buffer.tensor)
        super().run()
        for index, buffer in enumerate(self._outputs):
            buffer.copy(self.request.get_output_tensor(index).data)


class CachingInstance(CopiedInstance):
    """An infer request that takes growing states as inputs, and stores the new states that it returns as outputs.

    If two requests of a program have variables that grow, OpenVINO's GPU plugin (2026.4) mixes them up: it computes with the
    state of another request, or fails ("Layout mismatch"), whenever a run has the sizes of the previous run.
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
    """An OpenVINO device that runs one request at a time, on a thread of the device.

    A CPU core set of one core runs inference in its worker thread, which is bound to that core. A larger set gets as many
    inference threads as it has cores; only the calling thread is bound, because OpenVINO's threads are shared by the process.
    For ``CPU``, all cores, OpenVINO chooses the number of threads and their cores by its latency hint.

    A GPU allocates buffers in USM host memory. An integrated GPU and the host use it in place; for a discrete GPU it is pinned.
    Inference blocks the worker thread, without Python's global interpreter lock, until the GPU has ended: OpenVINO enqueues the
    kernels on the calling thread. In asynchronous mode, a thread of OpenVINO would enqueue them and block, so that two threads
    would have to wake up.

    Devices use OpenVINO's C library, so that segments have native entries. They use the Python binding if the C library cannot
    be used or does not know the device, and for segments with state or counters.

    Args:
        device: the device; its address names the hardware.
        precision: inference precision, by default ``f32``: OpenVINO's default is bf16 on some CPUs, and results of different
            devices could not be compared.
        properties: further properties that segments are compiled with.
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
        self._context: Any = None  # allocates a GPU's memory, in the same OpenVINO core as the compiled models
        if device.where.family == "GPU":
            with contextlib.suppress(DeviceError):
                self._context = None if self._native is None else self._native.context(target_name(device))
            if self._context is None:
                self._native = None
                with explaining(f"OpenVINO cannot allocate memory for {device.name}"):
                    self._context = openvino_core().get_default_context(target_name(device))
        self._warned = False  # whether a warning was logged that this device compiles for each size
        self.worker = Worker(f"placeit {device.name}", device.cores)
        # a caller may run inference on its own thread, which is not bound to the device's cores
        self.worker.lane.lends = MAX_LENT_S if device.cores else MAX_LENT_ALL_CORES_S

    @property
    def shares_memory(self) -> bool:
        """True if it is a GPU, which uses the host memory of :meth:`allocate` directly."""
        return self._context is not None

    @property
    def pages(self) -> bool:
        """True if its segments can keep caches in blocks, as on a CPU of the x86-64 architecture."""
        return self._device.where.family == "CPU" and machine().lower() in ("x86_64", "amd64")

    def compile(self, segment: SegmentSource) -> OpenVinoProgram | BySize[OpenVinoProgram]:
        """Compile a segment. Raises DeviceError.

        On a CPU, a segment with open sizes is compiled into one program for all sizes. On other devices, a program for all
        sizes and one for the typical sizes are compiled and timed. If the first takes more than 1.1 times as long, or fails,
        a program is compiled for each size.
        """
        if self.pages and isinstance(segment, MayBePaged):
            with explaining(f"OpenVINO cannot compile a segment for {self.name}"):
                if (model := segment.paged()) is not None:
                    return compile_paged(segment, model, self._device, self._precision, self._properties)
        if self._device.where.family == "CPU" or all(spec.limits is None for spec in segment.inputs):
            return self._compile_once(segment)
        per_size = BySize(segment, self._compile_once)
        # a single request has to keep the state for all sizes; and sizes may also be values of inputs
        if per_size.has_state or (typical := per_size.at_typical_sizes()).is_open:
            return self._compile_once(segment, native=False)
        with contextlib.suppress(DeviceError):
            all_sizes = self._compile_once(segment, native=False)
            with explaining(f"A segment fails on {self.name}"):
                if times_slower(all_sizes, typical, self._runnable) <= _MAX_SLOWDOWN:
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
        """Return whether the program of a segment is probably on disk."""
        return is_kept(*self._compiled_as, lambda: segment.identity)

    def instance(self, program: Program) -> OpenVinoInstance | NativeInstance | BySizeInstance:
        """Make an instance of a program. Raises DeviceError."""
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
        """Return the message of the last error of the C library."""
        return f"Inference failed on {self.name}: {'' if self._native is None else self._native.explain()}"

    def allocate(self, spec: BufferSpec) -> HostBuffer:
        """Allocate host memory. The plugin of a GPU allocates USM host memory if the GPU has it."""
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
