"""Slowdown of models that run at the same time on devices of a machine: measured for some pairs, assumed for others."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np

__all__ = ["Interference", "Pair", "Place", "pairs_by_load"]

Place: TypeAlias = tuple[str, str]
"""The name of a model of the workload, and the name of a device that runs it."""

_TURNS = 2.0  # factor of a model whose cores another model has as well: the operating system gives it half of their time


class Pair(NamedTuple):
    """A measured pair: two models, their devices, and the factor on the latency of each while the other one runs."""

    models: tuple[str, str]
    devices: tuple[str, str]
    slowdown: tuple[float, float]

    @property
    def both_ways(self) -> tuple[tuple[Place, Place, float], ...]:
        """The place that is slowed, the place that slows it, and the factor; for each of the two."""
        one, other = zip(self.models, self.devices, strict=True)
        return (one, other, self.slowdown[0]), (other, one, self.slowdown[1])


@dataclass(frozen=True, eq=False)
class Interference:
    """The factor by which models that run at the same time on a machine slow each other.

    A measured pair has its measured factor, other pairs of devices without a common core the mean of these. Models of which
    each has its own threads on the same cores get half of their time each.

    Factors of models on other cores multiply. Of models on the same cores, the excess over 1 adds up on each core, and the core
    with the largest sum counts: ``CPU`` is as slow beside ``CPU@0`` and ``CPU@1`` as beside one of them.

    Args:
        pairs: the measured pairs, of devices without a common core.
        machines: the machine of each device, by name; devices of different machines do not slow each other.
        overlapping: the pairs of names of devices that have hardware in common; only one name for a device on which each model
            has its own threads.
    """

    pairs: tuple[Pair, ...] = ()
    machines: Mapping[str, str] = field(default_factory=dict)
    overlapping: Collection[frozenset[str]] = ()

    def __call__(self, one: Place, others: Collection[Place]) -> float:
        """Return the factor, at least 1, on the time of a model on a device while other models run on other devices."""
        within = [other for other in others if self._overlap(one, other)]
        shares = [sum(self._factor(one, each) - 1.0 for each in within if self._overlap(each, other)) for other in within]
        return prod(self._factor(one, other) for other in others if other not in within) * (1.0 + max(shares, default=0.0))

    def _overlap(self, one: Place, other: Place) -> bool:
        return one == other or frozenset((one[1], other[1])) in self.overlapping

    def _factor(self, one: Place, other: Place) -> float:
        here, there = (self.machines.get(device, device) for _, device in (one, other))
        if here != there:
            return 1.0
        if self._overlap(one, other):
            return _TURNS
        return max(1.0, self._measured.get((one, other), 1.0 if one[1] == other[1] else self._elsewhere))

    @property
    def error(self) -> float | None:
        """Median error of assumed factors, as a share of the measured ones, each assumed without its own pair (leave-one-out).

        None if fewer than two pairs were measured.
        """
        errors = [
            abs(_mean([pair for pair in self.pairs if pair is not left_out]) / factor - 1)
            for left_out in self.pairs
            for factor in left_out.slowdown
        ]
        return float(np.median(errors)) if len(self.pairs) > 1 else None

    @cached_property
    def _elsewhere(self) -> float:
        return _mean(self.pairs)

    @cached_property
    def _measured(self) -> dict[tuple[Place, Place], float]:
        return {(one, other): factor for pair in self.pairs for one, other, factor in pair.both_ways}


def _mean(pairs: Sequence[Pair]) -> float:
    return float(np.mean([factor for pair in pairs for factor in pair.slowdown])) if pairs else 1.0


def pairs_by_load(
    busy: Mapping[Place, float], machines: Mapping[str, str], overlapping: Collection[frozenset[str]] = ()
) -> list[tuple[Place, Place]]:
    """Return the pairs that can run at once on one machine, on devices without a common core, in the order to measure them in.

    First come the fastest devices for each pair of different models, then each model beside a replica of itself, and then
    further pairs of devices.

    Args:
        busy: share of its time that each device works for a model; of several pairs of models, the ones with the largest
            products come first.
        machines: the machine of each device, by name.
        overlapping: pairs of names of devices with common hardware (:class:`Interference`).
    """
    able = [
        (one, other)
        for one, other in itertools.combinations(sorted(busy), 2)
        if one[1] != other[1] and machines[one[1]] == machines[other[1]] and frozenset((one[1], other[1])) not in overlapping
    ]
    able.sort(key=lambda pair: busy[pair[0]] * busy[pair[1]])
    counts, order = Counter[tuple[str, str]](), []
    for one, other in able:
        kind = one[0], other[0]
        counts[kind] += 1
        order.append((counts[kind], one[0] == other[0], -busy[one] * busy[other]))
    return [able[k] for k in sorted(range(len(able)), key=order.__getitem__)]
