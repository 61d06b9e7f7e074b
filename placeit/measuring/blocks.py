"""Blocks of runs: a program runs several times in a row, and the first runs of the block are not counted.

A run that follows one of another program finds the caches full of the other program's weights: 64 MB of weights took 2.8 ms
alone, and 5.1 ms where three programs took turns run by run. Programs that are compared therefore take turns by blocks. The
first runs of a block fill the caches and are left out; the median of the others is the time of the program when it runs by
itself.

How to use it, for each program::

    seconds = []
    while not is_enough(seconds):  # a trial, which is not counted; right after another program has run
        seconds.append(run())
    block = block_of(seconds)
    ...  # for programs that are compared: blocks = alike(blocks)
    for _ in range(block.skipped):  # repeatedly, in turn with other programs
        run()
    sample = median(run() for _ in range(block.counted))

``Block.steady(run)`` is these last three lines without the median. The number of runs to leave out comes from the trial, not
from the runs that count: otherwise a block would begin at a run that is short by chance, which favours programs whose times
vary more. Without a trial, :func:`first_steady` says where the runs themselves become steady.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

__all__ = ["BLOCK_S", "SINGLE", "SLOW_S", "Block", "alike", "block_of", "block_s", "first_steady", "is_enough", "trial_s"]

BLOCK_S = 0.02  # seconds of a block's runs that count
SLOW_S = 0.05  # a run that takes at least this is a block by itself: filling caches is a small part of it
_STEADY = 0.03  # share by which a steady run may take longer than the median of the runs after it
_MAX_RATIO = 1.5  # of the times of runs that take about as long
_MAX_SKIPPED = 8  # runs that are left out
_MIN_SLOW, _MIN_TRIED, _MAX_TRIED = 2, 4, 32  # runs of a trial: minimum if runs are slow, minimum and maximum otherwise
_MIN_S = 1e-5  # shorter runs count as this long, so that no block has too many runs

_T = TypeVar("_T")


@dataclass(frozen=True)
class Block:
    """The length of a program's blocks.

    Attributes:
        skipped: number of first runs, which are left out.
        counted: number of runs after them, which count.
        seconds: seconds of a steady run of the trial; 0 if unknown.
    """

    skipped: int
    counted: int
    seconds: float = field(default=0.0, compare=False)

    @property
    def runs(self) -> int:
        """Number of all runs of a block."""
        return self.skipped + self.counted

    def steady(self, run: Callable[[], _T]) -> list[_T]:
        """Run a block, and return the results of the runs that count."""
        for _ in range(self.skipped):
            run()
        return [run() for _ in range(self.counted)]


SINGLE = Block(0, 1)
"""A block of a single run."""


def is_enough(seconds: Sequence[float]) -> bool:
    """Return whether a trial has enough runs, given the seconds of each.

    A trial of slow runs ends after two runs. Any other trial ends after at least four runs, once they have taken as long as a
    block and have become steady.
    """
    runs = len(seconds)
    if runs >= _MIN_SLOW and min(seconds) >= SLOW_S:
        return True
    if runs < _MIN_TRIED or (runs < _MAX_TRIED and sum(seconds) < BLOCK_S):
        return False
    return runs >= 2 * _MAX_SKIPPED or first_steady(seconds) < runs // 2


def first_steady(seconds: Sequence[float]) -> int:
    """Return how many of consecutive runs to leave out: those before the first steady run.

    A run is steady if it takes at most 3 % longer than the median of those after it. At least one run is left out, but at most
    eight, and at most half of them.

    Args:
        seconds: seconds of each run, in order.
    """
    limit = min(_MAX_SKIPPED, len(seconds) // 2)
    for skipped in range(1, limit):
        if seconds[skipped] <= (1 + _STEADY) * median(seconds[skipped + 1 :]):
            return skipped
    return limit


def block_of(seconds: Sequence[float], *, period: float = 0.0) -> Block:
    """Return the length of a program's blocks, by the runs of a trial.

    Args:
        seconds: seconds of each run of the trial, in order; at least one.
        period: seconds from the start of a run to the start of the next, if that is longer than the run.
    """
    skipped = first_steady(seconds)
    run_s = median(seconds[skipped:])
    if run_s >= SLOW_S:
        return Block(0, 1, run_s)
    # an odd number, so that the median is the time of one run: the median of two is their mean, which a disturbed run shifts
    return Block(max(1, skipped), math.ceil(BLOCK_S / max(run_s, period, _MIN_S)) | 1, run_s)


def alike(blocks: Mapping[str, Block]) -> dict[str, Block]:
    """Return the blocks of compared programs, changed so that programs with runs of similar length leave out equally many.

    The number that a trial finds varies by chance. Of two equal programs, the one that leaves out fewer runs would look slower
    in every round.
    """
    return {
        name: replace(one, skipped=max(other.skipped for other in blocks.values() if _alike(one, other)))
        for name, one in blocks.items()
    }


def _alike(one: Block, other: Block) -> bool:
    return one.seconds <= _MAX_RATIO * other.seconds and other.seconds <= _MAX_RATIO * one.seconds


def block_s(seconds: float, *, period: float = 0.0) -> float:
    """Return the seconds that a block is expected to take, without a trial, given the seconds of one run."""
    return block_of([seconds], period=period).runs * max(seconds, period, _MIN_S)


def trial_s(seconds: float, *, period: float = 0.0) -> float:
    """Return the seconds that a trial is expected to take, given the seconds of one run."""
    each = max(seconds, period, _MIN_S)
    return each * (_MIN_SLOW if seconds >= SLOW_S else min(_MAX_TRIED, max(_MIN_TRIED, BLOCK_S / each)))
