"""Conversion to what JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["jsonable", "jsonable_dict"]


def jsonable(value: Any) -> Any:
    """Turn arrays, mappings and numbers into what JSON can hold; what is not finite, and so was not measured, is null."""
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
    """Turn the values of a mapping into what JSON can hold, as :func:`jsonable` does."""
    return {name: jsonable(value) for name, value in values.items()}
