"""Checks of the parts of a :class:`placeit.core.problem.Problem`; they raise ProblemError, unless they say otherwise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from placeit.core.errors import InfeasibleError, PlacementError, ProblemError
from placeit.core.graph import topological_order
from placeit.core.units import about_bytes

MAX_NUMBER = 1e100  # largest finite number of seconds, bytes or bytes per second, so that sums and products do not overflow


def floats(
    name: str,
    value: ArrayLike | None,
    shape: tuple[int | None, ...],
    *,
    default: float | None = None,
    diagonal: float | None = None,
    infinite: bool = False,
) -> NDArray[np.float64]:
    """Return an array of numbers that are not NaN, not negative, and at most 1e100 if finite.

    Args:
        name: name of the array in errors.
        value: the numbers; None for ``default`` everywhere.
        shape: the expected shape; None for a dimension of any size.
        default: the number that replaces a missing array; None if the array is required.
        diagonal: the number that replaces the diagonal.
        infinite: whether numbers may be infinite.
    """
    if value is None and default is not None:
        value = np.full([size or 0 for size in shape], default)
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ProblemError(f"'{name}' is not an array of numbers.") from None
    if array.size == 0 and 0 in shape:
        array = array.reshape([size or 0 for size in shape])
    fixed = None not in shape
    if array.ndim != len(shape) or (fixed and array.shape != shape):
        expected = shape if fixed else f"{len(shape)} dimensions"
        raise ProblemError(f"'{name}' has shape {array.shape}; expected {expected}.")
    if diagonal is not None:
        np.fill_diagonal(array, diagonal)
    if np.isnan(array).any():
        where = tuple(int(i) for i in np.argwhere(np.isnan(array))[0])
        raise ProblemError(f"'{name}' contains NaN at {where}: a cost was not measured.")
    if (array < 0).any():
        where = tuple(int(i) for i in np.argwhere(array < 0)[0])
        raise ProblemError(f"'{name}' is negative at {where}: {array[where]}.")
    if (np.isfinite(array) & (array > MAX_NUMBER)).any():
        raise ProblemError(f"'{name}' holds {array[np.isfinite(array)].max():g}; finite numbers are at most {MAX_NUMBER:g}.")
    if not infinite and np.isinf(array).any():
        raise ProblemError(f"'{name}' contains an infinite value; only 'compute', 'bandwidth' and 'memory' may.")
    return array


def runnable(compute: NDArray[np.float64], ops: Sequence[str], devices: Sequence[str]) -> None:
    """Raise InfeasibleError if some op can run on no device."""
    nowhere = np.flatnonzero(~np.isfinite(compute).any(axis=1))
    if len(nowhere):
        raise InfeasibleError(
            f"Op '{ops[int(nowhere[0])]}' can run on none of the devices {', '.join(devices)}: add a device that supports it."
        )


def bandwidth(value: ArrayLike, devices: Sequence[str]) -> NDArray[np.float64]:
    """Return the bandwidths of links, ``float64[D, D]``, positive, and infinite on the diagonal."""
    array = floats("bandwidth", value, (len(devices),) * 2, diagonal=np.inf, infinite=True)
    slow = np.argwhere(array < 1 / MAX_NUMBER)
    if len(slow):
        i, j = slow[0]
        raise ProblemError(
            f"The link {devices[i]} -> {devices[j]} has bandwidth {array[i, j]}; it must be positive (bytes per second)."
        )
    return array


def check_length(what: str, values: Collection[Any], size: int) -> None:
    """Check that there are ``size`` values."""
    if len(values) != size:
        raise ProblemError(f"'{what}' has {len(values)} entries where {size} are expected.")


def kinds(value: Sequence[str], ops: Sequence[str]) -> tuple[str, ...]:
    """Return the kind of each op, ``V`` of them; a kind is empty if it is not known."""
    check_length("kinds", value, len(ops))
    for kind, op in zip(value, ops, strict=True):
        if not isinstance(kind, str):
            raise ProblemError(f"The kind of op '{op}' is {kind!r}; a kind is a name, empty if it is not known.")
    return tuple(value)


def shapes(value: Any, ops: Sequence[str]) -> tuple[tuple[int, ...] | None, ...]:
    """Return the shape of each op's output; None where it is unknown."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise ProblemError("'output_shapes' is not a list of shapes.")
    check_length("output_shapes", value, len(ops))
    for shape, op in zip(value, ops, strict=True):
        if shape is not None and not (isinstance(shape, Sequence) and all(map(_is_size, shape))):
            raise ProblemError(
                f"The output of op '{op}' has the shape {shape!r}; a shape is a list of whole numbers of at least 0, or None "
                "if it is not known."
            )
    return tuple(None if shape is None else tuple(map(int, shape)) for shape in value)


def shared(value: Any, ops: int) -> tuple[tuple[float, tuple[int, ...]], ...]:
    """Return weights that several ops read, each as its bytes and the numbers of the ops, from lists of the same form."""
    try:
        found = tuple((float(size), tuple(map(int, readers))) for size, readers in value)
    except (TypeError, ValueError) as error:
        raise ProblemError("'shared' is not a list of pairs, of bytes and a list of op numbers.") from error
    for size, readers in found:
        ascending = all(u < v for u, v in itertools.pairwise(readers))
        if not 0 <= size < math.inf or len(readers) < 2 or not ascending or readers[0] < 0 or readers[-1] >= ops:
            raise ProblemError(
                f"'shared' has a weight of {size} bytes for the ops {list(readers)}; give a number and two or more ops from 0 "
                f"to {ops - 1}, ascending."
            )
    return found


