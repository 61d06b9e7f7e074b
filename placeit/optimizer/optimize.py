"""From a model to a measured, checked placement: profile, search, calibrate, measure, decide."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.devices.plain import plain_devices
from placeit.measuring.budget import TRIFLE_S, least
from placeit.measuring.incumbent import compared
from placeit.measuring.measure import FAILURES
from placeit.optimizer.candidates import Beside, known_value
from placeit.optimizer.certainty import Excluded, excluded
from placeit.optimizer.decision import Decision
from placeit.optimizer.journal import kept_journal, open_journal
from placeit.optimizer.ledger import FRONT, LOADING, MEASURING, PROFILING, Ledger, compiled_since
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.options import Goal
from placeit.optimizer.pareto import find_front
from placeit.optimizer.races import reason_of
from placeit.optimizer.reasons import better_references, chosen_of
from placeit.optimizer.references import references_beside
from placeit.optimizer.replicas import enter_replicas
from placeit.optimizer.result import Optimized, Unplanned
from placeit.optimizer.search import Explores, Search
from placeit.optimizer.service import service_of
from placeit.optimizer.spending import spending
from placeit.optimizer.starts import begin_with, divide_for, elsewhere, fitted
from placeit.optimizer.throughput_mode import throughput_mode
from placeit.profiler.costs import Progress
from placeit.profiler.memory import Rates, shared_reads
from placeit.profiler.statistics import mape, pearson, spearman
from placeit.runtime.compiling import Compiled
from placeit.runtime.programs import searching
from placeit.runtime.runtime import Runtime
from placeit.simulator.objectives import get_objective
from placeit.workbench import Workbench

__all__ = ["decide", "find"]

_PROFILE_SHARE = 0.4  # share of the budget that profiling may take
_KNOWING_SHARE, _KNOWN = 0.5, 3  # share of the budget for placements that `cost` does not know; known ones that take part
_FRONT_SHARE = 0.3  # share of the budget for the front of latency and energy
_MEMORY_S = 3.0  # seconds that must be left to measure how fast all devices read memory together; that takes a sixth of them
_LOG = logging.getLogger(__name__)


@searching()
def find(session: Workbench, goal: Goal, progress: Progress | None = None) -> Optimized:
    """Search for the best placement, as :func:`placeit.optimize` describes it."""
    wanted, budget, plain = goal.objective, goal.budget.seconds, goal.candidates.plain
    later = {name: placer for name, placer in goal.placers.items() if isinstance(placer, Explores)}
    others = [name for name in goal.names if name not in later]
    before, ledger, deadline = deepcopy(session.compiling.kinds), Ledger(), goal.begin + budget
    ledger.seconds[LOADING] = clock.now() - goal.begin
    asked: list[bool] = []  # whether comparing placements is worth it, once that is known

    def worth(seconds: NDArray[np.float64]) -> bool:
        finite = seconds[np.isfinite(seconds)]
        enough = least(finite) <= max(deadline - clock.now(), TRIFLE_S)
        if len(seconds) > 1 and len(finite) and not enough:
            _LOG.warning(
                "A run takes %.3g s. Comparing placements takes at least about %.3g s, but of the budget of %g s only "
                "%.3g s are left.",
                finite.min(),
                least(finite),
                budget,
                max(0.0, deadline - clock.now()),
            )
        asked.append(enough or not len(finite))
        return asked[-1]

    stopped: list[Excluded] = []

    def certain(core: NDArray[np.float64]) -> bool:
        known = excluded(session, core)
        stopped.extend([] if known is None else [known])
        return known is not None

    session.check_room()
    on_cores = elsewhere(session, goal.starts)
    starts = {name: one for name, one in goal.starts.items() if name not in on_cores}
    divide_for(session, starts)
    alone = plain and not session.pins and bool(plain_devices(session.cluster))
    may_stop = wanted.is_makespan and alone and goal.energy is None  # a split may take less energy
    with ledger.on(PROFILING):
        session.profile(
            budget_s=budget * _PROFILE_SHARE,
            check=True,
            worth=worth,
            certain=certain if may_stop else None,
            progress=progress,
        )
        if may_stop and (profiled := session.costs.profiled) is not None and profiled.cached:  # `certain` was not called
            certain(session.costs.core)
        memory = None
        if not wanted.steady and deadline - clock.now() > _MEMORY_S:
            memory = shared_reads(session.grouping, session.costs, Rates.of_model(session.model, session.cache))
    given = fitted(session, starts, wanted)
    until = deadline if goal.energy is None else deadline - budget * _FRONT_SHARE
    search = Search(session, wanted, until, goal.seed, progress, ledger)
    search.watch_machine()
    search.excluded, search.memory = stopped[0] if stopped else None, memory
    resume, by = goal.budget.resume, search.objective
    journal = kept_journal(session, by) if resume is None else open_journal(Path(resume), session, by)
    if journal is not None:
        search.resume(journal)
    search.singles(plain=plain)
    if wanted.steady and plain and (mode := throughput_mode(session, search.problem)) is not None:
        search.enter(*mode)
    begin_with(search, given, on_cores)
    without = search.compare_precisions() if goal.candidates.compare_precisions else []
    if session.executable and not asked:  # the costs were cached, so `worth` was not called
        worth(np.array(_single_seconds(search)))
    decision, interrupted = Decision(), False
    try:
        singles = [candidate for candidate in search.candidates if candidate.placer == "single"]
        if wanted.steady:
            enter_replicas(search)
            search.compare_wholes()
        if search.excluded is not None:
            search.notes |= {name.partition(":")[0]: "not asked: no split can be faster" for name in goal.names}
        elif session.costs.shared and singles:
            search.once = {one.name: one.simulated_s for one in singles if one.simulated_s is not None}
        else:
            search.propose(others)
            if goal.named:
                search.check_asked(others)
        search.improve()
        for name, placer in later.items() if search.excluded is None else ():
            try:
                placer.explore(search)
            except FAILURES as error:
                search.unplanned[name] = (name, reason_of(error))
        decision = search.confirm()
    except KeyboardInterrupt:
        interrupted = True
        session.hurry()
    found = _optimized(search, decision, without, budget, interrupted, before, goal.rate)
    if goal.energy is None:
        return found
    with ledger.on(FRONT):
        front = find_front(search, goal.energy, found.chosen, deadline, interrupted=interrupted)
    return replace(
        found,
        pareto=front.points,
        energy=front.meters if found.energy is None else found.energy,
        interrupted=front.interrupted,
        compiling=compiled_since(before, session.compiling.kinds),
        spending=(spent := spending(search, found.chosen)),
        spent_s=sum(one.seconds for one in spent),
    )


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
    search = Search(session, get_objective(objective, session.cluster), begin + budget, seed, progress)
    search.watch_machine()
    if journal is not None and session.executable:
        search.journal = open_journal(journal, session, search.objective)
    search.singles()
    search.begin_with(placements)
    decision, interrupted = Decision(), False
    try:
        if session.executable:
            search.deadline = begin + _KNOWING_SHARE * budget
            with search.ledger.on(MEASURING):
                if cost is not None:
                    _learn_from(search, cost)
                search.time_plain()
                if search.promising():
                    search.measure()
                elif not search.ranked:
                    search.time_singles()
            search.deadline = begin + budget
        decision = search.confirm()
    except KeyboardInterrupt:
        interrupted = True
        session.hurry()
    return _optimized(search, decision, (), budget, interrupted, before)


def _learn_from(search: Search, cost: MeasuredCost) -> None:
    """Value candidates by a measured cost, and enter the best splits that it knows."""
    cost.deadline = search.deadline
    cost(np.stack([one.groups for one in search.candidates if search.is_placed(one)]))
    known = {one.devices.tobytes(): one for one in cost.known if one.cost is not None}
    splits = [one for one in known.values() if (one.devices != one.devices[0]).any() and search.find(one.devices) is None]
    best = sorted(splits, key=lambda one: one.cost or 0.0)[:_KNOWN]
    search.begin_with({f"measured before, {number}": one.devices for number, one in enumerate(best, 1)})
    search.take_over(one for one in known.values() if search.find(one.devices) is not None)


def _optimized(
    search: Search,
    decision: Decision,
    without: Sequence[str],
    asked: float,
    interrupted: bool,
    before: Mapping[str, Compiled],
    rate: float | None = None,
) -> Optimized:
    """Return the result of a search; ``before`` counts the programs that the session compiled before the search."""
    session, candidates = search.session, search.candidates
    order = sorted(
        candidates,
        key=lambda one: (one.failed is not None, one.measured is None, 1 if one.race is None else -one.race, known_value(one)),
    )
    single = decision.single or next((one for one in order if one.placer == "single" and one.failed is None), None)
    chosen, reason = chosen_of(search, decision, order, single)
    references = tuple(references_beside(search, chosen))
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
        reason=reason + better_references(references, search.objective),
        bound_s=search.bound_s,
        service=service_of(chosen, rate, seed=search.seed) if search.objective.steady else None,
        simulator_error=None
        if not pairs or session.costs.shared
        else {
            "mape": mape(predicted, actual),
            "pearson": pearson(predicted, actual),
            "spearman": spearman(predicted, actual),
        },
        asked_s=asked,
        spent_s=sum(one.seconds for one in spent),
        spending=spent,
        compiling=compiled_since(before, session.compiling.kinds),
        least_s=None if not session.executable else least(_single_seconds(search)) or None,
        interrupted=interrupted,
        cluster=session.cluster,
        pins=session.pins,
        memory=session.memory,
        profiled=session.costs.profiled,
        conditions=session.setup.conditions,
        energy=search.meters,
        pareto=None,
        curves=dict(search.curves),
        _again=session.again,
        _open=functools.partial(Runtime, home.model, home.grouping, home.cluster, precision=session.precision),
    )


def _single_seconds(search: Search) -> list[float]:
    return [search.run_s(one) for one in search.candidates if one.placer == "single" and not one.plain]
