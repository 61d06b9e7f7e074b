"""What runs an instance of a segment: a function in C, or one of Python.

Instances and devices say by these protocols which functions they have, as by those in :mod:`placeit.runtime.devices.base`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from placeit.runtime.devices.base import Instance

__all__ = ["ExplainsEntries", "MakesErrors", "RunsInC", "RunsInPython", "RunsNatively"]


@runtime_checkable
class RunsNatively(Protocol):
    """An instance that a C function may run."""

    @property
    def native(self) -> tuple[int, int] | None:
        """Addresses of a C function ``int32 f(void *argument)`` and of its argument; None if it has no such function.

        The function runs the instance on the calling thread, and returns 0, or another number if the run failed. If the device
        has a thread (:class:`OnThread`), runs call this function there instead of ``RuntimeDevice.start``. No Python is needed
        between two such functions.
        """
        ...


@runtime_checkable
class RunsInC(Protocol):
    """An instance that may be run without Python code, which a signal handler could interrupt."""

    @property
    def in_c(self) -> Callable[[], object] | None:
        """A function in C that runs the instance on the calling thread, and raises any exception; None if Python is needed.

        Callers may call it on their own threads, as far as the device's lane allows.
        """
        ...


@runtime_checkable
class RunsInPython(Protocol):
    """A device whose thread runs instances by Python functions."""

    @property
    def call(self) -> Callable[[Instance], Callable[[], None]] | None:
        """Function that returns the function that runs an instance, which raises ExecutionError; or None."""
        ...


@runtime_checkable
class MakesErrors(Protocol):
    """A device that says what an exception means that a function in C (:class:`RunsInC`) has raised."""

    @property
    def failure(self) -> Callable[[BaseException], BaseException] | None:
        """Function that makes the error of a run from such an exception; None if it has no such function."""
        ...


@runtime_checkable
class ExplainsEntries(Protocol):
    """A device whose instances run natively (:class:`RunsNatively`)."""

    def explain(self) -> str:
        """Return the message of the entry that failed last on this thread."""
        ...
