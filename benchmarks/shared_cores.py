"""Devices that share cores: some ops on both cores and others on one each, against the whole CPU and against the best split.

The models are ones whose ops scale badly: three CNNs that come with the package onnx (their weights are constants; they take as
long), and two models of convolutions and LSTMs with random weights. For each there is one interleaved race: the whole CPU as
OpenVINO uses it; the fastest placement on two cores, each a device; and the fastest one on these two and both cores as a third
device, ``CPU@0-1,CPU@0,CPU@1``. Ratios are paired by round. Each placement was selected in earlier races.

Where the last is not faster than all others beyond the interval, the placer ``cp-sat`` searches for a minute, by costs that are
calibrated with the times of the race, cuts included. What it finds is told over the fastest of the others, and is raced, too.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks import _bidirectional
from benchmarks._bidirectional import BIDIRECTIONAL, export_bidirectional
from benchmarks._harness import Args, Report, main
from benchmarks._models import fastest_split, progress, settled_race, two_cores
from placeit import backends
from placeit.core.address import format_cores
from placeit.core.errors import UsageError
from placeit.core.files import cache_folder
from placeit.core.placement import Placement
from placeit.devices.plain import plain_devices
from placeit.optimizer.candidates import alone_on
from placeit.optimizer.optimize import DEFAULT_PLACERS, optimize
from placeit.placers.cp_sat import CpSat
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.profiler.calibration import calibrated
from placeit.runtime.measure import Measurement, faster
from placeit.session import Session

LIGHT = ("inception_v1", "shufflenet", "squeezenet")
"""Models that come with the package onnx."""
WHOLE, SPLIT, SHARED, EXACT = "whole CPU", "one core each", "shared cores", "cp-sat, shared cores"
CLOSE = 0.97
_PLACERS = (*DEFAULT_PLACERS, "cp-sat")
_EFFORT = 10**6  # the time limits it


def run(args: Args, report: Report) -> None:
    won, names = 0, args.models or (("inception_v1",) if args.quick else (*LIGHT, *BIDIRECTIONAL))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            won += _model(name, Cache(Path(folder)), args, report)
    report.claim("models that run faster on shared cores than on the whole CPU and on one core each", won, "", at_least=1)


def model_file(name: str) -> Path:
    """Find a model, or export it. Raises UsageError if the package that it comes with is not installed."""
    if name in LIGHT:
        found = importlib.util.find_spec("onnx")
        if found is None or found.origin is None:
            raise UsageError(f"The model '{name}' comes with the package onnx, which is not installed: pip install onnx.")
        return Path(found.origin).parent / f"backend/test/data/light/light_{name}.onnx"
    version = hashlib.sha256(Path(_bidirectional.__file__).read_bytes()).hexdigest()[:12]
    path = cache_folder() / "models" / f"{name}-{version}.onnx"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        export_bidirectional(name, path)
    return path


def _model(name: str, cache: Cache, args: Args, report: Report) -> bool:
    """Measure one model; return whether shared cores are faster than all else."""
    model = backends.load(model_file(name))
    one, other = (f"CPU@{core}" for core in two_cores())
    both = f"CPU@{format_cores(two_cores())}"

    def fastest(devices: list[str], budget: float, start: Placement | None = None) -> Placement | None:
        progress(f"{name} on {', '.join(devices)}")
        found = optimize(model, devices, placers=_PLACERS, budget=budget, seed=args.seed, cache=cache, start=start)
        report.note(f"  {found.chosen.name}: {found.reason}")
        split = fastest_split(found)
        return None if split is None else split.placement

    placements = {SPLIT: fastest([one, other], 12 if args.quick else 25)}
    placements[SHARED] = fastest([both, one, other], 25 if args.quick else 45, placements[SPLIT])
    with Session(model, [both, one, other], cache=cache) as session:
        session.profile()
        plans = {who: session.plan_of(placement) for who, placement in placements.items() if placement is not None}
        plans |= {f"{device} alone": _alone(session, d) for d, device in enumerate(session.cluster.names)}
        for plain in plain_devices(session.cluster):
            plans[WHOLE] = alone_on(session.alone(plain), WHOLE).plan
        results, costs = _race(session, plans, args)
        known = {who: result for who, result in results.items() if who != SHARED}
        better = min(known, key=lambda who: known[who].median)
        won = SHARED in results and _is_faster(name, results, better, report)
        if won:
            _rows(name, results, plans, report)
            return True
        seconds = 15 if args.quick else 60
        progress(f"{seconds} s of cp-sat on {name}")
        segmenter = Segmenter(session.grouping, costs)
        exact, bound = CpSat(effort=_EFFORT).plan(segmenter.problem(), seed=args.seed, deadline=time.perf_counter() + seconds)
        plans[EXACT] = segmenter.plan(exact.placement)
        results |= _race(session, {who: plans[who] for who in (EXACT, better)}, args)[0] | {better: results[better]}
        _rows(name, results, plans, report)
        report.row(
            model=name,
            better=better,
            better_ms=known[better].median * 1e3,
            cp_sat_ms=exact.makespan * 1e3,
            cp_sat_bound_ms=bound * 1e3,
            cp_sat_in_segments_ms=plans[EXACT].schedule.makespan * 1e3,
        )
    share = exact.makespan / known[better].median
    report.claim(f"{name}: what cp-sat finds in {seconds} s, over the better", share, "", at_least=CLOSE)
    return False


def _alone(session: Session, device: int) -> Plan:
    return session.segmenter.plan(np.full(len(session.grouping.groups), device))


def _race(session: Session, plans: Mapping[str, Plan], args: Args) -> tuple[dict[str, Measurement], Costs]:
    """Race plans; return their times, and the costs as these times correct them."""
    with ExitStack() as stack:
        runs = {who: stack.enter_context(session.executor(plan)) for who, plan in plans.items()}
        results = settled_race({who: run.time for who, run in runs.items()}, rounds=30 if args.quick else 100, seed=args.seed)
        mine = {who: plan for who, plan in plans.items() if plan.problem.device_names == session.cluster.names}
        segments = [(session.segmenter.priced(plan), runs[who].segment_seconds()) for who, plan in mine.items()]
    return results, calibrated(session.costs, segments)


def _is_faster(name: str, results: Mapping[str, Measurement], better: str, report: Report) -> bool:
    """State how shared cores compare; return whether they are faster than all else, beyond the interval."""
    others = [faster(results[SHARED], results[who]) for who in results if who != SHARED]
    report.claim(f"{name}: time on shared cores over {better}", faster(results[SHARED], results[better]).ratio, "")
    return all(ratio.ci_high < 1 for ratio in others)


def _rows(name: str, results: Mapping[str, Measurement], plans: Mapping[str, Plan], report: Report) -> None:
    for who, measured in results.items():
        plan = plans[who]
        ratio = faster(results[SHARED], measured) if SHARED in results and who != EXACT else None
        counts = np.bincount(plan.placement, minlength=plan.problem.devices)
        report.row(
            model=name,
            what=who,
            segments=", ".join(
                f"{device} {n}" for device, n in zip(plan.problem.device_names, counts.tolist(), strict=True) if n
            ),
            simulated_ms=None if who == WHOLE else plan.schedule.makespan * 1e3,
            median_ms=measured.median * 1e3,
            low_ms=measured.ci_low * 1e3,
            high_ms=measured.ci_high * 1e3,
            shared_over_it=None if ratio is None else ratio.ratio,
            ratio_low=None if ratio is None else ratio.ci_low,
            ratio_high=None if ratio is None else ratio.ci_high,
        )


if __name__ == "__main__":
    main("shared_cores", run, models=(*LIGHT, *BIDIRECTIONAL))
