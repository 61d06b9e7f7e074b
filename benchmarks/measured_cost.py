"""The time to measure different plans of ResNet-50 on two core sets, with none of them compiled before.

Placements are random: half of them dense (each group on a random device), half a few runs of consecutive groups. All of them
are run, whatever time is expected of them, in one session and in one call. Opening plans, which is mostly compiling, is counted
separately from the rest: output checks, warm-up, rounds, the incumbent's part in every batch, and the races in which plans that
look better than the incumbent are run once more. Profiling comes before, and its time is also given.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import load_model, progress, random_splits, two_cores
from placeit.devices import discover
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.session import Session

_MODEL = "resnet50"


def run(args: Args, report: Report) -> None:
    count = 12 if args.quick else 100
    cluster = discover([f"CPU@{core}" for core in two_cores()])
    with Session(load_model(_MODEL), cluster, cache=None) as session:
        begin = time.perf_counter()
        session.profile(progress=progress)
        profiling = time.perf_counter() - begin
        rows = _different(session, count, args.seed)
        progress(f"measuring {count} plans")
        cost = MeasuredCost(session, hopeless=None, seed=args.seed)
        begin = time.perf_counter()
        found = cost.outcomes(rows)
        seconds = time.perf_counter() - begin
        compiling, running, samples = cost.compile_s, cost.run_s, cost.samples
        sources = [one.source for one in found]
        values = np.array([one.value for one in found])
        best = cost.winner()
        report.row(
            plans=count,
            measured=sources.count("measured"),
            failed=sources.count("failed") + sources.count("infeasible"),
            dropped=sources.count("dropped"),
            samples=samples,
            profile_s=profiling,
            wall_s=seconds,
            compile_s=compiling,
            run_s=running,
        )
        report.row(
            fastest_ms=np.nanmin(values) * 1e3,
            slowest_ms=np.nanmax(values) * 1e3,
            winner_ms=best.measured.median * 1e3,
            winner_over_second=None if best.ratio is None else best.ratio.ratio,
            ci_low=None if best.ratio is None else best.ratio.ci_low,
            ci_high=None if best.ratio is None else best.ratio.ci_high,
        )
    limit = 120 * count / 100  # proportional to the number of plans
    report.claim(f"{count} plans of {_MODEL} measured, nothing compiled before", seconds, "s", at_most=limit)
    report.claim("of them measured", sources.count("measured"), "plans", at_least=count)


def _different(session: Session, count: int, seed: int) -> np.ndarray:
    """Draw random placements whose programs differ."""
    random, segmenter = np.random.default_rng(seed), session.segmenter
    found: dict[frozenset[tuple[int, tuple[int, ...]]], np.ndarray] = {}
    while len(found) < count:
        for row in random_splits(random, len(session.grouping.groups), count - len(found)):
            plan = segmenter.plan(row)
            found.setdefault(frozenset((segment.device, segment.groups) for segment in plan.programs), row)
    return np.stack(list(found.values()))


if __name__ == "__main__":
    main("measured_cost", run)
