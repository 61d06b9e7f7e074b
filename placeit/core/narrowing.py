"""Narrow a value to its actual type, where an interface promises a wider one."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["narrowed"]

T = TypeVar("T")


def narrowed(kind: type[T], value: object) -> T:
    """Return a value as an instance of ``kind``. Raises TypeError if it is not, such as a buffer of another driver."""
    if isinstance(value, kind):
        return value
    raise TypeError(f"{type(value).__name__} is no {kind.__name__}.")
