"""Decides which budgets are tried on how many problems within the time limit, and which runs can be skipped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks._anytime_journal import Answer

__all__ = ["answered", "ended", "in_time", "problems_at", "too_slow"]

_LATE, _LATE_S = 1.25, {"seconds": 0.1, "measured": 1.0}  # an answer is in time up to this factor on its budget, plus seconds
_LONGEST_RUN_S = 20.0  # a run with a number of evaluations is left out if it is expected to take longer, in seconds
_EARLY = 0.9  # share of its seconds; a run that ends before it has ended by itself


def problems_at(left_s: float, costs: Sequence[float], most: int) -> int:
    """Return on how many problems the smallest of some budgets is tried, so that there is time for the larger ones, too.

    Problem by problem, the next one goes to the budget that has had the least time so far, if enough time is left. A larger
    budget is tried on no more problems than a smaller one.

    Args:
        left_s: remaining seconds.
        costs: seconds that a problem takes at each budget, for all placers together, starting with the budget in question;
            positive.
        most: number of available problems.
    """
    counts = [0] * len(costs)
    while True:
        spent = sum(count * cost for count, cost in zip(counts, costs, strict=True))
        room = [most, *counts]
        able = [i for i in range(len(costs)) if counts[i] < room[i] and spent + costs[i] <= left_s]
        if not able:
            return counts[0]
        counts[min(able, key=lambda i: counts[i] * costs[i])] += 1


def ended(answer: Answer, unit: str, budget: float) -> bool:
    """Whether a run ended by itself, so that a larger budget would not change it.

    This is so if it had seconds left, if it asks for no values, or if it failed for another reason than a lack of evaluations.
    """
    if unit != "evaluations":
        return answer.took_s < _EARLY * budget
    return answer.evaluations == 0 or (answer.why is not None and answer.evaluations < budget)


def in_time(answer: Answer, unit: str, budget: float) -> bool:
    """Whether an answer came soon enough to count for a budget. With a number of evaluations, it always does."""
    return unit == "evaluations" or answer.took_s <= _LATE * budget + _LATE_S[unit]


def too_slow(answer: Answer, unit: str, before: float, budget: float) -> bool:
    """Whether a run that took this long with the budget before would give no answer that counts for a larger one."""
    if unit != "evaluations":
        return not in_time(answer, unit, budget)
    return answer.took_s * budget / before > _LONGEST_RUN_S


def answered(runs: Mapping[float, Answer], unit: str, budgets: Sequence[float]) -> dict[float, Answer | None]:
    """Return the answer that counts for each budget; None if no answer came in time.

    If a run ended by itself, its answer counts for all larger budgets. If it was too slow, the larger budgets have no answer.

    Args:
        runs: answers by the budgets that were tried.
        unit: unit of the budgets.
        budgets: ascending.
    """
    found: dict[float, Answer | None] = {}
    last: tuple[float, Answer] | None = None
    for budget in budgets:
        if budget in runs:
            last = budget, runs[budget]
        elif last is None:
            continue
        elif not ended(last[1], unit, last[0]):
            if not too_slow(last[1], unit, last[0], budget):
                continue
            found[budget] = None
            continue
        counts = last[1].value is not None and in_time(last[1], unit, budget)
        found[budget] = last[1] if counts else None
    return found
