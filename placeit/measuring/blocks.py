"""Blocks of runs: each program is timed by itself for a while, and the first runs of the while do not count.

A run that follows one of another program finds the caches full of the other program's weights: 64 MB of weights took 2.8 ms
alone, and 5.1 ms where three programs took turns run by run. Programs that are compared therefore take turns by blocks. A block
is some runs of one program in a row; its first runs fill the caches and are left out, and the median of the others is what the
program takes when it runs by itself.

How to use it, for each program::

    seconds = []
    while not is_enough(seconds):  # a trial, which does not count; right after another program has run
        seconds.append(run())
    block = block_of(seconds)
    ...  # of programs that are compared: blocks = alike(blocks)
    for _ in range(block.skipped):  # again and again, in turn with other programs
        run()
    sample = median(run() for _ in range(block.counted))

``Block.steady(run)`` is these last three lines without the median. The number of runs to leave out comes from the trial and not
from the runs that count: chosen by these, it would favour programs whose times vary more, as a block would begin at a run that
is short by chance. Where no trial can be had, :func:`first_steady` of the runs themselves says where they become steady.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeVar

__all__ = ["BLOCK_S", "SINGLE", "SLOW_S", "Block", "alike", "block_of", "block_s", "first_steady", "is_enough", "trial_s"]

BLOCK_S = 0.02  # seconds of a block's runs that count
SLOW_S = 0.05  # seconds of a run from which on it is a block by itself: filling caches is a small part of it
_FALL = 0.03  # share by which a steady run may take longer than the median of the runs after it
_ALIKE = 1.5  # largest ratio of the times of runs that take about as long
_MAX_SKIPPED = 8  # runs that are left out, at most
_FEWEST_SLOW, _FEWEST_TRIED, _MAX_TRIED = 2, 4, 32  # runs of a trial: fewest of slow runs, fewest and most of others
_MIN_S = 1e-5  # least seconds that a run is taken to last, so that no block has too many runs

_T = TypeVar("_T")


@dataclass(frozen=True)
class Block:
    """The length of a program's blocks.

    Attributes:
        skipped: first runs, which are left out.
        counted: runs after them, which count.
        seconds: of a steady run of the trial; 0 if that is not known.
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
    """Return whether a trial has had enough runs, given the seconds of each.

    A trial of slow runs ends after two runs. Any other trial ends after at least four runs, once they have taken as long as a
    block and have become steady.
    """
    runs = len(seconds)
    if runs >= _FEWEST_SLOW and min(seconds) >= SLOW_S:
        return True
    if runs < _FEWEST_TRIED or (runs < _MAX_TRIED and sum(seconds) < BLOCK_S):
        return False
    return runs >= 2 * _MAX_SKIPPED or first_steady(seconds) < runs // 2


def first_steady(seconds: Sequence[float]) -> int:
    """Return the number of first runs to leave out of consecutive runs: all runs before the first steady one.

    A run is steady if it takes at most 3 % longer than the median of those after it. At least one run is left out, but at most
    eight, and at most half of them.

    Args:
        seconds: of each run, in order.
    """
    most = min(_MAX_SKIPPED, len(seconds) // 2)
    for skipped in range(1, most):
        if seconds[skipped] <= (1 + _FALL) * median(seconds[skipped + 1 :]):
            return skipped
    return most


def block_of(seconds: Sequence[float], *, period: float = 0.0) -> Block:
    """Return the length of a program's blocks, given the seconds of each run of a trial, in order.

    Args:
        seconds: of at least one run.
        period: seconds from the start of a run to the start of the next, if that is longer than the run.
    """
    skipped = first_steady(seconds)
    run_s = median(seconds[skipped:])
    if run_s >= SLOW_S:
        return Block(0, 1, run_s)
    # an odd number, so that the median is the time of one run: the median of two is their mean, which a disturbed run shifts
    return Block(max(1, skipped), math.ceil(BLOCK_S / max(run_s, period, _MIN_S)) | 1, run_s)


def alike(blocks: Mapping[str, Block]) -> dict[str, Block]:
    """Return the blocks of compared programs; programs whose runs take about as long leave out equally many runs.

    The number that a trial finds varies by chance. Of two equal programs, the one that leaves out fewer runs would look slower
    in every round.
    """
    return {
        name: replace(one, skipped=max(other.skipped for other in blocks.values() if _alike(one, other)))
        for name, one in blocks.items()
    }


def _alike(one: Block, other: Block) -> bool:
    return one.seconds <= _ALIKE * other.seconds and other.seconds <= _ALIKE * one.seconds


def block_s(seconds: float, *, period: float = 0.0) -> float:
    """Return the seconds that a block is expected to take, without a trial, given the seconds of one run."""
    return block_of([seconds], period=period).runs * max(seconds, period, _MIN_S)


def trial_s(seconds: float, *, period: float = 0.0) -> float:
    """Return the seconds that a trial is expected to take, given the seconds of one run."""
    each = max(seconds, period, _MIN_S)
    return each * (_FEWEST_SLOW if seconds >= SLOW_S else min(_MAX_TRIED, max(_FEWEST_TRIED, BLOCK_S / each)))
