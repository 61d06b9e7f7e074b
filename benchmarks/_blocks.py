"""Blocks of calls, timed by the caller's clock: the time for which a program waits that makes one call after the other.

A block is a number of consecutive calls of one case, so that caches, clocks and sleeping threads are as in a program that makes
these calls. Blocks of all cases are interleaved, so that a slowdown of the machine affects all cases.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from placeit.measuring.statistics import Measurement, summed_up

__all__ = ["Block", "Blocks", "each", "interleaved", "over", "reported"]

Block: TypeAlias = Callable[[int], float]
"""Makes a number of calls and returns the seconds per call."""

_WARM_SHARE = 10  # a block of this many calls follows one call that is not counted


@dataclass(frozen=True)
class Blocks:
    """The blocks of one case.

    Attributes:
        wall: seconds per call, a sample for each block; its rounds are the same as the rounds of the other cases.
        cpu: median seconds of CPU time per call, of all threads of the process.
    """

    wall: Measurement
    cpu: float


def each(call: Callable[[], object]) -> Block:
    """Return a block that makes calls one after the other and times them together."""

    def block(calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return (time.perf_counter() - begin) / calls

    return block


def reported(call: Callable[[], float]) -> Block:
    """Return a block of calls that each return their own seconds."""
    return lambda calls: sum(call() for _ in range(calls)) / calls


def interleaved(cases: Mapping[str, Block], *, calls: int, rounds: int, seed: int) -> dict[str, Blocks]:
    """Run a block of each case in every round, in a new random order.

    Args:
        cases: blocks by name.
        calls: calls in a block that count. Fewer calls before them, at least one, do not count.
        rounds: number of rounds that count, at least 6. A round before them does not count.
        seed: decides the order.
    """
    random, names = np.random.default_rng(seed), list(cases)
    walls: dict[str, list[float]] = {name: [] for name in names}
    cpus: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for name in [names[number] for number in random.permutation(len(names))]:
            cases[name](max(1, calls // _WARM_SHARE))
            begin = time.process_time()
            wall = cases[name](calls)
            cpu = (time.process_time() - begin) / calls
            if turn > 0:
                walls[name].append(wall)
                cpus[name].append(cpu)
    return {name: Blocks(summed_up(name, walls[name], np.arange(rounds)), float(np.median(cpus[name]))) for name in names}


def over(case: Blocks, reference: Blocks, *, times: float = 1.0) -> float:
    """Return the median seconds that a call takes beyond ``times`` a call of the reference in the same round."""
    return float(np.median(case.wall.samples - times * reference.wall.samples))
