"""Sampling of tokens from their logits."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import ExecutionError, UsageError

__all__ = ["Sampler", "Sampling"]


@dataclass(frozen=True)
class Sampling:
    """Options for sampling tokens.

    Attributes:
        temperature: number that divides the logits; 0 for the most likely token.
        top_p: smallest total probability of the candidates, which are the fewest most likely tokens that reach it.
        top_k: number of the most likely tokens that are candidates; 0 for all.
        seed: seed of the random choice; None for different choices each time.

    Raises:
        UsageError: a number is out of range.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < math.inf:
            raise UsageError(f"The temperature is {self.temperature:g}; it must be at least 0.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top-p is {self.top_p:g}; it must be above 0 and at most 1.")
        if self.top_k < 0:
            raise UsageError(f"top-k is {self.top_k}; it must be a number of tokens, or 0 for all.")
        if self.seed is not None and self.seed < 0:
            raise UsageError(f"The seed is {self.seed}; it must be at least 0.")


class Sampler:
    """Samples the tokens of one text.

    Args:
        rules: options for sampling.
    """

    def __init__(self, rules: Sampling) -> None:
        self._rules, self._rng = rules, np.random.default_rng(rules.seed)

    def choose(self, logits: NDArray[np.generic]) -> int:
        """Sample a token from logits, ``float[vocabulary]``.

        Raises:
            ExecutionError: a logit is NaN, or the largest one is infinite.
        """
        rules = self._rules
        exact = logits.astype(np.float64)
        most = exact.max()
        if not np.isfinite(most):
            raise ExecutionError(
                "The model's logits are not finite numbers: run it with --precision f32, or on another device."
            )
        if rules.temperature == 0:
            return int(exact.argmax())
        with np.errstate(over="ignore"):  # a tiny temperature makes all but the largest -inf
            shares = np.exp((exact - most) / rules.temperature)
        if not rules.top_k and rules.top_p == 1:  # no order is needed, which takes most of the time
            return int(self._rng.choice(len(shares), p=shares / shares.sum()))
        order = np.argsort(-shares, kind="stable")[: rules.top_k or None]
        shares = shares[order] / shares[order].sum()
        kept = int(np.searchsorted(shares.cumsum(), rules.top_p)) + 1
        shares = shares[:kept] / shares[:kept].sum()
        return int(order[self._rng.choice(len(shares), p=shares)])
