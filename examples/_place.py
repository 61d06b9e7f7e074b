"""Shared code of the examples with one model: options, a search that trains a policy, a race of the results, and traces."""

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit import (
    Budget,
    Candidates,
    Comparison,
    Optimized,
    Placement,
    RunReport,
    Session,
    compare,
    read_cluster,
    write_cluster,
)
from placeit.cli.optimize import policy_placer
from placeit.core.extras import installed
from placeit.core.units import percentage
from placeit.optimizer.portfolio import DEFAULT_PLACERS
from placeit.placers.registry import get_placer
from placeit.profiler.trace import write_chrome_trace
from placeit.report import text
from placeit.simulator.simulate import SimulatedCost

ZERO_SHOT = "giph"
BARS = "▁▂▃▄▅▆▇█"


def parser(prog: str, description: str | None) -> argparse.ArgumentParser:
    """Return an argument parser with the options of these examples."""
    options = argparse.ArgumentParser(prog=prog, description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument(
        "--devices",
        help="names (CPU@0,GPU.0) or a cluster file (default: the two emulated boards of examples/cluster.yaml, but the "
        "faster one has too little memory for the whole model)",
    )
    options.add_argument("--policy", default="doppler", help="agent that learns from runs: doppler or hsdag (default: doppler)")
    options.add_argument("--budget", type=float, default=150, help="seconds of the search, including training (default: 150)")
    options.add_argument("--runs", type=int, default=20, help="rounds of the race at the end (default: 20)")
    options.add_argument("--placer", action="append", help="placer to run, repeatable; default: several")
    options.add_argument("--folder", type=Path, default=Path(f"{prog}-placed"), help=f"for results (default: {prog}-placed)")
    options.add_argument("--resume", action="store_true", help="continue with the policy and the measurements in the folder")
    options.add_argument("--seed", type=int, default=0)
    return options


def boards(model: Path, folder: Path) -> str:
    """Write a cluster file of two unequal boards, the faster one with memory for 60 % of a model, and 8 MiB for tensors.

    Returns:
        The path of the file.
    """
    cluster = read_cluster(Path(__file__).with_name("cluster.yaml"))
    fast, *others = cluster.devices
    small = replace(fast, memory_bytes=int(0.6 * model.stat().st_size) + (8 << 20))
    path = folder / "cluster.yaml"
    write_cluster(replace(cluster, devices=(small, *others)), path)
    return str(path)


def place_and_run(model: Path, inputs: Mapping[str, NDArray[np.generic]], options: argparse.Namespace) -> RunReport:
    """Search for the fastest placement and train a policy, race the placements of search and policies, and run the fastest."""
    options.folder.mkdir(parents=True, exist_ok=True)
    journal = options.folder / "search.jsonl"
    if not options.resume:
        for file in options.folder.glob(f"{journal.name}*"):
            file.unlink()
    placers = [*(options.placer or DEFAULT_PLACERS), ZERO_SHOT, policy_placer(options.policy, journal)]
    with Session(model, options.devices or boards(model, options.folder), inputs=inputs) as session:
        found = session.optimize(
            budget=Budget(options.budget, journal), candidates=Candidates(placers), seed=options.seed, progress=_progress
        )
        print(file=sys.stderr)
        found.save(options.folder / "placement.json")
        by = "a single device" if found.chosen.placer == "single" else f"found by {found.chosen.placer}"
        print(f"chosen: {found.chosen.name}, {by}; {found.reason}")
        learned = _learned(found)
        if len(session.cluster.names) > 1:
            if not learned:
                print("The policy measured nothing. Run again with --resume: it keeps measurements, so time is left.")
            raced = {"search": _searched(found)} | _zero_shot(session, options.seed) | learned
            _show(compare(session, raced, runs=options.runs, seed=options.seed, progress=_progress))
            for name in (ZERO_SHOT, *learned):
                _trace(session, name, raced[name], options.folder)
        if installed("bokeh"):
            found.report(options.folder / "report.html")
            print(f"page: {options.folder / 'report.html'}")
        report = session.run(found.placement)
    busy = ", ".join(f"{device} {text.percent(share)}" for device, share in report.utilization.items())
    print(f"latency {report.latency.median * 1e3:.2f} ms; busy: {busy}; output error {text.error(report.output_error)}")
    return report


def _learned(found: Optimized) -> dict[str, Placement]:
    """Print how the policy learned, and return its best placement by name; empty if it measured none.

    Other placers may have proposed the same placement before.
    """
    part = next(part for part in found.spending if part.what.startswith("policy"))
    print(f"{part.what}: {part.seconds:.0f} s; {part.note or found.unplanned[0].failed}")
    curve = found.curves.get(part.what, ())
    if curve:
        print(f"measured times while learning, {max(curve) * 1e3:.4g} to {min(curve) * 1e3:.4g} ms: {_bars(curve)}")
    again = {one.candidate for one in found.story if (one.what, one.reason) == ("proposed again", f"by {part.what}")}
    able = [one for one in found.candidates if one.failed is None and (one.placer == part.what or one.name in again)]
    if not curve or not able:
        return {}
    return {part.what: min(able, key=lambda one: math.inf if one.measured is None else one.measured.median).placement}


def _searched(found: Optimized) -> Placement:
    """Return the best measured placement that was found without a policy."""
    measured = [one for one in found.candidates if not one.placer.startswith("policy") and one.measured is not None]
    splits = [one for one in measured if one.placer != "single"]
    return min(splits or measured, key=lambda one: one.measured.median).placement


def _zero_shot(session: Session, seed: int) -> dict[str, Placement]:
    """Return the placements of HEFT and of the shipped policy, which was not trained on this model."""
    segmenter = session.segmenter
    problem = segmenter.problem()
    cost = SimulatedCost(problem)
    rows = {name: get_placer(name).place(problem, cost, seed=seed, evaluations=None) for name in ("heft", ZERO_SHOT)}
    return {name: session.placement(row, segmenter.plan(row)) for name, row in rows.items()}


def _trace(session: Session, name: str, placement: Placement, folder: Path) -> None:
    report = session.run(placement, runs=3)
    path = folder / f"{name.replace(' ', '-')}.trace.json"
    write_chrome_trace(path, report.spans)
    print(f"{name}: output error {text.error(report.output_error)}; trace: {path}")


def _bars(values: Sequence[float], width: int = 60) -> str:
    """Draw values as at most ``width`` bars, each the median of consecutive values, scaled from zero to the maximum."""
    parts = [float(np.median(part)) for part in np.array_split(np.asarray(values), min(len(values), width))]
    return "".join(BARS[round(part / max(parts) * (len(BARS) - 1))] for part in parts)


def _show(compared: Comparison) -> None:
    """Print the results of a race of single devices and of the placements of search, HEFT and policies."""
    print(file=sys.stderr)
    single = next((one.name for one in compared.candidates if one.name in compared.singles), "")
    print(f"{'':16} {'measured':>11}  {f'speed-up over {single}':26}  output error")
    for one in compared.candidates:
        if one.failed is not None or one.measured is None or one.output_error is None:
            print(f"{one.name:16} failed: {one.failed}")
        else:
            ratio = compared.speedups(one).get(single)
            over = "" if ratio is None else f"{ratio.ratio:.3f} ({ratio.ci_low:.3f} .. {ratio.ci_high:.3f})"
            print(f"{one.name:16} {one.measured.median * 1e3:8.2f} ms  {over:26}  {text.error(one.output_error)}")
    print("A placement is faster where the whole interval of its speed-up is above 1.")


def _progress(what: str, share: float) -> None:
    if sys.stderr.isatty():
        print(f"\r{what} {percentage(share)}\x1b[K", end="", file=sys.stderr)
