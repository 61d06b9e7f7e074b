"""Records what a program launches on a GPU as a CUDA graph, so that the host launches all of it by one call from then on."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias
from weakref import WeakKeyDictionary

import torch

from placeit.runtime.accelerators.accelerator import LoadedProgram

__all__ = ["CudaGraphs", "Graphs", "Recorder"]

_Addresses: TypeAlias = tuple[int, ...]


class Graphs(Protocol):
    """Makes a graph of launches, for one device."""

    def record(self, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        """Return an object whose method ``replay`` launches on the current stream what the program would launch now.

        Nothing is computed meanwhile, and what other threads launch is no part of it.

        Raises:
            RuntimeError: the program does something that no graph can hold.
        """
        ...


class CudaGraphs:
    """Records by PyTorch's CUDA graphs.

    All graphs of a device take what their programs compute on the way from one pool of memory: they are replayed on the one
    stream that the device's segments are launched on, so no two of them run at the same time, and what a program returns is in
    buffers of the executor.

    Args:
        device: as PyTorch spells it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        cuda: Any = torch.cuda
        # a stream of its own: on the device's, what other executors launch meanwhile would be recorded, too
        self._on, self._pool = cuda.stream(cuda.Stream(self._device)), cuda.graph_pool_handle()

    def record(self, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> Any:
        """Record on a stream of this object's own."""
        cuda: Any = torch.cuda
        graph = cuda.CUDAGraph()
        with self._lock:
            try:
                with self._on:
                    graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                    try:
                        program.launch(inputs, outputs)
                    finally:
                        graph.capture_end()
            except RuntimeError:
                self._begin()  # after a failure nothing can be recorded there any more
                raise
        return graph


class Recorder:
    """Launches programs, and replays what they launched where it was recorded.

    A program that has ``replayable``, which is true, launches the same kernels whenever it is given the same addresses. Its
    first launch at some addresses is like any other, and is recorded behind that. Where recording fails, as it does where
    memory runs out, the program is launched op by op for ever.

    Args:
        graphs: makes the records.
    """

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._made: WeakKeyDictionary[LoadedProgram, dict[_Addresses, Any]] = WeakKeyDictionary()  # None: it cannot be recorded

    def launch(self, program: LoadedProgram, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Launch on the current stream."""
        if not getattr(program, "replayable", False):
            program.launch(inputs, outputs)
            return
        made = self._made.setdefault(program, {})
        at = tuple(view.data_ptr() for view in (*inputs, *outputs))
        graph = made.get(at)
        if graph is not None:
            graph.replay()
            return
        program.launch(inputs, outputs)
        if at not in made:
            try:
                made[at] = self._graphs.record(program, inputs, outputs)
            except RuntimeError:  # torch.OutOfMemoryError and torch.AcceleratorError among others; the launch itself went well
                made[at] = None
