"""A thread that runs jobs in order, bound to CPU cores."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue

__all__ = ["Worker"]


class Worker:
    """Runs jobs one at a time in the order of submission.

    A job submitted from the worker's own thread (the next segment of a device whose last one just finished) starts without
    a context switch.

    Args:
        name: thread name.
        cores: CPU cores to run on; empty for wherever the process may run.
    """

    def __init__(self, name: str, cores: tuple[int, ...] = ()) -> None:
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.submit = self._jobs.put
        self._cores = cores
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)
        get = self._jobs.get
        while (job := get()) is not None:
            job()

    def close(self) -> None:
        """Finish what was submitted and stop."""
        self._jobs.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()
