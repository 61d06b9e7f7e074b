"""The benchmark of all parts together."""

from __future__ import annotations

from benchmarks.papers._experiments import Experiments
from benchmarks.papers.giph import sizes
from benchmarks.papers.giph.jobs import Setup
from benchmarks.papers.giph.parts import (
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

__all__ = ["EXPERIMENTS"]

_HEAD = """# GiPH's experiments

An SLR (schedule length ratio) is a makespan over the least that the critical path can take; less is better. The same
figures, and the versions of all libraries, are in [report.json](report.json)."""


def _head(_: Setup) -> str:
    return _HEAD


def _seeds(setup: Setup) -> range:
    return range(setup.seed, setup.seed + setup.sizes.seeds)


EXPERIMENTS = Experiments(
    "giph",
    {
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
    },
    sizes,
    Setup,
    _head,
    _seeds,
    first=("pairwise",),
)
