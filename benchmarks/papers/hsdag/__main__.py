"""HSDAG's experiments (Duan et al. 2024): Tables 1, 2 (with the norms of Table 4), 3 and 5, on three real models.

Devices are a CPU core and a second one that is slowed, so that placements differ. Everything is run for real; trained policies
and placements are kept in the work folder, and a run that was killed continues from there.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

from benchmarks._harness import Report, output, parser, quiet_output, show

_HEAD = """# HSDAG's experiments

Real runs on one core of a CPU and on one that is slowed on purpose (`slowdown` times); columns named after the paper have its
figures, on other devices. The versions of all libraries are in [report.json](report.json)."""


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark."""
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads it
    from benchmarks._results import Origin, add_options, write_results
    from benchmarks.papers.hsdag.bench import FULL, QUICK, Bench
    from benchmarks.papers.hsdag.paper import MODELS
    from benchmarks.papers.hsdag.parts import PARTS
    from placeit.core.errors import PlaceitError

    options = parser("python -m benchmarks.papers.hsdag", __doc__)
    options.add_argument("--part", nargs="+", choices=PARTS, metavar="PART", help=f"of {', '.join(PARTS)}")
    options.add_argument("--models", nargs="+", choices=MODELS, metavar="MODEL", help=f"of {', '.join(MODELS)}")
    options.add_argument(
        "--slowdowns", nargs="+", type=float, metavar="TIMES", help="how much slower the second core is (default 2 and 3)"
    )
    options.add_argument("--work", type=Path, metavar="DIR", help="keep costs and trainings there, and go on from them")
    add_options(options)
    chosen = options.parse_args(arguments)
    models = tuple(chosen.models or (MODELS[:1] if chosen.quick else MODELS))
    slowdowns = tuple(chosen.slowdowns or ((3.0,) if chosen.quick else (2.0, 3.0)))
    report = Report()
    with tempfile.TemporaryDirectory() as temporary, quiet_output():
        folder = (chosen.work or Path(temporary)) / f"{'quick' if chosen.quick else 'full'}-{chosen.seed}"
        folder.mkdir(parents=True, exist_ok=True)
        try:
            bench = Bench(QUICK if chosen.quick else FULL, chosen.seed, models, slowdowns, folder)
            for part in chosen.part or PARTS:
                claimed = len(report.claims)
                PARTS[part](bench, report)
                for claim in report.claims[claimed:]:
                    claim["part"] = part
        except PlaceitError as error:
            sys.exit(f"benchmarks.papers.hsdag: {error}")
    result = output("hsdag", report)
    if chosen.results:
        write_results(chosen.results, _HEAD, PARTS, result, Origin(_command(chosen), [chosen.seed], chosen.note))
    if chosen.json:
        print(json.dumps(result, allow_nan=False))
    else:
        show(result)


def _command(chosen: argparse.Namespace) -> str:
    """Return the command that gives the same figures, without the folder of kept trainings."""
    words = ["python", "-m", "benchmarks.papers.hsdag", *(["--quick"] if chosen.quick else [])]
    for option in ("part", "models", "slowdowns"):
        values = getattr(chosen, option) or ()
        words += [f"--{option}", *(f"{value:g}" if isinstance(value, float) else value for value in values)] if values else []
    return shlex.join([*words, *(["--seed", str(chosen.seed)] if chosen.seed else []), "--results", str(chosen.results)])


if __name__ == "__main__":
    main()
