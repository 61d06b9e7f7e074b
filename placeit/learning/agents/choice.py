"""Masked categorical distributions: draw and score choices among the allowed options."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.core.problem import Problem

__all__ = ["check_devices", "draw_choice", "log_probabilities", "score_choice"]


def check_devices(policy: str, max_devices: int, problems: Sequence[Problem]) -> None:
    """Raise UsageError if a problem has more devices than a policy has outputs; ``policy`` is its name in the message."""
    for problem in problems:
        if problem.devices > max_devices:
            raise UsageError(
                f"This {policy} policy was made for at most {max_devices} devices, and the problem has {problem.devices} "
                f"({', '.join(problem.device_names[:3])} ...): it has an output for each device. Train it with "
                f"devices={problem.devices}, or use GiPH, which takes any number."
            )


def log_probabilities(logits: Tensor, allowed: NDArray[np.bool_]) -> Tensor:
    """Return the log-softmax of ``float32[..., K]`` logits over the allowed options, and ``-inf`` for the others."""
    return logits.masked_fill(torch.from_numpy(~allowed), -torch.inf).log_softmax(-1)


def draw_choice(logits: Tensor, allowed: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw an allowed option for each row of ``float32[N, K]`` logits by the Gumbel-max trick: ``intp[N]``."""
    scores = np.where(allowed, logits.numpy() + rng.gumbel(size=allowed.shape), -np.inf)
    chosen: NDArray[np.intp] = scores.argmax(axis=-1)
    return chosen


def score_choice(logits: Tensor, allowed: NDArray[np.bool_], chosen: NDArray[np.intp]) -> tuple[Tensor, Tensor]:
    """Score choices with gradients.

    Args:
        logits: ``float32[..., K]``.
        allowed: ``bool[..., K]``, at least one option of each row.
        chosen: ``intp[...]``, allowed options.

    Returns:
        The log-probability of each choice and the entropy of its distribution (nats), both ``float32[...]``.
    """
    log = log_probabilities(logits, allowed)
    picked = log.gather(-1, torch.from_numpy(chosen)[..., None]).squeeze(-1)
    # an option that is not allowed adds nothing to the entropy; 0 * -inf would be NaN
    finite = log.masked_fill(torch.from_numpy(~allowed), 0.0)
    return picked, -(log.exp() * finite).sum(-1)
