"""Records launches on a GPU as a CUDA graph, so that the host launches all of them by one call from then on."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from placeit.runtime.accelerators.library import Place, StreamLibrary

__all__ = ["Graphs", "Launch", "Recorder", "Recording", "StreamGraphs"]

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


class StreamGraphs:
    """Records graphs on a separate stream: elsewhere, launches of other executors would be recorded, too.

    All graphs that are replayed on one stream allocate intermediate tensors from one memory pool: no two of them run at the
    same time, and results are in buffers of the executor. Streams do not share pools.

    Args:
        library: makes the graphs.
        place: the device.
        recording: of the device.
    """

    def __init__(self, library: StreamLibrary, place: Place, recording: Recording) -> None:
        self._library, self._place, self._recording = library, place, recording
        self._pool = library.graph_pool()

    def record(self, launch: Launch) -> Callable[[], None] | None:
        """Launch the work, and record it on the separate stream; see :meth:`Graphs.record`."""
        library = self._library
        with self._recording.lock:
            stream, here = self._recording.stream, library.current(self._place)
            library.follow(stream, here)
            try:
                library.launch_on(stream, functools.partial(launch, stream))
            finally:
                library.follow(here, stream)
            replay = library.capture(stream, self._pool, launch)
            if replay is None:
                self._recording.renew()
                self._pool = library.graph_pool()
        return replay


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
