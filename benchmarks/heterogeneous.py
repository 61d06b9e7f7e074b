"""Inception-V3 on a cluster of unequal cores: one case that splitting must win, and one that must not be split.

Slow cores and slow links are emulated on this machine's cores, and run for real. In the first case, the best split found is
raced once more against every single device. In the second, the answer must be the fast core alone.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks._harness import Args, Report, main
from benchmarks._models import model_file, progress, two_cores
from placeit.measuring.measure import Race
from placeit.measuring.statistics import Ratio, faster
from placeit.optimizer.result import Optimized
from placeit.profiler.cache import Cache
from placeit.session import Session, optimize

_FAST, _SLOW = "fast", "slow"


@dataclass(frozen=True)
class Case:
    """A fast core and a slowed one behind a link, as described in a cluster file."""

    name: str
    slowdown: float
    bandwidth: str
    latency: str

    def cluster_file(self, folder: Path) -> Path:
        first, second = two_cores()
        path = folder / f"{self.name}.yaml"
        path.write_text(
            "devices:\n"
            f"  {_FAST}: {{runs_on: CPU@{first}}}\n"
            f"  {_SLOW}: {{runs_on: CPU@{second}, slowdown: {self.slowdown}}}\n"
            "links:\n"
            f"  - {{between: [{_FAST}, {_SLOW}], bandwidth: {self.bandwidth}, latency: {self.latency}}}\n",
            encoding="utf-8",
        )
        return path


_MILD = Case("A", 1.5, "10 Gbit/s", "50 us")
_HARSH = Case("B", 5, "100 Mbit/s", "50 us")


def run(args: Args, report: Report) -> None:
    model = model_file("inception_v3")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in (_MILD, _HARSH):
            cluster = case.cluster_file(folder)
            progress(f"case {case.name}: a core slowed {case.slowdown:g} times, {case.bandwidth}, {case.latency}")
            cache = Cache(folder / "costs", runs=False)
            found = optimize(model, cluster, budget=30 if args.quick else 90, seed=args.seed, cache=cache, progress=progress)
            _rows(case, found, report)
            if case is _MILD:
                _split_wins(found, model, cluster, cache, args, report)
            else:
                on_fast = found.placement.counts()[_FAST] / len(found.placement)
                report.claim(f"{case.name}: share of ops on the fast core", on_fast, "", at_least=1)


def _rows(case: Case, found: Optimized, report: Report) -> None:
    for candidate in found.candidates:
        measured = candidate.measured
        report.row(
            case=case.name,
            candidate=candidate.name,
            placer=candidate.placer,
            chosen=candidate is found.chosen,
            fast_ops=candidate.placement.counts()[_FAST],
            slow_ops=candidate.placement.counts()[_SLOW],
            segments=candidate.segments,
            simulated_ms=candidate.simulated_s * 1e3,
            measured_ms=None if measured is None else measured.median * 1e3,
            ci_low_ms=None if measured is None else measured.ci_low * 1e3,
            ci_high_ms=None if measured is None else measured.ci_high * 1e3,
        )
    report.row(case=case.name, chosen=found.chosen.name, reason=found.reason, bound_over_single=_bound(found))


def _bound(found: Optimized) -> float:
    assert found.best_single is not None
    return found.bound_s / found.best_single.simulated_s


def _split_wins(found: Optimized, model: Path, cluster: Path, cache: Cache, args: Args, report: Report) -> None:
    """Race the best split placement against the single devices in new instances, and add the claims."""
    case, what = _MILD.name, "time of the best split placement over the best single device, upper end of its interval"
    # a bound of 1 or more would show that no split can win
    report.claim(f"{case}: bound over the best single device, cutting and links free", _bound(found), "")
    split = next((c for c in found.candidates if c.measured is not None and len(_used(c.placement.counts())) > 1), None)
    if split is None:
        report.note(f"case {case}: no split placement was measured")
        report.claim(f"{case}: {what}", None, "", at_most=1)
        return
    singles = [candidate for candidate in found.candidates if candidate.placer == "single"]
    with Session(model, cluster, cache=cache) as session:
        executors = {candidate.name: session.executor(candidate.plan) for candidate in (split, *singles)}
        progress(f"case {case}: racing {split.name} against {', '.join(single.name for single in singles)}")
        results = Race({name: executor.time for name, executor in executors.items()}, seed=args.seed).run(
            rounds=12 if args.quick else 40, drop_losers=False
        )
    best = min((results[single.name] for single in singles), key=lambda measured: measured.median)
    ratio: Ratio = faster(results[split.name], best)
    report.row(
        case=case,
        split=split.name,
        median_ms=results[split.name].median * 1e3,
        best_single=best.name,
        single_ms=best.median * 1e3,
        ratio=ratio.ratio,
        ratio_low=ratio.ci_low,
        ratio_high=ratio.ci_high,
    )
    report.claim(f"{case}: {what}", ratio.ci_high, "", at_most=1)


def _used(counts: dict[str, int]) -> list[str]:
    return [device for device, ops in counts.items() if ops]


if __name__ == "__main__":
    main("heterogeneous", run)
