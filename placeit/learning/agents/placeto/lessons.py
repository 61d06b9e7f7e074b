"""Decisions of a list scheduler in the episodes of a policy that visits ops in a fixed order."""

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
    """A teacher beside the episodes of a batch; it knows only the decisions made so far in each episode.

    Args:
        teacher: the list scheduler that answers.
        problems: of the rows.
    """

    def __init__(self, teacher: Teacher, problems: Sequence[Problem]) -> None:
        self._teacher = teacher
        numbers: dict[Problem, list[int]] = {}
        for row, problem in enumerate(problems):
            numbers.setdefault(problem, []).append(row)
        self._of = []
        for problem, rows in numbers.items():
            graph = Graph.of(problem, affinity=False)  # teachers do not look at it
            self._of.append((np.array(rows), graph, EpisodeState(problem, len(rows), graph.tables)))

    def go_on(self, rows: NDArray[np.intp], ops: NDArray[np.int64], devices: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the teacher's device for an op of each row, ``intp[N]``; then place the ops where the policy places them.

        Args:
            rows: ``intp[N]``, ascending; of a problem either all rows or none.
            ops: ``int64[N]``, in topological order over the steps.
            devices: ``intp[N]``, where the policy places them.
        """
        answers = np.empty(len(rows), np.intp)
        for numbers, graph, state in self._of:
            at = np.searchsorted(rows, numbers)
            if at[-1] == len(rows) or rows[at[0]] != numbers[0]:
                continue  # this problem's episodes are over
            able = state.candidates
            state.candidates = np.zeros_like(able)  # nothing else is asked about
            state.candidates[np.arange(len(able)), ops[at]] = True
            _, answers[at] = self._teacher.decide(graph, state)
            state.candidates = able
            state.place(ops[at], devices[at])
        return answers
