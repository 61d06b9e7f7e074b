"""Arguments of ``play_episodes`` and ``see_devices`` of :mod:`placeit._core`, which run both policies of DOPPLER."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from placeit.learning.agents.doppler.features import DEVICE_FEATURES, HOPS

__all__ = ["DEVICE_INPUTS", "EARLIEST_START", "Manner", "Policy", "Record"]

DEVICE_INPUTS = len(DEVICE_FEATURES) + 1 + HOPS
"""Number of PLC's inputs per device: the features of D.2, the op's compute there, and its affinity to the ops on it."""
EARLIEST_START = 4
"""Column of the earliest start in ``DEVICE_FEATURES``."""


class Policy(NamedTuple):
    """Both policies, with the terms that are computed in advance; ``N`` is 1 if all episodes share them, else ``R``.

    Attributes:
        select: ``float32[N, V]``, SEL's logits.
        node: ``float32[N, V, W]``, term that an op adds to PLC's first layer while its device is chosen.
        placed: ``float32[N, V, W]``, term that a placed op adds to PLC's first layer for its device.
        on: ``float32[R, D, W]``, sums of ``placed`` over the ops on each device, kept up to date.
        into: ``float32[F, W]``, weights of the first layer of device features.
        bias: ``float32[W]``, its bias.
        onward: ``float32[W, W]``, weights of the second layer.
        last: ``float32[W + 1]``, weights of the last layer, and its bias.
    """

    select: NDArray[np.float32]
    node: NDArray[np.float32]
    placed: NDArray[np.float32]
    on: NDArray[np.float32]
    into: NDArray[np.float32]
    bias: NDArray[np.float32]
    onward: NDArray[np.float32]
    last: NDArray[np.float32]


class Record(NamedTuple):
    """Decisions of ``R`` episodes, and the inputs and options of each decision.

    Attributes:
        order: ``int64[R, V]``, the op that was placed at each step.
        at: ``int64[R, V]``, the step at which each op was placed.
        ready: ``int64[R, V]``, the first step at which each op could have been placed.
        chosen: ``int64[R, V]``, the device of each op.
        inputs: ``float32[R, V, D, F]``, PLC's inputs at each step; written only where PLC decided.
        allowed: ``bool[R, V, D]``, the devices that PLC could choose; written only where PLC decided.
        decided: ``bool[R, V]``, the steps at which PLC decided.
    """

    order: NDArray[np.int64]
    at: NDArray[np.int64]
    ready: NDArray[np.int64]
    chosen: NDArray[np.int64]
    inputs: NDArray[np.float32]
    allowed: NDArray[np.bool_]
    decided: NDArray[np.bool_]

    @classmethod
    def empty(cls, episodes: int, ops: int, devices: int) -> Record:
        """Return arrays of these shapes, to be written by compiled code."""
        order, at, ready, chosen = (np.zeros((episodes, ops), np.int64) for _ in range(4))
        inputs = np.empty((episodes, ops, devices, DEVICE_INPUTS), np.float32)
        allowed, decided = np.zeros((episodes, ops, devices), np.bool_), np.zeros((episodes, ops), np.bool_)
        return cls(order, at, ready, chosen, inputs, allowed, decided)


class Manner(NamedTuple):
    """Rules by which episodes are played.

    Attributes:
        select: whether SEL selects the op; else the op with the longest path to an exit is selected.
        place: whether PLC selects the device; else the device where the op can start first is selected.
        draw: whether decisions are drawn from the policies; else the likeliest decisions are made.
        explore: probability with which each policy makes a random allowed decision.
    """

    select: bool
    place: bool
    draw: bool
    explore: float
