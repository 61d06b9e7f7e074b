"""Time-outs of runs that hang, on machines of any speed."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from placeit.core.errors import ExecutionError

SECONDS = 0.1, 1.0, 20.0, 120.0


def overdue(run: Callable[[float], object], where: str) -> None:
    """Run with ever longer time-outs until the error says what hangs: on a busy machine, what comes before it still runs."""
    said = ""
    for seconds in SECONDS:
        if not re.search(where, said):
            with pytest.raises(ExecutionError, match=r"time-out is over.*still running: the segment") as over:
                run(seconds)
            said = str(over.value)
    assert re.search(where, said), said
