"""One update of an agent's weights, by REINFORCE or by the agent's own loss."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.errors import TrainingError
from placeit.learning.agent import Agent, Explorer, ProblemInstance, Taught, Trajectory
from placeit.learning.checkpoint import weights_of
from placeit.learning.training.baselines import Episodes, find_baseline, returns
from placeit.learning.training.stages import Stage
from placeit.learning.training.valuing import lowest, value

if TYPE_CHECKING:
    from placeit.learning.training.state import TrainingState

__all__ = ["describe", "update"]


def update(agent: Agent, stage: Stage, drawn: Sequence[ProblemInstance], run: TrainingState) -> dict[str, Any]:
    """Play episodes and update the weights by the stage's method, once per epoch.

    REINFORCE (GiPH, Appendix B.7) follows the gradient, which is the sum over steps of

        gamma^t grad log pi(a_t | s_t) (sum over t' >= t of gamma^(t'-t) r_t' - b_t)

    Differs from the paper: the leading gamma^t is left out unless ``Stage.discount_steps`` is set, as in most implementations,
    since with it decisions late in an episode hardly count; the sum is divided by the number of decisions in the batch, so that
    clipping does not depend on the length of episodes; advantages are normalised by default (``Stage.normalize``). Without
    ``Stage.reward_to_go`` the term is grad log pi(a_t | s_t) (gamma^t r_t - b_t), as in HSDAG, Eq. 14, which has no b_t.

    A decision whose return depends on an unknown cost (NaN) is left out. If all are left out, the weights do not change.

    Args:
        agent: the agent, whose network is changed.
        stage: the stage, with the method and its options.
        drawn: the problems, with the stage's cost functions.
        run: the state, whose generator, optimiser, baseline memory and best placements are changed; stage and update are not.

    Returns:
        Figures by the names of :class:`placeit.learning.training.logs.Record`; without ``loss`` if nothing was learned.

    Raises:
        TrainingError: a reward, loss or gradient is not finite, or a cost is infinite; the weights stay as they were.
    """
    progress = run.update / stage.updates
    if isinstance(agent, Explorer):
        agent.explore = stage.explore_at(progress)
    agent.network.train()
    instances = [instance for instance in drawn for _ in range(stage.episodes)]
    if stage.kind == "reinforce":
        batch, figures = _play(agent, stage, instances, run)
        if batch is None:
            return figures
        differentiate = functools.partial(_policy_gradient, agent, batch, stage.entropy_at(progress))
    else:
        figures, differentiate = {}, functools.partial(_own_loss, agent, stage, instances, run)
    before = weights_of(agent) if stage.epochs > 1 else None
    for _ in range(stage.epochs):
        run.optimizer.zero_grad(set_to_none=True)
        figures |= differentiate()
        norm = float(torch.nn.utils.clip_grad_norm_(run.parameters.values(), math.inf if stage.clip is None else stage.clip))
        for what, number in (("loss", figures["loss"]), ("gradient norm", norm)):
            if not math.isfinite(number):
                if before is not None:
                    agent.network.load_state_dict(before)
                sizes = [len(instance.problem) for instance in instances]
                raise TrainingError(
                    f"The {what} became {number} in update {run.update + 1} of stage {run.stage + 1} ({stage.kind}), on "
                    f"{len(sizes)} episodes of problems with {min(sizes)} to {max(sizes)} ops. Try a lower learning rate, or "
                    "look for extreme costs in these problems."
                )
        figures |= {"gradient_norm": norm, "learning_rate": stage.learning_rate_at(progress)}
        for group in run.optimizer.param_groups:
            group["lr"] = figures["learning_rate"]
        run.optimizer.step()
    return figures


@dataclass(frozen=True, eq=False)
class _Batch:
    """Episodes to learn from.

    Attributes:
        trajectory: the decisions.
        learned: ``bool[T, B]``, the decisions to learn from.
        advantage: ``float64[T, B]``, return of each decision minus its baseline.
    """

    trajectory: Trajectory
    learned: NDArray[np.bool_]
    advantage: NDArray[np.float64]

    @property
    def count(self) -> int:
        """Number of decisions to learn from, at least 1."""
        return max(int(self.learned.sum()), 1)  # a problem with one device has nothing to decide


def _play(
    agent: Agent, stage: Stage, instances: Sequence[ProblemInstance], run: TrainingState
) -> tuple[_Batch | None, dict[str, Any]]:
    """Play episodes and value the visited placements; the batch is None if all costs of its decisions are unknown."""
    trajectory = agent.rollout(instances, run.rng)
    costs = value(instances, trajectory.visited)
    run.meet(instances, trajectory.visited, costs)
    costs = [path / instance.unit for path, instance in zip(costs, instances, strict=True)]
    valid, rewards = trajectory.valid, agent.rewards(trajectory, costs)
    _check(valid, rewards, costs, instances, run)
    rewards = np.where(valid, rewards, 0.0)
    discounted = returns(rewards, stage.gamma)
    credit = discounted if stage.reward_to_go else rewards * stage.gamma ** np.arange(len(rewards))[:, None]
    learned = valid & ~np.isnan(credit)
    complete = np.asarray(~np.isnan(discounted[:1]).any(axis=0))
    dropped = int(valid.sum() - learned.sum())
    if dropped and not learned.any():
        return None, {"dropped": dropped}
    numbers = {id(instance.problem): number for number, instance in enumerate(instances)}
    problem = np.array([numbers[id(instance.problem)] for instance in instances])
    if dropped:
        rewards, credit = (np.where(learned, values, 0.0) for values in (rewards, credit))
    episodes = Episodes(rewards, credit, learned, problem, complete)
    baseline = find_baseline(stage.baseline) if isinstance(stage.baseline, str) else stage.baseline
    advantage = episodes.returns - baseline(episodes, run.memory)
    if stage.normalize and learned.any():
        advantage = _normalized(advantage, learned, centred=stage.baseline != "moving")
    if stage.discount_steps:
        advantage = advantage * stage.gamma ** np.arange(len(advantage))[:, None]
    batch = _Batch(trajectory, learned, advantage)
    figures: dict[str, Any] = {"reward": float(rewards.sum()) / batch.count, "dropped": dropped}
    if complete.any():
        figures["episode_return"] = float(discounted[:1, complete].sum()) / int(complete.sum())
    return batch, figures


def _normalized(advantage: NDArray[np.float64], learned: NDArray[np.bool_], *, centred: bool) -> NDArray[np.float64]:
    """Scale the advantages of an update to deviation 1, and shift them to mean 0 if ``centred``.

    Equal advantages of a single episode are returned unchanged, since centring would make them zero.
    """
    values = advantage[learned]
    if np.ptp(values) <= 1e-9 * np.abs(values).max() and learned.any(axis=0).sum() == 1:
        return advantage
    shifted = advantage - values.mean() if centred else advantage
    scaled: NDArray[np.float64] = shifted / (np.sqrt(np.mean(shifted[learned] ** 2)) + 1e-8)
    return scaled


def _policy_gradient(agent: Agent, batch: _Batch, entropy_weight: float) -> dict[str, float]:
    """Accumulate the gradient of REINFORCE over parts of the trajectory, so that one part's graph is in memory at a time."""
    loss = mean_entropy = 0.0
    for steps, problems, log_probability, entropy in agent.score(batch.trajectory):
        learned = batch.learned[steps, problems]
        advantage = torch.as_tensor(
            batch.advantage[steps, problems], dtype=log_probability.dtype, device=log_probability.device
        )
        if not learned.all():
            mask = torch.as_tensor(learned, device=log_probability.device)
            advantage, log_probability, entropy = advantage[mask], log_probability[mask], entropy[mask]
        part = -(advantage * log_probability + entropy_weight * entropy).sum() / batch.count
        _differentiate(part)
        loss += float(part.detach())
        mean_entropy += float(entropy.detach().sum()) / batch.count
    return {"loss": loss, "entropy": mean_entropy}


