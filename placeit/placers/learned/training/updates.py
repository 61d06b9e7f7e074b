"""One update of an agent's weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from placeit.core.errors import TrainingError
from placeit.placers.learned.agent import Agent, Explorer, ProblemInstance, Trajectory
from placeit.placers.learned.training.baselines import Episodes, find_baseline, returns
from placeit.placers.learned.training.stages import Stage

if TYPE_CHECKING:
    from placeit.placers.learned.training.state import TrainingState

__all__ = ["update", "which"]


def update(agent: Agent, stage: Stage, drawn: Sequence[ProblemInstance], run: TrainingState) -> dict[str, float]:
    """Update an agent's weights once, by the stage's method.

    REINFORCE (GiPH, Appendix B.7) follows the gradient of the sum over steps of

        gamma^t grad log pi(a_t | s_t) (sum over t' >= t of gamma^(t'-t) r_t' - b_t),

    Differs from the paper: the leading gamma^t is left out unless ``Stage.discount_steps`` asks for it, as in most
    implementations (with it, decisions late in an episode hardly count); the sum is divided by the number of decisions in the
    batch, so that clipping means the same for episodes of any length; advantages are normalised unless that is switched off.

    Args:
        agent: its network is changed.
        stage: how to learn.
        drawn: the problems.
        run: generator, optimiser, position and the baseline's memory, all of which are changed except for the position.

    Returns:
        Figures by the names of :class:`placeit.placers.learned.training.logs.Record`.

    Raises:
        TrainingError: a reward, cost, loss or gradient is not finite; the weights stay as they were.
    """
    progress = run.update / stage.updates
    if isinstance(agent, Explorer):
        agent.explore = stage.explore_at(progress)
    agent.network.train()
    instances = [instance for instance in drawn for _ in range(stage.episodes)]
    run.optimizer.zero_grad(set_to_none=True)
    if stage.kind == "reinforce":
        figures = _reinforce(agent, stage, instances, run)
    else:
        loss = agent.loss(stage.kind, instances, run.rng)
        _differentiate(loss)
        figures = {"loss": float(loss.detach())}
    norm = float(torch.nn.utils.clip_grad_norm_(run.parameters.values(), math.inf if stage.clip is None else stage.clip))
    for what, value in (("loss", figures["loss"]), ("gradient norm", norm)):
        if not math.isfinite(value):
            raise TrainingError(
                f"The {what} became {value} in update {run.update + 1} of stage {run.stage + 1} ({stage.kind}), on "
                f"{len(instances)} episodes of problems with {min(map(_size, instances))} to {max(map(_size, instances))} ops. "
                "Try a lower learning rate, or look for extreme costs in these problems."
            )
    learning_rate = stage.learning_rate_at(progress)
    for group in run.optimizer.param_groups:
        group["lr"] = learning_rate
    run.optimizer.step()
    return figures | {"gradient_norm": norm, "learning_rate": learning_rate}


def _reinforce(agent: Agent, stage: Stage, instances: Sequence[ProblemInstance], run: TrainingState) -> dict[str, float]:
    """Add up the gradient of REINFORCE, part by part of the trajectory, so that one part's graph is in memory at a time."""
    trajectory = agent.rollout(instances, run.rng)
    _check(trajectory, instances, run)
    valid = trajectory.valid
    rewards = np.where(valid, trajectory.rewards, 0.0)
    numbers = {id(instance.problem): number for number, instance in enumerate(instances)}
    problem = np.array([numbers[id(instance.problem)] for instance in instances])
    episodes = Episodes(rewards, returns(rewards, stage.gamma), valid, problem)
    baseline = find_baseline(stage.baseline) if isinstance(stage.baseline, str) else stage.baseline
    advantage = episodes.returns - baseline(episodes, run.memory)
    count = max(int(valid.sum()), 1)  # a problem with one device has nothing to decide
    if stage.normalize and valid.any():
        advantage = (advantage - advantage[valid].mean()) / (advantage[valid].std() + 1e-8)
    if stage.discount_steps:
        advantage = advantage * stage.gamma ** np.arange(len(advantage))[:, None]
    weight = stage.entropy_at(run.update / stage.updates)
    loss = entropy = 0.0
    for steps, problems, log_probability, spread in agent.score(trajectory):
        gain = torch.as_tensor(advantage[steps, problems], dtype=log_probability.dtype, device=log_probability.device)
        part = -(gain * log_probability + weight * spread).sum() / count
        _differentiate(part)
        loss += float(part.detach())
        entropy += float(spread.detach().sum()) / count
    return {
        "loss": loss,
        "reward": float(rewards.sum()) / count,
        "episode_return": float(episodes.returns[:1].sum()) / len(instances),
        "entropy": entropy,
    }


def _differentiate(loss: Tensor) -> None:
    if loss.requires_grad:  # it does not where there was nothing to decide
        loss.backward()  # type: ignore[no-untyped-call]


def _check(trajectory: Trajectory, instances: Sequence[ProblemInstance], run: TrainingState) -> None:
    bad = trajectory.valid & ~np.isfinite(trajectory.rewards)
    for b in np.flatnonzero(bad.any(axis=0) | ~np.isfinite(trajectory.costs)).tolist():
        steps = np.flatnonzero(bad[:, b]).tolist()
        what = f"cost of {trajectory.costs[b]}"
        if steps:
            what = f"reward of {trajectory.rewards[steps[0], b]} at step {steps[0] + 1}"
        raise TrainingError(f"Update {run.update + 1} of stage {run.stage + 1} met a {what} {which(instances[b], b)}.")


def which(instance: ProblemInstance, number: int) -> str:
    """Describe the problem of a batch that a cost belongs to, and possible causes of the error."""
    problem = instance.problem
    name = f", graph {problem.graph_hash}" if problem.graph_hash else ""
    return (
        f"on problem {number + 1} of the batch ({len(problem)} ops, {problem.devices} devices, unit {instance.unit:g}{name}). "
        "Look at its cost function and its unit: costs of feasible placements are finite, and the unit is positive"
    )


def _size(instance: ProblemInstance) -> int:
    return len(instance.problem)
