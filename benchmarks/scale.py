"""How placers scale with ops and devices: seconds of the list schedulers and of an evaluation of annealing, and memory.

Each case runs in its own process, so that its peak of memory is its own. ``tables`` are the seconds to make a problem ready for
compiled code. An evaluation is the marginal one: the difference of two searches over the difference of their evaluations.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable

from benchmarks._harness import Args, Report, main
from benchmarks._list_problems import large_problem
from benchmarks._models import progress
from placeit.placers.annealing import Annealing
from placeit.placers.base import Placer
from placeit.placers.best_list import BestList
from placeit.placers.heft import Heft
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import compiled

_CASES = ((100, 10), (10_000, 10), (10_000, 100), (10_000, 1_000))
_FEW, _MORE = 50, 550  # evaluations


def run(args: Args, report: Report) -> None:
    for ops, devices in _CASES[:1] if args.quick else _CASES:
        progress(f"{ops} ops on {devices} devices")
        command = [sys.executable, "-m", "benchmarks.scale", "--case", str(ops), str(devices), str(args.seed)]
        done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
        report.row(ops=ops, devices=devices, **json.loads(done.stdout))


def _case(ops: int, devices: int, seed: int) -> dict[str, float]:
    problem = large_problem("layered", ops, devices, seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def placed(placer: Placer, evaluations: int | None = None) -> float:
        return _seconds(lambda: placer.place(problem, SimulatedCost(problem), seed=seed, evaluations=evaluations))

    tables = _seconds(lambda: compiled(problem))
    heft, best = placed(Heft()), placed(BestList())
    few, more = placed(Annealing(), _FEW), placed(Annealing(), _MORE)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "tables_s": tables,
        "heft_s": heft,
        "best_list_s": best,
        "evaluation_ms": (more - few) / (_MORE - _FEW) * 1e3,
        "memory_mb": (peak - before) / 1e3,
    }


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


if __name__ == "__main__":
    if sys.argv[1:2] == ["--case"]:
        print(json.dumps(_case(*map(int, sys.argv[2:]))))
    else:
        main("scale", run)
