"""All parts together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from benchmarks._harness import Report
from benchmarks._lab import Lab, tell
from benchmarks.giph.figures import Figures
from benchmarks.stream.jobs import Setup
from benchmarks.stream.parts import calibration, exact, fig5, fig6, table1

__all__ = ["PARTS", "run"]

PARTS: dict[str, ModuleType] = {"calibration": calibration, "table1": table1, "fig5": fig5, "fig6": fig6, "exact": exact}
"""In the order in which they are told."""


def run(
    setup: Setup, report: Report, parts: Sequence[str], *, workers: int, figures_in: Path | None = None
) -> tuple[Figures, list[str]]:
    """Do the work of some parts and tell what came out; returns the figures, and the parts that failed."""
    lab = Lab(setup, workers)
    if not setup.published:
        report.note("PLACEIT_DATA is not set: generated graphs take the place of the published ones.")
    lab.run([job for part in parts for job in PARTS[part].jobs(setup)])
    if figures_in is not None:
        figures_in.mkdir(parents=True, exist_ok=True)
    figures = Figures(figures_in)
    if figures.missing:
        report.note("matplotlib is not installed, so figures are left out; install it with: pip install 'placeit[plot]'")
    return figures, tell(lab, PARTS, parts, report, figures)
