"""Conversion of values to JSON types."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["jsonable", "jsonable_dict"]


def jsonable(value: Any) -> Any:
    """Convert arrays, mappings and numbers to JSON types; numbers that are not finite, hence not measured, become null."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [jsonable(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def jsonable_dict(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the values of a mapping to JSON types, as :func:`jsonable` does."""
    return {name: jsonable(value) for name, value in values.items()}
