"""The clock by which deadlines and budgets of searches, profiles and trainings are kept."""

from __future__ import annotations

import time

__all__ = ["now"]


def now() -> float:
    """Return seconds since a fixed moment, by a clock that never goes back.

    This clock alone decides what a search does with the time that it has. How long the runs of a model take is measured by
    those who run them.
    """
    return time.perf_counter()
