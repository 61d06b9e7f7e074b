"""Compare the rates of requests with the rates that a workload was placed for, and place it again for other rates."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from placeit.core.errors import ExecutionError
from placeit.core.placement import Placement
from placeit.workload.entries import Workload

__all__ = ["RateWatch", "replanning", "run"]

_FACTOR = 1.5  # by which a rate has to change
_MIN_S, _FEWEST = 60.0, 100  # seconds over which a rate is measured, at least, and requests, arrived or expected
_RARE = 0.01  # requests per second of a model that is hardly ever asked


class RateWatch:
    """Compares the rate at which requests for a model arrive with the rate that it was placed for.

    A rate is measured over a minute or more, in which at least 100 requests arrive, or should.

    Args:
        planned: requests per second that it was placed for.
        arrived: number of requests so far.
        now: the time, in seconds.

    Attributes:
        planned: requests per second that it was placed for.
        rate: requests per second in the last measured period; None before the first one has ended.
    """

    def __init__(self, planned: float, arrived: int, now: float) -> None:
        self.planned = self._said = planned
        self.rate: float | None = None
        self._arrived, self._since = arrived, now

    @property
    def left(self) -> float | None:
        """The rate if it is more than 1.5 times the planned one, or the planned one is more than 1.5 times it; else None."""
        return None if self.rate is None or _near(self.rate, self.planned) else self.rate

    def due(self, now: float) -> bool:
        """Return whether a minute has passed."""
        return now - self._since >= _MIN_S

    def look(self, arrived: int, now: float) -> bool:
        """Measure the rate if it is due; return whether it has left the planned rate, or has changed again since."""
        seconds, came = now - self._since, arrived - self._arrived
        if seconds < _MIN_S or max(came, self.planned * seconds) < _FEWEST:
            return False
        self._arrived, self._since, self.rate = arrived, now, max(came / seconds, _RARE)
        if _near(self.rate, self._said):
            return False
        self._said = self.left or self.planned
        return self.left is not None


def _near(rate: float, other: float) -> bool:
    return other / _FACTOR <= rate <= other * _FACTOR


def replanning(path: Path, rates: Mapping[str, float], output: Path, options: Sequence[str]) -> list[str]:
    """Return the command that places a served workload again for other rates.

    Args:
        path: file of the placed workload.
        rates: requests per second of the models whose rates have changed, by name.
        output: file to write.
        options: the devices, as options; empty for the devices of the placements.

    Raises:
        PlaceitError: a file cannot be read.
    """
    workload = Workload.load(path).placed()
    conditions = Placement.load(workload.entries[0].placement or "").conditions
    words = ["placeit", "optimize", str(path), "--start", str(path), "--predict", "-o", str(output)]
    words += [word for name, rate in rates.items() for word in ("--rate", f"{name}={rate:.3g}")]
    words += options or ["-d", ",".join(workload.used())]
    return words if conditions is None else [*words, "--precision", conditions.precision]


async def run(command: Sequence[str]) -> None:
    """Run a command of placeit in a separate process. Raises ExecutionError if it fails."""
    words = [sys.executable, "-m", *command, "--quiet"]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:  # the server ends
            process.kill()
            await process.wait()
    if process.returncode:
        raise ExecutionError(said.decode(errors="replace").strip())
