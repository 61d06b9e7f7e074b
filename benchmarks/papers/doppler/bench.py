"""The benchmark of all parts together."""

from __future__ import annotations

from benchmarks.papers._experiments import Experiments
from benchmarks.papers.doppler import sizes
from benchmarks.papers.doppler.jobs import Setup
from benchmarks.papers.doppler.parts import (
    fidelity,
    fig3,
    main,
    paper_settings,
    repeated,
    table1,
    table2,
    table3,
    table4,
    table5,
    table6,
    table7,
    table8,
    table9,
)

__all__ = ["EXPERIMENTS"]

_HEAD = """# DOPPLER's experiments

Figures named `paper` are from Yao et al. 2025, on four P100s (Table 9: eight V100s); they stand beside ours and are no
targets. The same figures, and the versions of all libraries, are in [report.json](report.json)."""


def _head(_: Setup) -> str:
    return _HEAD


def _seeds(setup: Setup) -> range:
    return range(setup.seed, setup.seed + setup.sizes.seeds)


EXPERIMENTS = Experiments(
    "doppler",
    {
        "main": main,
        "paper": paper_settings,
        "table1": table1,
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
    },
    sizes,
    Setup,
    _head,
    _seeds,
    default=("main",),
    figures=False,
    counts={
        "seeds": "trainings that differ in their seed alone",
        "episodes": "episodes of each training that are valued, at most",
    },
)
