"""All parts together."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

from benchmarks._harness import Report
from benchmarks._lab import Lab, tell
from benchmarks.doppler.jobs import Setup
from benchmarks.doppler.parts import (
    fidelity,
    fig3,
    main,
    repeated,
    table2,
    table3,
    table4,
    table5,
    table6,
    table7,
    table8,
    table9,
)

__all__ = ["PARTS", "run"]

PARTS: dict[str, ModuleType] = {
    "main": main,
    "table2": table2,
    "table3": table3,
    "table4": table4,
    "table5": table5,
    "table6": table6,
    "table7": table7,
    "table8": table8,
    "table9": table9,
    "fig3": fig3,
    "fidelity": fidelity,
    "repeated": repeated,
}
"""In the order in which they are told."""


def run(setup: Setup, report: Report, parts: Sequence[str], *, workers: int) -> list[str]:
    """Do the work of some parts and tell what came out; returns the parts that failed."""
    lab = Lab(setup, workers)
    lab.run([job for part in parts for job in PARTS[part].jobs(setup)])
    return tell(lab, PARTS, parts, report)
