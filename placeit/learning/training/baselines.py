"""Returns of episodes, and the baselines that REINFORCE compares them with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.core.nearest import nearest

__all__ = ["BASELINES", "Baseline", "Episodes", "find_baseline", "returns"]


@dataclass(frozen=True, eq=False)
class Episodes:
    """Rewards and returns of a batch of ``B`` episodes of up to ``T`` steps.

    Attributes:
        rewards: ``float64[T, B]``, zero where no decision was made.
        returns: ``float64[T, B]``, value of each decision: the discounted sum of the rewards from its step on, or its own
            discounted reward (``Stage.reward_to_go``).
        valid: ``bool[T, B]``, True where a decision was made and all costs that it depends on are known.
        problem: ``int[B]``, number of each episode's problem.
        complete: ``bool[B]``, True for episodes whose rewards are all known.
    """

    rewards: NDArray[np.float64]
    returns: NDArray[np.float64]
    valid: NDArray[np.bool_]
    problem: NDArray[np.intp]
    complete: NDArray[np.bool_]


Baseline: TypeAlias = Callable[[Episodes, dict[str, float]], NDArray[np.float64]]
"""``baseline(episodes, memory) -> float64[T, B]``, the values to subtract from the returns.

A value must not depend on the decision made at its step. ``memory`` is a dict that the baseline may write to. It is empty at
the start of a stage, is kept until its end, and is saved in training states.
"""


def returns(rewards: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """Return the discounted sum of the rewards from each step on, ``float64[T, B]``: gamma^(t'-t) r_t' summed over t' >= t."""
    sums = rewards.copy()
    for t in range(len(sums) - 2, -1, -1):
        sums[t] += gamma * sums[t + 1]
    return sums


def none(episodes: Episodes, memory: dict[str, float]) -> NDArray[np.float64]:  # noqa: ARG001
    """Return zeros, which is no baseline."""
    return np.zeros_like(episodes.returns)


def episode_mean(episodes: Episodes, memory: dict[str, float]) -> NDArray[np.float64]:  # noqa: ARG001
    """Return the mean reward before the step in the same episode, zero at the first step (GiPH, Appendix B.7)."""
    count: NDArray[np.intp] = np.cumsum(episodes.valid, axis=0) - episodes.valid
    before: NDArray[np.float64] = np.cumsum(episodes.rewards, axis=0) - episodes.rewards
    return before / np.maximum(count, 1)


def batch(episodes: Episodes, memory: dict[str, float]) -> NDArray[np.float64]:  # noqa: ARG001
    """Return the mean return at the step over the episodes of the batch that make a decision there."""
    return _mean(episodes.returns, episodes.valid)


def _mean(returns: NDArray[np.float64], valid: NDArray[np.bool_]) -> NDArray[np.float64]:
    total = np.where(valid, returns, 0.0).sum(axis=1, keepdims=True)
    return np.broadcast_to(total / np.maximum(valid.sum(axis=1, keepdims=True), 1), returns.shape)


def problem(episodes: Episodes, memory: dict[str, float]) -> NDArray[np.float64]:  # noqa: ARG001
    """Return the mean return at the step over the batch's episodes of the same problem.

    For several episodes of each problem, as in the stream allocation paper (equation 4: the mean of the N samples).
    """
    out = np.empty_like(episodes.returns)
    for number in np.unique(episodes.problem):
        same = episodes.problem == number
        out[:, same] = _mean(episodes.returns[:, same], episodes.valid[:, same])
    return out


def moving(episodes: Episodes, memory: dict[str, float]) -> NDArray[np.float64]:
    """Return the mean return, from the first step, over all earlier episodes of the stage (DOPPLER, section 5.1).

    Episodes with unknown rewards do not count. Differs from the paper, which does not define the baseline of the first episode:
    here the baseline of a stage's first batch is its own mean.
    """
    first = episodes.returns[:1].sum(axis=0)[episodes.complete]  # zero if there were no steps
    if not memory and not len(first):
        return np.zeros_like(episodes.returns)
    mean = memory["sum"] / memory["count"] if memory else float(first.mean())
    memory["sum"] = memory.get("sum", 0.0) + float(first.sum())
    memory["count"] = memory.get("count", 0.0) + len(first)
    return np.full_like(episodes.returns, mean)


BASELINES: Mapping[str, Baseline] = {
    "none": none,
    "episode-mean": episode_mean,
    "batch": batch,
    "problem": problem,
    "moving": moving,
}


def find_baseline(name: str) -> Baseline:
    """Return a baseline by name. Raises UsageError, listing the names."""
    if name not in BASELINES:
        raise UsageError(f"There is no baseline '{name}'; the baselines are {', '.join(BASELINES)}{nearest(name, BASELINES)}.")
    return BASELINES[name]
