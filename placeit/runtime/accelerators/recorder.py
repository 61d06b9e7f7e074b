"""Record launches on a GPU as a CUDA graph, which the host launches later by one call."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, TypeAlias

from placeit.runtime.accelerators.library import Place, StreamLibrary

__all__ = ["Launch", "Recorder", "Recording", "StreamGraphs"]

Launch: TypeAlias = Callable[[Any], None]
"""Launches some work on a stream, which is the current stream."""

_TRIES = 2


class Recording:
    """The stream on which graphs of a device are recorded, one at a time.

    The work is launched once on this stream before it is recorded. Libraries initialize themselves at their first use of a
    stream, which cannot be recorded.

    Args:
        open_stream: opens a stream of the device that is used for nothing else.
    """

    def __init__(self, open_stream: Callable[[], Any]) -> None:
        self.lock = threading.Lock()
        self._open = open_stream
        self.renew()

    def renew(self) -> None:
        """Record on another stream from now on, after a failure."""
        self.stream = self._open()


class StreamGraphs:
    """Records graphs on a separate stream, as launches of other executors would be recorded on any other stream.

    All graphs that are replayed on one stream allocate intermediate tensors from one memory pool: no two of them run at the
    same time, and results are in buffers of the executor. Streams do not share pools.

    Args:
        library: the library.
        place: the device.
        recording: the stream on which graphs of the device are recorded.
    """

    def __init__(self, library: StreamLibrary, place: Place, recording: Recording) -> None:
        self._library, self._place, self._recording = library, place, recording
        self._pool = library.graph_pool()

    def record(self, launch: Launch) -> Callable[[], None] | None:
        """Launch some work in the order of the current stream, and record it.

        Launches of other threads at that time are not recorded.

        Returns:
            A function that launches the work again; None if the launch succeeded, but cannot be recorded.

        Raises:
            DeviceError: the launch failed.
        """
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
    """Launches the same work repeatedly, by replaying a recorded graph if possible.

    The first launch is recorded. If that fails, for example because memory runs out, the second launch is recorded. If that
    fails, too, later launches are op by op.

    Args:
        graphs: records the graphs; None to record none.
        stream: the stream to launch on.
    """

    def __init__(self, graphs: StreamGraphs | None, stream: Any) -> None:
        self._stream, self._graphs, self._tries = stream, graphs, 0
        self._replay: Callable[[], None] | None = None

    @property
    def recorded(self) -> bool:
        """True if the work has been recorded."""
        return self._replay is not None

    @property
    def refused(self) -> bool:
        """True if the last attempt to record has failed."""
        return self._replay is None and self._tries == _TRIES

    def __call__(self, launch: Launch) -> None:
        """Launch on the stream, which is the current stream.

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
