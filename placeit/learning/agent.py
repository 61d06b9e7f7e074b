"""The interface between agents and training."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from placeit.core.errors import UsageError
from placeit.core.problem import CostFunction, Problem

__all__ = ["Agent", "Decisive", "Explorer", "ProblemInstance", "Remembering", "Taught", "Trajectory"]


@dataclass(frozen=True, eq=False)
class ProblemInstance:
    """A training problem with its cost function.

    Attributes:
        problem: the problem.
        cost: values placements by a simulator, by measured runs, or by another objective. It returns NaN for a placement that
            could not be measured this time, and ``inf`` for a placement that can never be measured.
        unit: unit of the costs, positive and finite. Costs are divided by it, so that rewards of different problems can be
            compared. For makespans it is usually the critical path (:attr:`placeit.core.problem.Problem.critical_path`), which
            makes costs schedule length ratios.
    """

    problem: Problem
    cost: CostFunction
    unit: float


@dataclass(eq=False)
class Trajectory:
    """Decisions of an agent for ``B`` problems in up to ``T`` steps, and the placements that they produced.

    The agent defines what a step is: the relocation of one op, the choice of one device, or a whole placement.

    Attributes:
        valid: ``bool[T, B]``, True where a decision was made; problems may end at different steps.
        visited: for each problem ``int32[S, V]``, ``S`` >= 1, the placements to be valued, in the order in which they were
            visited. A search lists every placement, its start included (``S`` may be ``T`` + 1). An agent that makes one
            placement per episode lists that placement. Duplicates are allowed: the caller values equal placements once.
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
        network: the module that is trained. In ``train()`` mode, the agent may explore and remember placements. In ``eval()``
            mode, which loaded and trained agents are in, it does neither.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    network: nn.Module

    @property
    def config(self) -> Mapping[str, bool | int | float | str]:
        """Arguments that make an untrained agent of the same shape: ``type(agent)(**agent.config)``.

        By default, the attributes that have the names of the constructor's parameters.
        """
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    def rollout(self, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Trajectory:
        """Play one episode for each problem, sampling decisions; gradients are not needed.

        The agent decides without calling a cost function: the caller values the visited placements of all problems at once, by
        simulation or by measured runs.
        """
        ...

    def rewards(self, trajectory: Trajectory, costs: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
        """Return the rewards of a trajectory, given the costs of the placements that it visited.

        Training calls this once for each trajectory that it learns from.

        Args:
            trajectory: a trajectory that :meth:`rollout` returned.
            costs: for each problem ``float64[S]``, the costs of ``trajectory.visited`` in multiples of the instance's unit; NaN
                for a placement that could not be measured.

        Returns:
            ``float64[T, B]``, zero where no decision was made, and before a reward at the end of an episode. NaN where the
            reward depends on an unknown cost: training leaves such a decision out.
        """
        ...

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score a trajectory's decisions under the present network, with gradients.

        Yields:
            Parts of the trajectory, of any size: steps ``[N]`` and problems ``[N]``, the log-probability of each decision
            ``[N]``, and the entropy of the distribution from which it was drawn ``[N]``. Together the parts hold every valid
            decision once. The caller differentiates each part before it takes the next, so that only one part's autograd graph
            is in memory. Two parts must not share nodes of this graph. A trajectory may be scored several times, while the
            network changes.
        """
        ...

    def loss(self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Tensor:  # noqa: ARG002
        """Return a scalar to minimise, for training methods other than REINFORCE, such as ``imitation``.

        It may call the instances' cost functions, and leaves out placements whose cost is NaN (not measured). By default, an
        agent has no such method.

        Raises:
            UsageError: the agent does not have this training method; the message names the methods that it has.
        """
        raise UsageError(f"The agent '{self.name}' has no training method '{kind}'; train it by 'reinforce'.")


@runtime_checkable
class Explorer(Protocol):
    """An agent that deviates from its policy during training, as epsilon-greedy agents do.

    Attributes:
        explore: degree of exploration in ``train()`` mode, in [0, 1]; training sets it from ``Stage.explore``.
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
        """Names of teachers, by training method. The first is the default."""
        ...

    def loss(
        self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator, teacher: str | None = None
    ) -> Tensor:
        """Return a scalar to minimise, as :meth:`Agent.loss` does, with the answers of the named teacher as targets."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """An agent that keeps more than its network between episodes, such as a buffer of good placements.

    Training states include this memory, so that training can be resumed with the same result. Checkpoints do not.
    """

    def memory(self) -> Mapping[str, Tensor]:
        """Return the agent's memory as tensors, by name."""
        ...

    def meet(self, problem: Problem, placements: NDArray[np.int32], costs: NDArray[np.float64]) -> None:
        """Add ``int32[S, V]`` placements from outside of episodes to the memory, with ``float64[S]`` costs in units."""
        ...

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Restore a memory that :meth:`memory` returned; an empty mapping clears the memory.

        Training clears the memory before a stage whose cost differs from the previous stage's.
        """
        ...
