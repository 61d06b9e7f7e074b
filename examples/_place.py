"""Code that the examples of single models share: options, finding a placement, learning another one, running both."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit import Candidate, Candidates, Comparison, Optimized, RunReport, Session, compare

LEARNED = "surrogate"


def parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every example."""
    options = argparse.ArgumentParser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--devices", help="names (CPU@0,CPU@1) or a cluster file; what is there without it")
    options.add_argument("--budget", type=float, default=30, help="seconds to find a placement in (default: 30)")
    options.add_argument(
        "--learn",
        type=float,
        default=180,
        metavar="SECONDS",
        help="to learn another one in; 0: do not (default: 180)",
    )
    options.add_argument("--placer", action="append", help="placer to ask, repeatable; several without it")
    options.add_argument("--seed", type=int, default=0)
    return options


def place_and_run(model: Path, inputs: Mapping[str, NDArray[np.generic]], options: argparse.Namespace) -> RunReport:
    """Find the fastest placement of a model by measuring, learn another one, compare them, and run the first on the inputs."""
    with Session(model, options.devices) as session:
        found = session.optimize(
            budget=options.budget, candidates=Candidates(options.placer), seed=options.seed, progress=_progress
        )
        print(file=sys.stderr)
        for candidate in found.candidates:
            if candidate.measured is not None:
                print(f"{candidate.name:22} {candidate.measured.median * 1e3:8.2f} ms  in {candidate.segments} segments")
        print(f"chosen: {found.chosen.name}; {found.reason}")
        if options.learn > 0:
            learned = _learned(session, found, options)
            placements = {"search": found.placement} | ({} if learned is None else {"learned": learned.placement})
            _show(compare(session, placements, seed=options.seed, progress=_progress))
        report = session.run(found.placement, inputs=inputs)
    busy = ", ".join(f"{device} {share:.0%}" for device, share in report.utilization.items())
    print(f"latency {report.latency.median * 1e3:.2f} ms; busy: {busy}; output error {report.output_error.max_rel:.1e}")
    return report


def _learned(session: Session, found: Optimized, options: argparse.Namespace) -> Candidate | None:
    """Return the best placement that the surrogate chose to measure; None if it chose none."""
    again = session.optimize(
        budget=options.learn, candidates=Candidates(["heft", LEARNED], found.placement), seed=options.seed, progress=_progress
    )
    print(file=sys.stderr)
    part = next(part for part in again.spending if part.what == LEARNED)
    print(f"learning: {part.seconds:.0f} s; {part.note or 'it failed: ' + again.unplanned[0].failed}")
    own = [one for one in again.candidates if one.placer == LEARNED and one.failed is None]
    return min(own, key=lambda one: np.inf if one.measured is None else one.measured.median, default=None)


def _show(compared: Comparison) -> None:
    """Print the best single device, the answer of the search and the learned placement, as one race measured them."""
    print(file=sys.stderr)
    single = next((one.name for one in compared.candidates if one.name in compared.singles), "")
    print(f"{'':12} {'measured':>11}  {f'speed-up over {single}':26}  output error")
    for one in compared.candidates:
        if one.failed is not None or one.measured is None or one.output_error is None:
            print(f"{one.name:12} failed: {one.failed}")
        elif one.name == single or one.name not in compared.singles:
            ratio = compared.speedups(one).get(single)
            over = "" if ratio is None else f"{ratio.ratio:.3f} ({ratio.ci_low:.3f} .. {ratio.ci_high:.3f})"
            print(f"{one.name:12} {one.measured.median * 1e3:8.2f} ms  {over:26}  {one.output_error.max_rel:.1e}")
    print("A placement is faster where the whole interval of its speed-up is above 1.")


def _progress(what: str, share: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{what} {share:4.0%}\x1b[K", end="", file=sys.stderr)
