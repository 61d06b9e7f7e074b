"""Errors that users of placeit may see, in one place to import them from.

Each is described where it is defined, in :mod:`placeit.core.errors`.
"""

from placeit.core.errors import (
    ClusterError,
    DeadlineError,
    DeviceError,
    ExecutionError,
    ExtensionError,
    FileError,
    GraphError,
    HangsError,
    InfeasibleError,
    LostError,
    ModelError,
    NoRoomError,
    PlaceitError,
    PlacementError,
    ProblemError,
    QueueFullError,
    SequenceError,
    StateLostError,
    StateMemoryError,
    TrainingError,
    UsageError,
    WorkloadError,
)

__all__ = [
    "ClusterError",
    "DeadlineError",
    "DeviceError",
    "ExecutionError",
    "ExtensionError",
    "FileError",
    "GraphError",
    "HangsError",
    "InfeasibleError",
    "LostError",
    "ModelError",
    "NoRoomError",
    "PlaceitError",
    "PlacementError",
    "ProblemError",
    "QueueFullError",
    "SequenceError",
    "StateLostError",
    "StateMemoryError",
    "TrainingError",
    "UsageError",
    "WorkloadError",
]
