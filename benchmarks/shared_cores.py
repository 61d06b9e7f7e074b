"""Devices that share cores: some ops on both cores and others on one each, against the whole CPU and against the best split.

The models have ops that scale badly: three CNNs that are part of the package onnx (their weights are constants; they take as
long), and two models of convolutions and LSTMs with random weights. For each there is one interleaved race: the whole CPU as
OpenVINO uses it; the fastest placement on two cores, each a device; and the fastest one on these two and both cores as a third
device, ``CPU@0-1,CPU@0,CPU@1``. Ratios are paired by round. Each placement was selected in earlier races.

If the last is not faster than all others beyond the interval, the placer ``cp-sat`` searches for a minute, by costs that are
calibrated with the times of the race, cuts included. The placement that it finds is raced, too. If that is not faster either,
the makespan of its plan, in segments as it would run, is reported over the makespan of the fastest other one by the same costs.
The placer itself sees groups, and assumes that neighbours on a device are fused: its own makespan, in the rows, is shorter.
"""

from __future__ import annotations

import hashlib
import importlib.util
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from benchmarks import _bidirectional
from benchmarks._bidirectional import BIDIRECTIONAL, export_bidirectional
from benchmarks._harness import Args, Report, main
from benchmarks._models import fastest_split, progress, settled_race, two_cores
from placeit import backends
from placeit.core import clock
from placeit.core.address import format_cores
from placeit.core.errors import UsageError
from placeit.core.files import cache_folder
from placeit.core.placement import Placement
from placeit.devices.plain import plain_devices
from placeit.measuring.statistics import Measurement, faster
from placeit.optimizer.options import Candidates
from placeit.optimizer.portfolio import DEFAULT_PLACERS
from placeit.optimizer.whole_models import alone_on
from placeit.placers.cp_sat import CpSat
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.profiler.calibration import calibrated
from placeit.session import Session, optimize

LIGHT = ("inception_v1", "shufflenet", "squeezenet")
"""Models that are part of the package onnx."""
WHOLE, SPLIT, SHARED, EXACT = "whole CPU", "one core each", "shared cores", "cp-sat, shared cores"
CLOSE = 0.97
_PLACERS = (*DEFAULT_PLACERS, "cp-sat")
_EFFORT = 10**6  # the time limit ends it earlier


def run(args: Args, report: Report) -> None:
    won, names = 0, args.models or (("inception_v1",) if args.quick else (*LIGHT, *BIDIRECTIONAL))
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            won += _model(name, Cache(Path(folder), runs=False), args, report)
    report.claim("models that run faster on shared cores than on the whole CPU and on one core each", won, "", at_least=1)


def model_file(name: str) -> Path:
    """Find a model, or export it. Raises UsageError if the package that contains it is not installed."""
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
    """Measure one model; return whether shared cores are faster than all other candidates."""
    model = backends.load(model_file(name))
    one, other = (f"CPU@{core}" for core in two_cores())
    both = f"CPU@{format_cores(two_cores())}"

    def fastest(devices: list[str], budget: float, start: Placement | None = None) -> Placement | None:
        progress(f"{name} on {', '.join(devices)}")
        found = optimize(
            model, devices, candidates=Candidates(placers=_PLACERS, start=start), budget=budget, seed=args.seed, cache=cache
        )
        report.note(f"  {found.chosen.name}: {found.reason}")
        split = fastest_split(found)
        return None if split is None else split.placement

    split = fastest([one, other], 12 if args.quick else 20)
    shared = fastest([both, one, other], 25 if args.quick else 35, split)
    with Session(model, [both, one, other], cache=cache) as session:
        session.profile()
        plans = {f"{device} alone": _alone(session, d) for d, device in enumerate(session.cluster.names)}
        for plain in plain_devices(session.cluster):  # none, if there are more than these two cores
            plans[WHOLE] = alone_on(session.alone(plain), WHOLE).plan
        plans |= {} if split is None else {SPLIT: session.plan_of(split)}
        known, costs = _race(name, session, plans | ({} if shared is None else {SHARED: session.plan_of(shared)}), args, report)
        if _won(known, SHARED):
            return True
        seconds = 15 if args.quick else 60
        progress(f"{seconds} s of cp-sat on {name}")
        segmenter = Segmenter(session.grouping, costs)
        exact, bound = CpSat(effort=_EFFORT).plan(segmenter.problem(), seed=args.seed, deadline=clock.now() + seconds)
        planned = segmenter.plan(exact.placement)
        results, _ = _race(name, session, plans | {EXACT: planned}, args, report)
    better = min(plans, key=lambda who: known[who].median)
    # the whole CPU is not simulated, so its measured time is used
    seconds_of_better = known[better].median if better == WHOLE else segmenter.priced(plans[better]).schedule.makespan
    report.row(
        model=name,
        better=better,
        better_ms=known[better].median * 1e3,
        better_simulated_ms=seconds_of_better * 1e3,
        cp_sat_ms=exact.makespan * 1e3,
        cp_sat_bound_ms=bound * 1e3,
        cp_sat_in_segments_ms=planned.schedule.makespan * 1e3,
    )
    if _won(results, EXACT):
        return True
    share = planned.schedule.makespan / seconds_of_better
    report.claim(f"{name}: what cp-sat finds in {seconds} s, over the better", share, "", at_least=CLOSE)
    return False


def _alone(session: Session, device: int) -> Plan:
    return session.segmenter.plan(np.full(len(session.grouping.groups), device))


def _race(
    name: str, session: Session, plans: Mapping[str, Plan], args: Args, report: Report
) -> tuple[dict[str, Measurement], Costs]:
    """Race plans, the last against the others; return their times, and the costs corrected by these times."""
    with ExitStack() as stack:
        runs = {who: stack.enter_context(session.executor(plan)) for who, plan in plans.items()}
        results = settled_race({who: run.time for who, run in runs.items()}, rounds=30 if args.quick else 80, seed=args.seed)
        mine = {who: plan for who, plan in plans.items() if plan.problem.device_names == session.cluster.names}
        segments = [(session.segmenter.priced(plan), runs[who].segment_seconds()) for who, plan in mine.items()]
    last = results[list(plans)[-1]]
    for who, plan in plans.items():
        counts = zip(plan.problem.device_names, np.bincount(plan.placement, minlength=plan.problem.devices), strict=True)
        ratio = faster(last, results[who])
        report.row(
            model=name,
            what=who,
            segments=", ".join(f"{device} {count}" for device, count in counts if count),
            simulated_ms=plan.schedule.makespan * 1e3 if who in mine else None,
            median_ms=results[who].median * 1e3,
            low_ms=results[who].ci_low * 1e3,
            high_ms=results[who].ci_high * 1e3,
            last_over_it=ratio.ratio,
            ratio_low=ratio.ci_low,
            ratio_high=ratio.ci_high,
        )
    better = min((who for who in plans if results[who] is not last), key=lambda who: results[who].median)
    report.claim(f"{name}: {list(plans)[-1]} over {better}", faster(last, results[better]).ratio, "")
    return results, calibrated(session.costs, segments)


def _won(results: Mapping[str, Measurement], who: str) -> bool:
    """Whether one is faster than all others, beyond the interval."""
    return who in results and all(faster(results[who], results[one]).ci_high < 1 for one in results if one != who)


if __name__ == "__main__":
    main("shared_cores", run, models=(*LIGHT, *BIDIRECTIONAL))
