"""Search by relocating one op at a time, as proposed by a learned policy (GiPH, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.learning.agents.giph.gpnet import GpNets
from placeit.placers.feasibility import has_room
from placeit.placers.random_task_eft import earliest_finish_devices

__all__ = ["TEMPERATURE", "RelocationSearch"]

Scores = TypeVar("Scores")

TEMPERATURE = 0.6
"""Temperature of steps outside of training; in training it is 1."""


class RelocationSearch(Generic[Scores]):
    """Searches by relocation on several problems at once, one gpNet each (GiPH, section 4.1).

    A state is a placement and the op that was moved last. An action moves an op to another device that can run it and has
    room for its weights. The op that was moved last is moved only if no other op can be.

    Args:
        score: the policy, which returns the scores of all nodes, ``float32[N]``.
        problems: ``B`` problems.
        starts: a feasible placement ``int32[V]`` of each.
        pivots: whether the policy selects only an op, whose device is the one of the earliest finish time (GiPH-task-EFT).
        temperature: divisor of the scores, from whose softmax :meth:`step` draws.
    """

    def __init__(
        self,
        score: Callable[[GpNets], Scores],
        problems: Sequence[Problem],
        starts: Sequence[NDArray[np.int32]],
        *,
        pivots: bool,
        temperature: float,
    ) -> None:
        self.nets = GpNets(problems, pivots=pivots)
        self._score = score
        self.temperature = temperature
        self._last = [-1] * len(problems)
        self._tight = [problem.memory.min() < problem.param_bytes.sum() for problem in problems]
        for number, start in enumerate(starts):
            self.nets.set(number, start)

    def scores(self) -> Scores:
        """Score all nodes: ``float32[N]``."""
        return self._score(self.nets)

    def legal(self, number: int) -> NDArray[np.int64]:
        """Return the nodes that the search of a problem may select now; empty if no op can be moved."""
        nets, problem, placement = self.nets, self.nets.problems[number], self.nets.placements[number]
        rows = nets.rows[number]
        ops, devices = nets.op[rows], nets.device[rows]
        if nets.pivots:
            movable = (problem.feasible.sum(axis=1) > 1)[ops]
        else:
            movable = devices != placement[ops]
            if self._tight[number]:
                movable &= has_room(problem, placement)[ops, devices]
        others = movable & (ops != self._last[number])
        legal: NDArray[np.int64] = rows[others if others.any() else movable]
        return legal

    def targets(self, number: int, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the op and the device that each of the given nodes stands for."""
        nets = self.nets
        ops = nets.op[nodes]
        if nets.pivots:
            found = earliest_finish_devices(nets.problems[number], nets.placements[number], ops)
            return ops, found.astype(np.int64)
        return ops, nets.device[nodes]

    def step(self, number: int, scores: NDArray[np.float32], rng: np.random.Generator) -> tuple[int, int, int] | None:
        """Draw a move of a problem's search and make it.

        Args:
            number: number of the problem.
            scores: ``float32[N]``, current scores of all nodes.
            rng: random generator.

        Returns:
            The node that was drawn, the op and its device; None if no op can be moved.
        """
        legal = self.legal(number)
        if not len(legal):
            return None
        node = legal[[np.argmax(scores[legal] / self.temperature + rng.gumbel(size=len(legal)))]]  # the Gumbel-max trick
        ops, devices = self.targets(number, node)
        op, device = int(ops[0]), int(devices[0])
        self.move(number, op, device)
        return int(node[0]), op, device

    def move(self, number: int, op: int, device: int) -> None:
        """Move an op to a device."""
        self._last[number] = op
        if self.nets.placements[number][op] != device:
            self.nets.move(number, op, device)
