"""Devices that ONNX Runtime drives: CPU core sets and, through streams, NVIDIA GPUs, for ONNX models."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.onnx.sessions import initial_state
from placeit.backends.onnx_external import OnnxFile, session_source
from placeit.core import clock
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.core.sizes import fits
from placeit.core.telemetry import import_openvino
from placeit.core.threads import Worker
from placeit.devices.host import allowed_cores, one_per_physical_core
from placeit.devices.onnxruntime import explaining, onnxruntime, ort_failures, ort_reason, stopping
from placeit.runtime.devices.base import Buffer, BufferSpec, Program, SegmentSource
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.state import OTHER_FORM, fetched
from placeit.runtime.devices.worker import MAX_LENT_ALL_CORES_S, MAX_LENT_S, OnWorker

__all__ = [
    "OrtDevice",
    "OrtInstance",
    "OrtProgram",
    "check_device",
    "explaining",
    "on_gpu",
    "open_session",
    "provider",
    "refusals_here",
]

_MAX_SHAPES = 1024  # sets of input shapes for which an instance caches the shapes of its outputs
_MAX_SHAPE_BYTES = 64  # of an integer input that may be a shape, so that the sizes of outputs depend on its values


class OrtProgram:
    """A segment as an ONNX Runtime session.

    Attributes:
        states: initial values of its states, by name. The last inputs of the session are states, and its last outputs are their
            next values.
    """

    def __init__(self, segment: SegmentSource, model: Any, session: Any) -> None:
        self.inputs = segment.inputs
        self.outputs = segment.outputs
        self.session = session
        is_file = isinstance(model, OnnxFile)
        self.input_names = model.inputs if is_file else [value.name for value in session.get_inputs()]
        self.output_names = model.outputs if is_file else [value.name for value in session.get_outputs()]
        values = {value.name: value for value in session.get_inputs()}
        self.states = {name: initial_state(values[name]) for name in self.input_names[len(self.inputs) :]}


class _OpenBuffer(HostBuffer):
    """An output whose size depends on the data, in memory that ONNX Runtime allocated in the last run."""

    def replace(self, value: NDArray[np.generic]) -> None:
        """Replace the tensor by a value, without a copy."""
        data = np.require(value, requirements="C").view(self.spec.dtype)  # NumPy may have two types of 64 bits
        self.tensor = import_openvino().Tensor(data, shared_memory=True)


class OrtInstance:
    """An IO binding that reads and writes the memory of buffers in place. Instances on one thread share a session.

    In each run, ONNX Runtime allocates memory for outputs whose size depends on the data. In the first run at some sizes of the
    inputs, it also allocates the outputs with open sizes, which are then copied.
    """

    rebinds = True  # may read and write other buffers from one run to the next

    def __init__(self, program: OrtProgram) -> None:
        self._specs = program.inputs
        self._names = program.input_names
        self._open_inputs = [i for i, spec in enumerate(self._specs) if spec.limits is not None]
        self._shape_inputs = [
            i for i, spec in enumerate(self._specs) if np.dtype(spec.dtype).kind in "iu" and spec.nbytes <= _MAX_SHAPE_BYTES
        ]
        self._open_outputs = [i for i, spec in enumerate(program.outputs) if spec.limits is not None]
        # shapes of the outputs with open sizes, by the shapes and values of inputs that determine them
        self._output_shapes: dict[object, list[tuple[int, ...]]] = {}
        self._session = program.session
        self._read = {value.name for value in program.session.get_inputs()}  # converted models lack inputs without readers
        self._binding = program.session.io_binding()
        self._bound: dict[int, tuple[Buffer, Any]] = {}
        self._output_names = program.output_names
        shapes = {value.name: value.shape for value in program.session.get_outputs()}
        self._data_dependent: dict[int, _OpenBuffer] = {}
        self._outputs: list[HostBuffer] = []
        # in this order: the binding returns outputs in the order in which they were first bound
        for index, (name, spec) in enumerate(zip(self._output_names, program.outputs, strict=False)):
            if spec.limits is not None:
                self._outputs.append(HostBuffer(spec))
                self._binding.bind_output(name, "cpu")
            elif shapes[name] == list(spec.memory_shape):
                self._outputs.append(HostBuffer(spec))
                self.write_to(index, self._outputs[index])
            else:
                self._data_dependent[index] = _OpenBuffer(spec)
                self._outputs.append(self._data_dependent[index])
                self._binding.bind_output(name, "cpu")

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run. Raises DeviceError if it does not fit."""
        spec, array = self._specs[index], buffer.array()
        if not fits(array.shape, spec.shape, spec.limits) or array.dtype != np.dtype(spec.dtype):
            raise DeviceError(
                f"A buffer does not fit input {index} of a segment, {spec.dtype} {list(spec.shape)}: it holds {array.dtype} "
                f"{list(array.shape)}."
            )
        self._bound[index] = buffer, _ort_value(array, spec)
        if self._names[index] in self._read:
            self._binding.bind_ortvalue_input(self._names[index], self._bound[index][1])

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` in every later run."""
        made = narrowed(HostBuffer, buffer)
        self._outputs[index] = made
        if made.spec.limits is None:
            self._binding.bind_ortvalue_output(self._output_names[index], _ort_value(made.array(), made.spec))

    def output(self, index: int) -> HostBuffer:
        """Return the buffer that output ``index`` is written to."""
        return self._outputs[index]

    @property
    def in_c(self) -> Callable[[], object] | None:
        """The session's function, called as ``InferenceSession.run_with_iobinding`` does; None if sizes are open."""
        run = getattr(getattr(self._session, "_sess", None), "run_with_iobinding", None)
        binding = getattr(self._binding, "_iobinding", None)
        if self._open_inputs or self._open_outputs or self._data_dependent or run is None or binding is None:
            return None
        return functools.partial(run, binding, None)

    def run(self) -> None:
        """Compute the outputs."""
        if self._open_inputs or self._open_outputs:
            self._run_sized()
            return
        for index in self._data_dependent:  # or it would write to the memory of the last run
            self._binding.bind_output(self._output_names[index], "cpu")
        self._session.run_with_iobinding(self._binding)
        if self._data_dependent:
            outputs = self._binding.get_outputs()
            for index, buffer in self._data_dependent.items():
                buffer.replace(outputs[index].numpy())

    def _run_sized(self) -> None:
        """Compute the outputs at the present sizes of the inputs."""
        for index in self._open_inputs:
            self.bind(index, self._bound[index][0])
        input_shapes = tuple(self._bound[index][0].array().shape for index in self._open_inputs)
        key = input_shapes, *(self._bound[index][0].array().tobytes() for index in self._shape_inputs)
        shapes = self._output_shapes.get(key)
        for index, shape in zip(self._open_outputs, shapes or (), strict=False):
            self._outputs[index].resize(shape)
            value = _ort_value(self._outputs[index].array(), self._outputs[index].spec)
            self._binding.bind_ortvalue_output(self._output_names[index], value)
        for index in self._data_dependent if shapes is not None else (*self._data_dependent, *self._open_outputs):
            self._binding.bind_output(self._output_names[index], "cpu")
        self._session.run_with_iobinding(self._binding)
        outputs = self._binding.get_outputs() if self._data_dependent or shapes is None else []
        for index, buffer in self._data_dependent.items():
            buffer.replace(outputs[index].numpy())
        if shapes is None:
            for index in self._open_outputs:
                self._outputs[index].fill(outputs[index].numpy())
            if len(self._output_shapes) == _MAX_SHAPES:
                self._output_shapes.clear()
            self._output_shapes[key] = [self._outputs[index].array().shape for index in self._open_outputs]


class StatefulOrtInstance(OrtInstance):
    """An instance that passes the states of the last run, or the initial ones, to its session, and stores the next states."""

    in_c = None

    def __init__(self, program: OrtProgram) -> None:
        super().__init__(program)
        self._initial, self._keep, self._first = program.states, False, len(program.outputs)
        self._states: dict[str, Any] = {}
        for name in self._output_names[self._first :]:
            self._binding.bind_output(name, "cpu")
        self.reset_state()

    def run(self) -> None:
        """Compute the outputs and the next states."""
        if not self._keep:
            self.reset_state()
        for name, value in self._states.items():
            self._binding.bind_ortvalue_input(name, value)
        for name in self._output_names[self._first :]:  # or it would write to the memory of the states that it reads
            self._binding.bind_output(name, "cpu")
        self._output_shapes.clear()  # shapes of outputs may depend on the length of the states
        super().run()
        self._states = dict(zip(self._states, self._binding.get_outputs()[self._first :], strict=True))

    def keep_state(self, *, keep: bool) -> None:
        """Choose whether later runs continue from the current state, or each start from the initial one."""
        self._keep = keep

    def reset_state(self) -> None:
        """Return to the initial state."""
        self._states = {name: onnxruntime().OrtValue.ortvalue_from_numpy(value) for name, value in self._initial.items()}

    def states(self) -> dict[str, Any]:
        """Return copies of the states, by name."""
        tensor = import_openvino().Tensor
        return {name: tensor(value.numpy()) for name, value in self._states.items()}

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Set the states to values from ``states``. Raises DeviceError."""
        if not self._states.keys() <= states.keys():
            raise DeviceError(OTHER_FORM)
        values = {name: np.array(fetched(states[name]).data) for name in self._states}
        self._states = {name: onnxruntime().OrtValue.ortvalue_from_numpy(value) for name, value in values.items()}

    def state_bytes(self) -> int:
        """Return the size of its state in bytes."""
        return sum(math.prod(value.shape()) * self._initial[name].itemsize for name, value in self._states.items())


def _ort_value(array: NDArray[np.generic], spec: BufferSpec) -> Any:
    """Wrap host memory, without a copy."""
    data = spec.to_memory_order(array)
    if not data.flags.c_contiguous:
        raise DeviceError(
            f"A buffer of {spec.dtype} {list(spec.shape)} is not contiguous, and ONNX Runtime could only read a copy of it."
        )
    return onnxruntime().OrtValue.ortvalue_from_numpy(data)


class OrtDevice(OnWorker):
    """A CPU core set that runs one ONNX Runtime session at a time, on its own thread.

    A core set of one core computes only in the worker thread, which is bound to that core. For a larger set, each session
    starts as many threads as the set has cores, and binds them to the set.

    Args:
        device: the device (``ort:CPU@0``).
        precision: only ``f32``, as an ONNX model itself determines the types of its computations.

    Raises:
        DeviceError: ONNX Runtime is not installed, the precision is another one, or the cores may not be used.
    """

    space = "host"
    reads_in_place = True

    def __init__(self, device: Device, *, precision: str = "f32") -> None:
        check_device(device, precision)
        self.name = device.name
        # for the whole machine, ONNX Runtime's default is one thread for each physical core
        address = device.where
        self._cores = tuple(sorted(one_per_physical_core(device.cores))) if address.whole_cpu else device.cores
        # with several cores, each session has threads that are bound to these cores
        bound = self._cores if len(self._cores) > 1 else ""
        self._plain = device.plain
        self.program_key = f"onnxruntime {address.hardware} {bound} {'plain' if device.plain else ''}"
        self.worker = Worker(f"placeit {device.name}", device.cores)
        self.worker.lane.lends = MAX_LENT_ALL_CORES_S if address.whole_cpu else MAX_LENT_S

    def compile(self, segment: SegmentSource) -> OrtProgram:
        """Make a session of a segment. Raises DeviceError."""
        return self.compile_within(segment, math.inf)

    def compile_within(self, segment: SegmentSource, seconds: float) -> OrtProgram:
        """Make a session of a segment. Raises DeviceError, or ExecutionError after ``seconds``; a conversion ends first."""
        deadline = clock.now() + seconds
        model = segment.in_format("onnx")
        options = {"model": model, "plain": self._plain, "seconds": deadline - clock.now()}
        return OrtProgram(segment, model, open_session(segment, self.name, provider(None), self._cores, **options))

    def instance(self, program: Program) -> OrtInstance:
        """Make buffers for a program, and bind them. Raises DeviceError."""
        with explaining(f"ONNX Runtime cannot make buffers for {self.name}"):
            made = narrowed(OrtProgram, program)
            return StatefulOrtInstance(made) if made.states else OrtInstance(made)

    def allocate(self, spec: BufferSpec) -> HostBuffer:
        """Allocate host memory."""
        return HostBuffer(spec)

    def _explain(self, error: BaseException) -> str:
        return f"Inference failed on {self.name}: {ort_reason(error)}"


def check_device(device: Device, precision: str) -> None:
    """Check that ONNX Runtime supports a device.

    Raises:
        DeviceError: the precision is not ``f32``, or ONNX Runtime cannot use the device.
    """
    name, runtime = device.name, onnxruntime()
    if precision != "f32":
        raise DeviceError(
            f"{name}: ONNX Runtime computes in the types of the model, and the precision {precision} is for OpenVINO: convert "
            "the model itself, or choose devices that OpenVINO drives."
        )
    if not on_gpu(device):
        return
    if device.where.part != (1, 1):
        raise DeviceError(
            f"{name}: ONNX Runtime uses a whole GPU, and parts of one are for PyTorch models: name '{device.where.hardware}', "
            "or load the model in PyTorch."
        )
    if "CUDAExecutionProvider" not in runtime.get_available_providers():
        raise DeviceError(
            f"{name}: this ONNX Runtime ({runtime.__version__}) has no CUDAExecutionProvider: replace it, with `pip uninstall "
            "onnxruntime` and `pip install onnxruntime-gpu`."
        )


