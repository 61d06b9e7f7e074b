"""DOPPLER's experiments (Yao et al. 2025): training in simulation against the best known costs, and each of its tables.

A part that fails loses no other part's results: its error is printed, and the exit code is 1. With --work every finished job is
kept, and none is done twice.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads it, here and in the workers
    from benchmarks.papers.doppler.bench import EXPERIMENTS

    return EXPERIMENTS.main(__doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
