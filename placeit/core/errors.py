"""Errors that users of placeit may see.

Every message is one paragraph that names the file, op or device it is about and says what to do next. The command line
prints the message and exits with ``exit_code``; a traceback is shown with ``--debug`` only.
"""

from __future__ import annotations

import traceback


class PlaceitError(Exception):
    """Base class of every error that placeit raises on purpose."""

    exit_code = 1


class UsageError(PlaceitError):
    """An argument or option does not make sense."""

    exit_code = 2


class ExtensionError(PlaceitError):
    """The compiled extension ``placeit._core`` is missing, or does not load."""


class ModelError(PlaceitError):
    """A model file cannot be read, or contains something that cannot be placed."""


class DeviceError(PlaceitError):
    """A device does not exist, or cannot do what was requested.

    Attributes:
        device: name in its cluster of the device that could not be made ready for a plan; empty if it is not about that.
        ops: names of the ops that the device does not compile; empty if it is not about that, or if they are not known.
    """

    device = ""
    ops: tuple[str, ...] = ()


class NoRoomError(DeviceError):
    """A device has no memory for what is to be put there."""


class ClusterError(PlaceitError):
    """A cluster file or a device network is wrong."""


class GraphError(PlaceitError):
    """A task graph breaks a rule that ``OpGraph.verify`` checks."""


class ProblemError(PlaceitError):
    """A placement problem is malformed: wrong shapes, NaN costs, a cycle."""


class InfeasibleError(ProblemError):
    """A placement problem has no feasible placement."""


class PlacementError(PlaceitError):
    """A placement does not fit its graph, its devices or their memory."""


class ExecutionError(PlaceitError):
    """A run on real devices failed."""


class QueueFullError(ExecutionError):
    """A server has as many requests waiting as it takes."""


class DeadlineError(ExecutionError):
    """A request had not begun, or an item of a pipeline not ended, when it had to."""


class SequenceError(ExecutionError):
    """A sequence was closed, its state was lost, or it is not idle."""


class StateMemoryError(SequenceError):
    """The state of sequences would take more memory than it may."""


class TrainingError(PlaceitError):
    """Training cannot continue: a reward, a loss or a gradient is not a finite number."""


class FileError(PlaceitError):
    """A file cannot be read or written: missing, read-only, no room."""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, or its class if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def forget_frames(error: BaseException) -> None:
    """Drop what the frames of an error, and of those that led to it, hold: intermediate results, for example."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
