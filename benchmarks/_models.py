"""Code that benchmarks of real models share: model files, the cores they run on, races, and progress on standard error."""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._architectures import packaged
from examples import models
from placeit import backends
from placeit.backends.base import Model
from placeit.core.errors import UsageError
from placeit.core.files import cache_folder
from placeit.measuring.measure import Race
from placeit.measuring.statistics import Measurement
from placeit.optimizer.result import Candidate, Optimized
from placeit.session import Session

__all__ = [
    "MODELS",
    "PACKAGED",
    "fastest_split",
    "load_model",
    "model_file",
    "progress",
    "random_splits",
    "settled",
    "settled_race",
    "side_by_side",
    "two_cores",
]

MODELS = tuple(models.MODELS)
PACKAGED = {name: packaged.PACKAGED[name] for name in ("text_detector", "text_recognizer", "file_type")}
"""Small real models that are part of packages."""
_SETTLE_S = 0.01
"""Pause before every timed run, because worker threads of the previous candidate may still be spinning."""

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


def load_model(name: str) -> Model:
    """Load a model of :data:`MODELS` or :data:`PACKAGED`.

    Raises:
        UsageError: the package that contains the model is not installed.
    """
    if name not in PACKAGED:
        return backends.load(model_file(name))
    sample = PACKAGED[name]()
    return backends.load(sample.path, input_shapes=sample.shapes)


def side_by_side(session: Session, rounds: int = 10) -> float:
    """Return the ratio of passes at the same time, one on each device, to passes alone: near 1 if the devices are free."""
    groups = len(session.grouping.groups)
    with ExitStack() as stack:
        plans = [session.segmenter.plan(np.full(groups, d)) for d in session.segmenter.problem().single_devices]
        runs = [stack.enter_context(session.executor(plan)).time for plan in plans]
        threads = stack.enter_context(ThreadPoolExecutor(len(runs)))
        ratios = []
        for turn in range(rounds + 1):
            alone = [run() for run in runs]
            together = list(threads.map(lambda run: run(), runs))
            if turn > 0:
                ratios.append(np.mean(np.divide(together, alone)))
    return float(np.median(ratios))


def random_splits(random: np.random.Generator, groups: int, count: int) -> list[NDArray[np.int32]]:
    """Draw placements of at least two groups on two devices, both used: in turn dense ones and ones of a few runs."""
    placements: list[NDArray[np.int32]] = []
    while len(placements) < count:
        if len(placements) % 2 == 0:
            # a different share for each, so that not all of them are half and half
            devices = (random.random(groups) < random.uniform(0.1, 0.9)).astype(np.int64)
        else:
            count_of_ends = int(random.integers(1, min(7, groups)))
            ends = np.sort(random.choice(np.arange(1, groups), size=count_of_ends, replace=False))
            devices = (np.searchsorted(ends, np.arange(groups), side="right") + int(random.integers(2))) % 2
        if 0 < np.count_nonzero(devices) < groups:
            placements.append(devices.astype(np.int32))
    return placements


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
    """Return the fastest measured placement on several devices; None if none was measured."""
    return next((c for c in found.candidates if c.measured and sum(map(bool, c.placement.counts().values())) > 1), None)


def settled(timers: Mapping[str, Callable[[], float]], *, seed: int, blocks: bool = True) -> Race:
    """Make a race with a pause after each block. A timer runs once and returns its seconds.

    Args:
        seed: seed of the order of blocks.
        seed: of the order of blocks.
        blocks: False for one run in each round, where runs depend on each other.
    """
    progress(f"racing {len(timers)} candidates")
    return Race(timers, seed=seed, blocks=blocks, rest=lambda _: time.sleep(_SETTLE_S))


def settled_race(
    timers: Mapping[str, Callable[[], float]], *, rounds: int, seed: int, blocks: bool = True
) -> dict[str, Measurement]:
    """Race all candidates to the end, as :func:`settled` does."""
    return settled(timers, seed=seed, blocks=blocks).run(rounds=rounds, drop_losers=False)


def progress(what: str, share: float = 0.0) -> None:  # noqa: ARG001
    """Print the current step on standard error, once."""
    if what != _said[0]:
        _said[0] = what
        print(f"  {what}", file=sys.stderr, flush=True)