def on_gpu(device: Device) -> bool:
    """Return whether a device is an NVIDIA GPU."""
    return _gpu(device) is not None


def _gpu(device: Device) -> int | None:
    """Return the number of an NVIDIA GPU; None for a core set."""
    return device.where.number if device.where.family == "cuda" else None


def provider(gpu: int | None) -> tuple[str, dict[str, str]]:
    """Return the execution provider for an NVIDIA GPU, by its number, or for the CPU (None), with its options."""
    if gpu is None:
        return "CPUExecutionProvider", {}
    # without TF32: with its 10 bits of mantissa, outputs would differ from other devices' outputs
    return "CUDAExecutionProvider", {"device_id": str(gpu), "use_tf32": "0"}


def open_session(
    segment: SegmentSource,
    name: str,
    execution_provider: tuple[str, dict[str, str]],
    cores: tuple[int, ...] = (),
    *,
    model: Any = None,
    plain: bool = False,
    seconds: float = math.inf,
) -> Any:
    """Make a session of a segment for a device.

    Args:
        segment: the segment.
        name: name of the device.
        execution_provider: name and options of the execution provider; see :func:`provider`.
        cores: cores of a core set.
        model: the segment as an ONNX model; None to get it from ``segment``.
        plain: whether the device is the only one that runs.
        seconds: time limit, which ONNX Runtime has from version 1.22.

    Raises:
        ExecutionError: the time limit was reached.
        DeviceError: it cannot be compiled, the provider does not load, or the ONNX model has other shapes than the segment.
    """
    model = segment.in_format("onnx") if model is None else model
    what = f"ONNX Runtime cannot compile a segment for {name}"
    with explaining(what):
        session = _session(model, execution_provider, cores, plain=plain, seconds=seconds)
    if session.get_providers()[0] != execution_provider[0]:
        raise DeviceError(
            f"{what}: its {execution_provider[0]} does not load. Install the versions of CUDA and cuDNN that this "
            "onnxruntime-gpu was built for."
        )
    if isinstance(model, OnnxFile):  # its sizes may be open, and become known when it runs
        return session
    for ours, theirs in ((segment.inputs, session.get_inputs()), (segment.outputs, session.get_outputs())):
        wanted, found = [list(spec.memory_shape) for spec in ours], [value.shape for value in theirs[: len(ours)]]
        may_be_open = execution_provider[0] == "CPUExecutionProvider"
        if not all(one == two or (may_be_open and _is_open(two)) for one, two in zip(wanted, found, strict=True)):
            raise DeviceError(f"{what}: its inputs or outputs have the shapes {found} in the ONNX model, not {wanted}.")
    return session


