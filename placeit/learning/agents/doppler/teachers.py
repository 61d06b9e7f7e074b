"""Teachers of imitation: list schedulers that answer in any state of an episode, and those of plug-ins."""

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
"""The entry-point group of teachers: those of placeit are in it as well as those of plug-ins."""

_DEFAULT = "critical-path"


class Teacher(Protocol):
    """A list scheduler that says what it would do next in the state of an episode that somebody else plays."""

    def decide(self, graph: Graph, state: EpisodeState) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return an op that can be placed and a device that is allowed for it, for each row: ``intp[R]`` twice."""
        ...


class CriticalPath:
    """The op with the longest path to an exit, on the first device of those where it can start first (DOPPLER, section 7)."""

    def decide(self, graph: Graph, state: EpisodeState) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return an op and a device for each row."""
        ops = longest_to_exit(graph, state)
        return ops, earliest(state, ops, finish=False)


class EarliestFinish:
    """The op with the longest path to an exit, on the device where it can finish first, as HEFT does."""

    def decide(self, graph: Graph, state: EpisodeState) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return an op and a device for each row."""
        ops = longest_to_exit(graph, state)
        return ops, earliest(state, ops, finish=True)


def teacher_names() -> tuple[str, ...]:
    """Names of all teachers, the default one first; those of plug-ins are not imported."""
    return tuple(sorted(_table(), key=lambda name: (name != _DEFAULT, name)))


def find_teacher(name: str) -> Teacher:
    """Make a teacher by name. Raises UsageError: there is none of that name, or its package cannot be imported."""
    teacher: Teacher = load_entry("teacher", _table(), name)()
    return teacher


@functools.cache
def _table() -> dict[str, EntryPoint]:
    return entry_table("teacher", GROUP, {})


def longest_to_exit(graph: Graph, state: EpisodeState) -> NDArray[np.intp]:
    """``intp[R]``, the candidate with the longest path to an exit in each row, the first of equals."""
    best: NDArray[np.intp] = np.where(state.candidates, graph.seconds_to_exit, -1.0).argmax(axis=1)
    return best


def earliest(state: EpisodeState, ops: NDArray[np.intp], *, finish: bool) -> NDArray[np.intp]:
    """``intp[R]``, the allowed device where a candidate of each row can start first, or finish first; the first of equals."""
    seconds = state.features(ops)[..., EARLIEST_START]
    if finish:
        seconds = seconds + state.problem.compute[ops]
    best: NDArray[np.intp] = np.where(allowed(state, ops), seconds, np.inf).argmin(axis=1)
    return best
