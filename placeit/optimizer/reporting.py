"""The stage that makes the result: the answer, the reason for it, and the front of latency and energy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from placeit.measuring.budget import min_budget_s
from placeit.measuring.incumbent import compared
from placeit.optimizer.candidates import Beside, Candidate, known_value, value_of
from placeit.optimizer.capacity import service_of
from placeit.optimizer.decision import Decision
from placeit.optimizer.ledger import COMPILING, DECIDING, FRONT, LOADING, MEASURING, PROFILING, REST, Item, compiled_since
from placeit.optimizer.pareto import find_front
from placeit.optimizer.placed_module import execution
from placeit.optimizer.reasons import better_references, chosen_of
from placeit.optimizer.references import references_beside
from placeit.optimizer.result import Optimized, Spent, Unplanned
from placeit.optimizer.search import Search
from placeit.optimizer.search_state import SearchState, Stage
from placeit.profiler.prediction_error import mape, pearson, spearman
from placeit.runtime.compiling import Compiled

__all__ = ["Report", "optimized"]

_STEPS = (LOADING, PROFILING), (COMPILING, MEASURING, DECIDING, FRONT, REST)  # steps before and after the placers

_MIN_CORRELATED = 5  # minimum number of placements for a correlation


class Report(Stage):
    """Choose the answer, give the reason, and find the front of latency and energy if requested."""

    name = "report"
    reads = ("search", "decision", "without", "before", "interrupted", "deadline")
    writes = ("result",)
    may_be_interrupted = False

    def run(self, state: SearchState) -> None:
        """Make the result. Raises ExecutionError if every placement failed, InfeasibleError if no placement exists."""
        search, goal, before = state.search, state.goal, state.before
        budget, interrupted = goal.budget.seconds, state.interrupted
        found = optimized(search, state.decision, state.without, budget, interrupted, before, goal.rate)
        if goal.energy is not None:
            with state.ledger.on(FRONT):
                front = find_front(search, goal.energy, found.chosen, state.deadline, interrupted=interrupted)
            found = replace(
                found,
                pareto=front.points,
                energy=front.meters if found.energy is None else found.energy,
                interrupted=front.interrupted,
                compiling=compiled_since(before, state.session.compiling.kinds),
                spending=(spent := spending(search, found.chosen)),
                spent_s=sum(one.seconds for one in spent),
            )
        state.result = found


def optimized(
    search: Search,
    decision: Decision,
    without: Sequence[str],
    asked: float,
    interrupted: bool,
    before: Mapping[str, Compiled],
    rate: float | None = None,
) -> Optimized:
    """Return the result of a search.

    Args:
        search: the candidates, with the facts known about them.
        decision: the decision.
        without: devices that have no other precision, a sentence each.
        asked: seconds of the budget.
        interrupted: whether Ctrl-C ended the search early.
        before: programs that the session compiled before the search, by kind of device.
        rate: requests per second that arrive; None for none.
    """
    session, candidates = search.session, search.candidates
    order = sorted(
        candidates,
        key=lambda one: (one.failed is not None, one.measured is None, 1 if one.race is None else -one.race, known_value(one)),
    )
    single = decision.single or next((one for one in order if one.placer == "single" and one.failed is None), None)
    chosen, reason = chosen_of(search, decision, order, single)
    references = tuple(references_beside(search, chosen))
    reason += better_references(references, search.objective)
    search.story.tell("chosen", chosen.name, reason)
    pairs = [
        (one.simulated_s, one.measured.median) for one in candidates if one.measured is not None and one.simulated_s is not None
    ]
    predicted, actual = [simulated for simulated, _ in pairs], [measured for _, measured in pairs]
    beside = single if chosen is single or chosen.final else None
    grouping, home, spent = session.grouping, search.home(chosen.name), spending(search, chosen)
    return Optimized(
        model=str(session.model.path),
        ops=len(grouping.graph),
        edges=len(grouping.graph.edges),
        groups=len(grouping.groups),
        objective=search.objective,
        candidates=tuple(order),
        races=tuple(search.races),
        unplanned=tuple(Unplanned(name, placer, why) for name, (placer, why) in search.unplanned.items()),
        precisions=tuple(
            Beside(other, compared(other.measured, search.known[other.of].measured))
            for other in search.known.values()
            if other.of is not None
        ),
        without_precisions=tuple(without),
        chosen=chosen,
        best_single=single,
        speedup=None if beside is None else compared(beside.measured, chosen.measured),
        references=references,
        reason=reason,
        bound_s=search.bound_s,
        service=None
        if not search.objective.steady
        else service_of(chosen, rate, in_flight=search.objective.in_flight, seed=search.seed),
        simulator_error=None
        if not pairs or session.costs.shared
        else {
            "mape": mape(predicted, actual),
            "pearson": pearson(predicted, actual) if len(pairs) >= _MIN_CORRELATED else None,
            "spearman": spearman(predicted, actual) if len(pairs) >= _MIN_CORRELATED else None,
        },
        asked_s=asked,
        spent_s=sum(one.seconds for one in spent),
        spending=spent,
        compiling=compiled_since(before, session.compiling.kinds),
        least_s=None if not session.cluster.executable else min_budget_s(search.single_seconds()) or None,
        interrupted=interrupted,
        cluster=session.cluster,
        pins=session.pins,
        memory=session.memory,
        profiled=session.costs.profiled,
        conditions=session.setup.conditions,
        energy=search.meters,
        pareto=None,
        curves=dict(search.curves),
        story=tuple(search.story.events),
        _model=session.model,
        _again=session.again,
        _execution=execution(home, chosen.plan),
    )


def spending(search: Search, chosen: Candidate) -> tuple[Spent, ...]:
    """Return the time spent so far by steps and placers, in the order of the search."""
    search.ledger.book()
    seconds = search.ledger.seconds
    ancestors = _ancestors(search, chosen)
    placer_items = [item for item in seconds if item.placer]
    placer_items += [Item(name, placer=True) for name in search.notes if Item(name, placer=True) not in placer_items]
    steps = [[Spent(item.what, False, seconds[item]) for item in items if item in seconds] for items in _STEPS]
    placers = [_of_placer(search, item.what, seconds.get(item, 0.0), chosen, ancestors) for item in placer_items]
    return (*steps[0], *placers, *steps[1])


def _of_placer(search: Search, name: str, seconds: float, chosen: Candidate, ancestors: set[str]) -> Spent:
    proposals = [one for one in search.proposals if one.placer == name]
    candidates = [search.known[one.candidate] for one in proposals]
    simulated = [one.simulated_value for one in candidates if one.simulated_value is not None]
    measured = [value for one in candidates if math.isfinite(value := value_of(one))]
    measured += [one.measured for one in proposals if one.measured is not None]
    found = {one.candidate for one in proposals if not one.same and search.known[one.candidate].placer != "single"}
    return Spent(
        what=name,
        placer=True,
        seconds=seconds,
        proposed=len(proposals),
        new=sum(one.fresh for one in proposals),
        simulated_value=min(simulated, default=None),
        measured_value=min(measured, default=None),
        role="answer" if chosen.name in found else "start" if ancestors & found else None,
        note=search.notes.get(name),
    )


def _ancestors(search: Search, chosen: Candidate) -> set[str]:
    """Return the names of the candidates that the search for the answer started from, directly or indirectly."""
    names: set[str] = set()
    start = chosen.start
    while start is not None and start not in names:
        names.add(start)
        start = search.known[start].start
    return names
