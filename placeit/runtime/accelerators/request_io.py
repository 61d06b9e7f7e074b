"""Inputs and outputs of requests on streams: in pinned memory of the host, or in arrays of callers on GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from placeit.backends.base import Arrays
from placeit.backends.checking import check_inputs, checked_inputs
from placeit.core.arrays import GpuArray, gpu_array
from placeit.core.errors import UsageError
from placeit.runtime.accelerators.launcher import Launcher
from placeit.runtime.devices.accelerator import HOST, View
from placeit.runtime.devices.base import BufferSpec

__all__ = ["RequestIO"]


class RequestIO:
    """Writes the inputs and reads the outputs of the requests of an executor.

    An input of the model has a buffer in pinned memory, which is copied to the devices that read it. An array on a GPU replaces
    the buffer if only that GPU reads the input; the array is then copied within the GPU's memory. In the same way, an output
    that a GPU computes may be copied to an array there.

    Args:
        launcher: the launcher of the requests.
        inputs: shape and type of each input, by name.
    """

    def __init__(self, launcher: Launcher, inputs: Mapping[str, BufferSpec]) -> None:
        self._launcher, self._accelerator, self._wanted = launcher, launcher.accelerator, inputs
        layout, work = launcher.layout, launcher.layout.work
        self._inputs = {name: layout.buffer_of[value, HOST] for name, value in work.inputs.items()}
        self._outputs = {name: layout.buffer_of[value, HOST] for name, value in work.outputs.items()}
        self._readers = {name: self._only_user(b, reads=True) for name, b in self._inputs.items()}
        self._writers = {name: self._only_user(b, reads=False) for name, b in self._outputs.items()}

    def _only_user(self, buffer: int, *, reads: bool) -> int | None:
        """Return the device that copies from or to a buffer of the host if only this copy uses the buffer; else None."""
        layout, work = self._launcher.layout, self._launcher.layout.work
        handed_through = set(work.inputs.values()) & set(work.outputs.values())
        if layout.specs[buffer].channels_last or buffer in {layout.buffer_of[value, HOST] for value in handed_through}:
            return None
        users = [one for one in layout.launches if buffer in (*one.reads, *one.writes)]
        if len(users) != 1 or users[0].program is not None or (buffer in users[0].reads) != reads:
            return None
        return layout.streams[users[0].stream]

    def checked(self, inputs: Arrays) -> dict[str, Any]:
        """Return inputs in the model's order and types. Arrays on the GPU that reads them are returned as :class:`GpuArray`.

        The thread of the caller calls this, as its current streams may still be writing the arrays.

        Raises:
            UsageError: an input is missing or unknown, or its shape or type differs from the model's.
        """
        on_gpus: dict[str, GpuArray] = {}
        for name, given in inputs.items():
            array, device = gpu_array(f"The input '{name}'", given), self._readers.get(name)
            if array is not None and device is not None:
                check_inputs({name: (array.shape, array.dtype)}, {name: self._wanted[name]})
                if array.dtype == np.dtype(self._wanted[name].dtype):
                    self._adopt(f"The input '{name}'", array)
                    if array.place == self._accelerator.place(device):
                        on_gpus[name] = array
        on_host = {name: given for name, given in inputs.items() if name not in on_gpus}
        checked = checked_inputs(on_host, {name: spec for name, spec in self._wanted.items() if name not in on_gpus})
        return {name: on_gpus[name] if name in on_gpus else checked[name] for name in self._wanted}

    def adopted(self, name: str, array: GpuArray) -> GpuArray:
        """Prepare an array to have an output written to it.

        Raises:
            UsageError: the array is not on the GPU that computes the output.
        """
        device = self._writers.get(name)
        if device is not None:
            self._adopt(f"The array in 'out' for '{name}'", array)
            if array.place == self._accelerator.place(device):
                return array
        where = "the host" if device is None else self._accelerator.names[device]
        raise UsageError(f"'out' has an array on a GPU for '{name}', which {where} computes: give an array there.")

    def on_device(self) -> dict[str, GpuArray]:
        """Allocate arrays for outputs on the GPUs that compute them. Raises NoRoomError."""
        found, accelerator = {}, self._accelerator
        for name, device in self._writers.items():
            if device is not None and accelerator.memory(device) != HOST:
                spec = self._launcher.layout.specs[self._outputs[name]]
                view = accelerator.view(accelerator.allocate(device, max(1, spec.nbytes)), spec)
                place, dtype = accelerator.place(device), np.dtype(spec.dtype)
                found[name] = GpuArray(accelerator.array(view), spec.shape, dtype, place, view)
        return found

    def _adopt(self, what: str, array: GpuArray) -> None:
        if array.view is None:
            try:
                array.place, array.view, array.ready = self._accelerator.adopt(array.value)
            except (RuntimeError, ValueError, TypeError, BufferError) as error:
                raise UsageError(f"{what} cannot be used in place ({error}): copy it.") from error

    def put(self, request: int, inputs: Mapping[str, Any]) -> None:
        """Give a request its checked inputs. The request must not be in flight."""
        given = self._launcher.slots[request].caller_arrays
        for name, value in inputs.items():
            buffer = self._inputs[name]
            if isinstance(value, GpuArray):
                given[buffer] = value
            else:
                given.pop(buffer, None)
                self._accelerator.write(self._view(buffer, request), value)
        if given:
            self._launcher.separate_copies()

    def write_to(self, request: int, out: Mapping[str, GpuArray]) -> None:
        """Set arrays for outputs of a request, which must not be in flight; other outputs go to the host."""
        given = self._launcher.slots[request].caller_arrays
        for name, device in self._writers.items():
            if device is not None:
                given.pop(self._outputs[name], None)
        given.update({self._outputs[name]: array for name, array in out.items()})
        if given:
            self._launcher.separate_copies()

    def get(self, request: int) -> dict[str, Any]:
        """Return the outputs of a request that has ended: copies, or the arrays that they were written to."""
        given, found = self._launcher.slots[request].caller_arrays, dict[str, Any]()
        for name, buffer in self._outputs.items():
            there = None if self._writers[name] is None else given.get(buffer)
            found[name] = self._accelerator.read(self._view(buffer, request)) if there is None else there.value
        return found

    def _view(self, buffer: int, request: int) -> View:
        return self._launcher.slots[request].views[buffer]
