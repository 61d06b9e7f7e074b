"""The benchmark of all parts together."""

from __future__ import annotations

from benchmarks.papers._experiments import Experiments
from benchmarks.papers.stream import sizes
from benchmarks.papers.stream.jobs import Setup
from benchmarks.papers.stream.parts import calibration, exact, fig5, fig6, own, table1

__all__ = ["EXPERIMENTS"]

_HEAD = """# Stream graphs: throughput

The relative throughput is the share of the source's tuples that a placement sustains; more is better. The graphs are {graphs}.
The same figures, and the versions of all libraries, are in [report.json](report.json)."""


def _head(setup: Setup) -> str:
    return _HEAD.format(graphs="the published ones" if setup.published else "generated")


def _seeds(setup: Setup) -> list[int]:
    return [setup.seed]


EXPERIMENTS = Experiments(
    "stream",
    {"calibration": calibration, "table1": table1, "fig5": fig5, "fig6": fig6, "exact": exact, "own": own},
    sizes,
    Setup,
    _head,
    _seeds,
    default=("calibration", "table1", "fig5", "fig6", "exact"),
)
