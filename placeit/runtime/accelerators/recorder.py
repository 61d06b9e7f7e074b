"""Records what a program launches on a GPU as a CUDA graph, so that the host launches all of it by one call from then on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import torch

from placeit.runtime.devices.accelerator import LoadedProgram

__all__ = ["CudaGraphs", "Graphs", "Recorder"]

_Addresses: TypeAlias = tuple[int, ...]

_TRIES = 2


class Graphs(Protocol):
    """Makes a graph of launches, for one device."""

    def record(self, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        """Launch a program in the order of the current stream, and return an object whose method ``replay`` does that again.

        What other threads launch meanwhile is no part of it.

        Raises:
            DeviceError: the launch failed.

        Returns:
            None if the launch went well, but the program does something that no graph can hold.
        """
        ...


class CudaGraphs:
    """Records by PyTorch's CUDA graphs, on a stream of its own: on the device's, launches of other executors would be recorded.

    The launch that comes before the record is on that stream, too, as libraries set things up at their first use of a stream,
    and no graph can hold that.

    All graphs of a device take what their programs compute on the way from one pool of memory: they are replayed on the one
    stream that the device's segments are launched on, so no two of them run at the same time, and what a program returns is in
    buffers of the executor.

    Args:
        device: as PyTorch spells it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._renew()

    def _renew(self) -> None:
        cuda: Any = torch.cuda
        self._stream, self._pool = cuda.Stream(self._device), cuda.graph_pool_handle()

    def record(self, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        """Launch and record."""
        cuda: Any = torch.cuda
        with self._lock:
            here, graph = cuda.current_stream(self._device), cuda.CUDAGraph()
            self._stream.wait_stream(here)
            try:
                with cuda.stream(self._stream):
                    program.launch(inputs, outputs)
            finally:
                here.wait_stream(self._stream)
            try:
                with cuda.stream(self._stream):
                    graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                    try:
                        program.launch(inputs, outputs)
                    finally:
                        graph.capture_end()
            except RuntimeError:  # torch.OutOfMemoryError and torch.AcceleratorError among others
                # PyTorch's allocator may go on to look into the graph, and to take the pool and the stream for being recorded
                _failed.append(graph)
                self._renew()
                return None
        return graph


_failed: list[Any] = []  # a few bytes each


class Recorder:
    """Launches programs, and replays what they launched where it was recorded.

    A program that has ``replayable``, which is true, launches the same kernels whenever it is given the same addresses. Its
    first launch at some addresses is recorded. Where that fails, as it does where memory runs out, it is tried once more; then
    the program is launched op by op for ever.

    Args:
        graphs: makes the records.
    """

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._made: WeakKeyDictionary[LoadedProgram, dict[_Addresses, list[Any]]] = WeakKeyDictionary()

    def launch(self, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Launch on the current stream."""
        if not getattr(program, "replayable", False):
            program.launch(inputs, outputs)
            return
        at = tuple(view.data_ptr() for view in (*inputs, *outputs))
        tries = self._made.setdefault(program, {}).setdefault(at, [])
        if tries and tries[-1] is not None:
            tries[-1].replay()
        elif len(tries) < _TRIES:
            tries.append(self._graphs.record(program, inputs, outputs))
        else:
            program.launch(inputs, outputs)

    def recorded(self) -> list[bool]:
        """Say for each program and each set of addresses whether there is a record; for tests."""
        return [tries[-1] is not None for made in self._made.values() for tries in made.values()]
