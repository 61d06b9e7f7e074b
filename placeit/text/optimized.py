"""The result of a search for the fastest way to generate texts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from placeit.core.jsonable import jsonable_dict
from placeit.core.placement import Placement
from placeit.measuring.statistics import Measurement, Ratio, median_error, median_interval

__all__ = ["TextSettings", "TextsOptimized"]


@dataclass(frozen=True, eq=False)
class TextSettings:
    """A placement with a size of the chunks of prompts, and its predicted and measured speed.

    Attributes:
        name: name of the placement and the chunks.
        of: name of the placement.
        placement: the placement, with the chunk in its settings (:class:`placeit.core.placement.Serving`).
        rows: most texts in a step; 1 if their steps cannot be joined.
        predicted: tokens per second of all texts by the simulator, prompts included; None if the costs are not known.
        predicted_first_s: seconds until all texts have their first tokens, by the simulator; None if the costs are not known.
        measured: seconds per token of each turn; None if the settings were not measured.
        first_s: seconds until all texts had their first tokens, median of the turns; None if they were not measured.
        failed: why they cannot generate texts; None if they can.
    """

    name: str
    of: str
    placement: Placement
    rows: int = 1
    predicted: float | None = None
    predicted_first_s: float | None = None
    measured: Measurement | None = None
    first_s: float | None = None
    failed: str | None = None

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of all texts, prompts included, median of the turns; None if they were not measured."""
        return None if self.measured is None else 1 / self.measured.median

    @property
    def interval(self) -> tuple[float, float]:
        """95 % confidence interval of :attr:`tokens_per_s`; (0, inf) if it is unknown."""
        low, high = (0.0, math.inf) if self.measured is None else median_interval(self.measured.samples)
        return (1 / high if high else math.inf, 1 / low if low else math.inf)

    @property
    def error(self) -> float | None:
        """Relative error of the predicted tokens per second; None unless both are known."""
        known = self.predicted is not None and self.tokens_per_s is not None
        return (self.predicted or 0.0) / (self.tokens_per_s or 1.0) - 1 if known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as a dict for JSON."""
        low, high = self.interval
        return {
            "name": self.name,
            "placement": self.of,
            "devices": self.placement.counts(),
            "texts_per_step": self.rows,
            "chunk": self.placement.chunk,
            "predicted_tokens_per_s": self.predicted,
            "prediction_error": self.error,
            "tokens_per_s": self.tokens_per_s,
            "tokens_per_s_ci": [low, high],
            "predicted_first_token_s": self.predicted_first_s,
            "first_token_s": self.first_s,
            "turns": 0 if self.measured is None else len(self.measured.samples),
            "failed": self.failed,
        }


@dataclass(frozen=True, eq=False)
class TextsOptimized:
    """The result of :func:`optimize_texts`.

    Attributes:
        model: path of the decoder.
        texts: number of texts that are generated at once.
        prompt: tokens of each prompt.
        tokens: tokens that are generated after each prompt.
        settings: all settings, the fastest first; settings that were not measured come last.
        chosen: the fastest settings; a single device, unless a placement over several is faster beyond the interval.
        ratio: time of the best placement over several devices over the time of the best single device, in the same turns; None
            if one of them was not measured.
        interrupted: whether Ctrl-C ended the measurement early.
    """

    model: Path
    texts: int
    prompt: int
    tokens: int
    settings: tuple[TextSettings, ...]
    chosen: TextSettings
    ratio: Ratio | None
    interrupted: bool

    def __repr__(self) -> str:
        return f"<TextsOptimized {self.model}: {len(self.settings)} settings; {self.chosen.name}: {self.reason}>"

    @property
    def placement(self) -> Placement:
        """The chosen placement, with its settings."""
        return self.chosen.placement

    @property
    def error(self) -> float | None:
        """Median absolute relative error of the predicted tokens per second; None if none was both predicted and measured."""
        return median_error(one.error for one in self.settings)

    @property
    def reason(self) -> str:
        """The reason for the choice, as a sentence."""
        speed = f"{self.chosen.tokens_per_s or 0:.4g} tokens per second"
        if self.ratio is None:
            return f"{speed}; nothing was compared with it"
        ends = f"(95 % interval {self.ratio.ci_low:.2f} to {self.ratio.ci_high:.2f})"
        if not math.isfinite(self.ratio.ci_high):
            ends = "(too few turns for an interval: give a larger --budget)"
        outcome = "faster" if self.ratio.faster else "not certainly faster"
        return f"{speed}; the best split takes {self.ratio.ratio:.2f} of the best single device's time {ends}: it is {outcome}"

    def to_dict(self) -> dict[str, Any]:
        """Return the result as a dict, as ``placeit optimize --objective tokens --json`` prints it."""
        ratio = self.ratio
        return jsonable_dict(
            {
                "model": str(self.model),
                "objective": "tokens",
                "texts": self.texts,
                "prompt_tokens": self.prompt,
                "tokens": self.tokens,
                "chosen": self.chosen.name,
                "reason": self.reason,
                "ratio": None if ratio is None else {"ratio": ratio.ratio, "ci": [ratio.ci_low, ratio.ci_high]},
                "prediction_error": self.error,
                "settings": [one.to_dict() for one in self.settings],
                "interrupted": self.interrupted,
            }
        )
