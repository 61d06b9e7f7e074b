"""The interface between learned placers and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from placeit.core.problem import CostFunction, Problem

__all__ = ["Agent", "Decisive", "Explorer", "ProblemInstance", "Remembering", "Taught", "Trajectory"]


@dataclass(frozen=True, eq=False)
class ProblemInstance:
    """A training problem with its cost function.

    Attributes:
        problem: the problem.
        cost: values placements: a simulator, measured runs, or another objective. NaN for a placement that could not be
            measured this time, ``inf`` for one that cannot be.
        unit: what costs are divided by, so that rewards of different problems can be compared; positive, finite. For
            makespans the lower bound of the schedule length ratio is usual
            (:attr:`placeit.core.problem.Problem.critical_path`).
    """

    problem: Problem
    cost: CostFunction
    unit: float


@dataclass(eq=False)
class Trajectory:
    """Decisions of an agent for ``B`` problems in up to ``T`` steps, and the placements that they led to.

    A step is whatever the agent makes of it: a relocation, the device of one op, a whole placement.

    Attributes:
        valid: ``bool[T, B]``, where a decision was made; problems may end at different steps.
        visited: for each problem ``int32[S, V]``, the placements to be valued, in the order in which they were met, at least
            one: those of a search from its start on (``S`` may be ``T`` + 1), or one for an episode that makes one. Whoever
            values them values equal ones once, so an agent need not leave any out.
        decisions: what the agent needs to score the decisions again.
    """

    valid: NDArray[np.bool_]
    visited: Sequence[NDArray[np.int32]]
    decisions: Any


class Agent(Protocol):
    """A policy that plays episodes.

    Whatever is drawn is drawn from the generator that is given, so that training can be resumed with the same result.

    Attributes:
        name: as it stands in checkpoints and on the command line (``giph``, ``placeto``).
        version: of the network's shapes and features: a checkpoint of another version does not load.
        network: what is trained. Its mode says what an episode is for: in ``train()`` mode it is learned from, so that an agent
            may explore and remember; in ``eval()`` mode, in which loaded and trained agents are, it may not.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    network: nn.Module

    @property
    def config(self) -> Mapping[str, bool | int | float | str]:
        """Arguments that make an untrained agent of the same shape: ``type(agent)(**agent.config)``."""
        ...

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Play one episode for each problem, sampling decisions; gradients are not needed.

        It decides without costs and calls no cost function: whoever asks for an episode values what it visited, all problems
        at once, simulated or measured.
        """
        ...

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Turn the costs of what an episode visited into rewards. Called once for each trajectory that is learned from.

        Args:
            trajectory: what :meth:`rollout` returned.
            costs: for each problem ``float64[S]``, of ``trajectory.visited``, in multiples of the instance's unit. One that
                could not be measured is NaN.

        Returns:
            ``float64[T, B]``, zero where no decision was made; a reward that comes at the end has zeros before it. NaN where it
            would depend on a cost that is NaN: such a decision is not learned from.
        """
        ...

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score a trajectory's decisions under the present network, with gradients.

        Yields:
            Parts of the trajectory, of any size, so that one part's graph is in memory at a time: steps ``[N]`` and problems
            ``[N]``, the log-probability of each decision ``[N]``, and the entropy of what it was drawn from ``[N]``. Together
            the parts hold every valid decision once. A part is differentiated before the next is asked for, so no two of them
            share what needs gradients. A trajectory may be scored several times, while the network changes.
        """
        ...

    def loss(self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Tensor:
        """Return a scalar to minimise, for training methods other than REINFORCE, such as ``imitation``.

        It may call the instances' cost functions. A cost that is NaN could not be measured, and teaches nothing.

        Raises:
            UsageError: the agent has no such way; names those that it has.
        """
        ...


@runtime_checkable
class Explorer(Protocol):
    """An agent that deviates from its policy during training, as epsilon-greedy agents do.

    Attributes:
        explore: how much to explore in episodes that are learned from, in [0, 1]; training sets it (``Stage.explore``).
    """

    explore: float


@runtime_checkable
class Decisive(Protocol):
    """An agent that can say which placement of a problem it likes best."""

    def greedy_placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return that placement, ``int32[V]``. Raises InfeasibleError."""
        ...


@runtime_checkable
class Taught(Protocol):
    """An agent that has several teachers to choose from (``Stage.teacher``)."""

    @property
    def teachers(self) -> Mapping[str, Sequence[str]]:
        """Names, by the kind of training that they are for. The first is taken where none is named."""
        ...

    def loss(
        self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: str | None = None
    ) -> Tensor:
        """Return a scalar to minimise, as :meth:`Agent.loss`, by what a teacher says."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """An agent that keeps more than its network between episodes, such as a buffer of good placements.

    It is kept in training states, so that training can be resumed with the same result, but not in checkpoints.
    """

    def memory(self) -> Mapping[str, Tensor]:
        """Return what is kept, by name."""
        ...

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Take ``int32[S, V]`` placements into account that were not met in an episode, of ``float64[S]`` costs, in units."""
        ...

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`memory` returned, and nothing else; of nothing, forget.

        Training has it forget where a stage has other costs than the stage before.
        """
        ...
