"""Devices that OpenVINO drives: CPU core sets, GPUs and NPUs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from placeit.cluster import Device
from placeit.devices.openvino_core import openvino_core
from placeit.errors import DeviceError
from placeit.runtime.blank import blank_value
from placeit.runtime.devices.base import Buffer, Done, Instance, Program, SegmentSource, TensorSpec
from placeit.runtime.devices.compiled import compile_cached
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.devices.worker import Worker, perform

if TYPE_CHECKING:
    from placeit.backends.base import Model
    from placeit.backends.coarsen import Grouping
    from placeit.backends.openvino import Model as OpenVinoModel

__all__ = ["KIND", "HostBuffer", "OpenVinoDevice", "OpenVinoProgram", "compile_model", "explaining"]

_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
"""C++ exceptions, as the bindings translate them."""


def _target(device: Device) -> str:
    return device.runs_on.partition("@")[0]


def _configuration(device: Device, precision: str) -> dict[str, Any]:
    """Return the properties that a model is compiled with for a device."""
    if device.runs_on == "CPU" and len(device.cores) > 1:
        # all of the machine is OpenVINO's own to divide, as it is for whoever compiles a model for low latency without placeit
        return {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    config: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision, "NUM_STREAMS": 1}
    if _target(device) == "CPU":
        threads = max(1, len(device.cores))
        config |= {"INFERENCE_NUM_THREADS": threads, "ENABLE_CPU_PINNING": False}
        if threads == 1:
            # A stream of one thread loses what a kernel throws: infer returns without an error, with the outputs of the run
            # before. It also starts two threads for each compiled model. Without streams inference runs in the calling thread
            # and nowhere else, its errors arrive, and it takes as long. With two threads and more none gets lost.
            config["NUM_STREAMS"] = 0
    return config


def compile_model(model: Any, device: Device, precision: str, **properties: Any) -> Any:
    """Compile an ``openvino.Model`` for a device, with further properties if need be. Raises DeviceError."""
    with explaining(f"OpenVINO cannot compile a model for {device.name}"):
        return compile_cached(openvino_core(), model, _target(device), _configuration(device, precision) | properties)


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Turn what OpenVINO raises into a DeviceError that says ``what`` went wrong."""
    try:
        yield
    except _FAILURES as error:
        raise DeviceError(f"{what}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Return the last line of what OpenVINO says, which is the one that matters."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


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
    """An infer request with its input tensors set once, so that running it moves no data and does no look-ups."""

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
    """An OpenVINO device with one request running at a time, on a thread of its own.

    A CPU core set of one core runs inference in its worker thread, which is bound to that core. A larger set gets as many
    inference threads as it has cores; only the calling one is bound, because OpenVINO's threads are shared by the process.
    ``CPU``, all cores, is left to OpenVINO with its latency hint: how many threads, and on which cores.

    Args:
        device: the device; ``runs_on`` names the real one.
        precision: inference precision, ``f32`` unless asked otherwise: OpenVINO's default would be bf16 on some CPUs, and
            results of different devices could not be compared.
        properties: further ones that segments are compiled with.
    """

    space = "host"

    def __init__(self, device: Device, *, precision: str = "f32", properties: Mapping[str, Any] | None = None) -> None:
        self.name = device.name
        self._device, self._precision, self._properties = device, precision, dict(properties or {})
        configuration = _configuration(device, precision) | self._properties
        self.program_key = f"openvino {_target(device)} {sorted(configuration.items())}"
        self._worker = Worker(f"placeit {device.name}", device.cores)

    @property
    def worker(self) -> Worker:
        """The thread that instances run on."""
        return self._worker

    def compile(self, segment: SegmentSource) -> OpenVinoProgram:
        """Compile a segment. Raises DeviceError."""
        with explaining(f"OpenVINO cannot compile a segment for {self.name}"):
            model = segment.openvino_model()
            return OpenVinoProgram(segment, compile_model(model, self._device, self._precision, **self._properties))

    def instance(self, program: Program) -> OpenVinoInstance:
        """Make an infer request. Raises DeviceError."""
        with explaining(f"OpenVINO cannot make buffers for {self.name}"):
            return OpenVinoInstance(cast("OpenVinoProgram", program))

    def allocate(self, spec: TensorSpec) -> HostBuffer:
        """Allocate host memory."""
        return HostBuffer(spec)

    def start(self, instance: Instance, done: Done) -> None:
        """Queue an instance."""
        self._worker.submit(functools.partial(perform, cast("OpenVinoInstance", instance).run, self._explain, done))

    def _explain(self, error: BaseException) -> str:
        return f"Inference failed on {self.name}: {_reason(error)}"

    def close(self) -> None:
        """Stop the worker thread."""
        self._worker.close()


def _read(model: Model, device: Device) -> OpenVinoModel:
    from placeit.backends.openvino import Model as OpenVinoModel

    if not isinstance(model, OpenVinoModel):
        raise DeviceError(
            f"OpenVINO drives {device.name}, and it did not read {model.path}: convert the model with `placeit export`, or "
            "choose other devices."
        )
    return model


def _supported(model: Model, device: Device) -> Collection[str]:
    ov_model = _read(model, device).ov_model
    with explaining(f"OpenVINO does not say what {device.name} supports"):
        return set(openvino_core().query_model(ov_model, _target(device)))


def _group_shares(model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> NDArray[np.float64]:
    from placeit.profiler.counters import group_shares

    return group_shares(_read(model, device), grouping, device, precision, passes=passes)


def _version() -> str:
    import openvino

    return f"OpenVINO {openvino.get_version()}"


KIND = DeviceKind(
    lambda device, precision: OpenVinoDevice(device, precision=precision), _supported, _group_shares, version=_version
)
