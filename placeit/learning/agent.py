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
        unit: positive and finite; costs are divided by it, so that rewards of different problems can be compared. For
            makespans, the lower bound of the schedule length ratio is usual
            (:attr:`placeit.core.problem.Problem.critical_path`).
    """

    problem: Problem
    cost: CostFunction
    unit: float


@dataclass(eq=False)
class Trajectory:
    """Decisions of an agent for ``B`` problems in up to ``T`` steps, and the placements that they produced.

    The agent defines what a step is: the relocation of one op, the choice of one device, or a whole placement.

    Attributes:
        valid: ``bool[T, B]``, where a decision was made; problems may end at different steps.
        visited: for each problem ``int32[S, V]``, ``S`` >= 1, the placements to be valued, in the order in which they were met.
            A search lists every placement from its start on (``S`` may be ``T`` + 1); an agent that writes one placement per
            episode lists that one. Duplicates may stay: the caller values equal placements once.
        decisions: everything that the agent needs to score the decisions again.
    """

    valid: NDArray[np.bool_]
    visited: Sequence[NDArray[np.int32]]
    decisions: Any


class Agent(Protocol):
    """A policy that plays episodes.

    Everything random is drawn from the generator that is passed in, so that training can be resumed with the same result.

    Attributes:
        name: the agent's name in checkpoints and on the command line (``giph``, ``placeto``).
        version: version of the network's shapes and features: a checkpoint of another version does not load.
        network: the module that is trained. In ``train()`` mode, episodes are learned from, so the agent may explore and
            remember placements; in ``eval()`` mode, the mode of loaded and of trained agents, it may not.
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

        It decides without costs and calls no cost function: the caller values the visited placements, of all problems at once,
        by simulation or by measured runs.
        """
        ...

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Turn the costs of the visited placements into rewards. Called once for each trajectory that is learned from.

        Args:
            trajectory: a trajectory that :meth:`rollout` returned.
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
            the parts hold every valid decision once. The caller differentiates a part before it asks for the next, so no two of
            them may share a part of the graph. A trajectory may be scored several times, while the network changes.
        """
        ...

    def loss(self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Tensor:
        """Return a scalar to minimise, for training methods other than REINFORCE, such as ``imitation``.

        It may call the instances' cost functions. A cost that is NaN could not be measured, and teaches nothing.

        Raises:
            UsageError: the agent does not learn by this method; the message names the methods that it has.
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
    """An agent that can return the placement that its policy prefers for a problem."""

    def greedy_placement(self, problem: Problem) -> NDArray[np.int32]:
        """Return the policy's preferred placement, ``int32[V]``. Raises InfeasibleError if no feasible placement was found."""
        ...


@runtime_checkable
class Taught(Protocol):
    """An agent that has several teachers to choose from (``Stage.teacher``)."""

    @property
    def teachers(self) -> Mapping[str, Sequence[str]]:
        """Names of teachers, by the kind of training that they teach. The first is the default."""
        ...

    def loss(
        self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: str | None = None
    ) -> Tensor:
        """Return a scalar to minimise, as :meth:`Agent.loss` does, with the answers of the named teacher as targets."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """An agent that keeps more than its network between episodes, such as a buffer of good placements.

    Training states keep that memory, so that training can be resumed with the same result; checkpoints do not.
    """

    def memory(self) -> Mapping[str, Tensor]:
        """Return the agent's memory as tensors, by name."""
        ...

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Take into account ``int32[S, V]`` placements from outside of episodes, with ``float64[S]`` costs in units."""
        ...

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Restore a memory that :meth:`memory` returned; an empty mapping clears the memory.

        Training clears it where a stage has another cost than the stage before.
        """
        ...
