"""What the examples of single models share: options, finding a placement, running it."""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit import Cache, RunReport, Session, find_cluster, optimize


def parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """Options of every example."""
    options = argparse.ArgumentParser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--devices", help="names (CPU@0,CPU@1) or a cluster file; what is there without it")
    options.add_argument("--budget", type=float, default=30, help="seconds to find a placement in (default: 30)")
    options.add_argument("--placer", action="append", help="placer to ask, repeatable; several without it")
    options.add_argument("--seed", type=int, default=0)
    return options


def place_and_run(model: Path, inputs: Mapping[str, NDArray[np.generic]], options: argparse.Namespace) -> RunReport:
    """Find the fastest placement of a model by measuring, run it on the inputs, and say how it did."""
    cluster, cache = find_cluster(options.devices), Cache()
    found = optimize(
        model,
        cluster,
        placers=options.placer,
        budget=options.budget,
        seed=options.seed,
        cache=cache,
        progress=lambda what, share: print(f"\r{what} {share:4.0%}\x1b[K", end="", file=sys.stderr),
    )
    print(file=sys.stderr)
    for candidate in found.candidates:
        if candidate.measured is not None:
            print(f"{candidate.name:22} {candidate.measured.median * 1e3:8.2f} ms  in {candidate.segments} segments")
    print(f"chosen: {found.chosen.name}; {found.reason}")
    with Session(model, cluster, cache=cache) as session:
        report = session.run(found.placement, inputs=inputs)
    busy = ", ".join(f"{device} {share:.0%}" for device, share in report.utilization.items())
    print(f"latency {report.latency.median * 1e3:.2f} ms; busy: {busy}; output error {report.output_error.max_rel:.1e}")
    return report
