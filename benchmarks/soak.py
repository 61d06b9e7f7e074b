"""Many placements in one session: memory and threads of the process during the session, and what is left after it.

Random placements of Inception-V3 on two one-core devices are compiled, run twice and closed, one after the other, as in a long
search. The figure is the most that the process had at any time, over what it had before the model was loaded. Half of the
placements are dense (each group on a random device), half are a few runs of consecutive groups. So most segments are new and
are compiled, and only the runtime's own limits release any of them.

The exit code is 1 if a bound is exceeded.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, load_model, progress, random_splits, two_cores
from placeit.core.memory import Use, own_use, trim_memory
from placeit.devices import discover
from placeit.session import Session

_PLACEMENTS, _QUICK, _EVERY, _RUNS = 300, 60, 30, 2
_GROWTH = Use(2e9, 10)  # most bytes and threads that a session may take more than at the start


@dataclass
class _Growth:
    """Memory and threads that the process has gained since this object was made."""

    def __post_init__(self) -> None:
        self.start = own_use()
        self.most = Use(0.0, 0.0)

    def now(self) -> Use:
        """Measure, and keep the maximum."""
        found = own_use()
        grown = Use(found.bytes - self.start.bytes, found.threads - self.start.threads)
        self.most = Use(max(self.most.bytes, grown.bytes), max(self.most.threads, grown.threads))
        return grown


def run(args: Args, report: Report) -> None:
    growth, begin = _Growth(), time.perf_counter()
    first, second = (f"CPU@{core}" for core in two_cores())
    name = (args.models or ("inception_v3",))[0]
    model = load_model(name)

    def row(what: str, done: int, seconds: float) -> None:
        now = growth.now()
        report.row(at=what, placements=done, grown_mb=now.bytes / 1e6, threads=now.threads, max_mb=growth.most.bytes / 1e6,
                   max_threads=growth.most.threads, seconds=seconds)  # fmt: skip
        progress(f"{what} {done}: {now.bytes / 1e6:.0f} MB and {now.threads:.0f} threads over the start")

    row("model loaded", 0, time.perf_counter() - begin)
    with Session(model, discover([first, second]), cache=None) as session:
        session.profile(budget_s=10.0)
        segmenter, groups = session.segmenter, len(session.grouping.groups)
        row("profiled", 0, time.perf_counter() - begin)
        placements = random_splits(np.random.default_rng(args.seed), groups, _QUICK if args.quick else _PLACEMENTS)
        for number, placement in enumerate(placements, 1):
            with session.executor(segmenter.plan(placement)) as executor:
                growth.now()
                for _ in range(_RUNS):
                    executor.time()
                growth.now()
            if number % _EVERY == 0:
                row("placement", number, time.perf_counter() - begin)
    del session, segmenter, executor, model
    gc.collect()
    trim_memory()
    row("session closed", number, time.perf_counter() - begin)
    left = growth.now()
    report.claim(f"{name}: most memory over the start", growth.most.bytes / 1e9, "GB", at_most=_GROWTH.bytes / 1e9)
    report.claim(f"{name}: most threads over the start", growth.most.threads, "", at_most=_GROWTH.threads)
    report.claim(f"{name}: memory left after the session", left.bytes / 1e9, "GB")
    report.claim(f"{name}: threads left after the session", left.threads, "")


if __name__ == "__main__":
    main("soak", run, models=MODELS, judge=True)
