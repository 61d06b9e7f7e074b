"""Table of the settings in which ``placeit optimize --objective tokens`` generated texts, for the terminal and for pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from placeit.core.units import percentage
from placeit.report.shown import name_of, number, records
from placeit.report.text import NOTHING, rate, seconds

__all__ = ["HEADS", "NOTE", "settings_rows"]

HEADS = ("placement", "chunk", "texts/step", "predicted", "tokens/s", "95 % interval", "error", "first token", "failed")
"""Titles of the columns."""
NOTE = "Tokens are counted over all texts, prompts are not; the first token is the one of the last text."
"""What the columns mean."""


def settings_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """Return a row for each of the settings in a result as JSON (:meth:`placeit.text.optimized.TextsOptimized.to_dict`)."""
    rows = []
    for one in records(found.get("settings")):
        ends, error = one.get("tokens_per_s_ci"), number(one.get("prediction_error"))
        low, high = map(number, ends) if isinstance(ends, Sequence) and len(ends) == 2 else (None, None)
        rows.append(
            [
                name_of(one.get("placement")),
                str(one.get("chunk") or NOTHING),
                str(one.get("texts_per_step") or NOTHING),
                rate(number(one.get("predicted_tokens_per_s"))),
                rate(number(one.get("tokens_per_s"))),
                NOTHING if low is None or high is None else f"{rate(low)} .. {rate(high)}",
                NOTHING if error is None else percentage(error, "+.0%"),
                seconds(number(one.get("first_token_s"))),
                name_of(one.get("failed") or ""),
            ]
        )
    return rows
