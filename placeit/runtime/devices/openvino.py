"""Devices that OpenVINO drives: CPU core sets, GPUs and NPUs."""

from __future__ import annotations

import functools
from time import perf_counter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from placeit.cluster import Device
from placeit.errors import DeviceError, ExecutionError
from placeit.runtime.devices.base import Buffer, Done, Instance, Program, SegmentSource, TensorSpec
from placeit.runtime.devices.worker import Worker

__all__ = ["HostBuffer", "OpenVinoDevice", "configuration", "core"]


@functools.cache
def core() -> Any:
    """Return the process's OpenVINO core: plugins and their thread pool are loaded once."""
    import openvino

    return openvino.Core()


def configuration(device: Device, precision: str) -> dict[str, Any]:
    """Return the properties that a model is compiled with for a device."""
    config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision, "NUM_STREAMS": 1}
    if device.runs_on.partition("@")[0] == "CPU":
        config |= {"INFERENCE_NUM_THREADS": max(1, len(device.cores)), "ENABLE_CPU_PINNING": False}
    return config


class HostBuffer:
    """A tensor in host memory, shared with OpenVINO without a copy."""

    space = "host"

    def __init__(self, spec: TensorSpec, tensor: Any = None) -> None:
        import openvino

        self.spec = spec
        self.tensor = openvino.Tensor(np.zeros(spec.memory_shape, spec.dtype), shared_memory=True) if tensor is None else tensor

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return int(self.tensor.get_byte_size())

    def array(self) -> NDArray[np.generic]:
        """View the value in its logical shape."""
        data = cast("NDArray[np.generic]", self.tensor.data)
        return data.transpose(0, 3, 1, 2) if self.spec.channels_last else data


class OpenVinoProgram:
    """A segment compiled by OpenVINO."""

    def __init__(self, segment: SegmentSource, compiled: Any) -> None:
        self.inputs = segment.inputs
        self.outputs = segment.outputs
        self.compiled = compiled


class OpenVinoInstance:
    """An infer request with its input tensors set once, so that running it moves no data and does no look-ups."""

    def __init__(self, program: OpenVinoProgram) -> None:
        self.request = program.compiled.create_infer_request()
        self.run = functools.partial(self.request.infer, share_outputs=True)
        self._outputs = [HostBuffer(spec, self.request.get_output_tensor(i)) for i, spec in enumerate(program.outputs)]
        self._bound: dict[int, HostBuffer] = {}

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` from now on."""
        self._bound[index] = cast("HostBuffer", buffer)
        self.request.set_input_tensor(index, self._bound[index].tensor)

    def output(self, index: int) -> HostBuffer:
        """Where output ``index`` is written."""
        return self._outputs[index]


class OpenVinoDevice:
    """An OpenVINO device with one request running at a time, on a thread of its own.

    A CPU core set of one core runs inference in its worker thread, which is bound to that core. A larger set gets as many
    inference threads as it has cores; only the calling one is bound, because OpenVINO's threads are shared by the process.

    Args:
        device: the device; ``runs_on`` names the real one.
        precision: inference precision, ``f32`` unless asked otherwise: OpenVINO's default would be bf16 on some CPUs, and
            results of different devices could not be compared.
    """

    space = "host"

    def __init__(self, device: Device, *, precision: str = "f32") -> None:
        self.name = device.name
        self._target = device.runs_on.partition("@")[0]
        self.config = configuration(device, precision)
        self.program_key = f"openvino {self._target} {sorted(self.config.items())}"
        self._worker = Worker(f"placeit {device.name}", device.cores)

    def compile(self, segment: SegmentSource) -> OpenVinoProgram:
        """Compile a segment. Raises DeviceError."""
        try:
            compiled = core().compile_model(segment.openvino_model(), self._target, self.config)
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise DeviceError(f"OpenVINO cannot compile a segment for {self.name}: {reason}") from error
        return OpenVinoProgram(segment, compiled)

    def instance(self, program: Program) -> OpenVinoInstance:
        """Make an infer request."""
        return OpenVinoInstance(cast("OpenVinoProgram", program))

    def allocate(self, spec: TensorSpec) -> HostBuffer:
        """Allocate host memory."""
        return HostBuffer(spec)

    def start(self, instance: Instance, done: Done) -> None:
        """Queue an instance."""
        self._worker.submit(functools.partial(self._run, cast("OpenVinoInstance", instance).run, done))

    def _run(self, infer: Any, done: Done) -> None:
        begin = perf_counter()
        try:
            infer()
        except RuntimeError as error:
            failure = ExecutionError(f"Inference failed on {self.name}: {str(error).strip().splitlines()[-1]}")
            done(begin, perf_counter(), failure)
        else:
            done(begin, perf_counter(), None)

    def close(self) -> None:
        """Stop the worker thread."""
        self._worker.close()
