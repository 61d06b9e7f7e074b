"""Open the executors of candidates, estimate the seconds of their runs, and keep their measurements."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from placeit.core import clock
from placeit.core.narrowing import narrowed
from placeit.devices.host import free_bytes
from placeit.devices.kinds import driven_by_openvino, kind_of
from placeit.devices.openvino import target_name
from placeit.devices.own_modes import OwnMode
from placeit.measuring.measure import Watching
from placeit.measuring.pace import Pace
from placeit.measuring.statistics import summed_up
from placeit.optimizer.book import Book
from placeit.optimizer.candidate_state import Proposed, Ran
from placeit.optimizer.candidates import Candidate, RaceResult
from placeit.optimizer.deployed import Deployed, ReferenceRun, fewest_requests, is_pipeline, run_lengths
from placeit.optimizer.journal import Journal, Known
from placeit.optimizer.ledger import COMPILING, Ledger
from placeit.optimizer.story import Story
from placeit.planning.in_flight import in_flight, share_of
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.profiler.calibration import calibrated
from placeit.profiler.costs import Progress
from placeit.runtime.plan_executor import with_room
from placeit.simulator.objectives.base import Objective
from placeit.workbench import Workbench

__all__ = ["COMPILING_SHARE", "RunOptions", "Runs"]

_LOG = logging.getLogger(__name__)
_TIMEOUT_S = 30.0  # seconds that a run of a reference may take, even if less time is left
COMPILING_SHARE = 0.5  # share of the time left that compiling a model for a device may take, where that takes many seconds
_COPIES = 2  # copies of the weights that free memory must hold before another placement is opened


@dataclass(frozen=True, eq=False)
class RunOptions:
    """Options of a search: the session, the objective, and the deadline.

    Attributes:
        session: a model on its devices.
        objective: objective that runs are valued by.
        deadline: when the last race should be over, by :func:`placeit.core.clock.now`.
        seed: seed of the order within each round.
        progress: called with the current step and the share of it that is done.
        ledger: ledger that time is booked in.
        story: the story of the search to continue.
    """

    session: Workbench
    objective: Objective
    deadline: float = math.inf
    seed: int = 0
    progress: Progress | None = None
    ledger: Ledger = field(default_factory=Ledger)
    story: Story = field(default_factory=Story)


class Runs(Book):
    """Candidates, and their runs on a session's devices, by an objective and until a deadline.

    Attributes:
        races: the races that have been run.
        meters: meters of the devices, if the objective has some; they are read in races if all devices have one.
        journal: the file that measurements are kept in; None to keep none.
        pace: pace at which runs start; None to start each when the previous one has ended.
        watch: detects rounds that other work on the machine disturbed; None to assume that none was.
    """

    def __init__(self, options: RunOptions) -> None:
        super().__init__(options.session, options.story)
        self.deadline, self.seed, self.progress = options.deadline, options.seed, options.progress
        objective, cluster = options.objective, options.session.cluster
        self.meters = objective.meters(cluster) if objective.has_model else None
        self.objective = objective.measured_with(self.meters)
        self.pace = None if objective.rate is None else Pace(objective.rate)
        self.watch: Watching | None = None
        self.races: list[RaceResult] = []
        self.journal: Journal | None = None
        self.ledger = options.ledger
        options.session.compiling.progress = options.progress
        self._uncounted = 1.0  # seconds of a run over its counted seconds; not 1 if requests of several sizes have shares
        self._priced: dict[str, tuple[Plan, Plan]] = {}  # plan of each candidate, and this plan by the session's costs

    def watch_machine(self) -> None:
        """From now on, repeat rounds that other work on the machine disturbs."""
        self.watch = self.session.policy.watch()

    @property
    def period(self) -> float:
        """Seconds from the start of a run to the start of the next, if runs start at a pace; else 0."""
        return 0.0 if self.pace is None else self.pace.period

    @property
    def opening_s(self) -> float:
        """Seconds spent on opening executors, which is mostly compiling."""
        return self.ledger.seconds.get(COMPILING, 0.0)

    def segmenter_of(self, costs: Costs) -> Segmenter:
        """Return a segmenter that makes plans for the objective, with the given costs."""
        wanted = self.objective
        return Segmenter(self.session.grouping, costs, steady=wanted.steady, in_flight=wanted.in_flight)

    def simulated_of(self, plan: Plan) -> tuple[float, float]:
        """Return a plan's simulated seconds (per request if many are in flight), and the objective of that simulation."""
        value = self.objective.of_plan(plan)
        return (value if self.objective.steady else plan.schedule.makespan), value

    def deploy(self, candidate: Candidate) -> Deployed:
        """Open the executors of a candidate, with many requests in flight if the objective is ``steady``."""
        home, steady = self.home(candidate.name), self.objective.steady
        if home is not self.session:  # it has its own runtime, or none
            self.session.runtime.compiler.make_room()
        if (mode := candidate.reference or self._by_itself(candidate)) is not None:
            from placeit.backends.openvino.model import OpenVinoModel
            from placeit.backends.openvino.own_mode import OwnModeRunner

            model = narrowed(OpenVinoModel, home.model)
            open_it = functools.partial(OwnModeRunner, model, mode, home.precision)
            return ReferenceRun(open_it, lambda: max(_TIMEOUT_S, self.left()))
        opened = [
            functools.partial(with_room, functools.partial(home.executor, plan, alone=not steady), in_flight)
            for plan, in_flight in zip(candidate.plans, self.in_flight_of(candidate, home) if steady else [1], strict=True)
        ]
        deadline = clock.now() + self.left() * COMPILING_SHARE
        if candidate.placer == "single" and home is self.session and not any(kind_of(d).compiles for d in home.cluster.devices):
            deadline = math.inf  # some device is run, however short the budget is
        with self.session.compiling.until(deadline):
            return Deployed(opened, candidate.plans if steady else None, spins=self.is_onnxruntime(candidate.name))

    def _by_itself(self, candidate: Candidate) -> OwnMode | None:
        """Return how OpenVINO runs a plain device, or one in another precision, when a program calls it without placeit.

        None for other candidates, and for any objective but latency.
        """
        like = candidate if candidate.of is None else self.known[candidate.of]
        if not like.plain or not self.objective.is_makespan or self.is_onnxruntime(candidate.name):
            return None
        from placeit.backends.openvino.model import OpenVinoModel

        home = self.home(candidate.name)
        device = home.cluster.devices[0]
        if not driven_by_openvino(device) or not device.where.whole_cpu or not isinstance(home.model, OpenVinoModel):
            return None
        return OwnMode(candidate.name, target_name(device), (device,), steady=False)

    def in_flight_of(self, candidate: Candidate, home: Workbench) -> list[int]:
        """Return how many requests are in flight in each replica: a share of the objective's number, or as many as serve most.

        For a pipeline of a model with state, there are at least enough to time it.
        """
        share, found = share_of(self.objective.in_flight, candidate.plans), []
        for plan in candidate.plans:
            best = home.best_in_flight(plan, in_flight(plan)) if share is None else share
            found.append(max(best, fewest_requests(plan)) if home.model.states and is_pipeline(plan) else best)
        return found

    def requests_of(self, candidate: Candidate) -> int:
        """Return how many requests a run of a candidate serves."""
        return sum(run_lengths(candidate.plans)) if self.objective.steady else 1

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
        own = (one for one in candidates if one.name not in self.homes)
        return self.session.runtime.compiler.expected_s(plan for one in own for plan in one.plans)

    def say(self, what: str, share: float) -> None:
        """Report the current step, and the share of it that is done."""
        if self.progress is not None:
            self.progress(what, share)

    def left(self) -> float:
        """Seconds until the search should be over."""
        return self.deadline - clock.now()

    def has_room(self) -> bool:
        """Return whether this machine has free memory for two more copies of the model's weights."""
        return free_bytes() > _COPIES * float(self.session.grouping.groups.bytes_once.sum())

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
        value = summed_up(name, known.values, rounds)
        metered = self.objective.by_meters
        found = Ran(
            summed_up(name, known.samples, rounds),
            value,
            joules=value if metered else None,
            modelled=value if self.objective.has_model and not metered else None,
            cost=known.cost,
            segment_s=known.segment_s,
            earlier=True,
        )
        self.update_facts(name, plan=plan, replicas=replicas, output_error=known.output_error)
        self.set_state(name, found, "measured", "by an earlier search")
        if (why := known.output_error.wrong(self.home(name).tolerance)) is not None:
            self.fail(name, f"Ran by an earlier search: {why}")

    def calibrated(self) -> Costs:
        """Return the session's costs, corrected by the measured times of segments that ran beside each other."""
        segmenter = self.segmenter_of(self.session.costs)  # plans of candidates may have corrected costs already
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

    def go_by_model(self) -> None:
        """Value all runs, earlier ones included, by the power model from now on, since a meter was given up."""
        if not self.objective.by_meters:
            return
        self.objective, self.journal = self.objective.measured_with(self.meters), None
        _LOG.warning(
            "%s is %s. Measurements from now on are not kept for other searches.", self.objective.name.capitalize(), self.meters
        )
        for name, one in list(self.known.items()):
            if one.runs is not None and one.modelled is not None:
                self.revise(name, replace(one.runs, value=one.modelled, cost=None), "by the power model: a meter was lost")
            elif one.runs is not None:
                self.set_state(name, Proposed(), "undone", "only meters have valued it, and one of them was lost")
