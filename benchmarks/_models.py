"""What benchmarks of real models share: the model files, the cores they run on, races, and progress on standard error."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from placeit.errors import UsageError
from placeit.optimize import Candidate, Optimized
from placeit.profiler.cache import cache_folder
from placeit.runtime.measure import Measurement, Race
from placeit.workloads import models

__all__ = ["MODELS", "fastest_split", "model_file", "progress", "settled_race", "two_cores"]

MODELS = tuple(models.MODELS)

_SETTLE_S = 0.01
"""Pause before every timed run: worker threads of the candidate before it may still be spinning."""

_said = [""]


def model_file(name: str) -> Path:
    """Export a built-in model as ONNX, or return the file of an earlier run, if the code that builds it is still the same."""
    version = hashlib.sha256(Path(models.__file__).read_bytes()).hexdigest()[:12]
    path = cache_folder() / "models" / f"{name}-{version}.onnx"
    if not path.exists():
        progress(f"exporting {name}")
        path.parent.mkdir(parents=True, exist_ok=True)
        models.export_model(name, path)
    return path


def two_cores() -> tuple[int, int]:
    """Return the first two CPU cores that this process may run on.

    Raises:
        UsageError: there is only one.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise UsageError("This benchmark compares devices of one core each, and this process may use one core only.")
    return cores[0], cores[1]


def fastest_split(found: Optimized) -> Candidate | None:
    """The fastest measured placement on several devices; None if none was measured."""
    return next((c for c in found.candidates if c.measured and sum(map(bool, c.placement.counts().values())) > 1), None)


def settled_race(timers: Mapping[str, Callable[[], float]], *, rounds: int, seed: int) -> dict[str, Measurement]:
    """Race all candidates to the end, interleaved, each after a pause. A timer runs once and returns its seconds."""
    progress(f"racing {len(timers)} candidates")
    return Race({who: functools.partial(_settled, timer) for who, timer in timers.items()}, seed=seed).run(
        rounds=rounds, drop_losers=False
    )


def _settled(timer: Callable[[], float]) -> float:
    time.sleep(_SETTLE_S)
    return timer()


def progress(what: str, share: float = 0.0) -> None:  # noqa: ARG001
    """Say on standard error what is being done, once."""
    if what != _said[0]:
        _said[0] = what
        print(f"  {what}", file=sys.stderr, flush=True)
