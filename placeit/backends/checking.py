"""Checks of arrays against the shapes and types that a model's inputs have."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from placeit.core.arrays import host_array
from placeit.core.errors import UsageError
from placeit.core.sizes import Limits, fits, spelled_shape

__all__ = ["InputSpecs", "check_inputs", "checked_inputs", "expected", "numpy_can_hold"]

_KINDS_OF_NUMBER = "biuf"


class _Spec(Protocol):
    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> str: ...

    @property
    def limits(self) -> Limits | None: ...


S = TypeVar("S", bound=_Spec)


class InputSpecs(dict[str, S]):
    """Required shapes and types of a model's inputs, by name.

    Args:
        specs: shape and type of each input.
        check: function that raises UsageError if shapes of the inputs, by name, contradict each other
            (:meth:`placeit.backends.base.Model.check_sizes`).
    """

    def __init__(self, specs: Mapping[str, S], check: Callable[[Mapping[str, Sequence[int]]], None]) -> None:
        super().__init__(specs)
        self.check = check


def checked_inputs(inputs: Mapping[str, NDArray[np.generic]], wanted: Mapping[str, _Spec]) -> dict[str, NDArray[np.generic]]:
    """Return a model's inputs in the model's order and types, copied if the types differ.

    Args:
        inputs: arrays by name, of any library with DLPack or NumPy's protocols; arrays on GPUs are copied to the host.
        wanted: required shapes and types, by name. An array's type must be castable to the required type by NumPy's rule
            ``same_kind``: int64 to float32, but not float32 to int64.

    Raises:
        UsageError: inputs are not given by name; one is missing, unknown, or has another shape or type; or, for
            :class:`InputSpecs`, the inputs' sizes contradict each other.
    """
    untyped: object = inputs
    if type(untyped) is not dict and not isinstance(untyped, Mapping):
        names = ", ".join(wanted) or "none at all"
        raise UsageError(f"Inputs are a dict of arrays by name, not {type(untyped).__name__}; the model's inputs are {names}.")
    exact: dict[str, NDArray[np.generic]] = {}
    for name, spec in wanted.items():
        value = inputs.get(name)
        if type(value) is not np.ndarray or value.shape != spec.shape or spec.limits or value.dtype is not _dtype(spec.dtype):
            break
        exact[name] = value
    else:
        if len(inputs) == len(wanted):
            return exact  # the common case
    values = {name: host_array(f"The input '{name}'", value) for name, value in inputs.items()}
    check_inputs({name: (value.shape, value.dtype) for name, value in values.items()}, wanted)
    if isinstance(wanted, InputSpecs):
        wanted.check({name: value.shape for name, value in values.items()})
    return {name: values[name].astype(spec.dtype, copy=False) for name, spec in wanted.items()}


_dtype = functools.cache(np.dtype)


def check_inputs(found: Mapping[str, tuple[tuple[int, ...], np.dtype[Any] | None]], wanted: Mapping[str, _Spec]) -> None:
    """Check shapes and types of a model's inputs before any array is made.

    Args:
        found: shape and type by name. For an array that is too large to be read: its size in bytes as the shape, and no type.
        wanted: required shapes and types, as for :func:`checked_inputs`.

    Raises:
        UsageError: an input is missing, unknown, or has another shape or type.
    """
    names = ", ".join(wanted) or "none at all"
    for name in found:
        if name not in wanted:
            raise UsageError(f"The model has no input '{name}'; its inputs are {names}.")
    for name, spec in wanted.items():
        if name not in found:
            raise UsageError(f"The input '{name}' is missing; the model's inputs are {names}.")
        shape, dtype = found[name]
        if dtype is None or not fits(shape, spec.shape, spec.limits) or not np.can_cast(dtype, spec.dtype, "same_kind"):
            what = f"{shape[0]} bytes" if dtype is None else f"{dtype} {list(shape)}"
            raise UsageError(f"The input '{name}' is {what}; the model expects {spec.dtype} {expected(spec)}.")


def expected(spec: _Spec) -> str:
    """Return the shape that an input must have as text, such as ``[1..64@8, 128]``."""
    return f"[{', '.join(map(str, spelled_shape([spec.shape], spec.limits)))}]"


def numpy_can_hold(dtype: str) -> bool:
    """Return whether NumPy has a numeric or boolean type of this name."""
    try:
        return np.dtype(dtype).kind in _KINDS_OF_NUMBER and np.dtype(dtype).name == dtype
    except TypeError:
        return False
