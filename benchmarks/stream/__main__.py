"""The experiments of Ni et al. (AAAI 2020) on stream graphs, as tables and figures.

A part that fails loses no other part's results: its error is told, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path
from zlib import crc32

from benchmarks._harness import Report, add_lab_options, output, parser, quiet_output, show


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads it, here and in the workers
    from benchmarks.stream.bench import PARTS, run
    from benchmarks.stream.jobs import Setup
    from benchmarks.stream.results import write_results
    from benchmarks.stream.sizes import FULL, QUICK

    options = parser("python -m benchmarks.stream", __doc__)
    options.add_argument(
        "--parts", nargs="+", choices=PARTS, default=(), metavar="PART", help=f"all, or some of {', '.join(PARTS)}"
    )
    add_lab_options(options, written="report.md, report.json and figures")
    chosen = options.parse_args(arguments)
    sizes = QUICK if chosen.quick else FULL
    report = Report()
    with tempfile.TemporaryDirectory() as temporary, quiet_output():
        root = chosen.work or Path(temporary)
        setup = Setup(sizes, chosen.seed, root / f"{crc32(repr(sizes).encode()):08x}-{chosen.seed}")
        figures, failed = run(setup, report, chosen.parts or list(PARTS), workers=chosen.workers, figures_in=chosen.results)
    result = output("stream", report)
    if chosen.results:
        write_results(chosen.results, _command(chosen), setup, result, figures, chosen.note)
    if chosen.json:
        print(json.dumps(result, allow_nan=False))
    else:
        show(result)
    return 1 if failed else 0


def _command(chosen: argparse.Namespace) -> str:
    """Return what to type for the same figures, without where outcomes were kept meanwhile and by how many processes."""
    words = ["python", "-m", "benchmarks.stream"]
    if chosen.quick:
        words.append("--quick")
    if chosen.seed:
        words += ["--seed", str(chosen.seed)]
    if chosen.parts:
        words += ["--parts", *chosen.parts]
    return shlex.join([*words, "--results", str(chosen.results)])


if __name__ == "__main__":
    sys.exit(main())
