"""Parameters of generators: range checks, and random draws from several values of each parameter."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from placeit.core.errors import UsageError

__all__ = ["Choices", "check_range", "draw_parameters"]

Choices = Mapping[str, Sequence[float]]
"""Values that parameters may take, by name."""

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Parameters = TypeVar("Parameters", bound=DataclassInstance)


def draw_parameters(kind: type[Parameters], choices: Choices, rng: np.random.Generator) -> Parameters:
    """Draw one combination of parameter values (GiPH, Appendix B.2: several values for each parameter).

    Args:
        kind: a dataclass of parameters; fields that are not in ``choices`` keep their defaults.
        choices: one or more values by name of a field; each field is drawn uniformly and independently.
        rng: random generator.

    Raises:
        UsageError: a parameter does not exist, has no values, or is out of its range.
    """
    fields = [field.name for field in dataclasses.fields(kind)]
    values: dict[str, float] = {}
    for name in fields:  # in the order of the fields, so that the order of the choices does not matter
        if name in choices:
            if not len(choices[name]):
                raise UsageError(f"The parameter '{name}' of {kind.__name__} has an empty list of values; give at least one.")
            values[name] = choices[name][int(rng.integers(len(choices[name])))]
    for name in choices:
        if name not in fields:
            raise UsageError(f"{kind.__name__} has no parameter '{name}'; its parameters are {', '.join(fields)}.")
    return kind(**values)


def check_range(
    parameters: Any, name: str, low: float, high: float = math.inf, *, above: bool = False, below: bool = False
) -> None:
    """Check that a parameter is a number from ``low`` to ``high``, an integer if its field is declared so.

    Args:
        parameters: a dataclass instance.
        name: name of the field.
        low: minimum.
        high: maximum.
        above: whether ``low`` itself is excluded.
        below: whether ``high`` itself is excluded.

    Raises:
        UsageError: the value is out of range; the message gives the range.
    """
    value = getattr(parameters, name)
    integer = next(field.type for field in dataclasses.fields(parameters) if field.name == name) == "int"
    types = (int, np.integer) if integer else (int, float, np.integer, np.floating)
    valid = isinstance(value, types) and not isinstance(value, bool) and math.isfinite(value)
    if not valid or not low <= value <= high or (above and value == low) or (below and value == high):
        number = "a whole number" if integer else "a number"
        minimum = f"above {low:g}" if above else f"of at least {low:g}"
        maximum = "" if high == math.inf else f" and below {high:g}" if below else f" and at most {high:g}"
        raise UsageError(
            f"The parameter '{name}' of {type(parameters).__name__} must be {number} {minimum}{maximum}; got {value!r}."
        )
