"""What benchmarks of real models share: the model files, the cores they run on, and progress on standard error."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

from placeit.errors import UsageError
from placeit.profiler.cache import cache_folder
from placeit.workloads import models

__all__ = ["MODELS", "model_file", "progress", "two_cores"]

MODELS = tuple(models.MODELS)

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


def progress(what: str, share: float = 0.0) -> None:  # noqa: ARG001
    """Say on standard error what is being done, once."""
    if what != _said[0]:
        _said[0] = what
        print(f"  {what}", file=sys.stderr, flush=True)
