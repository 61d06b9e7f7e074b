"""Jobs that run placements: our own graphs on two cores of this machine, the second of which is slowed."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks._models import settled_race, two_cores
from benchmarks.papers._lab import Job, Outcome, read_outcome
from benchmarks.papers.doppler.jobs import Setup
from benchmarks.papers.doppler.training import by_cost, learn, met, stages
from placeit.core.errors import TrainingError
from placeit.core.files import write_text
from placeit.core.problem import CostFunction
from placeit.learning.agent import ProblemInstance
from placeit.learning.measured import session_source
from placeit.learning.registry import make_agent
from placeit.learning.training.stages import MEASURED
from placeit.learning.training.valuing import finite_or_nan
from placeit.learning.workloads.tensor_program import parse_tensor_model
from placeit.measuring.incumbent import HOPELESS
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.placers import parse_placer
from placeit.profiler.cache import Cache
from placeit.session import Session

__all__ = ["SLOWDOWNS", "BestOfEach", "Fidelity", "Learned", "Seeds"]

SLOWDOWNS = (2.0, 3.0)

MODELS = {
    "chain-mm": "chain-mm:shards=6,size=768",
    "ffnn": "ffnn:shards=6,batch=2048,hidden=2048",
    "llama-block": "llama-block:shards=6,tokens=256,width=512,heads=8,hidden=1376",
    "llama-layer": "llama-layer:shards=6,tokens=256,width=512,heads=8,hidden=1376",
}
"""Graphs that are small enough to run some hundred times in minutes, cut so that one core can get twice the other's work."""

_FEW, _LAST_ROUNDS = 3, 15


@dataclass(frozen=True)
class _Run(Job):
    """A job about a graph on a core and a slowed core.

    Attributes:
        graph: a key of :data:`MODELS`.
        slowdown: factor by which the second core is slowed.
    """

    graph: str
    slowdown: float
    alone: ClassVar[bool] = True

    @property
    def name(self) -> str:
        values = [getattr(self, field.name) for field in dataclasses.fields(self)]
        words = ["-".join(map(str, value)) if isinstance(value, tuple) else str(value) for value in values]
        return "-".join([type(self).__name__.lower(), *filter(None, words)])

    def run(self, setup: Setup) -> Outcome:
        """Open the graph on the devices, profiled once for all jobs, and do the job."""
        first, second = two_cores()
        devices = setup.folder / f"slowdown-{self.slowdown:g}.yaml"
        write_text(
            devices,
            f"devices:\n  fast: {{runs_on: CPU@{first}}}\n  slow: {{runs_on: CPU@{second}, slowdown: {self.slowdown:g}}}\n",
        )
        cache = Cache(setup.folder / "costs", runs=False)
        with Session(parse_tensor_model(MODELS[self.graph]), devices, cache=cache) as session:
            session.profile()
            return self.on(session, setup)

    @abstractmethod
    def on(self, session: Session, setup: Setup) -> Outcome:
        """Do the job in an open session."""

    def measured(
        self, session: Session, setup: Setup, journal: str, hopeless: float | None = HOPELESS, rounds: int = 6
    ) -> MeasuredCost:
        """Return the cost function that runs placements; placements in the journal are not run again."""
        path = setup.folder / "runs" / f"{self.graph}-{self.slowdown:g}-{journal}.jsonl"
        path.parent.mkdir(exist_ok=True)
        return MeasuredCost(session, journal=path, rounds=rounds, seed=setup.seed, hopeless=hopeless)


