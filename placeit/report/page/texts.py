"""Section of ``placeit optimize --objective tokens``: the settings in which a decoder generated texts."""

from __future__ import annotations

from placeit.profiler.recording import Recording
from placeit.report.page.section import Section, Table
from placeit.report.shown import number, records
from placeit.report.texts import HEADS, NOTE, settings_rows

__all__ = ["texts_section"]


def texts_section(recording: Recording) -> Section | None:
    """Return a table of the settings; None if no texts were generated."""
    found = recording.tuning or {}
    if found.get("objective") != "tokens":
        return None
    settings = records(found.get("settings"))
    chosen = frozenset(i for i, one in enumerate(settings) if one.get("name") == found.get("chosen"))
    count, prompt, tokens = (number(found.get(name)) or 0 for name in ("texts", "prompt_tokens", "tokens"))
    text = (
        f"{count:.0f} texts are generated at once, each with a prompt of {prompt:.0f} tokens and an answer of {tokens:.0f}. "
        f"Settings take turns. {NOTE}"
    )
    return Section("texts", "Tokens per second", [text], [Table(HEADS, settings_rows(found), frozenset(range(1, 8)), chosen)])