def _own_loss(agent: Agent, stage: Stage, instances: Sequence[ProblemInstance], run: TrainingState) -> dict[str, float]:
    if isinstance(agent, Taught):
        loss = agent.loss(stage.kind, instances, run.rng, stage.teacher)
    else:
        loss = agent.loss(stage.kind, instances, run.rng)
    _differentiate(loss)
    return {"loss": float(loss.detach())}


def _differentiate(loss: Tensor) -> None:
    if loss.requires_grad:  # False if there was nothing to decide
        loss.backward()  # type: ignore[no-untyped-call]


def _check(
    valid: NDArray[np.bool_],
    rewards: NDArray[np.float64],
    costs: Sequence[NDArray[np.float64]],
    instances: Sequence[ProblemInstance],
    run: TrainingState,
) -> None:
    """Raise TrainingError if a reward is not finite, unless a cost is NaN, or if all known costs of an episode are infinite."""
    if np.isfinite(rewards[valid]).all() and np.isfinite(np.concatenate(costs)).all():
        return
    for b, path in enumerate(costs):
        unknown, best = bool(np.isnan(path).any()), lowest(path)
        bad = np.flatnonzero(valid[:, b] & (np.isinf(rewards[:, b]) | (np.isnan(rewards[:, b]) & (not unknown))))
        if len(bad) or (best is not None and not math.isfinite(path[best])):
            what = f"reward of {rewards[bad[0], b]} at step {bad[0] + 1}" if len(bad) else f"cost of {path[best or 0]}"
            raise TrainingError(f"Update {run.update + 1} of stage {run.stage + 1} met a {what} {describe(instances[b], b)}.")


def describe(instance: ProblemInstance, number: int) -> str:
    """Describe a problem of a batch for an error message about its costs, and where to look for the cause."""
    problem = instance.problem
    name = f", graph {problem.graph_hash}" if problem.graph_hash else ""
    return (
        f"on problem {number + 1} of the batch ({len(problem)} ops, {problem.devices} devices, unit {instance.unit:g}{name}). "
        "Look at its cost function and its unit: costs of feasible placements are finite, and the unit is positive"
    )
