"""Bytes of weights where several ops read one weight: a device holds it once, for all ops on the device that read it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Shared", "counted_once", "held_bytes", "merged", "weights_of"]

Shared: TypeAlias = tuple[tuple[float, tuple[int, ...]], ...]
"""Weights that several ops read: the bytes of each, and the numbers of these ops, ascending."""


def weights_of(read: Sequence[Mapping[Hashable, float]]) -> tuple[NDArray[np.float64], Shared]:
    """Return the bytes that each op reads, ``float64[V]``, and the weights that several ops read.

    Args:
        read: bytes of the weights that each op reads, by a key that is equal for one weight.
    """
    readers: dict[Hashable, list[int]] = {}
    for v, weights in enumerate(read):
        for key in weights:
            readers.setdefault(key, []).append(v)
    shared = tuple((read[ops[0]][key], tuple(ops)) for key, ops in readers.items() if len(ops) > 1 and read[ops[0]][key] > 0)
    return np.array([float(sum(weights.values())) for weights in read], np.float64), shared


def counted_once(param_bytes: NDArray[np.float64], shared: Shared) -> NDArray[np.float64]:
    """Return ``param_bytes`` with each shared weight counted only for the first op that reads it: ``float64[V]``."""
    once = param_bytes.copy()
    for size, ops in shared:
        once[list(ops[1:])] -= size
    return np.maximum(once, 0.0)


def held_bytes(once: NDArray[np.float64], shared: Shared, place: NDArray[Any], places: int) -> NDArray[np.float64]:
    """Return the bytes of weights in each place (a device, or a group of ops), each weight once: ``float64[B, places]``.

    Args:
        once: bytes of each op's weights, from :func:`counted_once`.
        shared: weights that several ops read.
        place: ``int[B, V]``, the place of each op.
        places: number of places.
    """
    rows = np.arange(len(place))
    numbers = rows[:, None] * places + place
    sums = np.bincount(numbers.ravel(), np.broadcast_to(once, place.shape).ravel(), len(place) * places)
    held = np.asarray(sums.reshape(len(place), places), np.float64)
    for size, ops in shared:
        beyond = np.zeros(held.shape, bool)  # places that hold it, except for the place of the op that counts it
        beyond[rows[:, None], place[:, list(ops)]] = True
        beyond[rows, place[:, ops[0]]] = False
        held += size * beyond
    return held


def merged(
    param_bytes: NDArray[np.float64], shared: Shared, part_of: NDArray[Any], parts: int
) -> tuple[NDArray[np.float64], Shared]:
    """Return the bytes of the weights of merged ops, ``float64[parts]``, and the weights that several parts read.

    Args:
        param_bytes: ``float64[V]``, bytes of the weights that each op reads.
        shared: weights that several ops read.
        part_of: ``int[V]``, the part that each op is merged into.
        parts: number of parts.
    """
    readers = ((size, tuple(sorted({*part_of[list(ops)].tolist()}))) for size, ops in shared)
    held = held_bytes(counted_once(param_bytes, shared), shared, part_of[None], parts)[0]
    return held, tuple((size, ops) for size, ops in readers if len(ops) > 1)
