"""Section of ``placeit optimize --objective tokens``: the settings in which a decoder generated texts."""

from __future__ import annotations

from collections.abc import Sequence

from placeit.core.units import percentage
from placeit.profiler.recording import Recording
from placeit.report.page.section import Section, Table
from placeit.report.shown import name_of, number, records
from placeit.report.text import NOTHING, rate, seconds

__all__ = ["texts_section"]

_HEADS = ("placement", "chunk", "texts/step", "predicted", "tokens/s", "95 % interval", "error", "first token", "failed")


def texts_section(recording: Recording) -> Section | None:
    """Return a table of the settings; None if no texts were generated."""
    found = recording.tuning or {}
    if found.get("objective") != "tokens":
        return None
    settings = list(records(found.get("settings")))
    rows = []
    for one in settings:
        ends, error = one.get("tokens_per_s_ci"), number(one.get("prediction_error"))
        low, high = map(number, ends) if isinstance(ends, Sequence) and len(ends) == 2 else (None, None)
        rows.append(
            (
                name_of(one.get("placement")),
                str(one.get("chunk") or NOTHING),
                str(one.get("texts_per_step") or NOTHING),
                rate(number(one.get("predicted_tokens_per_s"))),
                rate(number(one.get("tokens_per_s"))),
                NOTHING if low is None or high is None else f"{rate(low)} .. {rate(high)}",
                NOTHING if error is None else percentage(error, "+.0%"),
                seconds(number(one.get("first_token_s"))),
                name_of(one.get("failed") or ""),
            )
        )
    chosen = frozenset(i for i, one in enumerate(settings) if one.get("name") == found.get("chosen"))
    count, prompt, tokens = (number(found.get(name)) or 0 for name in ("texts", "prompt_tokens", "tokens"))
    text = (
        f"{count:.0f} texts are generated at once, each with a prompt of {prompt:.0f} tokens and an answer of {tokens:.0f}. "
        "Settings take turns. Tokens are counted over all texts, prompts are not; the first token is the one of the last text."
    )
    return Section("texts", "Tokens per second", [text], [Table(_HEADS, rows, frozenset(range(1, 8)), chosen)])
