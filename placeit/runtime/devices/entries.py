"""Protocols of instances and devices with functions that run segments, in C or in Python, and that explain failures.

Callers check with ``isinstance`` which protocols an instance or a device implements.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from placeit.runtime.devices.base import Instance

__all__ = ["ExplainsEntries", "MakesErrors", "RunsInC", "RunsInPython", "RunsNatively"]


@runtime_checkable
class RunsNatively(Protocol):
    """An instance that may have a C function that runs it."""

    @property
    def native(self) -> tuple[int, int] | None:
        """Addresses of a C function ``int32 f(void *argument)`` and of its argument; None if it has no such function.

        The function runs the instance on the calling thread, and returns 0, or another number if the run failed. If the device
        has a thread (:class:`OnThread`), runs call this function there instead of ``RuntimeDevice.start``. No Python code runs
        between two such functions.
        """


@runtime_checkable
class RunsInC(Protocol):
    """An instance that may run without Python code, so that no signal handler can interrupt it."""

    @property
    def in_c(self) -> Callable[[], object] | None:
        """A callable implemented in C that runs the instance on the calling thread; None if Python is needed.

        It may raise any exception. Callers may call it on their own threads if the lane of the device allows that.
        """


@runtime_checkable
class RunsInPython(Protocol):
    """A device whose thread may run instances by Python functions."""

    @property
    def call(self) -> Callable[[Instance], Callable[[], None]] | None:
        """Function that returns a function to run an instance, which raises ExecutionError; None if it has no such function."""


@runtime_checkable
class MakesErrors(Protocol):
    """A device that converts exceptions of functions in C (:class:`RunsInC`) to errors."""

    def failure(self, error: BaseException) -> BaseException:
        """Convert such an exception to the error of a run."""


@runtime_checkable
class ExplainsEntries(Protocol):
    """A device whose instances run natively (:class:`RunsNatively`)."""

    def explain(self) -> str:
        """Return a message for the last native entry that failed on this thread."""
