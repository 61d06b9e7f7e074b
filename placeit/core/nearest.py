"""Find the known word that is most similar to an unknown one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return the end of a message that suggests the most similar known word, ignoring case; empty if none is similar."""
    written = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), written, 1)
    return f" (did you mean '{written[close[0]]}'?)" if close else ""