def _is_open(shape: Sequence[object]) -> bool:
    """Return whether some sizes of a shape, or even their number, are unknown before ONNX Runtime has computed the tensor."""
    return not shape or not all(isinstance(size, int) for size in shape)


def _session(
    model: Any,
    execution_provider: tuple[str, dict[str, str]],
    cores: tuple[int, ...] = (),
    *,
    plain: bool = False,
    seconds: float = math.inf,
) -> Any:
    runtime = onnxruntime()
    options = runtime.SessionOptions()
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    uses_all_cores = plain and set(one_per_physical_core(allowed_cores())) <= set(cores)
    options.intra_op_num_threads = 0 if uses_all_cores else max(1, len(cores))  # 0 is ONNX Runtime's default
    options.log_severity_level = 4  # errors are raised; warnings about parts of a model do not help a user
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")  # compute in f32: the default is 8 bits
    if options.intra_op_num_threads > 1:
        # ONNX Runtime counts processors from one, and the list has no entry for the calling thread
        numbers = ",".join(str(core + 1) for core in cores)
        options.add_session_config_entry("session.intra_op_thread_affinities", ";".join([numbers] * (len(cores) - 1)))
    if options.intra_op_num_threads > 1 and not plain:
        # many sessions share the cores, and only one of them runs at a time: its threads may spin only while it runs
        options.add_session_config_entry("session.force_spinning_stop", "1")
    if execution_provider[0] != "CPUExecutionProvider":
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    source = model.model if isinstance(model, OnnxFile) else model
    with stopping(options, seconds):
        source = session_source(source, options)
        return runtime.InferenceSession(source, options, providers=[execution_provider], enable_fallback=0)


def refusals_here(device: Device, models: Sequence[Any]) -> tuple[str, list[str | None]]:
    """Return the version of ONNX Runtime, and for each model why it does not run it on a device; None if it does."""
    found: list[str | None] = []
    for model in models:
        try:
            _session(model, provider(_gpu(device)))
        except ort_failures() as error:
            found.append(ort_reason(error).removesuffix("."))
        else:
            found.append(None)
    return onnxruntime().__version__, found
