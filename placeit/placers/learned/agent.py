"""The interface between learned placers and training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from placeit.core.problem import CostFunction, Problem

__all__ = ["Agent", "Explorer", "ProblemInstance", "Remembering", "Trajectory"]


@dataclass(frozen=True, eq=False)
class ProblemInstance:
    """A training problem with its cost function.

    Attributes:
        problem: the problem.
        cost: values placements: a simulator, measured runs, or another objective.
        unit: what costs are divided by, so that rewards of different problems can be compared; positive, finite. For
            makespans the lower bound of the schedule length ratio is usual
            (:attr:`placeit.core.problem.Problem.critical_path`).
    """

    problem: Problem
    cost: CostFunction
    unit: float


@dataclass(eq=False)
class Trajectory:
    """Decisions of an agent for ``B`` problems in up to ``T`` steps, with rewards and costs.

    A step is whatever the agent makes of it: a relocation, the device of one op, a whole placement (``T`` = 1).

    Attributes:
        rewards: ``float64[T, B]``, in multiples of the instance's unit; a reward that comes at the end has zeros before it.
        valid: ``bool[T, B]``, where a decision was made; problems may end at different steps.
        costs: ``float64[B]``, the least cost met, in multiples of the instance's unit.
        placements: for each problem ``int32[V]``, the placement of that cost.
        decisions: what the agent needs to score the decisions again.
    """

    rewards: NDArray[np.float64]
    valid: NDArray[np.bool_]
    costs: NDArray[np.float64]
    placements: list[NDArray[np.int32]]
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
        """Play one episode for each problem, sampling decisions; gradients are not needed."""
        ...

    def score(self, trajectory: Trajectory) -> Iterator[tuple[NDArray[np.intp], NDArray[np.intp], Tensor, Tensor]]:
        """Score a trajectory's decisions under the present network, with gradients.

        Yields:
            Parts of the trajectory, of any size, so that one part's graph is in memory at a time: steps ``[N]`` and problems
            ``[N]``, the log-probability of each decision ``[N]``, and the entropy of what it was drawn from ``[N]``. Together
            the parts hold every valid decision once. A part is differentiated before the next is asked for, so no two of them
            share what needs gradients.
        """
        ...

    def loss(self, kind: str, instances: Sequence[ProblemInstance], rng: np.random.Generator) -> Tensor:
        """Return a scalar to minimise, for training methods other than REINFORCE, such as ``imitation``.

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
class Remembering(Protocol):
    """An agent that keeps more than its network between episodes, such as a buffer of good placements.

    It is kept in training states, so that training can be resumed with the same result, but not in checkpoints.
    """

    def memory(self) -> Mapping[str, Tensor]:
        """Return what is kept, by name."""
        ...

    def recall(self, memory: Mapping[str, Tensor]) -> None:
        """Restore what :meth:`memory` returned, and nothing else."""
        ...
