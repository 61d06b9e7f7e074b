"""The results of runs as files that people read: tables, figures, and how to make them again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import _results
from benchmarks.giph.bench import PARTS
from benchmarks.giph.figures import Figures
from benchmarks.giph.jobs import Setup

__all__ = ["write_results"]

_HEAD = """# GiPH's experiments

An SLR (schedule length ratio) is a makespan over the least that the critical path can take; less is better. The same
figures, and the versions of all libraries, are in [report.json](report.json)."""


def write_results(folder: Path, command: str, setup: Setup, result: dict[str, Any], figures: Figures, note: str = "") -> None:
    """Write ``report.md`` and ``report.json`` beside the figures; parts that were not run stay as the folder has them."""
    seeds = range(setup.seed, setup.seed + setup.sizes.seeds)
    origin = _results.Origin(command, seeds, note, figures.drawn)
    _results.write_results(folder, _HEAD, PARTS, result, origin)
