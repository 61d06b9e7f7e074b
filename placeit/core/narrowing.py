"""Types that a value is known to have where an interface says less."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["narrowed"]

T = TypeVar("T")


def narrowed(kind: type[T], value: object) -> T:
    """Return a value that has a type. Raises TypeError if it has not, as if it were handed to another device's driver."""
    if isinstance(value, kind):
        return value
    raise TypeError(f"{type(value).__name__} is no {kind.__name__}.")
