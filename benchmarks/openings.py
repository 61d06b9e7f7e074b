"""How much the same plan differs from itself when it is opened twice, which no interval of a race can contain.

A whole model on one core is opened in two separate sessions and raced as ``placeit optimize`` decides: interleaved, with one
look at the end and an interval that allows for openings. Nothing is faster than itself, so each ratio whose interval lies below
1 is false. ``by_rounds`` is the share of false ratios by the interval of the rounds alone. The rounds of a race give the
variation of its median by chance (``chance``, the standard deviation of the logarithm). The additional variation of the ratios
of all races is due to the opening: the addresses of buffers and weights.
"""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import MODELS, load_model, progress, two_cores
from placeit.backends.base import Model
from placeit.measuring.measure import Race
from placeit.measuring.statistics import Measurement, faster, faster_in_any_opening
from placeit.optimizer.decision import DECISION_ROUNDS
from placeit.planning.segments import Costs, Segmenter
from placeit.session import Session

_RACES, _QUICK_RACES = 40, 4
_TO_SIGMA = 2 * 1.96  # width of a 95 % interval in standard deviations


def run(args: Args, report: Report) -> None:
    races = _QUICK_RACES if args.quick else _RACES
    for name in args.models or (MODELS[:1] if args.quick else MODELS):
        model = load_model(name)
        pairs = []
        for number in range(races):
            progress(f"{name}, race {number + 1} of {races}")
            pairs.append(_against_itself(model, args.seed + number))
        ratios = [faster(second, first) for first, second in pairs]
        found = [faster_in_any_opening(second, first) for first, second in pairs]
        logs = np.log([ratio.ratio for ratio in ratios])
        chance = float(np.median([np.log(ratio.ci_high / ratio.ci_low) / _TO_SIGMA for ratio in ratios]))
        report.row(
            model=name,
            races=races,
            lowest_ratio=float(np.exp(logs.min())),
            highest_ratio=float(np.exp(logs.max())),
            spread=float(logs.std(ddof=1)),
            chance=chance,
            by_rounds=sum(r.ci_high < 1 or r.ci_low > 1 for r in ratios) / races,
        )
        low, high = (sum(told) / races for told in ([r.ci_high < 1 for r in found], [r.ci_low > 1 for r in found]))
        report.claim(f"{name}: share of races in which the second is faster beyond the interval", low, "", at_most=0.025)
        report.claim(f"{name}: share of races in which it is slower", high, "", at_most=0.025)


def _against_itself(model: Model, seed: int) -> tuple[Measurement, Measurement]:
    """Open a model on a core twice, and race the two."""
    device = f"CPU@{two_cores()[0]}"
    with ExitStack() as stack:
        timers = {}
        for which in ("first", "second"):
            session = stack.enter_context(Session(model, device))
            groups = len(session.grouping.groups)
            plan = Segmenter(session.grouping, Costs.zero(groups, session.cluster)).plan(np.zeros(groups, np.int32))
            timers[which] = session.executor(plan).time
        found = Race(timers, seed=seed).run(rounds=DECISION_ROUNDS, drop_losers=False)
    return found["first"], found["second"]


if __name__ == "__main__":
    main("openings", run, models=MODELS)
