"""The results of runs as files that people read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks import _results
from benchmarks.giph.figures import Figures
from benchmarks.stream.bench import PARTS
from benchmarks.stream.jobs import Setup

__all__ = ["write_results"]

_HEAD = """# Stream graphs: throughput

The relative throughput is the share of the source's tuples that a placement sustains; more is better. The graphs are {graphs}.
The same figures, and the versions of all libraries, are in [report.json](report.json)."""


def write_results(folder: Path, command: str, setup: Setup, result: dict[str, Any], figures: Figures, note: str = "") -> None:
    """Write ``report.md`` and ``report.json`` beside the figures; parts that were not run stay as the folder has them."""
    graphs = "the published ones" if setup.published else "generated"
    origin = _results.Origin(command, [setup.seed], note, figures.drawn)
    _results.write_results(folder, _HEAD.format(graphs=graphs), PARTS, result, origin)
