"""Quantities with units: ``10 Gbit/s``, ``50 us``, ``8 GiB``, ``2 TFLOP/s``, ``25 W``."""

from __future__ import annotations

import difflib
import re
from fractions import Fraction
from typing import Literal, TypeAlias

from placeit.core.errors import UsageError

__all__ = [
    "Dimension",
    "about_bytes",
    "about_seconds",
    "format_quantity",
    "milliseconds",
    "parse_duration",
    "parse_quantity",
    "percentage",
]

Dimension: TypeAlias = Literal["number", "bandwidth", "memory bandwidth", "time", "memory", "rate", "power"]

_DECIMAL = {prefix: Fraction(1000**i) for i, prefix in enumerate(("", "k", "M", "G", "T", "P"))}
_BINARY = {prefix: Fraction(1024**i) for i, prefix in enumerate(("Ki", "Mi", "Gi", "Ti"), start=1)}

_BANDWIDTH = {f"{prefix}bit/s": factor / 8 for prefix, factor in _DECIMAL.items()} | {
    f"{prefix}B/s": factor for prefix, factor in (_DECIMAL | _BINARY).items()
}

# unit -> factor to the base unit; exact, so that '50 us' is the float nearest to 50e-6
_UNITS: dict[Dimension, dict[str, Fraction]] = {
    "number": {},
    "bandwidth": _BANDWIDTH,
    "memory bandwidth": _BANDWIDTH,
    "time": {unit: Fraction(1, 1000**i) for unit, i in (("s", 0), ("ms", 1), ("us", 2), ("µs", 2), ("ns", 3))},
    "memory": {f"{prefix}B": factor for prefix, factor in (_DECIMAL | _BINARY).items()},
    "rate": {f"{prefix}{unit}": factor for unit in ("FLOP/s", "FLOPS") for prefix, factor in _DECIMAL.items()},
    "power": {"W": Fraction(1), "mW": Fraction(1, 1000), "kW": Fraction(1000)},
}
_WRITTEN: dict[Dimension, tuple[str, ...]] = {
    "number": (),
    "memory bandwidth": ("TB/s", "GB/s", "MB/s", "B/s"),
    "bandwidth": ("Gbit/s", "Mbit/s", "kbit/s", "bit/s"),
    "time": ("s", "ms", "us", "ns"),
    "memory": ("TiB", "GiB", "MiB", "KiB", "B"),
    "rate": ("TFLOP/s", "GFLOP/s", "MFLOP/s", "FLOP/s"),
    "power": ("W", "mW"),
}
# a sign is accepted here so that the message can say that the value is negative
_QUANTITY = re.compile(r"(-?)((?:\d{1,400}\.?\d{0,400}|\.\d{1,400})(?:[eE][+-]?\d{1,3})?|\.?inf)\s*([^\d\s].*)?", re.ASCII)


def parse_quantity(text: str, dimension: Dimension) -> float:
    """Read a number with a unit, such as ``10 Gbit/s``; a number without a unit is in SI base units.

    Prefixes are decimal (``GB`` is 1e9 bytes) unless they are binary (``GiB``). Units are case-sensitive, since ``b`` and
    ``B`` mean different units; ``inf`` is a number.

    Args:
        text: the quantity.
        dimension: the quantity's dimension; the result is in bytes/s, seconds, bytes, FLOP/s or watts.

    Raises:
        UsageError: the text is not a number, is negative, or has an unknown unit.
    """
    match = _QUANTITY.fullmatch(text.strip())
    units = _UNITS[dimension]
    expected = f"a number with a unit such as {', '.join(_WRITTEN[dimension])}" if units else "a plain number"
    if match is None:
        raise UsageError(f"'{text}' is not {expected}.")
    sign, digits, unit = match.groups()
    if unit and unit not in units:
        close = [known for known in units if known.lower() == unit.lower()] or difflib.get_close_matches(unit, units, 1, 0.5)
        raise UsageError(
            f"'{unit}' is not a unit of {dimension}{f', did you mean {close[0]!r}' if close else ''}; use {expected}."
        )
    if digits.endswith("inf"):
        value = float("inf")
    else:
        try:
            value = float(Fraction(digits) * (units[unit] if unit else 1))
        except OverflowError:
            raise UsageError(f"'{text}' is too large to be a number here; infinity is written inf.") from None
    if sign and value != 0:
        raise UsageError(f"'{text}' is negative.")
    return value


_DURATION = re.compile("".join(rf"(?:(\d+(?:\.\d+)?){unit})?" for unit in ("h", "m", "s", "ms", "us")), re.ASCII)


def parse_duration(text: str) -> float:
    """Read a duration in seconds: ``90``, ``90s``, ``2m``, ``1h30m``, ``250ms``, ``500us``. Raises UsageError."""
    words = text.replace(" ", "")
    match = _DURATION.fullmatch(words)
    if words and match is not None:
        return float(
            sum(float(number or 0) * unit for number, unit in zip(match.groups(), (3600, 60, 1, 1e-3, 1e-6), strict=True))
        )
    try:
        return float(words)
    except ValueError:
        raise UsageError(
            f"'{text}' is not a duration: write seconds (90 or 90s), minutes (2m), hours (1h30m), ms or us."
        ) from None


def about_bytes(value: float) -> str:
    """Return a size as text with about three digits: ``2.15 GB``."""
    for prefix in ("T", "G", "M", "k"):
        if value >= _DECIMAL[prefix]:
            return "no limit" if value == float("inf") else f"{value / float(_DECIMAL[prefix]):.3g} {prefix}B"
    return f"{value:.3g} B"


def about_seconds(value: float) -> str:
    """Return a duration as text, to whole days, hours, minutes or seconds: ``3 days``, ``40 s``."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if value >= 2 * length:
            return f"{value / length:.0f} {unit}"
    return f"{max(0.0, value):.0f} s"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds, as text: ``0.1634 ms``."""
    return f"{seconds * 1e3:.4g} ms"


def percentage(share: float, spec: str = ".0%") -> str:
    """Return a share as text with a space before the sign: ``83 %``, ``+6 %`` with the format ``+.0%``."""
    return f"{share:{spec}}".replace("%", " %")


def format_quantity(value: float, dimension: Dimension) -> str:
    """Return a quantity as readable text from which :func:`parse_quantity` reads exactly ``value``."""
    if value not in (0.0, float("inf")):
        for unit in _WRITTEN[dimension]:
            factor = float(_UNITS[dimension][unit])
            text = f"{value / factor:.12g} {unit}"
            if value >= factor and parse_quantity(text, dimension) == value:
                return text
    return repr(float(value))
