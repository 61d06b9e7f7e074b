"""Segments of ONNX models as programs for streams, run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from placeit.core.cluster import Device
from placeit.devices.onnxruntime import onnxruntime
from placeit.runtime.accelerators.torch_accelerator import TorchAccelerator
from placeit.runtime.devices.accelerator import Streams
from placeit.runtime.devices.base import BufferSpec, SegmentSource
from placeit.runtime.devices.ort import check_device, explaining, open_session, provider

__all__ = ["OrtStreamProgram", "open_streams", "ort_streams"]


def open_streams(devices: Sequence[Device], precision: str) -> Streams:
    """Open GPUs for ONNX Runtime. Raises DeviceError."""
    for device in devices:
        check_device(device, precision)
    return ort_streams(TorchAccelerator(devices))


def ort_streams(accelerator: TorchAccelerator) -> Streams:
    """Drive an accelerator with segments as sessions of ONNX Runtime."""
    return Streams(accelerator, lambda segment: OrtStreamProgram(segment, accelerator))


class OrtStreamProgram:
    """A segment with one session on each device that it is loaded onto, shared by all executors.

    A session computes on the stream that it was made for. That stream and the stream of the executor wait for each other's
    events. ONNX Runtime allocates intermediate tensors from an arena of the session, which is not accounted for here.

    Args:
        segment: what to run.
        accelerator: the devices to run it on.
    """

    def __init__(self, segment: SegmentSource, accelerator: TorchAccelerator) -> None:
        self._segment, self._accelerator = segment, accelerator
        self._sessions: WeakValueDictionary[torch.device, Any] = WeakValueDictionary()

    def workspace_bytes(self, enough: float) -> int:  # noqa: ARG002
        """Return 0, since it is not known."""
        return 0

    def weight_bytes(self, place: object) -> int:
        """Return the bytes of the segment's ONNX model; 0 if there is a session already."""
        return 0 if place in self._sessions else int(self._segment.in_format("onnx").ByteSize())

    def load(self, place: object) -> LoadedSession:
        """Make a session, or reuse the existing one. Raises DeviceError."""
        assert isinstance(place, torch.device)  # noqa: S101 (what TorchAccelerator.place returns)
        names, session, stream = self._accelerator.names, self._sessions.get(place), None
        number = next(d for d in range(len(names)) if self._accelerator.place(d) == place)
        if place.type == "cuda":
            stream = self._accelerator.shared_stream(number)
        if session is None:
            of = provider((place.index or 0) if place.type == "cuda" else None)
            if stream is not None:
                of[1]["user_compute_stream"] = str(stream.cuda_stream)
            session = self._sessions[place] = open_session(self._segment, names[number], of)
        return LoadedSession(session, place, (*self._segment.inputs, *self._segment.outputs), stream)


class LoadedSession:
    """A session that reads and writes tensors in place, and never waits.

    Args:
        session: on the device.
        place: the device.
        specs: of inputs, then outputs.
        stream: the session's (``torch.cuda.Stream``); None on the CPU.
    """

    def __init__(self, session: Any, place: torch.device, specs: Sequence[BufferSpec], stream: Any) -> None:
        self._session, self._place, self._specs, self._stream = session, place, specs, stream
        self._bindings: dict[tuple[int, ...], Any] = {}  # by addresses: one for each request in flight
        self._options = onnxruntime().RunOptions()
        self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")

    def launch(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Run the session behind what is on the current stream, and before what is launched there later."""
        here: Any = None if self._stream is None else torch.cuda.current_stream(self._place)
        with explaining("ONNX Runtime failed"):
            at = tuple(view.data_ptr() for view in (*inputs, *outputs))
            binding = self._bindings.get(at)
            if binding is None:
                binding = self._bindings[at] = self._bind(at)
            if here is not None:
                self._stream.wait_stream(here)
            self._session.run_with_iobinding(binding, self._options)
            if here is not None:
                here.wait_stream(self._stream)

    def _bind(self, at: tuple[int, ...]) -> Any:
        session, binding = self._session, self._session.io_binding()
        reads, writes = session.get_inputs(), session.get_outputs()
        ends = [(binding.bind_input, value) for value in reads] + [(binding.bind_output, value) for value in writes]
        for (bind, value), spec, address in zip(ends, self._specs, at, strict=True):
            bind(value.name, self._place.type, self._place.index or 0, np.dtype(spec.dtype).type, spec.memory_shape, address)
        return binding
