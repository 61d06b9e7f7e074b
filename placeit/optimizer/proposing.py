"""The stages that collect candidates: known placements, and proposals of placers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence

import numpy as np

from placeit.core import clock
from placeit.core.errors import UsageError
from placeit.optimizer.candidates import known_value, value_of
from placeit.optimizer.journal import kept_journal
from placeit.optimizer.ledger import MEASURING, Item
from placeit.optimizer.preparing import tell_worth
from placeit.optimizer.replicas import enter_replicas
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.optimizer.search_state import SearchState, Stage
from placeit.optimizer.starts import begin_with, fitted
from placeit.optimizer.whole_models import throughput_mode
from placeit.placers.asking import ask
from placeit.placers.base import Measured, Placer, RefiningPlacer
from placeit.simulator.simulate import SimulatedCost

__all__ = ["Enter", "Propose", "ask_all"]

_FRONT_SHARE = 0.3  # share of the budget for the front of latency and energy
_FIRST_SHARE = 0.4  # share of the time left for the race of whole requests
_ASKED_SHARE = 0.25  # share of the spare time for the placers
_LOG = logging.getLogger(__name__)


class Enter(Stage):
    """Enter known placements: measurements of earlier searches, single devices, plain devices, starting placements."""

    name = "enter"
    reads = ("starts", "on_cores", "journal", "deadline", "enough", "excluded", "memory")
    writes = ("search", "without", "enough")
    may_be_interrupted = False

    def run(self, state: SearchState) -> None:
        """Create the search and enter known placements. Raises PlacementError if a starting placement does not fit."""
        session, goal = state.session, state.goal
        given = fitted(session, state.starts, goal.objective)
        until = state.deadline if goal.energy is None else state.deadline - goal.budget.seconds * _FRONT_SHARE
        search = Search(RunOptions(session, goal.objective, until, goal.seed, state.progress, state.ledger, state.story))
        state.search = search
        search.watch_machine()
        search.excluded, search.memory = state.excluded, state.memory
        by, plain = search.objective, goal.candidates.plain
        if (journal := state.journal or kept_journal(session, by)) is not None:
            search.resume(journal)
        search.singles(plain=plain)
        if by.steady and plain and (mode := throughput_mode(session, search.problem)) is not None:
            search.enter(*mode)
        begin_with(search, given, state.on_cores)
        state.without = search.compare_precisions() if goal.candidates.compare_precisions else []
        if session.cluster.executable and state.enough is None:  # the costs were cached, so profiling did not check the budget
            state.enough = tell_worth(np.array(search.single_seconds()), state.deadline, goal.budget.seconds)


class Propose(Stage):
    """Ask the placers for placements; for throughput, divide the devices into replicas and race them first."""

    name = "propose"
    reads = ("search",)
    writes = ("asking",)
    may_be_interrupted = True

    def run(self, state: SearchState) -> None:
        """Ask placers. Raises UsageError if none of the named placers can place this model with its options."""
        search, goal = state.search, state.goal
        singles = [candidate for candidate in search.candidates if candidate.placer == "single"]
        if search.objective.steady:
            enter_replicas(search)
            compare_wholes(search)
        if search.excluded is not None:
            search.notes |= {name.partition(":")[0]: "not asked: no split can be faster" for name in goal.names}
            state.story.tell("stage skipped", None, "no split can be faster")
        elif state.session.costs.shared and singles:
            search.once = {one.name: one.simulated_s for one in singles if one.simulated_s is not None}
            state.story.tell("stage skipped", None, "the budget is too short to compare placements")
        elif search.indivisible and search.candidates:
            state.story.tell("stage skipped", None, "there is nothing to place")
        else:
            state.asking = True
            ask_all(search, {name: goal.placers[name] for name in goal.asked})
            if goal.named:
                check_asked(search, goal.asked)


def compare_wholes(search: Search) -> None:
    """Race candidates that serve whole requests: replicas, the throughput mode, and the best single devices beside them."""
    others = [one for one in search.standing if not search.is_placed(one) and one.placer != "single"]
    candidates = [one for one in others if one.measured is None and one.segments == len(one.plans)]
    if not search.session.cluster.executable or not candidates:
        return
    singles = sorted(search.fresh_singles, key=known_value)
    racing = [*singles[:1], *candidates, *(one for one in singles[1:] if one.simulated_value is None)]
    room = search.left() * _FIRST_SHARE
    while len(racing) > 2 and search.race_s(racing, 1) > room:
        racing.pop()
    with search.ledger.on(MEASURING):
        what, rounds = "measuring what serves whole requests", search.rounds_within(room, racing)
        search.race(racing, what, rounds=rounds, share=_FIRST_SHARE, min_rounds=1, anchor=racing[0])


def ask_all(search: Search, placers: Mapping[str, Placer], share: float = _ASKED_SHARE, *, turn: int = 1) -> None:
    """Ask placers for a placement by the current costs, in a share of the spare time.

    After the first turn, they are asked to start from the measured placements.
    """
    problem, measured = search.segmenter.problem(), None
    ranked = [one for one in search.ranked if search.is_placed(one)]
    if turn > 1 and ranked:
        measured = Measured(np.stack([one.groups for one in ranked]), np.array([value_of(one) for one in ranked]))
    cost = search.objective.cost(problem, SimulatedCost(problem))
    for i, (label, placer) in enumerate(placers.items()):
        kind, name = label.partition(":")[0], label if turn == 1 else f"{label}, turn {turn}"
        search.say(f"asking {kind}", i / len(placers))
        deadline = clock.now() + max(0.0, search.spare()) * share / (len(placers) - i)
        start = ranked[0].name if measured is not None and isinstance(placer, RefiningPlacer) else None
        propose = functools.partial(ask, placer, problem, cost, seed=search.seed, deadline=deadline, measured=measured)
        with search.ledger.on(Item(kind, placer=True)):
            search.add(name, kind, propose, start=start)
        if name in search.unplanned and search.known:  # without any candidate, an error reports it
            why = search.unplanned[name][1]
            _LOG.warning("The placer '%s' gave no placement; the others continue: %s", label, why)
    if turn == 1:
        search.placers = {name: placer for name, placer in placers.items() if name not in search.unplanned}


def check_asked(search: Search, placers: Sequence[str]) -> None:
    """Raise UsageError if no named placer gave a placement, and one of them cannot place this model with its options."""
    unable = [name for name in placers if name in search.unable]
    if unable and not search.placers:
        why = " ".join(f"{name}: {search.unplanned[name][1]}" for name in unable)
        raise UsageError(f"None of the placers that were asked for gave a placement. {why}")
