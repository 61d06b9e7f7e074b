"""Colours of devices and states."""

from __future__ import annotations

from placeit.report.style import BETWEEN, CRITICAL, STATES, looks


def contrast(a: str, b: str) -> float:
    """The contrast of two colours as WCAG 2.2 defines it, from 1 to 21."""
    parts = ([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)] for color in (a, b))
    linear = ([part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in one] for one in parts)
    low, high = sorted(0.2126 * red + 0.7152 * green + 0.0722 * blue for red, green, blue in linear)
    return (high + 0.05) / (low + 0.05)


def test_no_state_and_no_line_has_the_colour_of_a_device_and_no_two_states_look_alike() -> None:
    devices = {look.color for look in looks(f"device {i}" for i in range(8)).values()}
    assert devices.isdisjoint({look.color for look in STATES.values()} | {BETWEEN, CRITICAL})
    assert len({look.color for look in STATES.values()}) == len({look.pattern for look in STATES.values()}) == len(STATES)


def test_devices_and_states_are_seen_on_white_and_on_black() -> None:
    for look in (*looks(f"device {i}" for i in range(8)).values(), *STATES.values()):
        assert all(contrast(look.color, page) >= 3 for page in ("#ffffff", "#15181c")), look
