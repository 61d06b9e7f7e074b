"""All parts together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks._harness import Report
from benchmarks._lab import Lab, tell
from benchmarks.giph.figures import Figures
from benchmarks.giph.jobs import Setup
from benchmarks.giph.parts import (
    budgets,
    churn,
    convergence,
    depth,
    fusion,
    hdp,
    objectives,
    pairwise,
    recurrent,
    relocation,
    search,
    shipped,
    speed,
)

__all__ = ["PARTS", "run"]

PARTS: dict[str, ModuleType] = {
    "search": search,
    "hdp": hdp,
    "depth": depth,
    "churn": churn,
    "recurrent": recurrent,
    "fusion": fusion,
    "relocation": relocation,
    "objectives": objectives,
    "pairwise": pairwise,
    "speed": speed,
    "convergence": convergence,
    "shipped": shipped,
    "budgets": budgets,
}
"""In the order in which they are told."""


def run(
    setup: Setup, report: Report, parts: Sequence[str], *, workers: int, figures_in: Path | None = None
) -> tuple[Figures, list[str]]:
    """Do the work of some parts and tell what came out; returns the figures, and the parts that failed."""
    lab = Lab(setup, workers)
    longest_first = sorted(parts, key=lambda part: part != "pairwise")
    lab.run([job for part in longest_first for job in PARTS[part].jobs(setup)])
    if figures_in is not None:
        figures_in.mkdir(parents=True, exist_ok=True)
    figures = Figures(figures_in)
    if figures.missing:
        report.note("matplotlib is not installed, so figures are left out; install it with: pip install 'placeit[plot]'")
    return figures, tell(lab, PARTS, parts, report, figures)
