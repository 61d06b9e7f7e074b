"""Which budgets are tried on how many problems, so that the whole takes as long as it may; and which runs can be spared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks._anytime_journal import Answer

__all__ = ["answered", "ended", "in_time", "problems_at", "too_slow"]

_LATE, _LATE_S = 1.25, {"seconds": 0.1, "measured": 1.0}  # an answer may be late by a quarter of its budget, and by this
_MOST_S = 20.0  # a run with so many evaluations that it is expected to take longer is left out
_EARLY = 0.9  # a run that ends before this share of its seconds has come to its end


def problems_at(left_s: float, costs: Sequence[float], most: int) -> int:
    """Return on how many problems the first of some budgets is tried, so that there is time for the larger ones, too.

    Problem by problem, the next goes to the budget that has got the least time so far, if there is as much left. A larger
    budget is tried on no more problems than a smaller one.

    Args:
        left_s: seconds that there are.
        costs: seconds that a problem takes at each budget, all placers together, the budget in question first; positive.
        most: problems that there are.
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
    """Whether a run came to its end by itself, so that with more it would do the same.

    That is so if it had seconds left; if it asks for no values; or if it failed, but not for lack of evaluations.
    """
    if unit != "evaluations":
        return answer.took_s < _EARLY * budget
    return answer.evaluations == 0 or (answer.why is not None and answer.evaluations < budget)


def in_time(answer: Answer, unit: str, budget: float) -> bool:
    """Whether an answer came soon enough to count for a budget; one to a number of evaluations always does."""
    return unit == "evaluations" or answer.took_s <= _LATE * budget + _LATE_S[unit]


def too_slow(answer: Answer, unit: str, before: float, budget: float) -> bool:
    """Whether a run that took so long for the budget before would give no answer that counts for a larger one."""
    if unit != "evaluations":
        return not in_time(answer, unit, budget)
    return answer.took_s * budget / before > _MOST_S


def answered(runs: Mapping[float, Answer], unit: str, budgets: Sequence[float]) -> dict[float, Answer | None]:
    """Return the answer that counts for each budget that is decided about: None where there is none, or it comes too late.

    A run that came to its end answers for all larger budgets; one that was too slow decides about them, too.

    Args:
        runs: answers by the budgets that were tried.
        unit: of the budgets.
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
