"""Records launches on a GPU as a CUDA graph, so that the host launches all of them by one call from then on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import torch

__all__ = ["CudaGraphs", "Graphs", "Launch", "Recorder", "Recording"]

Launch: TypeAlias = Callable[[Any], None]
"""Launches some work on a stream, which is the current one."""

_TRIES = 2


class Graphs(Protocol):
    """Makes graphs of launches, for one stream of a device."""

    def record(self, launch: Launch) -> Callable[[], None] | None:
        """Launch some work in the order of the current stream, and return a call that does that again.

        Launches of other threads at that time are not part of it.

        Raises:
            DeviceError: the launch failed.

        Returns:
            A call that launches the work again; None if the launch succeeded, but no graph can hold the work.
        """
        ...


class Recording:
    """The stream that everything on a device is recorded on, one record at a time.

    The launch that comes before the record is on that stream, too, as libraries set things up at their first use of a stream,
    and no graph can hold that.

    Args:
        open_stream: makes a stream of the device that is not used for anything else.
    """

    def __init__(self, open_stream: Callable[[], Any]) -> None:
        self.lock = threading.Lock()
        self._open = open_stream
        self.renew()

    def renew(self) -> None:
        """Record on another stream from now on."""
        self.stream = self._open()


class CudaGraphs:
    """Records CUDA graphs with PyTorch, on a separate stream: elsewhere, launches of other executors would be recorded, too.

    All graphs that are replayed on one stream allocate intermediate tensors from one memory pool: no two of them run at the
    same time, and results are in buffers of the executor. Streams do not share pools.

    Args:
        device: as PyTorch spells it.
        recording: of the device.
    """

    def __init__(self, device: torch.device, recording: Recording) -> None:
        self._device, self._recording = device, recording
        self._pool = self._new_pool()

    def _new_pool(self) -> Any:
        cuda: Any = torch.cuda
        return cuda.graph_pool_handle()

    def record(self, launch: Launch) -> Callable[[], None] | None:
        """Launch the work, and record it on the separate stream; see :meth:`Graphs.record`."""
        cuda: Any = torch.cuda
        with self._recording.lock:
            stream = self._recording.stream
            here, graph = cuda.current_stream(self._device), cuda.CUDAGraph()
            stream.wait_stream(here)
            try:
                with cuda.stream(stream):
                    launch(stream)
            finally:
                here.wait_stream(stream)
            try:
                with cuda.stream(stream):
                    graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                    try:
                        launch(stream)
                    finally:
                        graph.capture_end()
            except RuntimeError:  # torch.OutOfMemoryError and torch.AcceleratorError among others
                # PyTorch's allocator may still refer to the graph, and treat the pool and the stream as being recorded
                _failed.append(graph)
                self._recording.renew()
                self._pool = self._new_pool()
                return None
        replay: Callable[[], None] = graph.replay
        return replay


_failed: list[Any] = []  # a few bytes each


class Recorder:
    """Launches the same work again and again, by replaying a recorded graph where that is possible.

    The first launch is recorded. Where that fails, as it does where memory runs out, it is tried once more; after that the
    work is launched op by op.

    Args:
        graphs: makes the records; None if the work is not to be recorded.
        stream: the stream to launch on.

    """

    def __init__(self, graphs: Graphs | None, stream: Any) -> None:
        self._stream, self._graphs, self._tries = stream, graphs, 0
        self._replay: Callable[[], None] | None = None

    @property
    def recorded(self) -> bool:
        """True if there is a record."""
        return self._replay is not None

    @property
    def refused(self) -> bool:
        """True if recording has failed for the last time."""
        return self._replay is None and self._tries == _TRIES

    def __call__(self, launch: Launch) -> None:
        """Launch on the stream, which is the current one.

        Args:
            launch: launches the same kernels at the same addresses each time, if there are graphs.
        """
        if self._replay is not None:
            self._replay()
        elif self._graphs is not None and self._tries < _TRIES:
            self._tries += 1
            self._replay = self._graphs.record(launch)
        else:
            launch(self._stream)
