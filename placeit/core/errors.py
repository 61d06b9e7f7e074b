"""Errors that placeit reports to its users.

Every message is one paragraph that names the file, op or device and says what to do next. The command line prints the message
and exits with ``exit_code``; it shows a traceback with ``--debug`` only.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator


class PlaceitError(Exception):
    """Base class of every error that placeit raises on purpose.

    Attributes:
        device: name, in its cluster, of the device that could not be prepared for a plan, or on which a segment failed; empty
            for other errors.
    """

    exit_code = 1
    device = ""


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
        ops: names of the ops that the device does not compile; empty for other errors, or if the ops are unknown.
    """

    ops: tuple[str, ...] = ()


class LostError(DeviceError):
    """A device is lost: it does not run or compile anything any more."""


class HangsError(LostError):
    """The compiler of a device hangs: the device does not compile anything any more."""


class NoRoomError(DeviceError):
    """A device has too little free memory."""


class ClusterError(PlaceitError):
    """A cluster file or a device network is wrong."""


class WorkloadError(PlaceitError):
    """A workload file is wrong, or no placement of its models fits or keeps its limits."""


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
    """A server already has as many waiting requests as its queue may hold."""


class DeadlineError(ExecutionError):
    """A request had not started by its deadline."""


class SequenceError(ExecutionError):
    """A sequence was closed, its state was lost, or it is still in use."""


class StateLostError(SequenceError):
    """The state of a sequence was lost.

    Args:
        number: number of the sequence.
        why: the reason; also an attribute.
    """

    def __init__(self, number: int, why: str) -> None:
        super().__init__(
            f"The state of sequence {number} is not known any more: {why} Call reset() to have it begin anew. With "
            "recompute=True, a sequence computes its state anew by itself."
        )
        self.number, self.why = number, why

    def __reduce__(self) -> tuple[type[StateLostError], tuple[int, str]]:
        return type(self), (self.number, self.why)


class StateMemoryError(SequenceError):
    """The states of sequences would take more memory than allowed."""


class TrainingError(PlaceitError):
    """Training cannot continue: a reward, a loss or a gradient is not a finite number."""


class FileError(PlaceitError):
    """A file cannot be read or written: it is missing or read-only, or there is no room."""


def not_in_time(compiler: str, seconds: float) -> ExecutionError:
    """Return the error for a compiler that was stopped after some seconds."""
    return ExecutionError(
        f"{compiler} has not compiled it in the {seconds:.3g} s that there was time for: set a larger budget."
    )


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, or its class if it has no message."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


@contextlib.contextmanager
def naming(placement: object) -> Iterator[None]:
    """Add the name of a placement, such as the path of its file, to each PlacementError that is raised in the block."""
    try:
        yield
    except PlacementError as error:
        if str(error).startswith(str(placement)):
            raise
        raise PlacementError(f"{placement}: {error}") from error


def forget_frames(error: BaseException) -> None:
    """Drop the local variables in the frames of an error and of the errors that led to it, such as intermediate results."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
