"""The known word that is most like one that is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["nearest"]


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the most similar known word, as the end of a message; empty if none is similar. Case does not count."""
    written = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), written, 1)
    return f" (did you mean '{written[close[0]]}'?)" if close else ""
