"""Segments of ONNX models as programs for streams, which ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from placeit.backends.onnx_external import OnnxFile
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.extras import import_extra, installed
from placeit.devices.onnxruntime import onnxruntime
from placeit.runtime.accelerators.library import LibraryStream, Place, StreamLibrary
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from placeit.runtime.devices.accelerator import Streams, View
from placeit.runtime.devices.base import BufferSpec, SegmentSource
from placeit.runtime.devices.ort import check_device, explaining, open_session, provider

__all__ = ["OrtStreamProgram", "open_streams", "ort_streams"]


def open_streams(devices: Sequence[Device], precision: str) -> Streams:
    """Open GPUs for ONNX Runtime. Raises DeviceError."""
    for device in devices:
        check_device(device, precision)
    return ort_streams(StreamAccelerator(devices, _library(devices[0].name)))


def _library(name: str) -> StreamLibrary:
    """Return CuPy as the library of streams; PyTorch if only that is installed. Raises DeviceError if both are missing."""
    if not installed("cupy") and installed("torch"):
        from placeit.runtime.accelerators.torch_library import TorchLibrary

        return TorchLibrary("cuda")
    import_extra(f"{name}: ONNX Runtime on an NVIDIA GPU", "cuda", "cupy", DeviceError)
    from placeit.runtime.accelerators.cupy_library import CupyLibrary

    return CupyLibrary()


def ort_streams(accelerator: StreamAccelerator) -> Streams:
    """Drive an accelerator with segments as sessions of ONNX Runtime."""
    return Streams(accelerator, lambda segment: OrtStreamProgram(segment, accelerator))


class OrtStreamProgram:
    """A segment with a session on each device that it is loaded onto. All executors share the sessions.

    A session computes on the stream that it was made for. This stream and the stream of the executor wait for each other's
    events. ONNX Runtime allocates intermediate tensors from an arena of the session, whose size is unknown.

    Args:
        segment: the segment.
        accelerator: the devices to run it on.
    """

    def __init__(self, segment: SegmentSource, accelerator: StreamAccelerator) -> None:
        self._segment, self._accelerator = segment, accelerator
        self._sessions: WeakValueDictionary[Place, Any] = WeakValueDictionary()

    def workspace_bytes(self, enough: float) -> int:  # noqa: ARG002
        """Return 0, since it is not known."""
        return 0

    def weight_bytes(self, place: Place) -> int:
        """Return the bytes of the segment's ONNX model; 0 if there is a session already."""
        return 0 if place in self._sessions else int(self._segment.in_format("onnx").ByteSize())

    def load(self, place: Place) -> LoadedSession:
        """Make a session, or reuse the existing one. Raises DeviceError."""
        accelerator, session = self._accelerator, self._sessions.get(place)
        gpu, names = accelerator.library.number(place), accelerator.names
        number = next(d for d in range(len(names)) if accelerator.place(d) == place)
        stream = None if gpu is None else accelerator.shared_stream(number)
        model = self._segment.in_format("onnx")
        if session is None:
            name, options = provider(gpu)
            if stream is not None:
                options["user_compute_stream"] = str(accelerator.library.handle(stream))
            session = self._sessions[place] = open_session(self._segment, names[number], (name, options), model=model)
        specs = (*self._segment.inputs, *self._segment.outputs)
        tensor_names = (*model.inputs, *model.outputs) if isinstance(model, OnnxFile) else ()
        return LoadedSession(session, accelerator.library, place, specs, stream, tensor_names)


class LoadedSession:
    """A session that reads and writes tensors in place, and never waits.

    Args:
        session: the session.
        library: library of the tensors and streams.
        place: the device.
        specs: shapes and types of the inputs, then of the outputs.
        stream: stream of the session; None on the CPU.
        names: names of the inputs and outputs, in the order of ``specs``; empty for the order of the session.
    """

    def __init__(
        self,
        session: Any,
        library: StreamLibrary,
        place: Place,
        specs: Sequence[BufferSpec],
        stream: LibraryStream | None,
        names: Sequence[str] = (),
    ) -> None:
        self._session, self._library, self._place, self._stream = session, library, place, stream
        self._specs, self._names = specs, names
        self._bindings: dict[tuple[int, ...], Any] = {}  # by addresses of the tensors: one for each request in flight
        self._options = onnxruntime().RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def launch(self, inputs: Sequence[View], outputs: Sequence[View]) -> None:
        """Run the session after everything on the current stream, and before what is launched there later."""
        library, stream = self._library, self._stream
        with explaining("ONNX Runtime failed"):
            at = tuple(map(library.address, (*inputs, *outputs)))
            binding = self._bindings.get(at)
            if binding is None:
                binding = self._bindings[at] = self._bind(at)
            if stream is None:
                self._session.run_with_iobinding(binding, self._options)
                return
            here = library.current(self._place)
            library.follow(stream, here)
            self._session.run_with_iobinding(binding, self._options)
            library.follow(here, stream)

    def _bind(self, at: tuple[int, ...]) -> Any:
        session, binding, gpu = self._session, self._session.io_binding(), self._library.number(self._place)
        where = ("cpu", 0) if gpu is None else ("cuda", gpu)
        reads, writes = session.get_inputs(), session.get_outputs()
        names = self._names or [value.name for value in (*reads, *writes)]
        ends = [binding.bind_input] * len(reads) + [binding.bind_output] * len(writes)
        for bind, name, spec, address in zip(ends, names, self._specs, at, strict=True):
            bind(name, *where, np.dtype(spec.dtype).type, spec.memory_shape, address)
        return binding
