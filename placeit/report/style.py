"""Colours, patterns and markers of devices and states, which are distinct for colour-blind readers, too.

The colours of devices are after Okabe and Ito, "Color Universal Design" (2008), some of them darker: each colour has a
contrast of at least 3 with a light and with a dark page (WCAG 2.2, 1.4.11).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["BETWEEN", "CRITICAL", "GREY", "STATES", "Look", "looks", "shortened"]

GREY = "#8c8c8c"
CRITICAL = "#e6004c"
BETWEEN = "#d55e00"  # tensors that move between devices

_MAX_CHARS = 200  # maximum length of a displayed name


@dataclass(frozen=True)
class Look:
    """Colour, pattern and marker of a device or a state.

    Attributes:
        color: colour of its area.
        pattern: pattern of its area, by Bokeh's name; empty for none.
        marker: marker of its ops, by Bokeh's name.
    """

    color: str
    pattern: str = ""
    marker: str = "circle"


_DEVICES = (
    Look("#0f7fc4", "", "circle"),
    Look("#c77f00", "/", "square"),
    Look("#009e73", ".", "triangle"),
    Look("#cc79a7", "\\", "diamond"),
    Look("#2f9bd8", "x", "inverted_triangle"),
    Look("#968a00", "|", "hex"),
    Look("#a05195", "-", "star"),
    Look(GREY, "+", "plus"),
)

# other colours than devices have
STATES = {
    "executing": Look("#5c6bc0"),
    "sending": Look("#a1662f", "/"),
    "waiting for data": Look("#9575cd", "\\"),
    "waiting for a conflicting device": Look("#d55e00", "x"),
    "waiting for the scheduler": Look("#6b8e23", "."),
    "idle": Look("#8f8f8f", "-"),
}


def looks(devices: Iterable[str]) -> dict[str, Look]:
    """Return the look of each device. From the ninth device on, colours and patterns are combined differently."""
    found = {}
    for i, name in enumerate(devices):
        round_, at = divmod(i, len(_DEVICES))
        area, mark = _DEVICES[at], _DEVICES[(at + round_) % len(_DEVICES)]
        found[name] = Look(area.color, mark.pattern, mark.marker)
    return found


def shortened(name: str, longest: int = _MAX_CHARS) -> str:
    """Shorten a name that is too long, by replacing its middle by its length."""
    if len(name) <= longest:
        return name
    note = f"… ({len(name)} characters) …"
    kept = max(2, longest - len(note))
    return f"{name[: kept - kept // 3]}{note}{name[len(name) - kept // 3 :]}"
