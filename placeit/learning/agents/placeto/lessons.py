"""Decisions of a teacher in the episodes of a policy that visits ops in a fixed order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.learning.agents.doppler.features import EpisodeState
from placeit.learning.agents.doppler.graph import Graph
from placeit.learning.agents.doppler.teachers import Teacher

__all__ = ["Lessons"]


class Lessons:
    """Follows the episodes of a batch with a teacher, which decides in the same states as the policy.

    Args:
        teacher: the list scheduler.
        problems: the problem of each row.
    """

    def __init__(self, teacher: Teacher, problems: Sequence[Problem]) -> None:
        self._teacher = teacher
        numbers: dict[Problem, list[int]] = {}
        for row, problem in enumerate(problems):
            numbers.setdefault(problem, []).append(row)
        self._groups = []
        for problem, rows in numbers.items():
            graph = Graph.of(problem, affinity=False)  # teachers do not read it
            self._groups.append((np.array(rows), graph, EpisodeState(problem, len(rows), graph.tables)))

    def step(self, rows: NDArray[np.intp], ops: NDArray[np.int64], devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the teacher's device for an op of each row, ``intp[N]``; then place the ops on the policy's devices.

        Args:
            rows: ``intp[N]``, ascending; they include all rows of a problem or none.
            ops: ``int64[N]``, in topological order over the steps.
            devices: ``intp[N]``, the policy's device of each op.
        """
        answers = np.empty(len(rows), np.intp)
        for numbers, graph, state in self._groups:
            index = np.searchsorted(rows, numbers)
            if index[-1] == len(rows) or rows[index[0]] != numbers[0]:
                continue  # this problem's episodes are over
            candidates = state.candidates
            state.candidates = np.zeros_like(candidates)  # the teacher has to select the given op
            state.candidates[np.arange(len(candidates)), ops[index]] = True
            _, answers[index] = self._teacher.decide(graph, state)
            state.candidates = candidates
            state.place(ops[index], devices[index])
        return answers
