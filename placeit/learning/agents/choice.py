"""Choosing one of several options, some of which are not allowed."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["draw_choice", "log_probabilities", "score_choice"]


def log_probabilities(logits: Tensor, allowed: NDArray[np.bool_]) -> Tensor:
    """Return ``float32[..., K]`` log-probabilities: a softmax over what ``bool[..., K]`` allows, ``-inf`` elsewhere."""
    return logits.masked_fill(torch.from_numpy(~allowed), -torch.inf).log_softmax(-1)


def draw_choice(logits: Tensor, allowed: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.intp]:
    """Draw an allowed option from each row, ``intp[N]`` of ``float32[N, K]`` logits, by the Gumbel-max trick."""
    scores = np.where(allowed, logits.numpy() + rng.gumbel(size=allowed.shape), -np.inf)
    chosen: NDArray[np.intp] = scores.argmax(axis=-1)
    return chosen


def score_choice(logits: Tensor, allowed: NDArray[np.bool_], chosen: NDArray[np.intp]) -> tuple[Tensor, Tensor]:
    """Score choices with gradients.

    Args:
        logits: ``float32[..., K]``.
        allowed: ``bool[..., K]``, one option of each row at least.
        chosen: ``intp[...]``, allowed ones.

    Returns:
        The log-probability of each choice and the entropy of what it was drawn from (nats), both ``float32[...]``.
    """
    log = log_probabilities(logits, allowed)
    picked = log.gather(-1, torch.from_numpy(chosen)[..., None]).squeeze(-1)
    # a barred option adds nothing to the entropy, where 0 * -inf would be NaN
    finite = log.masked_fill(torch.from_numpy(~allowed), 0.0)
    return picked, -(log.exp() * finite).sum(-1)
