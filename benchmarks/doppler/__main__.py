"""DOPPLER's experiments (Yao et al. 2025): training in simulation against the best known, and each of its tables.

A part that fails loses no other part's results: its error is told, and the exit code is 1. With --work every piece of work that
was done is kept, and none is done twice.
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

_HEAD = """# DOPPLER's experiments

Figures named `paper` are those of Yao et al. 2025, on four P100s (Table 9: eight V100s); they stand beside ours and are no
targets. The same figures, and the versions of all libraries, are in [report.json](report.json)."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads it, here and in the workers
    from benchmarks._results import Origin, write_results
    from benchmarks.doppler.bench import PARTS, run
    from benchmarks.doppler.jobs import Setup
    from benchmarks.doppler.sizes import FULL, QUICK

    options = parser("python -m benchmarks.doppler", __doc__)
    options.add_argument(
        "--part", nargs="+", choices=PARTS, default=["main"], metavar="PART", help=f"of {', '.join(PARTS)} (default main)"
    )
    options.add_argument("--seeds", type=_count, metavar="N", help="trainings that differ in their seed alone")
    options.add_argument("--episodes", type=_count, metavar="N", help="episodes of each training that are valued, at most")
    add_lab_options(options, written="report.md and report.json")
    chosen = options.parse_args(arguments)
    sizes = (QUICK if chosen.quick else FULL).at(seeds=chosen.seeds, episodes=chosen.episodes)
    report = Report()
    with tempfile.TemporaryDirectory() as temporary, quiet_output():
        root = chosen.work or Path(temporary)
        setup = Setup(sizes, chosen.seed, root / f"{crc32(repr(sizes).encode()):08x}-{chosen.seed}")
        failed = run(setup, report, chosen.part, workers=chosen.workers)
    result = output("doppler", report)
    if chosen.results:
        chosen.results.mkdir(parents=True, exist_ok=True)
        seeds = range(setup.seed, setup.seed + sizes.seeds)
        write_results(chosen.results, _HEAD, PARTS, result, Origin(_command(chosen), seeds, chosen.note))
    if chosen.json:
        print(json.dumps(result, allow_nan=False))
    else:
        show(result)
    return 1 if failed else 0


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is not at least 1")
    return count


def _command(chosen: argparse.Namespace) -> str:
    """Return what to type for the same figures, without where outcomes were kept meanwhile and by how many processes."""
    words = ["python", "-m", "benchmarks.doppler", "--part", *chosen.part]
    words += ["--quick"] if chosen.quick else []
    for name in ("seed", "seeds", "episodes"):
        words += [f"--{name}", str(getattr(chosen, name))] if getattr(chosen, name) else []
    return shlex.join([*words, "--results", str(chosen.results)])


if __name__ == "__main__":
    sys.exit(main())
