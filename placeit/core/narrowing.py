"""Narrow a value to the type that it has, where an interface promises less."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["narrowed"]

T = TypeVar("T")


def narrowed(kind: type[T], value: object) -> T:
    """Return a value as the type that it has. Raises TypeError if it has another, such as a buffer of another driver."""
    if isinstance(value, kind):
        return value
    raise TypeError(f"{type(value).__name__} is no {kind.__name__}.")
