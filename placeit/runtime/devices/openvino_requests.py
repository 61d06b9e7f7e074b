"""Programs that OpenVINO's Python binding or C library has compiled, and infer requests of the Python binding."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.core.telemetry import import_openvino
from placeit.devices.compiled import from_cache
from placeit.devices.openvino import explaining
from placeit.runtime.devices.base import Buffer, SegmentSource
from placeit.runtime.devices.counters import counted_kernels
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.kernels import CountedKernel
from placeit.runtime.devices.openvino_c import NativeModel
from placeit.runtime.devices.state import OTHER_FORM, fetched

__all__ = ["OpenVinoInstance", "OpenVinoProgram", "RequestInstance", "copied"]


class OpenVinoProgram:
    """A segment compiled by OpenVINO, through its C library if possible, or else through its Python binding.

    Args:
        segment: the segment.
        compiled: the compiled model, of the C library or the Python binding.

    Attributes:
        is_open: whether a size in it is open, so that a request has no memory for outputs before a run.
        states: initial values, by name, of states that are the last inputs and outputs of the compiled model.
        from_disk: whether an earlier compilation was loaded from disk.
    """

    def __init__(
        self, segment: SegmentSource, compiled: Any, *, is_open: bool, states: Mapping[str, Any] | None = None
    ) -> None:
        self.is_open, self.states = is_open, states or {}
        self.inputs = segment.inputs
        self.outputs = segment.outputs
        self.compiled = compiled
        self.segment = segment  # its model may own the memory of weights
        self.from_disk = from_cache(compiled)

    def counted(self) -> list[CountedKernel]:
        """Return its kernels and their times; empty if it was compiled without counters."""
        return [] if isinstance(self.compiled, NativeModel) else counted_kernels(self.compiled)

    def recover(self) -> None:
        """Run on zeros of the minimum or typical sizes in a separate request, so that the program works after a failed run.

        After a failed run, OpenVINO's CPU plugin (2026.4) fails in every request with the sizes of the last successful run,
        until a request with other sizes has run.
        """
        request = self.compiled.create_infer_request()
        for minimum in (True, False):
            with contextlib.suppress(RuntimeError):
                for i, spec in enumerate(self.inputs):
                    limits = spec.in_memory(spec.limits) if minimum and spec.limits is not None else None
                    shape = spec.memory_shape if limits is None else [low for low, _ in limits]
                    request.set_input_tensor(i, import_openvino().Tensor(np.zeros(shape, spec.dtype)))
                request.infer()
                return


class RequestInstance(ABC):
    """An infer request whose tensors are set once, so that a run copies nothing and looks nothing up in Python.

    Tensors that a GPU's plugin has allocated for the same GPU are not copied.
    """

    rebinds = True  # may read and write other buffers from one run to the next

    def _make_outputs(self, program: OpenVinoProgram, own_tensor: Callable[[int], Any]) -> None:
        """Make output buffers: in memory of the request, which ``own_tensor`` returns, or in new memory if sizes are open."""
        self._outputs: list[HostBuffer] = []
        for i, spec in enumerate(program.outputs):
            own = spec.limits is None and not program.is_open
            self._outputs.append(HostBuffer(spec, own_tensor(i) if own else None))
            if not own:
                self.write_to(i, self._outputs[i])

    @abstractmethod
    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` in every later run."""

    def output(self, index: int) -> HostBuffer:
        """Return the buffer that output ``index`` is written to."""
        return self._outputs[index]


class OpenVinoInstance(RequestInstance):
    """An infer request of the Python binding.

    Args:
        program: the program.
        infer: function that runs an infer request.
    """

    def __init__(self, program: OpenVinoProgram, infer: Callable[[Any], object] | None = None) -> None:
        self.program = program
        self.request = program.compiled.create_infer_request()
        self._infer = infer or _infer
        self._variables, self._keep = self.request.query_state(), False
        self._make_outputs(program, self.request.get_output_tensor)
        self._bound: dict[int, HostBuffer] = {}

    def bind(self, index: int, buffer: Buffer) -> None:
        """Read input ``index`` from ``buffer`` in every later run."""
        self._bound[index] = narrowed(HostBuffer, buffer)
        with explaining(f"A buffer does not fit input {index} of a segment"):
            self.request.set_input_tensor(index, self._bound[index].tensor)

    def write_to(self, index: int, buffer: Buffer) -> None:
        """Write output ``index`` to ``buffer`` in every later run."""
        made = narrowed(HostBuffer, buffer)
        with explaining(f"A buffer does not fit output {index} of a segment"):
            self.request.set_output_tensor(index, made.tensor)
        self._outputs[index] = made

    def run(self) -> None:
        """Run in the calling thread. Raises RuntimeError."""
        if self._variables and not self._keep:
            self.reset_state()  # results must not depend on earlier requests
        try:
            self._infer(self.request)
        except RuntimeError:
            if self.program.is_open:
                self.program.recover()
            raise

    def keep_state(self, *, keep: bool) -> None:
        """Choose whether later runs continue from the current state, or each start from the initial one."""
        self._keep = keep

    def reset_state(self) -> None:
        """Return to the initial state."""
        self.request.reset_state()

    def states(self) -> dict[str, Any]:
        """Return copies of the variables' values, as ``openvino.Tensor`` by name."""
        return {variable.name: copied(variable.state) for variable in self._variables}

    def set_states(self, states: Mapping[str, Any]) -> None:
        """Set its variables to values from ``states``. Raises DeviceError."""
        with explaining("A segment cannot take over the state of another one"):
            for variable in self._variables:
                if variable.name not in states:
                    raise DeviceError(OTHER_FORM)
                variable.state = fetched(states[variable.name])

    def state_bytes(self) -> int:
        """Return the bytes of its variables' values. For the cache of an attention, OpenVINO copies the value."""
        return sum(int(variable.state.byte_size) for variable in self._variables)


def _infer(request: Any) -> None:
    request.infer(share_outputs=True)


def copied(tensor: Any) -> Any:
    """Return a copy of an ``openvino.Tensor``."""
    copy = import_openvino().Tensor(tensor.element_type, tensor.shape)
    tensor.copy_to(copy)
    return copy
