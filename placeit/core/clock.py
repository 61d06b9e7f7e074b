"""The clock for deadlines and budgets of searches, profiles and trainings."""

from __future__ import annotations

import time

__all__ = ["now"]


def now() -> float:
    """Return seconds since a fixed moment, by a clock that never goes back.

    This clock alone decides what a search does with its time. How long the runs of a model take is measured by the code that
    runs them.
    """
    return time.perf_counter()
