"""Several models on the same devices: how much load is served within limits by the joint placement, and by others.

A text detector, a text classifier and a recurrent voice detector share two cores. Each gets the same share of a core's time in
requests at random times. The limit on the 95th percentile is four times the time of the slowest model alone. The load grows
by a factor of 1.2 from step to step. Each step places the workload anew (``placeit.optimize_workload``), and compares the joint
placement with each model where a search for it alone puts it, and with each model on the whole CPU as its runtime uses that by
itself. The largest load within limits is the last one before the first at which a limit is not kept. Errors of predictions are
of the ways that keep all limits. Run it alone on the machine.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

import placeit
from benchmarks._architectures.packaged import PACKAGED
from benchmarks._harness import Args, Report, main
from benchmarks._models import progress, two_cores
from placeit.backends import load
from placeit.serving.latency import LatencyLimit
from placeit.workload.entries import Entry, Workload

MODELS = ("text_detector", "text_direction", "voice_rate")
_LIMIT = 4.0  # times of a request of the slowest model alone
_STEP = 1.2  # factor from load to load, and the aim for the joint placement
_LOADS, _QUICK_LOADS = tuple(_STEP**k for k in range(-5, 3)), (0.4,)  # cores' time that requests would take on one core
_WAYS = ("joint", "each alone", "plain")
SECONDS, QUICK_SECONDS = 40.0, 6.0


def run(args: Args, report: Report) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _run(args, report, Path(folder))


def _run(args: Args, report: Report, folder: Path) -> None:
    devices = [f"CPU@{core}" for core in two_cores()]
    entries = [_entry(name, folder, devices[0]) for name in MODELS]
    limit = LatencyLimit(95, _LIMIT * max(1 / entry.rate for entry in entries if entry.rate is not None) / len(MODELS))
    most, missed = defaultdict[str, float](float), set[str]()
    errors, fitted, foreseen = defaultdict[str, list[float]](list), list[float](), list[bool]()
    for share in _QUICK_LOADS if args.quick else _LOADS:
        progress(f"load {share:g}")
        workload = Workload(tuple(replace(entry, limit=limit) for entry in entries)).scaled(share)
        seconds = QUICK_SECONDS if args.quick else args.seconds or SECONDS
        found = placeit.optimize_workload(workload, devices, budget=seconds, seed=args.seed)
        fitted += [] if found.interference.error is None else [found.interference.error]
        for way in found.every:
            for k, entry in enumerate(workload):
                off = found.error(way, k)
                if off is not None and way.kept:  # where a device is overloaded, percentiles depend on how long requests come
                    errors["joint" if "joint" in way.name else ""].append(abs(off))
                report.row(
                    load=share,
                    way=way.name,
                    model=entry.name,
                    placement=way.options[k].name,
                    rate=entry.rate,
                    limit_ms=entry.limited.seconds * 1e3,
                    predicted_ms=way.predicted[k].p95 * 1e3,
                    measured_ms=None if way.measured is None else way.measured[k].p95 * 1e3,
                    kept=way.points[k].kept,
                )
            foreseen.append(way.kept == all(point.kept for point in way.predicted))
            missed |= set() if way.kept else {*way.name.split(", ")}
            most |= dict.fromkeys({*way.name.split(", ")} - missed, share)
    for name in _WAYS:
        report.claim(f"largest load within limits, {name}", most[name], "cores")
    for name in _WAYS[1:]:
        ratio = round(most["joint"] / most[name], 6) if most[name] else None
        report.claim(f"largest load of joint over {name}", ratio, "", at_least=_STEP)
    every = errors["joint"] + errors[""]
    report.claim("median error of the predicted 95th percentile, within limits", _median(every), "", at_most=0.15)
    report.claim(
        "median error of the predicted 95th percentile, within limits, joint", _median(errors["joint"]), "", at_most=0.15
    )
    report.claim("predictions that limits are kept, or not, that are right", sum(foreseen) / len(foreseen), "")
    report.claim("median error of slowdowns of pairs, each predicted from the others", _median(fitted), "")


def _median(values: list[float]) -> float | None:
    return float(np.median(values)) if values else None


def _entry(name: str, folder: Path, device: str) -> Entry:
    """Return a model with the rate at which all of them would keep one core busy."""
    sample, file = PACKAGED[name](), folder / f"{name}.npz"
    inputs = sample.inputs or load(sample.path, input_shapes=sample.shapes).random_inputs()
    np.savez(file, **inputs)  # type: ignore[arg-type]
    with placeit.Session(sample.path, device, inputs=inputs) as session:
        session.profile(budget_s=2.0)
        whole = session.placement(np.zeros(len(session.grouping.groups), np.int32))
        alone = float(session.run(whole, runs=30).latency.median)
    return Entry(name, sample.path, 1 / len(MODELS) / alone, inputs=file)


if __name__ == "__main__":
    main("several_models", run, seconds=SECONDS)
