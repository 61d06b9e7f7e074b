"""Races between placements, with their outputs checked, and the measurements that they give."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Unpack

import numpy as np

from placeit.core import clock
from placeit.core.errors import DeviceError, ExecutionError, NoRoomError, PlaceitError
from placeit.core.narrowing import narrowed
from placeit.devices.energy import energy_meters
from placeit.devices.host import free_bytes
from placeit.devices.kinds import driven_by_openvino
from placeit.devices.openvino import target_name
from placeit.devices.own_modes import OwnMode
from placeit.measuring.blocks import block_s
from placeit.measuring.budget import TRIFLE_S
from placeit.measuring.check import OutputDifference
from placeit.measuring.measure import FAILURES, FEWEST, WARMUP, Measurement, Race, Watching, faster, summed_up
from placeit.measuring.pace import Pace
from placeit.optimizer.candidates import Alone, Candidate, Facts, Raced, value_of
from placeit.optimizer.deployed import Deployed, ReferenceRun, fewest_requests, is_pipeline, run_lengths
from placeit.optimizer.journal import Journal, Known
from placeit.optimizer.ledger import COMPILING, Ledger
from placeit.optimizer.runner import Runner
from placeit.planning.in_flight import in_flight
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.calibration import calibrated
from placeit.profiler.costs import Progress
from placeit.profiler.load import Watch
from placeit.runtime.plan_executor import with_room
from placeit.simulator.objectives import Energy, Latency, MeteredEnergy, Objective
from placeit.workbench import Workbench

__all__ = ["Races", "reason_of", "too_late"]

_LOG = logging.getLogger(__name__)
_LASTING, _LASTING_SHARE, _SHIFT = 2, 4, 1.5  # unsteady: a ratio that changes by this factor for 2 rounds and a 4th of all
_PATIENCE_S = 30.0  # seconds that a run of a reference may take, even if less time is left
_COPIES = 2  # copies of the weights that free memory must hold before another placement is opened


class Races:
    """Races on a session's devices, and the facts about candidates that they give.

    Args:
        session: a model on its devices.
        objective: objective that runs are valued by.
        deadline: when the last race should be over, by :func:`placeit.core.clock.now`.
        seed: seed of the order within each round.
        progress: called with the current step and the share of it that is done.
        ledger: ledger that time is booked in; None for a new one.

    Attributes:
        known: candidates by name, with the facts known so far. Among them are references, and single devices in another
            precision, which race whenever the same device in the requested precision does.
        homes: for each candidate that is on no device of the cluster, by name: the session that runs it.
        races: the races that have been run.
        meters: energy meters of the devices, if energy is the objective; they are read in races if all devices have one.
        journal: the file that measurements are kept in; None to keep none.
        warmup: runs of each candidate before a race that do not count.
        duration: most seconds of a race.
        twice: whether outputs are checked after a race as well as before it.
        pace: pace at which runs start; None to start each when the previous one has ended.
        watch: tells whether other work disturbed the machine in a round; None to assume that it never does.
        running_s: seconds of all races without the opening of executors: runs, and the work between them.
    """

    def __init__(
        self,
        session: Workbench,
        objective: Objective,
        deadline: float,
        seed: int,
        progress: Progress | None,
        ledger: Ledger | None = None,
    ) -> None:
        self.session, self.objective, self.deadline = session, objective, deadline
        self.seed, self.progress = seed, progress
        self.meters = energy_meters(session.cluster) if isinstance(objective, Energy) else None
        self._uncounted = 1.0  # seconds of a run over its counted seconds; not 1 if requests of several sizes have shares
        if self.meters is not None and self.meters.complete and isinstance(objective, Energy):
            self.objective = MeteredEnergy(objective.busy_w, objective.idle_w)
        rate = objective.rate if isinstance(objective, Latency) else None
        self.pace = None if rate is None else Pace(rate)
        self.watch: Watching | None = None
        self.known: dict[str, Candidate] = {}
        self.homes: dict[str, Alone] = {}
        self.races: list[Raced] = []
        self.journal: Journal | None = None
        self.warmup, self.duration, self.twice = WARMUP, math.inf, True
        self.ledger, self.running_s = Ledger() if ledger is None else ledger, 0.0
        session.compiling.progress = progress
        self._compared = False  # whether the reference outputs of two runtimes were compared
        self._priced: dict[str, tuple[Plan, Plan]] = {}  # plan of each candidate, and this plan by the session's costs

    @property
    def candidates(self) -> list[Candidate]:
        """All candidates that may be chosen, with the facts known so far."""
        return [candidate for candidate in self.known.values() if candidate.may_be_chosen]

    @property
    def standing(self) -> list[Candidate]:
        """Candidates that have not failed."""
        return [candidate for candidate in self.candidates if candidate.failed is None]

    @property
    def ranked(self) -> list[Candidate]:
        """Candidates that were measured and have not failed, best first."""
        return sorted((candidate for candidate in self.standing if candidate.measured is not None), key=value_of)

    @staticmethod
    def anchor_of(singles: Sequence[Candidate], incumbent: Candidate | None, otherwise: Candidate) -> Candidate:
        """Choose the anchor of a race, beside which its times compare with those in other races: a single device if possible.

        The incumbent is a biased anchor. It was lucky in the race that made it the incumbent, so the next one would be valued
        too low, and so on. It is the anchor only if no single device has a cost. If there is no incumbent, the anchor is the
        first single device, or else ``otherwise``.
        """
        known = [one for one in singles if one.cost is not None]
        return next(one for one in (*known, incumbent, *singles, otherwise) if one is not None)

    def watch_machine(self) -> None:
        """Repeat rounds, from now on, that other work on the machine disturbs."""
        self.watch = Watch()

    @property
    def period(self) -> float:
        """Seconds from the start of a run to the start of the next, if runs start at a pace; else 0."""
        return 0.0 if self.pace is None else self.pace.period

    @property
    def opening_s(self) -> float:
        """Seconds spent on opening executors, which is mostly compiling."""
        return self.ledger.seconds.get(COMPILING, 0.0)

    def enter(self, candidate: Candidate, alone: Alone | None = None) -> Candidate:
        """Add or replace a candidate; ``alone`` runs it if it is on no device of the cluster."""
        self.known[candidate.name] = candidate
        if alone is not None:
            self.homes[candidate.name] = alone
        return candidate

    def learn_of(self, name: str, **facts: Unpack[Facts]) -> Candidate:
        """Add facts to a candidate, and return the new candidate."""
        self.known[name] = replace(self.known[name], **facts)
        return self.known[name]

    def home(self, name: str) -> Workbench:
        """Return the session that runs a candidate."""
        alone = self.homes.get(name)
        return self.session if alone is None else alone.session

    def segmenter_of(self, costs: Costs) -> Segmenter:
        """Return a segmenter that makes plans for the objective, with the given costs."""
        return Segmenter(self.session.grouping, costs, steady=self.objective.steady)

    def simulated_of(self, plan: Plan) -> tuple[float, float]:
        """Return a plan's simulated seconds (per request if many are in flight), and the objective of that simulation."""
        value = self.objective.of_plan(plan)
        return (value if self.objective.steady else plan.schedule.makespan), value

    def is_placed(self, candidate: Candidate) -> bool:
        """Return whether a candidate is one placement of the groups on the session's own devices."""
        return candidate.name not in self.homes and not candidate.replicas

    def deploy(self, candidate: Candidate) -> Deployed:
        """Open the executors of a candidate, with many requests in flight if the objective is ``steady``."""
        home, steady = self.home(candidate.name), self.objective.steady
        if (mode := candidate.reference or self._by_itself(candidate)) is not None:
            from placeit.backends.openvino.model import OpenVinoModel
            from placeit.backends.openvino.own_mode import OwnModeRunner

            model = narrowed(OpenVinoModel, home.model)
            open_it = functools.partial(OwnModeRunner, model, mode, home.precision)
            return ReferenceRun(open_it, lambda: max(_PATIENCE_S, self.left()))
        opened = [
            functools.partial(with_room, functools.partial(home.executor, plan), self._in_flight(home, plan) if steady else 1)
            for plan in candidate.plans
        ]
        return Deployed(opened, candidate.plans if steady else None, spins=self.is_onnxruntime(candidate.name))

    def _by_itself(self, candidate: Candidate) -> OwnMode | None:
        """Return how OpenVINO runs a plain device, or one in another precision, when a program calls it without placeit.

        None for other candidates, and for any objective but latency.
        """
        like = candidate if candidate.of is None else self.known[candidate.of]
        if not like.plain or type(self.objective) is not Latency or self.is_onnxruntime(candidate.name):
            return None
        from placeit.backends.openvino.model import OpenVinoModel

        home = self.home(candidate.name)
        device = home.cluster.devices[0]
        if not driven_by_openvino(device) or not device.where.whole_cpu or not isinstance(home.model, OpenVinoModel):
            return None
        return OwnMode(candidate.name, target_name(device), (device,), steady=False)

    def _in_flight(self, home: Workbench, plan: Plan) -> int:
        """Return how many requests in flight serve most; for a pipeline of a model with state, at least enough to time it."""
        best = home.best_in_flight(plan, in_flight(plan))
        return max(best, fewest_requests(plan)) if home.model.states and is_pipeline(plan) else best

    def requests_of(self, candidate: Candidate) -> int:
        """Return how many requests a run of a candidate serves."""
        return sum(run_lengths(candidate.plans)) if self.objective.steady else 1

    def simulated_run_s(self, candidate: Candidate) -> float:
        """Return the simulated seconds of a run of a candidate, with all its requests."""
        return self.lasting((candidate.simulated_s or 0.0) * self.requests_of(candidate))

    def lasting(self, seconds: float) -> float:
        """Return the seconds in a round of a run that takes ``seconds``: with meters, it is repeated until they can be read."""
        seconds *= self._uncounted
        return seconds if self.meters is None or not self.meters.complete else max(seconds, self.meters.window_s)

    @property
    def scale(self) -> float:
        """Metered over modelled joules of the same runs, a factor for simulated values; 1 without meters."""
        pairs = ((one.joules, one.modelled) for one in self.known.values())
        ratios = [a.median / b.median for a, b in pairs if a is not None and b is not None and b.median > 0]
        return float(np.median(ratios)) if ratios else 1.0

    def compiling_s(self, candidates: Iterable[Candidate]) -> float:
        """Return the seconds to compile the missing programs of the candidates that are on the session's own devices."""
        here = (one for one in candidates if one.name not in self.homes)
        return self.session.runtime.compiler.takes(plan for one in here for plan in one.plans)

    def say(self, what: str, share: float) -> None:
        """Report the current step, and the share of it that is done."""
        if self.progress is not None:
            self.progress(what, share)

    def left(self) -> float:
        """Seconds until the search should be over."""
        return self.deadline - clock.now()

    def has_room(self) -> bool:
        """Return whether this machine has memory for another copy of the model's weights, and as much again for all else."""
        return free_bytes() > _COPIES * float(self.session.grouping.groups.param_bytes.sum())

    def keep(self, names: Sequence[str]) -> None:
        """Write the measurements of candidates on the session's own devices to the journal, if there is one."""
        if self.journal is None:
            return
        for known in (self.recorded(name) for name in names if name not in self.homes):
            if known is not None:
                self.journal.add(known)

    def recorded(self, name: str) -> Known | None:
        """Return the measurements of a candidate as a journal keeps them; None if it has no valid ones."""
        one = self.known[name]
        if one.failed is not None or one.measured is None or one.value is None or one.output_error is None:
            return None
        return Known.of_candidate(one, one.measured, one.value, one.output_error)

    def recall(self, name: str, known: Known, plan: Plan, *replicas: Plan) -> None:
        """Give a candidate the measurements, and the segments, that an earlier search has for the same placement.

        If its outputs were wrong by the tolerance of this search, it has failed.
        """
        rounds = range(len(known.samples))
        self.learn_of(
            name,
            plan=plan,
            replicas=replicas,
            earlier=True,
            output_error=known.output_error,
            measured=summed_up(name, known.samples, rounds),
            value=(value := summed_up(name, known.values, rounds)),
            joules=value if isinstance(self.objective, MeteredEnergy) else None,
            modelled=value if type(self.objective) is Energy else None,
            cost=known.cost,
            segment_s=known.segment_s,
        )
        if (why := known.output_error.wrong(self.home(name).tolerance)) is not None:
            self.fail(name, f"Measured by an earlier search: {why}")

    def calibrated(self) -> Costs:
        """Return the session's costs, corrected by the measured times of segments that ran beside each other."""
        segmenter = self.segmenter_of(
            self.session.costs
        )  # a candidate's own plan may have been priced with costs that are corrected already
        runs = []
        for name, one in self.known.items():
            if one.segment_s is None or one.value is None or len(one.plan.segments) < 2 or not self.is_placed(one):
                continue
            if self._priced.get(name, (None, None))[0] is not one.plan:
                self._priced[name] = one.plan, segmenter.priced(one.plan)
            # the machine may have been faster or slower than when the others ran
            drift = one.cost / one.value.median if self.objective.is_measured and one.cost is not None else 1.0
            runs.append((self._priced[name][1], one.segment_s * drift))
        return calibrated(self.session.costs, runs)

    def with_others(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates, and the ones in another precision that race whenever these do."""
        names = {candidate.name for candidate in candidates}
        return [*candidates, *(other for other in self.known.values() if other.failed is None and other.of in names)]

    def race(
        self,
        candidates: Sequence[Candidate],
        what: str,
        *,
        rounds: int,
        share: float,
        min_rounds: int = 0,
        together: bool = False,
        drop_losers: bool = True,
        anchor: Candidate | None = None,
        most: int = sys.maxsize,
        guests: Sequence[Candidate] = (),
    ) -> dict[str, Measurement]:
        """Race candidates against each other in fresh instances, with their outputs checked.

        Results are in :attr:`known`. A candidate that fails, at any point, is out, and the others go on. Only candidates that
        race are held open. A candidate that finds no room beside the others races after them, or is out if all must race
        together. If an anchor takes part in each of these races, all their times compare (``Candidate.cost``).

        Args:
            candidates: the candidates that take part.
            what: text for the progress display.
            rounds: most rounds.
            share: share of the time left that the rounds may take.
            min_rounds: rounds that are run whatever time they take.
            together: whether all must run in the same rounds, to be compared by round.
            drop_losers: whether candidates that are far behind leave early.
            anchor: a candidate, one of these or another, that takes part in every race; left out if nothing finds room beside
                it.
            most: most candidates that are open at the same time, the anchor included.
            guests: references that run in the same rounds, as far as there is memory and time for all rounds with them.

        Returns:
            The objective in the counted runs of the candidates, by name.
        """
        found: dict[str, Measurement] = {}
        waiting = [*self.with_others(candidates), *guests]
        drop_losers = drop_losers and len(waiting) == len(candidates)  # no candidate may lose to one that cannot be chosen
        first = [] if anchor is None else [anchor]
        waiting = [candidate for candidate in waiting if anchor is None or candidate.name != anchor.name]
        while waiting or first:
            with contextlib.ExitStack() as stack:
                stack.callback(self._spent, clock.now() - self.opening_s)
                if self.meters is not None:
                    stack.enter_context(self.meters)
                runners: dict[str, Runner] = {}
                later: list[Candidate] = []
                for i, candidate in enumerate([*first, *waiting]):
                    self.say("compiling segments", i / (len(first) + len(waiting)))
                    may_wait = bool(runners) and not together
                    if may_wait and (len(runners) >= most or not self.has_room()):
                        later.append(candidate)
                        continue
                    if may_wait and (takes := self.compiling_s([candidate])) > max(left := self.left(), TRIFLE_S):
                        self.learn_of(candidate.name, **too_late(takes, left))
                        continue
                    if candidate.reference is not None and not self.has_room():
                        self.learn_of(candidate.name, not_run="there was no memory for it beside the others")
                        continue
                    try:
                        with self.ledger.on(COMPILING):
                            deployed = stack.enter_context(self.deploy(candidate))
                    except FAILURES as error:
                        if may_wait and isinstance(error, DeviceError | MemoryError):  # there may be room without the others
                            later.append(candidate)
                        else:
                            self.fail(candidate.name, error)
                        continue
                    if self.checked(candidate.name, deployed):
                        alone = self.homes.get(candidate.name)
                        runners[candidate.name] = Runner(deployed, self.objective, alone, self.meters)
                    else:
                        deployed.close()
                stuck = len(later) == len(waiting)  # nothing finds room beside the anchor
                if runners:
                    found |= self.raced(runners, what, rounds, share, min_rounds, drop_losers, anchor)
            waiting = later
            if not waiting or stuck or (anchor is not None and self.known[anchor.name].failed is not None):
                first = []
        return {candidate.name: found[candidate.name] for candidate in candidates if candidate.name in found}

    def _spent(self, begin: float) -> None:
        self.running_s += clock.now() - self.opening_s - begin

    def raced(
        self,
        runners: Mapping[str, Runner],
        what: str,
        rounds: int,
        share: float,
        min_rounds: int,
        drop_losers: bool,
        anchor: Candidate | None = None,
    ) -> dict[str, Measurement]:
        """Race opened candidates, by name; close each that leaves."""

        def leave(name: str, error: ExecutionError | None) -> None:
            deployed = runners[name].deployed
            if error is None:
                self.learn_of(name, segment_s=deployed.segment_seconds())
                if self.twice:
                    self.checked(name, deployed, after=True)
            else:
                self.fail(name, error)
            deployed.close()

        def rest(name: str) -> None:
            runners[name].deployed.rest()

        race = Race(
            runners,
            seed=self.seed + len(self.races) + 1,
            warmup=self.warmup,
            leave=leave,
            rest=rest,
            pace=self.pace,
            watch=self.watch,
        )
        found: dict[str, Measurement] = {}
        learned: list[str] = []
        try:
            if self.duration < math.inf or any(self.known[name].reference is not None for name in runners):
                race.warm_up()
                self._withdraw(race, runners, rounds, share)
            race.run(
                rounds=rounds,
                budget_s=min(self.duration, max(0.0, self.left() * share)),
                min_rounds=min_rounds,
                drop_losers=drop_losers,
                progress=lambda _, done: self.say(what, done),
            )
        finally:
            results = {name: result for name, result in race.results().items() if self.known[name].failed is None}
            self._uncounted = max((getattr(runners[name].deployed, "uncounted", 1.0) for name in results), default=1.0)
            if self.meters is not None and self.meters.fault is not None:
                self.go_by_model()
            for name, measurement in results.items():
                runner, counted, before = runners[name], race.counted(name), self.known[name].measured
                value = runner.valued(measurement, counted)
                joules = runner.metered(measurement, counted) if isinstance(self.objective, MeteredEnergy) else None
                found[name] = value if joules is None else joules
                if before is not None and len(measurement.samples) < min(FEWEST, len(before.samples)):
                    continue  # a race that was cut short says less than the one before
                self.learn_of(name, measured=measurement, value=found[name], race=len(self.races), earlier=False)
                self.learn_of(name, inner_s=runner.within(counted))
                if isinstance(self.objective, Energy):
                    self.learn_of(name, joules=joules, modelled=value)
                deployed = runner.deployed
                if self.known[name].reference is not None and isinstance(deployed, ReferenceRun):
                    self.learn_of(name, used=deployed.used)
                learned.append(name)
                if name in race.running:
                    self.learn_of(name, segment_s=runners[name].deployed.segment_seconds())
            rounds_run = max((len(result.samples) for result in results.values()), default=0)
            self.races.append(Raced(what, rounds_run, results, race.disturbed, race.left_out))
        for name in race.running if self.twice else ():
            self.checked(name, runners[name].deployed, after=True)
        found = {name: value for name, value in found.items() if self.known[name].failed is None}
        if anchor is not None:
            self.pair(found, learned, anchor.name)
        self.keep([name for name in runners if name in learned])
        return found

    def go_by_model(self) -> None:
        """Value all runs, earlier ones included, by the power model from now on, since a meter was given up."""
        if not isinstance(self.objective, MeteredEnergy):
            return
        self.objective, self.journal = Energy(self.objective.busy_w, self.objective.idle_w), None
        _LOG.warning("Energy is %s. Measurements from now on are not kept for other searches.", self.meters)
        for name, one in list(self.known.items()):
            if one.value is not None:
                self.learn_of(name, value=one.modelled, measured=None if one.modelled is None else one.measured, cost=None)

    def _withdraw(self, race: Race, runners: Mapping[str, Runner], rounds: int, share: float) -> None:
        """Take references out of a race, the slowest first, until there is time for all its rounds by the runs so far."""
        guests = [name for name in race.running if self.known[name].reference is not None]
        for name in sorted(guests, key=lambda name: -runners[name].took):
            if rounds * sum(block_s(runners[one].took, period=self.period) for one in race.running) <= max(
                0.0, self.left() * share
            ):
                break
            race.withdraw(name)
            runners[name].deployed.close()
            self.learn_of(
                name, not_run=f"a run took {runners[name].took:.3g} s, and there was no time left for {rounds} rounds"
            )

    def pair(self, found: Mapping[str, Measurement], learned: Sequence[str], anchor: str) -> None:
        """Value candidates by their ratio to the anchor in the same rounds, so that no drift of the machine enters it."""
        if anchor not in found and not any(one.cost is not None for one in self.known.values()):
            anchor = min(found, key=lambda name: found[name].median, default=anchor)
        beside = found.get(anchor)
        base = math.nan
        if beside is not None:
            known = self.known[anchor].cost
            base = beside.median if known is None else known
            self.learn_of(anchor, cost=base)
        for name in (name for name in learned if name in found and name != anchor):
            value = found[name]
            if beside is None:  # nothing tells how fast the machine was during the race
                self.learn_of(name, cost=None, steady=True)
                continue
            cost = faster(value, beside).ratio * base
            # objectives other than time can be zero
            self.learn_of(name, cost=cost if math.isfinite(cost) else value.median, steady=steady(value, beside))

    def checked(self, name: str, deployed: Deployed, *, after: bool = False) -> bool:
        """Return whether a candidate runs and its outputs are right; the worst of all checks is recorded."""
        for executor in deployed.checkable:
            try:
                found = self.checking(name).check_outputs(executor, after=after)
                if self.checking(name) is not self.session:
                    self._compare_references(self.checking(name))
            except FAILURES as error:
                self.fail(name, error)
                return False
            before = self.known[name].output_error
            worst = found if before is None else before.worse(found)
            self.learn_of(name, output_error=worst)
            if (why := worst.wrong(self.home(name).tolerance)) is not None:
                self.fail(name, why)
        return self.known[name].failed is None

    def _compare_references(self, other: Workbench) -> None:
        """Warn, once, if two runtimes disagree on the outputs of the whole model."""
        if self._compared:
            return
        self._compared = True
        gap = OutputDifference.between(self.session.output_check().expected, other.output_check().expected)
        if gap.wrong(self.session.tolerance) is not None:
            said = gap.fault or f"outputs differ by {gap.max_rel:.1e} of the largest"
            _LOG.warning(
                "OpenVINO and ONNX Runtime do not compute the same from %s: %s. Splits are compared with the runtime of their "
                "devices; ONNX Runtime does what the file says also where integers take more than 32 bits.",
                self.session.model.path,
                said,
            )

    def checking(self, name: str) -> Workbench:
        """Return the session whose reference outputs a candidate is checked against: for plain ONNX Runtime, its own one."""
        return self.home(name) if self.is_onnxruntime(name) else self.session

    def is_onnxruntime(self, name: str) -> bool:
        """Return whether a candidate is plain ONNX Runtime."""
        return name in self.homes and self.homes[name].is_onnxruntime

    def fail(self, name: str, why: BaseException | str) -> None:
        """Mark a candidate as failed, and discard its measurements."""
        failed, no_room = why if isinstance(why, str) else reason_of(why), isinstance(why, NoRoomError | MemoryError)
        self.learn_of(name, measured=None, inner_s=None, value=None, cost=None, segment_s=None, race=None, final=False)
        self.learn_of(name, joules=None, modelled=None)
        self.learn_of(name, failed=failed, no_room=no_room)


def steady(value: Measurement, beside: Measurement) -> bool:
    """Return whether the ratio of two candidates of a race had no permanent change from some round on.

    It changes if a device that only one of them needs becomes slower or recovers. A single disturbed run is no permanent
    change.
    """
    _, of_value, of_beside = np.intersect1d(value.rounds, beside.rounds, return_indices=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = value.samples[of_value] / beside.samples[of_beside]
    if not len(ratios):
        return False
    least = max(_LASTING, len(ratios) // _LASTING_SHARE)
    parts = ((ratios[:at], ratios[at:]) for at in range(least, len(ratios) - least + 1))
    return not any(a.max() * _SHIFT < b.min() or b.max() * _SHIFT < a.min() for a, b in parts)


def too_late(takes: float, left: float) -> Facts:
    """Return the facts about a candidate that takes longer to compile than there is time left."""
    return {"not_run": f"compiling it takes about {takes:.3g} s, and {max(0.0, left):.3g} s are left for it", "late": True}


def reason_of(error: BaseException) -> str:
    """Return the message of an error, as one paragraph that ends with a full stop."""
    text = " ".join(str(error).split()) or type(error).__name__
    text = text if isinstance(error, PlaceitError) else f"{type(error).__name__}: {text}"
    return text if text.endswith(".") else f"{text}."