@dataclass(frozen=True)
class Learned(_Run):
    """Trains DOPPLER in some of its three stages.

    The outcome: ``simulated``, the best placement of stage II, and ``measured``, the winner of a last race of the best few of
    stage III, if there were such stages; of stage III also the ``curve`` of the best so far over the measured ``episodes``.

    Attributes:
        number: number of the training, which gives its seed.
        parts: stages of the training: I imitation, II simulated, III measured.
        journal: name of the journal of runs; trainings that share one have equal values for equal placements.
    """

    number: int = 0
    parts: tuple[str, ...] = ("I", "II", "III")
    journal: str = ""

    def on(self, session: Session, setup: Setup) -> Outcome:
        seed, sizes = setup.seed + self.number, setup.sizes
        [instance] = session_source(session).held_out
        journal = self.journal or f"seed{self.number}-{'-'.join(self.parts)}"
        measured = self.measured(session, setup, journal)
        agent = make_agent("doppler", seed=seed)
        whole = stages(agent, sizes.episodes_of(self.graph))
        second = by_cost(whole)
        last = [stage for stage in second if stage.kind == "reinforce"][-1]
        updates = max(1, sizes.measured // (last.problems * last.episodes))
        third = dataclasses.replace(last, updates=updates, cost=MEASURED, seconds=sizes.measured_s)
        of = {"I": whole[: len(whole) - len(second)], "II": second, "III": [third]}
        plan = [(part, stage) for part in self.parts for stage in of[part]]
        watched = learn(agent, [stage for _, stage in plan], instance, seed=seed, measured=finite_or_nan(measured))
        by_part = {part: [one for (its, _), one in zip(plan, watched, strict=True) if its == part] for part in self.parts}
        found: dict[str, NDArray[np.generic]] = {}
        if "II" in by_part:
            found["simulated"] = met(by_part["II"])["placement"]
        if "III" in by_part:
            learned = met(by_part["III"])
            if not len(learned["curve"]):
                raise TrainingError(f"None of {learned['episodes']} episodes could be measured.")
            measured(np.stack([learned["placement"], *found.values()]))
            won = measured.winner(_FEW, _LAST_ROUNDS).outcome.devices
            found |= {"measured": won, "curve": learned["curve"], "episodes": learned["episodes"]}
        return found


@dataclass(frozen=True)
class BestOfEach(_Run):
    """Races the placement of each method, interleaved; the outcome are the seconds of the runs of each, by round.

    The critical path is the best of 50 that are run, as in the paper; Placeto learns in simulation.
    """

    @property
    def needs(self) -> Sequence[Job]:
        return (Learned(self.graph, self.slowdown),)

    def on(self, session: Session, setup: Setup) -> Outcome:
        [instance] = session_source(session).held_out
        measured = self.measured(session, setup, "critical-path")
        learned = read_outcome(self.needs[0], setup)
        rows = {
            "one device": _ask("single", instance, instance.cost, setup),
            "critical path": _ask("critical-path", instance, finite_or_nan(measured), setup),
            "placeto": self._placeto(instance, setup),
            "enumerative": _ask("enumerative", instance, instance.cost, setup),
            "sim": learned["simulated"],
            "sys": learned["measured"],
        }
        return raced(session, rows, setup)

    def _placeto(self, instance: ProblemInstance, setup: Setup) -> NDArray[np.int32]:
        agent = make_agent("placeto", seed=setup.seed, devices=instance.problem.devices)
        plan = stages(agent, setup.sizes.placeto, imitation=False)
        return met(learn(agent, plan, instance, seed=setup.seed))["placement"]


@dataclass(frozen=True)
class Seeds(_Run):
    """Races the placements of trainings with different seeds; the outcome are the seconds of the runs of each, by round.

    Attributes:
        count: number of trainings.
    """

    count: int

    @property
    def needs(self) -> Sequence[Job]:
        return [Learned(self.graph, self.slowdown, number) for number in range(self.count)]

    def on(self, session: Session, setup: Setup) -> Outcome:
        found = {str(number): read_outcome(job, setup)["measured"] for number, job in enumerate(self.needs)}
        return raced(session, found, setup)


@dataclass(frozen=True)
class Fidelity(_Run):
    """Runs placements saved throughout a training in simulation without imitation.

    The outcome: costs by the simulator of the training (``trained_on``), costs of the simulated plans (``simulated``), and
    seconds in two measurements, compiled anew for the second (``first``, ``second``); NaN for placements that could not be run.
    """

    def on(self, session: Session, setup: Setup) -> Outcome:
        [instance] = session_source(session).held_out
        agent = make_agent("doppler", seed=setup.seed)
        plan = stages(agent, setup.sizes.episodes_of(self.graph), imitation=False)
        visited = [row for one in learn(agent, plan, instance, seed=setup.seed) for row in one.first]
        at = np.linspace(0, len(visited) - 1, min(setup.sizes.saved, len(visited))).round().astype(int)
        rows = np.stack([visited[n] for n in at])
        halves = max(1, setup.sizes.rounds // 2)
        twice = {which: self.measured(session, setup, f"fidelity-{which}", None, halves) for which in ("first", "second")}
        return {
            "trained_on": instance.cost(rows),
            "simulated": np.array([session.segmenter.plan(row).schedule.makespan for row in rows]),
            **{which: _settled(finite_or_nan(measured), rows) for which, measured in twice.items()},
        }


def _settled(cost: CostFunction, rows: NDArray[np.int32]) -> NDArray[np.float64]:
    """Value placements; run again, at most twice, the placements whose measurement was dropped."""
    values = cost(rows)
    for _ in range(2):
        lost = np.flatnonzero(np.isnan(values))
        if len(lost):
            values[lost] = cost(rows[lost])
    return values


def _ask(placer: str, instance: ProblemInstance, cost: CostFunction, setup: Setup) -> NDArray[np.int32]:
    return parse_placer(placer).place(instance.problem, cost, seed=setup.seed, evaluations=None)


def raced(session: Session, rows: Mapping[str, NDArray[np.int32]], setup: Setup) -> Outcome:
    """Race placements, interleaved; placements with the same programs are run once."""
    plans = {name: session.segmenter.plan(row) for name, row in rows.items()}
    runs = {name: frozenset((one.device, one.groups) for one in plan.programs) for name, plan in plans.items()}
    first = {name: next(other for other in runs if runs[other] == runs[name]) for name in runs}
    timers: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        for name in dict.fromkeys(first.values()):
            timers[name] = stack.enter_context(closing(session.executor(plans[name]))).time
        results = settled_race(timers, rounds=setup.sizes.rounds, seed=setup.seed)
    return {name: results[first[name]].samples for name in rows}
