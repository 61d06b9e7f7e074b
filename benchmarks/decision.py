"""The error rate of the decision of ``placeit optimize``: its own code on placements whose times are drawn, not measured.

Each trial is a whole search from the first measurements on, of single devices and placements over several of them. Times are
log-normal around the true time. In some cases, each opening of a placement has its own factor. In other cases, runs are short,
so that rounds have blocks of them, and take longer right after another placement has run. Everything else is the real code. A
choice is false if a placement is chosen that is not faster.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Self, cast

import numpy as np

from benchmarks._harness import Args, Report, main
from placeit.core import clock
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import Ratio
from placeit.optimizer.candidates import Candidate
from placeit.optimizer.deciding import confirm
from placeit.optimizer.measuring import measure
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.planning.placing import Placing
from placeit.planning.segments import Plan
from placeit.profiler.costs import Progress
from placeit.runtime.compiling import Compiling
from placeit.session import Session
from placeit.simulator.objectives.latency import Latency

ROUNDS = 40
"""Number of rounds within which a clear gain should be found."""
_LATENCY = Latency()
_SHORT_S = 0.005  # seconds of a short run
_COLD, _WARMS = 0.8, 0.3  # excess of a run after another placement, as a share; factor per further run
_CORRELATION = 0.8  # correlation of the noise of consecutive runs, if it is correlated


@dataclass(frozen=True)
class Case:
    """The true times of a case.

    Attributes:
        splits: seconds of placements over several devices.
        noise: standard deviation of the logarithm of a time.
        singles: seconds of single devices.
        correlated: whether the noise of a run is correlated with the noise of the run before, whichever candidate that was.
        opening: standard deviation of the logarithm of the factor by which an opening of a placement changes all its times.
        short: whether times are 5 ms instead of a second, and runs after another placement's take longer.
    """

    splits: tuple[float, ...]
    noise: float
    singles: tuple[float, ...]
    correlated: bool = False
    opening: float = 0.0
    short: bool = False


@dataclass
class Machine:
    """Noise of consecutive runs; the candidate that ran last, and the relative excess of its next run."""

    noise: float
    correlated: bool
    random: np.random.Generator
    runs: int = 0
    last: object = None
    cold: float = 0.0
    _drawn: list[float] = field(default_factory=list)
    _last: float = 0.0

    def factor(self) -> float:
        """Return the ratio of the measured to the true time of the next run."""
        self.runs += 1
        if not self._drawn:
            self._drawn = self.random.normal(0, self.noise, 256).tolist()
        fresh = self._drawn.pop()
        keep = _CORRELATION if self.correlated else 0.0
        self._last = keep * self._last + math.sqrt(1 - keep * keep) * fresh
        return math.exp(self._last)


class Drawn:
    """Stands in for an executor."""

    inner = uncounted = 1.0

    def __init__(self, seconds: float, machine: Machine, *, short: bool = False) -> None:
        self.seconds, self.machine, self.short = seconds, machine, short
        self.refused: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None: ...

    def segment_seconds(self) -> None: ...

    def time(self) -> float:
        machine = self.machine
        if not self.short:
            return self.seconds * machine.factor()
        machine.cold = _COLD if machine.last is not self else _WARMS * machine.cold
        machine.last = self
        return self.seconds * _SHORT_S * (1 + machine.cold) * machine.factor()


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial.

    Attributes:
        chosen: whether the answer is a placement over several devices.
        ratio: the reported ratio of such a placement's time to a single device's, whether it was chosen or not.
        true: its true ratio; None, like the ratio, if no ratio was reported.
        better: whether the placement is truly faster than every single device.
        rounds: number of rounds of all races together.
    """

    chosen: bool
    ratio: Ratio | None
    true: float | None
    better: bool
    rounds: int


def search_of(case: Case, machine: Machine, *, seed: int, left_s: float = 1e9, progress: Progress | None = None) -> Search:
    """Add a case's candidates to a search that ends after a number of seconds."""
    session = SimpleNamespace(
        cluster=SimpleNamespace(executable=True, devices=()),
        tolerance=1e-3,
        grouping=SimpleNamespace(groups=SimpleNamespace(bytes_once=np.zeros(1))),
        segmenter=SimpleNamespace(problem=lambda: None),
        executor=lambda seconds, **_: Drawn(
            seconds * math.exp(machine.random.normal(0, case.opening)), machine, short=case.short
        ),
        reference=SimpleNamespace(check=lambda _, **__: OutputDifference(0.0, 0.0)),
        compiling=Compiling(),
        runtime=SimpleNamespace(compiler=SimpleNamespace(expected_s=lambda _: 0.0)),
    )
    search = Search(RunOptions(cast("Session", session), _LATENCY, clock.now() + left_s, seed, progress))
    for placer, times in (("single", case.singles), ("drawn", case.splits)):
        for i, seconds in enumerate(times):
            name = f"{placer} {i}"
            simulated = seconds * (_SHORT_S if case.short else 1.0)
            search.enter(Candidate(name, placer, cast("Plan", seconds), cast("Placing", None), simulated, simulated))
    return search


