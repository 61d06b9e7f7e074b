"""The learned part of a search: policies are trained on measured runs, and what they found is decided about."""

from __future__ import annotations

import numpy as np

from placeit.core import clock
from placeit.learning.agent import ProblemInstance
from placeit.learning.measured import learn_measured
from placeit.optimizer.candidates import Candidate, value_of
from placeit.optimizer.decision import Decision
from placeit.optimizer.ledger import MEASURING, Item
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.races import reason_of
from placeit.optimizer.search import Proposal, Search
from placeit.runtime.budget import needed
from placeit.runtime.incumbent import is_worth_trying
from placeit.runtime.measure import FAILURES

__all__ = ["LEARNING", "learn"]

LEARNING = "doppler, measured"
"""The placer's name."""

_SHARE = 0.7  # of the time left beside another decision; the rest is for measuring what was found
_FEWEST = 14  # placements that there has to be time to measure
_ROUNDS = 6  # in which one of them is measured
_BEST = 3  # of what was found, so many are measured beside what was known before


def learn(search: Search, decision: Decision) -> Decision:
    """Learn from runs after a search has been decided, and decide once more if that found anything that looks better.

    If it does not, or Ctrl-C ends it, what was decided before stands.

    Args:
        search: what is known.
        decision: what it came to.

    Raises:
        KeyboardInterrupt: Ctrl-C.
    """
    if (why := _pointless(search)) is not None:
        search.notes[LEARNING] = f"not asked: {why}"
        return decision
    kept = [one for one in (decision.winner, decision.single) if one is not None]
    again = decision
    try:
        with search.ledger.on(Item(LEARNING, placer=True)):
            better = _search(search)
        if better:
            for one in kept:
                search.learn_of(one.name, final=False)
            search.refine()
            with search.ledger.on(MEASURING):
                search.measure()
            again = search.confirm()
            if again.hurried and not any(search.known[one.name].failed for one in kept):
                again = decision
    except FAILURES as error:
        search.unplanned[LEARNING] = (LEARNING, reason_of(error))
    finally:
        if again is decision:  # by the race that decided
            search.known |= {one.name: one for one in kept if search.known[one.name].failed is None}
    return again


def _pointless(search: Search) -> str | None:
    """Why nothing is to be learned from runs; None if it is worth its time."""
    ranked, problem = _measured(search), search.segmenter.problem()
    if search.indivisible or not ranked:
        return "there is nothing to place" if search.indivisible else "nothing was measured"
    if search.session.costs.shared:
        return "the budget is too short to compare placements"
    best = value_of(ranked[0])
    if not problem.critical_path > 0 or not best > 0:
        return "it takes no time"
    opened = sum(len(race.measured) for race in search.races)
    each = search.opening_s / max(1, opened) + needed([search.run_s(ranked[0])], _ROUNDS)
    if _room(search) < _FEWEST * each:
        return f"there was no time to measure {_FEWEST} placements, which take about {_FEWEST * each:.0f} s"
    return None


def _measured(search: Search) -> list[Candidate]:
    """Placements on the session's own devices that were measured, best first."""
    return [one for one in search.ranked if search.is_placed(one)]


def _room(search: Search) -> float:
    """Seconds to learn in."""
    return (search.left() - 2 * search.final_s()) * _SHARE


def _search(search: Search) -> bool:
    """Train on runs, and enter the best that was met; return whether any of it looks better than what was known."""
    session, problem = search.session, search.segmenter.problem()
    deadline = clock.now() + _room(search)
    starts = np.stack([one.groups for one in _measured(search)[:_BEST]])
    cost = MeasuredCost(
        session,
        search.objective.name,
        rounds=_ROUNDS,
        deadline=deadline,
        seed=search.seed,
        progress=search.progress,
    )
    instance = ProblemInstance(problem, search.simulated(problem), problem.critical_path)
    learn_measured(cost, instance, starts, deadline=deadline, seed=search.seed, progress=search.progress)
    values = cost(starts)
    search.curves[LEARNING] = [one.value for one in cost.tried if one.source == "measured"]
    ran = len(search.curves[LEARNING])
    search.notes[LEARNING] = f"measured {ran} placement{'s' * (ran != 1)}"
    if np.isnan(values).all():  # nothing to compare with
        return False
    known = float(np.nanmin(values))
    fresh = [one for one in cost.tried if one.source == "measured" and search.find(one.devices) is None]
    fresh = sorted(fresh, key=lambda one: one.value)[:_BEST]
    better = [one for one in fresh if is_worth_trying(one.value, known)]
    for number, one in enumerate(better or fresh[:1], 1):
        name = LEARNING if number == 1 else f"{LEARNING} ({number})"
        candidate = search.enter_plan(name, LEARNING, search.segmenter_of(session.costs).plan(one.devices))
        search.proposals.append(Proposal(LEARNING, candidate.name, True, False, one.value))
        if better:
            search.learn_of(candidate.name, given=True)
        else:
            search.learn_of(candidate.name, not_run=f"while learning, it took {one.value / known:.2f} of the best before")
    if better:
        search.segmenter = search.segmenter_of(cost.calibrated())
    return bool(better)
