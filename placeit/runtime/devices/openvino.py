"""Devices that OpenVINO drives: CPU core sets, GPUs and NPUs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import (
    compile_model,
    compile_properties,
    explaining,
    openvino_core,
    target_name,
    what_openvino_says,
)
from placeit.runtime.blank import blank_value
from placeit.runtime.devices.base import Buffer, BufferSpec, DoneCallback, Instance, Program, SegmentSource
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.devices.worker import Worker, perform

if TYPE_CHECKING:
    from placeit.backends.base import Model
    from placeit.backends.openvino.model import OpenVinoModel
    from placeit.planning.coarsen import Grouping

__all__ = ["KIND", "HostBuffer", "OpenVinoDevice", "OpenVinoProgram"]


class HostBuffer:
    """A tensor in host memory, shared with OpenVINO without a copy."""

    space = "host"

    def __init__(self, spec: BufferSpec, tensor: Any = None) -> None:
        openvino = import_openvino()
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

    def blank(self, sentinel: int) -> None:
        """Fill the memory."""
        self.tensor.data[...] = blank_value(self.tensor.data.dtype, sentinel)


class OpenVinoProgram:
    """A segment compiled by OpenVINO."""

    def __init__(self, segment: SegmentSource, compiled: Any) -> None:
        self.inputs = segment.inputs
        self.outputs = segment.outputs
        self.compiled = compiled


class OpenVinoInstance:
    """An infer request whose input tensors are set once, so that running it copies no data and looks nothing up."""

    def __init__(self, program: OpenVinoProgram) -> None:
        self.request = program.compiled.create_infer_request()
        self.run: Callable[[], object] = functools.partial(self.request.infer, share_outputs=True)
        if self.request.query_state():
            self.run = functools.partial(_run_from_initial_state, self.request)
        self._outputs = [HostBuffer(spec, self.request.get_output_tensor(i)) for i, spec in enumerate(program.outputs)]
        self._bound: dict[int, HostBuffer] = {}

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` from now on."""
        self._bound[index] = cast("HostBuffer", buffer)
        with explaining(f"A buffer does not fit input {index} of a segment"):
            self.request.set_input_tensor(index, self._bound[index].tensor)

    def output(self, index: int) -> HostBuffer:
        """Where output ``index`` is written."""
        return self._outputs[index]


def _run_from_initial_state(request: Any) -> None:
    # which request ran before in these buffers is chance, and nothing that a result may depend on
    request.reset_state()
    request.infer(share_outputs=True)


class OpenVinoDevice:
    """An OpenVINO device that runs one request at a time, on its own thread.

    A CPU core set of one core runs inference in its worker thread, which is bound to that core. A larger set gets as many
    inference threads as it has cores; only the calling one is bound, because OpenVINO's threads are shared by the process.
    ``CPU``, all cores, is left to OpenVINO with its latency hint: how many threads, and on which cores.

    Args:
        device: the device; its address names the real one.
        precision: inference precision, ``f32`` unless asked otherwise: OpenVINO's default would be bf16 on some CPUs, and
            results of different devices could not be compared.
        properties: further ones that segments are compiled with.
    """

    space = "host"

    def __init__(self, device: Device, *, precision: str = "f32", properties: Mapping[str, Any] | None = None) -> None:
        self.name = device.name
        self._device, self._precision, self._properties = device, precision, dict(properties or {})
        configuration = compile_properties(device, precision) | self._properties
        self.program_key = f"openvino {target_name(device)} {sorted(configuration.items())}"
        self._worker = Worker(f"placeit {device.name}", device.cores)

    @property
    def worker(self) -> Worker:
        """The thread that instances run on."""
        return self._worker

    def compile(self, segment: SegmentSource) -> OpenVinoProgram:
        """Compile a segment. Raises DeviceError."""
        with explaining(f"OpenVINO cannot compile a segment for {self.name}"):
            model = segment.in_format("openvino")
            return OpenVinoProgram(segment, compile_model(model, self._device, self._precision, **self._properties))

    def instance(self, program: Program) -> OpenVinoInstance:
        """Make an infer request. Raises DeviceError."""
        with explaining(f"OpenVINO cannot make buffers for {self.name}"):
            return OpenVinoInstance(cast("OpenVinoProgram", program))

    def allocate(self, spec: BufferSpec) -> HostBuffer:
        """Allocate host memory."""
        return HostBuffer(spec)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Queue an instance."""
        self._worker.submit(functools.partial(perform, cast("OpenVinoInstance", instance).run, self._explain, done))

    def _explain(self, error: BaseException) -> str:
        return f"Inference failed on {self.name}: {what_openvino_says(error)}"

    def close(self) -> None:
        """Stop the worker thread."""
        self._worker.close()


def _read(model: Model, device: Device) -> OpenVinoModel:
    from placeit.backends.openvino.model import OpenVinoModel

    if not isinstance(model, OpenVinoModel):
        raise DeviceError(
            f"OpenVINO drives {device.name}, and it did not read {model.path}: convert the model with `placeit export`, or "
            "choose other devices."
        )
    return model


def _supported(model: Model, device: Device) -> Collection[str]:
    ov_model = _read(model, device).ov_model
    with explaining(f"OpenVINO does not say what {device.name} supports"):
        return set(openvino_core().query_model(ov_model, target_name(device)))


def _group_shares(model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> NDArray[np.float64]:
    from placeit.runtime.devices.counters import group_shares

    return group_shares(_read(model, device), grouping, device, precision, passes=passes)


def _version() -> str:
    return f"OpenVINO {import_openvino().get_version()}"


KIND = DeviceKind(
    lambda device, precision: OpenVinoDevice(device, precision=precision), _supported, _group_shares, version=_version
)
