"""The stage that improves the best candidates by a search among plans, in simulation."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.optimizer.ledger import Item
from placeit.optimizer.search import Search
from placeit.optimizer.search_state import SearchState, Stage
from placeit.placers.base import is_over
from placeit.placers.feasibility import fits

__all__ = ["SEARCH", "Improve", "refine"]

SEARCH = "search"
"""Placer name of candidates that a search among plans finds."""

_SHARE = 0.25  # share of the spare time for a search among plans
_STARTS, _STEPS = 2, 600  # starts and steps of a search among plans, for an objective that is a time
_PLANS = 200  # moves that are tried in a search among plans, for other objectives


class Improve(Stage):
    """Search among plans from the best candidates, if placers were asked."""

    name = "improve"
    reads = ("search", "asking")
    writes = ()
    may_be_interrupted = True

    def run(self, state: SearchState) -> None:
        """Search among plans."""
        if state.asking:
            refine(state.search)
        else:
            state.story.tell("stage skipped", None, "placers were not asked")


def refine(search: Search) -> None:
    """Search among plans from each of the best candidates, by the current costs."""
    search.say("searching among plans", 0.0)
    placed = [one for one in search.standing if search.is_placed(one)]
    ranked = sorted(placed, key=lambda one: float(search.expected(one.groups[None])[0]))
    given_starts = [one for one in placed if one.given and one.measured is None]
    for i, one in enumerate(dict.fromkeys([*ranked[:_STARTS], *given_starts])):
        improve = functools.partial(improved, search, one.groups, search.seed + i)
        search.searches += 1
        with search.ledger.on(Item(SEARCH, placer=True)):
            search.add(f"{SEARCH} {search.searches}", SEARCH, improve, start=one.name)


def improved(search: Search, groups: NDArray[np.int32], seed: int) -> NDArray[np.int32]:
    """Return the best placement that a search among plans finds from a given placement."""
    deadline = clock.now() + max(0.0, search.spare()) * _SHARE / _STARTS
    if search.objective.is_measured:
        return search.segmenter.search(groups, search.problem, steps=_STEPS, seed=seed, deadline=deadline)
    rng, value_now = np.random.default_rng(seed), search.expected(groups[None])[0]
    for _ in range(_PLANS):
        if is_over(deadline):
            break
        moved, v = groups.copy(), int(rng.integers(len(groups)))
        moved[v] = rng.choice(np.flatnonzero(search.problem.feasible[v]))
        if fits(search.problem, moved) and (value := search.expected(moved[None])[0]) < value_now:
            groups, value_now = moved, value
    return groups
