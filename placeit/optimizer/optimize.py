"""From a model to a measured, checked placement: profile, search, calibrate, measure, decide."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays, Model
from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.devices.clusterfile import find_cluster
from placeit.devices.plain import plain_devices
from placeit.optimizer.candidates import Candidate, known_value
from placeit.optimizer.certainty import Excluded, excluded
from placeit.optimizer.decision import Decision
from placeit.optimizer.journal import open_journal
from placeit.optimizer.ledger import LOADING, MEASURING, PROFILING, Ledger
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.portfolio import DEFAULT_PLACERS
from placeit.optimizer.reasons import better_references, chosen_of
from placeit.optimizer.references import references_beside
from placeit.optimizer.replicas import enter_replicas
from placeit.optimizer.result import Optimized, OtherPrecision, Unplanned
from placeit.optimizer.search import GoesOn, Search
from placeit.optimizer.service import service_of
from placeit.optimizer.spending import spending
from placeit.optimizer.starts import Start, begin_with, divide_for, elsewhere, fitted, read_starts
from placeit.optimizer.throughput_mode import throughput_mode
from placeit.placers.asking import check_able
from placeit.placers.bound import lower_bound
from placeit.placers.registry import parse_placer
from placeit.profiler.cache import Cache
from placeit.profiler.costs import Progress
from placeit.profiler.statistics import mape, pearson, spearman
from placeit.runtime.budget import TRIFLE_S, least
from placeit.runtime.check import check_tolerance
from placeit.runtime.measure import faster_in_any_opening
from placeit.runtime.runtime import Runtime
from placeit.session import Session
from placeit.simulator.load import check_rate
from placeit.simulator.objectives import Throughput, check_objective, get_objective

__all__ = ["decide", "optimize"]

_PROFILE_SHARE = 0.4  # of the budget
_KNOWING_SHARE, _KNOWN = 0.5, 3  # of it, for what is not known of given placements; and of those that are, so many take part
_LOG = logging.getLogger(__name__)


def optimize(
    model: str | Path | Model,
    devices: str | Sequence[str] | Path | Cluster | None = None,
    *,
    placers: Sequence[str] | None = None,
    budget: float = 60.0,
    seed: int = 0,
    objective: str = "latency",
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    max_groups: int = 96,
    precision: str = "f32",
    tolerance: float | None = None,
    inputs: Arrays | None = None,
    plain: bool = True,
    compare_precisions: bool = False,
    cache: Cache | Literal["default"] | None = "default",
    progress: Progress | None = None,
    pins: Mapping[str, str] | None = None,
    memory: Mapping[str, float | str] | None = None,
    start: Start | Sequence[Start] | None = None,
    resume: str | Path | None = None,
    rate: float | None = None,
) -> Optimized:
    """Find the placement of a model that is best by an objective, the lowest latency without another one, by measuring.

    Args:
        model: a model, or the path of one.
        devices: device names, the path of a cluster file, a cluster, or None to discover.
        placers: who proposes, by name, with options if need be (``annealing:evaluations=100000``), or ``doppler, measured`` to
            learn from runs; None for :data:`placeit.optimizer.portfolio.DEFAULT_PLACERS`.
        budget: seconds; profiling and compiling count. All of it takes at most 1.2 times that, beside half a second, loading,
            and, for each device, compiling the whole model and one run of it. Where that is too short to compare placements
            over several devices, a warning says how long it takes about, and the single devices are timed as well as there is
            time for. If no time is left in the end to decide between a single device and a placement, the single device is the
            answer. The search ends earlier when it finds nothing new.
        seed: of everything random.
        objective: what to minimise: ``latency``; ``throughput``, seconds per request with many in flight, for which replicas
            and OpenVINO's throughput mode are candidates, too (:mod:`placeit.optimizer.replicas`); ``total-cost``, seconds
            that devices and links are busy, in sum; or ``energy``, joules of a power model
            (:mod:`placeit.simulator.objectives`). What is measured are times in any case.
        input_shapes: sizes by input name, where the model leaves them open.
        batch: first size of every input that leaves it open.
        max_groups: most groups that placers decide about.
        precision: inference precision of every device.
        tolerance: largest output error of the answer; see :class:`placeit.session.Session`.
        inputs: what to measure and check on, by name; None for random inputs.
        plain: whether what one would do without placeit, the whole CPU where devices are parts of it, is a candidate
            (:func:`placeit.devices.plain.plain_devices`). False where core sets stand for devices that share nothing.
        compare_precisions: whether to measure single devices in another precision as well: bfloat16 or float16 where the device
            has it, float32 if that is not the one asked for. They are no candidates.
        cache: where measured costs are kept; None to measure afresh and keep nothing.
        progress: told what is being done and how far it is.
        pins: device names by op names or globs of them, which hold for every candidate; see
            :class:`placeit.session.Session`.
        memory: most memory by device name, in bytes or with a unit (``{"CPU@0": "2 GB"}``); less than the device has.
        resume: a file with what an earlier search has measured, if it is there; what this one measures is added to it as it
            goes. What is known is not measured again before the races that decide, which are always run.
        rate: requests per second that arrive; for ``throughput``, to know which share of them the answer serves, and how long
            they wait in simulation (``Optimized.service``).
        start: placements of this model on these devices, or files of them, that are candidates and that the search begins
            with.

    Returns:
        What was found. With a described device in the cluster nothing is measured, and the simulator decides.

    Raises:
        UsageError: an unknown placer or objective, a rate that is not positive or not of use, energy of devices whose power is
            not known, a budget that is not positive, a negative seed or tolerance, or inputs that do not fit the model.
        InfeasibleError: there is no placement at all, or a device cannot run what is pinned there.
        ExecutionError: every placement that was tried failed; says why each did.
        PlaceitError: the model, the devices or a file are not what they should be.
        PlacementError: a placement to start with does not fit the model, the devices, their memory or a pin.
        KeyboardInterrupt: Ctrl-C before there was any placement; afterwards it ends the search.
    """
    check_objective(objective)
    if rate is not None:
        check_rate(rate)
        if objective != Throughput.name:
            raise UsageError(
                f"A rate says which requests arrive, which the objective '{objective}' has no use for: leave it out."
            )
    if not 0 < budget < math.inf:
        raise UsageError(f"The budget is {budget:g} seconds; it must be positive and finite.")
    if seed < 0:
        raise UsageError(f"The seed is {seed}; it must not be negative.")
    check_tolerance(tolerance)
    begin = clock.now()
    named = placers is not None
    placers = DEFAULT_PLACERS if placers is None else [placers] if isinstance(placers, str) else placers
    asked_for = {name: parse_placer(name) for name in placers}  # a typing error should not cost a profile first
    later = {name: placer for name, placer in asked_for.items() if isinstance(placer, GoesOn)}
    others = [name for name in placers if name not in later]
    importing = clock.now() - begin  # PyTorch takes seconds
    starts = read_starts(start)
    cluster = find_cluster(devices, precision=precision)
    wanted = get_objective(objective, cluster)
    if named:  # those that are asked by default need nothing that may be missing
        begin = clock.now()
        for name, placer in asked_for.items():
            check_able(name, placer, len(cluster))
        importing += clock.now() - begin
    ledger, begin = Ledger(), clock.now() - importing
    ledger.seconds[LOADING] = importing

    asked: list[bool] = []  # whether it is worth it, once that is known

    def worth(seconds: NDArray[np.float64]) -> bool:
        finite = seconds[np.isfinite(seconds)]
        enough = least(finite) <= max(begin + budget - clock.now(), TRIFLE_S)
        if len(seconds) > 1 and len(finite) and not enough:
            _LOG.warning(
                "A run takes %.3g s. Comparing placements takes at least about %.3g s, but of the budget of %g s only "
                "%.3g s are left.",
                finite.min(),
                least(finite),
                budget,
                max(0.0, begin + budget - clock.now()),
            )
        asked.append(enough or not len(finite))
        return asked[-1]

    with ledger.on(LOADING):
        session = Session(
            model,
            cluster,
            input_shapes=input_shapes,
            batch=batch,
            max_groups=max_groups,
            precision=precision,
            tolerance=tolerance,
            inputs=inputs,
            cache=cache,
            pins=pins,
            memory=memory,
        )
    with session:
        session.check_room()
        on_cores = elsewhere(session, starts)
        starts = {name: one for name, one in starts.items() if name not in on_cores}
        divide_for(session, starts)
        stopped: list[Excluded] = []

        def certain(core: NDArray[np.float64]) -> bool:
            known = excluded(session, core)
            stopped.extend([] if known is None else [known])
            return known is not None

        may_stop = wanted.is_makespan and plain and not session.pins and bool(plain_devices(session.cluster))
        with ledger.on(PROFILING):
            session.profile(
                budget_s=budget * _PROFILE_SHARE,
                check=True,
                worth=worth,
                certain=certain if may_stop else None,
                progress=progress,
            )
            if may_stop and (profiled := session.costs.profiled) is not None and profiled.cached:  # and so nobody was asked
                certain(session.costs.core)
        given = fitted(session, starts, wanted)
        search = Search(session, wanted, begin + budget, seed, progress, ledger)
        search.excluded = stopped[0] if stopped else None
        if resume is not None:
            search.resume(open_journal(Path(resume), session, wanted))
        search.singles(plain=plain)
        if wanted.steady and plain and (mode := throughput_mode(session, search.problem)) is not None:
            search.enter(*mode)
        begin_with(search, given, on_cores)
        without = search.compare_precisions() if compare_precisions else []
        if session.executable and not asked:  # the costs were kept
            worth(np.array(_single_seconds(search)))
        decision, interrupted = Decision(), False
        try:
            singles = [candidate for candidate in search.candidates if candidate.placer == "single"]
            if wanted.steady:
                enter_replicas(search)
                search.compare_wholes()
            if search.excluded is not None:
                search.notes |= {name.partition(":")[0]: "not asked: no split can be faster" for name in placers}
            elif session.costs.shared and singles:
                search.once = {one.name: one.simulated_s for one in singles if one.simulated_s is not None}
            else:
                search.propose(others)
                if named:
                    search.check_asked(others)
            search.improve()
            decision = search.confirm()
            for placer in later.values() if search.excluded is None else ():
                decision = placer.go_on(search, decision)
        except KeyboardInterrupt:
            interrupted = True
            session.hurry()
        return _optimized(search, decision, without, budget, interrupted, rate)


def decide(
    session: Session,
    placements: Mapping[str, NDArray[np.int32]],
    *,
    cost: MeasuredCost | None = None,
    objective: str = "latency",
    budget: float = 60.0,
    seed: int = 0,
    journal: Path | None = None,
    progress: Progress | None = None,
) -> Optimized:
    """Race given placements against each other and against single devices, and decide as :func:`optimize` does.

    Args:
        session: profiled.
        placements: ``int32[G]``, the device of each group, by name; at most five of them are measured. Feasible.
        cost: what placements were measured by, for the same objective. The best three that it knows take part as well, and what
            it knows is not measured again before the race that decides.
        objective: what to minimise.
        budget: seconds, half of them at most for what is not known yet. If there is no time left to decide between a single
            device and a placement, the single device is the answer.
        seed: of the order of runs.
        journal: a file, as of ``optimize(resume=)``, that what is measured is added to.
        progress: told what is being done.

    Returns:
        What was found. With a described device in the cluster nothing is measured, and the simulator decides.

    Raises:
        UsageError: the journal is of something else.
        FileError: the journal cannot be read or written.
        InfeasibleError: nothing was given, and no single device can run the model.
        ExecutionError: every placement failed; says why each did.
    """
    begin = clock.now()
    search = Search(session, get_objective(objective, session.cluster), begin + budget, seed, progress)
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
    return _optimized(search, decision, (), budget, interrupted)


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
    search: Search, decision: Decision, without: Sequence[str], asked: float, interrupted: bool, rate: float | None = None
) -> Optimized:
    """Sum up."""
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
    speedup = None
    if (
        single is not None
        and single.measured is not None
        and chosen.measured is not None
        and (chosen is single or chosen.final)
    ):
        speedup = faster_in_any_opening(single.measured, chosen.measured)
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
        precisions=tuple(_other_precision(search, other, other.of) for other in search.known.values() if other.of is not None),
        without_precisions=tuple(without),
        chosen=chosen,
        best_single=single,
        speedup=speedup,
        references=references,
        reason=reason + better_references(references, search.objective),
        bound_s=math.nan if session.costs.shared or search.objective.steady else lower_bound(search.problem),
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
        compiling=session.compiling.kinds,
        least_s=None if not session.executable else least(_single_seconds(search)) or None,
        interrupted=interrupted,
        cluster=session.cluster,
        pins=session.pins,
        memory=session.memory,
        profiled=session.costs.profiled,
        conditions=session.conditions,
        curves=dict(search.curves),
        _again=session.again,
        _open=functools.partial(Runtime, home.model, home.grouping, home.cluster, precision=session.precision),
    )


def _single_seconds(search: Search) -> list[float]:
    return [search.run_s(one) for one in search.candidates if one.placer == "single" and not one.plain]


def _other_precision(search: Search, other: Candidate, of: str) -> OtherPrecision:
    measured, beside = other.measured, search.known[of].measured
    return OtherPrecision(other, of, None if measured is None or beside is None else faster_in_any_opening(measured, beside))
