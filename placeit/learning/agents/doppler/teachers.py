"""Teachers of imitation: list schedulers that decide in any state of an episode; plug-ins may add more."""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from placeit.core.registry import entry_table, load_entry
from placeit.learning.agents.doppler.episodes import EARLIEST_START
from placeit.learning.agents.doppler.features import EpisodeState
from placeit.learning.agents.doppler.graph import Graph, allowed

__all__ = ["GROUP", "CriticalPath", "EarliestFinish", "Teacher", "find_teacher", "teacher_names"]

GROUP = "placeit.teachers"
"""Entry-point group in which placeit and plug-ins declare teachers."""

_DEFAULT = "critical-path"


class Teacher(Protocol):
    """A list scheduler that returns its next decision in any state of an episode that another policy plays."""

    def decide(self, graph: Graph, state: EpisodeState) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return an op that can be placed and a device that is allowed for it, for each episode: ``intp[R]`` twice."""
        ...


class CriticalPath:
    """Selects the op with the longest path to an exit, and the device where it can start first (DOPPLER, section 7)."""

    finish = False  # whether to select the device by the finish time instead

    def decide(self, graph: Graph, state: EpisodeState) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return an op and a device for each episode, the first ones in a tie."""
        ops: NDArray[np.intp] = np.where(state.candidates, graph.seconds_to_exit, -1.0).argmax(axis=1)
        seconds = state.features(ops)[..., EARLIEST_START] + (state.problem.compute[ops] if self.finish else 0.0)
        return ops, np.where(allowed(state, ops), seconds, np.inf).argmin(axis=1)


class EarliestFinish(CriticalPath):
    """Selects the op with the longest path to an exit, and the device where it can finish first, as HEFT does."""

    finish = True


def teacher_names() -> tuple[str, ...]:
    """Return the names of all teachers, the default one first, without importing any plug-in."""
    return tuple(sorted(_table(), key=lambda name: (name != _DEFAULT, name)))


def find_teacher(name: str) -> Teacher:
    """Make a teacher by name. Raises UsageError if the teacher does not exist, or its package cannot be imported."""
    teacher: Teacher = load_entry("teacher", _table(), name)()
    return teacher


@functools.cache
def _table() -> dict[str, EntryPoint]:
    return entry_table("teacher", GROUP, {})
