"""GiPH's experiments (Hu et al. 2023, section 5 and Appendix B), each as a table and a figure.

A part that fails loses no other part's results: its error is printed, and the exit code is 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads it, here and in the workers
    from benchmarks.papers.giph.bench import EXPERIMENTS

    return EXPERIMENTS.main(__doc__, arguments)


if __name__ == "__main__":
    sys.exit(main())