def trial(case: Case, random: np.random.Generator) -> Outcome:
    """Search once, with the real code from the first race on."""
    rounds = 0

    def progress(what: str, _: float) -> None:
        nonlocal rounds
        rounds += what != "compiling segments"

    machine = Machine(case.noise, case.correlated, random)
    search = search_of(case, machine, seed=int(random.integers(2**31)), progress=progress)
    measure(search)
    decision = confirm(search)
    decided = {one.placer == "single": cast("float", one.plan) for one in search.candidates if one.final}
    true = decided[False] / decided[True] if decided else None
    winner = decision.winner
    chosen = winner is not None and winner.placer != "single"
    better = chosen and cast("float", winner.plan) < min(case.singles)
    return Outcome(chosen, decision.ratio, true, better, rounds)


@dataclass(frozen=True)
class Summary:
    """Shares of the trials.

    Attributes:
        chosen: in which a placement over several devices was chosen.
        false: in which a chosen placement is not faster than every single device.
        in_time: in which a faster placement was chosen within :data:`ROUNDS` rounds, of all races together.
        covered: in which the interval contained the true ratio, of those with an interval.
        claimed: mean of the reported ratio over the true ratio where a placement was chosen; None if none was.
        rounds: mean number of rounds.
    """

    chosen: float
    false: float
    in_time: float
    covered: float
    claimed: float | None
    rounds: float


def summary(case: Case, trials: int, seed: int) -> Summary:
    """Run a number of searches."""
    random = np.random.default_rng(seed)
    outcomes = [trial(case, random) for _ in range(trials)]
    covered, claims = [], []
    for outcome in outcomes:
        if outcome.ratio is not None and outcome.true is not None:
            covered.append(outcome.ratio.ci_low <= outcome.true <= outcome.ratio.ci_high)
            if outcome.chosen:
                claims.append(outcome.ratio.ratio / outcome.true)
    return Summary(
        chosen=float(np.mean([outcome.chosen for outcome in outcomes])),
        false=float(np.mean([outcome.chosen and not outcome.better for outcome in outcomes])),
        in_time=float(np.mean([outcome.better and outcome.rounds <= ROUNDS for outcome in outcomes])),
        covered=float(np.mean(covered)),
        claimed=float(np.mean(claims)) if claims else None,
        rounds=float(np.mean([outcome.rounds for outcome in outcomes])),
    )


NOISES, COUNTS = (0.05, 0.1), tuple(itertools.product((1, 3), (1, 2, 3)))
NOT_FASTER = tuple(
    Case((time,) * splits, noise, (1.0,) * singles) for noise in NOISES for splits, singles in COUNTS for time in (1.0, 1.02)
)
"""Cases in which no placement must be chosen: placements that are as fast as the single devices, or slower."""
FASTER = tuple(Case((0.95,) + (1.0,) * (splits - 1), 0.05, (1.0,) * singles) for splits, singles in COUNTS)
"""Cases in which a placement should be chosen."""
SHORT = (1.0, 0.95)
OTHERS = (
    *(Case((time,) * 3, 0.1, (1.0, 1.0), correlated=True) for time in (1.0, 1.02)),
    *(Case((1.0,) * 3, noise, (1.0,) * 3, opening=0.005) for noise in (0.01, 0.03)),
    *(Case((time,) * 3, 0.1, (1.0,) * 2, correlated=correlated, short=True) for time in SHORT for correlated in (False, True)),
    Case((0.95, 1.0, 1.0), 0.1, (1.0, 1.0), correlated=True),
    Case((0.95, 1.0, 1.0), 0.1, (1.0, 1.0)),
    Case((1.01, 1.01, 1.01), 0.05, (1.0, 1.02)),
    Case((0.75,) * 3, 0.1, (1.0, 1.0, 0.6)),
)
"""Cases that are shown in addition, without a target.

They are correlated noise, a gain in more noise, single devices of which the wrong one may be selected, and a single device that
is faster than all placements over the others, as the whole CPU is.
"""


def run(args: Args, report: Report) -> None:
    trials = 200 if args.quick else 4000
    results = {}
    for case in (*NOT_FASTER, *FASTER, *OTHERS):
        results[case] = found = summary(case, trials, args.seed)
        report.row(
            splits=" ".join(f"{seconds:g}" for seconds in case.splits),
            singles=" ".join(f"{seconds:g}" for seconds in case.singles),
            noise_percent=case.noise * 100,
            correlation=_CORRELATION if case.correlated else 0,
            run_s=_SHORT_S if case.short else 1.0,
            chosen_percent=found.chosen * 100,
            false_percent=found.false * 100,
            covered_percent=found.covered * 100,
            claimed_over_true=found.claimed,
            rounds=found.rounds,
        )
    report.note(f"{trials} trials of each case")
    short = [case for case in OTHERS if case.short and min(case.splits) >= 1.0]
    false = max(results[case].false for case in (*NOT_FASTER, *short))
    covered = min(results[case].covered for case in (*NOT_FASTER, *FASTER))
    in_time = min(results[case].in_time for case in FASTER)
    report.claim("placements chosen that are not faster, worst case", false * 100, "%", at_most=2.5)
    report.claim("intervals that hold the truth, worst case", covered * 100, "%", at_least=94)
    report.claim(f"placements at 0.95 chosen within {ROUNDS} rounds, 5 % noise, worst case", in_time * 100, "%", at_least=80)


if __name__ == "__main__":
    main("decision", run)