def _is_size(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= 0


def _array(name: str, value: ArrayLike) -> NDArray[Any]:
    try:
        return np.array(value)
    except ValueError:  # lists of different lengths
        raise ProblemError(f"'{name}' is not an array of numbers: its lists have different lengths.") from None


def ints(name: str, value: ArrayLike, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Return an array of integers of a given shape."""
    array = _array(name, value)
    if array.shape != shape or (array.size and not np.issubdtype(array.dtype, np.integer)):
        raise ProblemError(f"'{name}' has shape {array.shape} and type {array.dtype}; expected integers of shape {shape}.")
    return array.astype(np.int64)


def edges(value: ArrayLike, ops: int) -> NDArray[np.int32]:
    """Return the edges, producer and consumer of each, ``int32[E, 2]``."""
    array = _array("edges", value)
    if array.size == 0:
        return np.zeros((0, 2), np.int32)
    if array.ndim != 2 or array.shape[1] != 2 or not np.issubdtype(array.dtype, np.integer):
        raise ProblemError(f"'edges' has shape {array.shape} and type {array.dtype}; expected integers of shape (E, 2).")
    if array.min() < 0 or array.max() >= ops:
        raise ProblemError(f"'edges' refers to ops {array.min()}..{array.max()}; the problem has ops 0..{ops - 1}.")
    return array.astype(np.int32)


def conflicts(value: ArrayLike, devices: Sequence[str]) -> NDArray[np.bool_]:
    """Return which devices cannot run at the same time, ``bool[D, D]``, symmetric."""
    array = _array("conflicts", value)
    if array.shape != (len(devices),) * 2 or array.dtype != np.bool_:
        raise ProblemError(
            f"'conflicts' has shape {array.shape} and type {array.dtype}; expected true or false for each pair of devices, of "
            f"shape {(len(devices),) * 2}."
        )
    if array.diagonal().any():
        d = int(array.diagonal().argmax())
        raise ProblemError(f"'conflicts' says that {devices[d]} conflicts with itself; it is about pairs of devices.")
    if (array != array.T).any():
        a, b = np.argwhere(array & ~array.T)[0]
        raise ProblemError(f"'conflicts' says that {devices[a]} conflicts with {devices[b]}, but not the other way round.")
    return array


def order(edges: NDArray[np.int32], ops: int, names: Sequence[str]) -> NDArray[np.int32]:
    """Return a topological order, ``int32[V]``."""
    found = topological_order(edges, ops)
    if found is None:
        raise ProblemError(f"The graph has a cycle through op '{names[_on_cycle(edges, ops)]}'; a task graph has none.")
    return found


def _on_cycle(edges: NDArray[np.int32], ops: int) -> int:
    """Return an op on a cycle: walk backwards among the ops that still have a predecessor when all sources are removed."""
    alive = np.ones(ops, bool)
    while True:
        live = edges[alive[edges[:, 0]] & alive[edges[:, 1]]]
        sources = alive & (np.bincount(live[:, 1], minlength=ops) == 0)
        if not sources.any():
            break
        alive &= ~sources
    parent = {int(w): int(v) for v, w in live}
    v, seen = next(iter(parent)), set[int]()
    while v not in seen:
        seen.add(v)
        v = parent[v]
    return v


def keys(
    path: str | Path, data: Mapping[str, Any], known: Collection[str], needed: Collection[str], names: Collection[str]
) -> None:
    """Check the keys of a problem file: none is unknown, none that is needed is missing, and ``names`` are lists of strings."""
    for name in data:
        if name not in known:
            raise ProblemError(f"{path}: unknown key '{name}'; known keys: {', '.join(sorted(known))}.")
    missing = set(needed) - data.keys()
    if missing:
        raise ProblemError(f"{path}: missing '{min(missing)}'.")
    for name in names:
        values = data.get(name)
        if values is not None and not (isinstance(values, list) and all(isinstance(item, str) for item in values)):
            raise ProblemError(f"{path}: '{name}' is not a list of names.")


def cannot_run(op: str, device: int, able: NDArray[np.bool_], names: Sequence[str]) -> PlacementError:
    """Return the error for an op on a device that is not among the ones that can run it, ``bool[D]``."""
    others = ", ".join(name for name, can in zip(names, able, strict=True) if can)
    return PlacementError(f"Op '{op}' cannot run on {names[device]}{f': place it on {others}' if others else ''}.")


def weights_fit(used: NDArray[np.float64], memory: NDArray[np.float64], names: Sequence[str]) -> None:
    """Check that weights and states, ``float64[D]`` bytes, fit into the memory of each device. Raises PlacementError."""
    over = np.flatnonzero(used > memory)
    if len(over):
        d = int(over[0])
        raise PlacementError(
            f"{names[d]} has {about_bytes(memory[d])} of memory; the ops placed there need {about_bytes(used[d])} for "
            "weights and states."
        )


def device_numbers(what: str, placements: ArrayLike, ops: int, devices: int, *, rows: bool = False) -> NDArray[np.int32]:
    """Return a placement as ``int32[V]`` or, with ``rows``, several placements as ``int32[B, V]``.

    Args:
        what: beginning of the sentence in errors about the shape.
        placements: the device numbers.
        ops: number of ops.
        devices: number of devices.
        rows: whether there are several placements.

    Raises:
        PlacementError: the shape is wrong, the numbers are no integers, or a device does not exist.
    """
    array = np.asarray(placements)
    if array.ndim != 1 + rows or array.shape[-1] != ops or array.dtype.kind not in "iu":
        raise PlacementError(f"{what} {ops} device numbers; got shape {array.shape}, {array.dtype}.")
    if array.size and not 0 <= array.min() <= array.max() < devices:
        raise PlacementError(f"A placement uses device numbers 0..{devices - 1}; got {array.min()}..{array.max()}.")
    return np.ascontiguousarray(array, np.int32)
