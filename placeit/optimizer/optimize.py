"""Search for the best placement of a model: the list of stages, and functions that run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.optimizer.deciding import Decide, confirm
from placeit.optimizer.decision import Decision
from placeit.optimizer.improving import Improve
from placeit.optimizer.journal import open_journal
from placeit.optimizer.ledger import MEASURING
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.measuring import Measure, measure, promising, time_plain, time_singles
from placeit.optimizer.options import Goal
from placeit.optimizer.preparing import Bound, Load, Profile
from placeit.optimizer.proposing import Enter, Propose
from placeit.optimizer.reporting import Report, optimized
from placeit.optimizer.result import Optimized
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.optimizer.search_state import SearchState, Stage
from placeit.optimizer.story import OnEvent
from placeit.profiler.costs import Progress
from placeit.runtime.programs import searching
from placeit.simulator.objectives.registry import get_objective
from placeit.workbench import Workbench

__all__ = ["STAGES", "decide", "find", "follow"]

STAGES: Sequence[Stage] = (Load(), Profile(), Bound(), Enter(), Propose(), Improve(), Measure(), Decide(), Report())
"""The stages of a search, in order."""
_FIRST_SHARE = 0.5  # share of the budget for measuring placements that `cost` does not know
_MAX_KNOWN = 3  # placements known to `cost` that take part in the race


@searching()
def find(session: Workbench, goal: Goal, progress: Progress | None = None, on_event: OnEvent | None = None) -> Optimized:
    """Search for the best placement, as :func:`placeit.optimize` describes it."""
    return follow(SearchState(session, goal, progress, on_event))


def follow(state: SearchState) -> Optimized:
    """Run the stages of a search; after Ctrl-C, skip the stages that may be interrupted."""
    for stage in STAGES:
        if state.interrupted and stage.may_be_interrupted:
            continue
        state.story.begin(stage.name)
        try:
            stage.run(state)
        except KeyboardInterrupt:
            if not stage.may_be_interrupted:
                raise
            state.interrupted = True
            state.story.tell("interrupted")
            state.session.hurry()
    return state.result


def decide(
    session: Workbench,
    placements: Mapping[str, NDArray[np.int32]],
    *,
    cost: MeasuredCost | None = None,
    objective: str = "latency",
    budget: float = 60.0,
    seed: int = 0,
    journal: Path | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Race given placements against each other and against single devices, and decide as :func:`placeit.optimize` does.

    Args:
        session: the model on the devices, profiled.
        placements: ``int32[G]``, the device of each group, by name. They must be feasible; at most five are measured.
        cost: a measured cost of the same objective. The best three placements that it knows take part as well, and its
            measurements are not repeated before the deciding race.
        objective: the objective to minimise.
        budget: seconds; at most half of them are for placements not known yet. If no time is left to decide between a single
            device and a placement, the single device is the answer.
        seed: seed of the order of runs.
        journal: a file that measurements are added to, as for ``Budget(resume=)``.
        progress: called with the current step and the share of it that is done.

    Returns:
        The result. With a described device in the cluster nothing is measured, and the simulator decides.

    Raises:
        UsageError: the journal belongs to another search.
        FileError: the journal cannot be read or written.
        InfeasibleError: no placement was given, and no single device can run the model.
        ExecutionError: every placement failed; gives the reason of each.
    """
    begin, before = clock.now(), deepcopy(session.compiling.kinds)
    search = Search(RunOptions(session, get_objective(objective, session.cluster), begin + budget, seed, progress))
    search.story.begin("decide")
    search.watch_machine()
    if journal is not None and session.cluster.executable:
        search.journal = open_journal(journal, session, search.objective)
    search.singles()
    search.begin_with(placements)
    decision, interrupted = Decision(), False
    try:
        if session.cluster.executable:
            search.deadline = begin + _FIRST_SHARE * budget
            with search.ledger.on(MEASURING):
                if cost is not None:
                    _learn_from(search, cost)
                time_plain(search)
                if promising(search):
                    measure(search)
                elif not search.ranked:
                    time_singles(search)
            search.deadline = begin + budget
        decision = confirm(search)
    except KeyboardInterrupt:
        interrupted = True
        session.hurry()
    return optimized(search, decision, (), budget, interrupted, before)


def _learn_from(search: Search, cost: MeasuredCost) -> None:
    """Value the candidates by a measured cost, and enter the best splits that it has measured."""
    cost.deadline = search.deadline
    if rows := [one.groups for one in search.candidates if search.is_placed(one)]:
        cost(np.stack(rows))
    by_devices = {one.devices.tobytes(): one for one in cost.known if one.cost is not None}
    splits = [one for one in by_devices.values() if (one.devices != one.devices[0]).any() and search.find(one.devices) is None]
    best = sorted(splits, key=lambda one: one.cost or 0.0)[:_MAX_KNOWN]
    search.begin_with({f"measured before, {number}": one.devices for number, one in enumerate(best, 1)})
    search.take_over(one for one in by_devices.values() if search.find(one.devices) is not None)
