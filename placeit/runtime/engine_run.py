"""The state of the current run of a compiled engine."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

from placeit import _core
from placeit.runtime.active_run import ActiveRun
from placeit.runtime.feed import Bell

__all__ = ["EngineRun", "Over"]


class Over:
    """The end of an engine's run, with the interface of :class:`placeit.core.threads.Gate`."""

    def __init__(self, engine: _core.Executor) -> None:
        self._engine = engine

    @property
    def is_open(self) -> bool:
        """True if the run is over."""
        return self._engine.over

    def wait(self, timeout: float = -1) -> bool:
        """Wait for the end of the run, for at most ``timeout`` seconds unless it is negative; return whether it is over."""
        return self._engine.watch(perf_counter() + timeout if timeout >= 0 else math.inf)


class EngineRun(ActiveRun):
    """The current run of an engine, or its last one."""

    over: Any

    def __init__(self, engine: _core.Executor, bell: Bell | None = None) -> None:
        super().__init__(bell)
        self._engine, self.over = engine, Over(engine)
        self.begun = True

    @property
    def stopped(self) -> bool:
        """See :class:`placeit.runtime.active_run.ActiveRun`."""
        return self._engine.stopped

    def stop(self) -> None:
        """See :class:`placeit.runtime.active_run.ActiveRun`."""
        self._engine.stop()
