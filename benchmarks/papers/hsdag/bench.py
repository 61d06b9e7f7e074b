"""Code that all parts share: models on unequal cores, and the kept results of learners on them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks._models import load_model, model_file, progress, two_cores
from benchmarks.papers.hsdag.learners import LEARNERS
from placeit.core.files import write_text
from placeit.core.placement import Placement
from placeit.core.problem import Problem
from placeit.learning.measured import MeasuredCosts, session_source
from placeit.learning.training.loop import train
from placeit.learning.training.stages import MEASURED
from placeit.profiler.cache import Cache
from placeit.session import Session, optimize

__all__ = ["FULL", "QUICK", "Bench", "Found", "Sizes"]


@dataclass(frozen=True)
class Sizes:
    """The amount of work.

    Attributes:
        updates: updates of training in simulation.
        measured_s: seconds of training by measured costs.
        budget_s: seconds of ``optimize``.
        rounds: rounds of the races whose results are reported.
    """

    updates: int
    measured_s: float
    budget_s: float
    rounds: int


FULL = Sizes(updates=100, measured_s=120, budget_s=120, rounds=40)
QUICK = Sizes(updates=2, measured_s=2, budget_s=10, rounds=6)


@dataclass(frozen=True)
class Found:
    """The cost of a search.

    Attributes:
        simulated_s: seconds of training in simulation.
        measured_s: seconds after that: compiling, runs, updates, and the last race of the best.
        compile_s: part of ``measured_s`` for compiling and opening plans, in the last process that took part; so are
            ``samples``.
        plans: different plans that were tried.
        samples: timed runs.
    """

    simulated_s: float
    measured_s: float
    compile_s: float | None = None
    plans: int | None = None
    samples: int | None = None


@dataclass(eq=False)
class Bench:
    """Models on a core and a slowed core.

    Attributes:
        sizes: the amount of work.
        seed: seed of everything random.
        models: names of the models.
        slowdowns: factors by which the second core is slowed.
        folder: folder of costs, trainings and results.
    """

    sizes: Sizes
    seed: int
    models: tuple[str, ...]
    slowdowns: tuple[float, ...]
    folder: Path
    cores: tuple[int, int] = field(default_factory=two_cores)

    @property
    def cases(self) -> list[tuple[str, float]]:
        """Pairs of a model and a slowdown."""
        return [(model, slowdown) for model in self.models for slowdown in self.slowdowns]

    def cluster(self, slowdown: float) -> Path:
        """Write the cluster file of a core and a core that is slowed by a factor."""
        path = self.folder / f"slowed-{slowdown:g}.yaml"
        fast, slow = self.cores
        text = f"devices:\n  fast: {{runs_on: CPU@{fast}}}\n  slow: {{runs_on: CPU@{slow}, slowdown: {slowdown:g}}}\n"
        write_text(path, text)
        return path

    @contextmanager
    def session(self, model: str, slowdown: float) -> Iterator[Session]:
        """Open a profiled session."""
        with Session(load_model(model), self.cluster(slowdown), cache=Cache(self.folder / "costs", runs=False)) as session:
            session.profile(progress=progress)
            yield session

    def problem(self, session: Session, model: str, slowdown: float) -> Problem:
        """Return the problem with which all learners of a model on a cluster begin, even if costs were profiled again since."""
        path = self._folder(model, slowdown) / "problem.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            session.segmenter.problem().to_json(path)
        return Problem.from_json(path)

    def learned(self, session: Session, model: str, slowdown: float, learner: str) -> tuple[Placement, Found]:
        """Train a learner, unless that has been done, and return the best placement that it met."""
        folder = self._folder(model, slowdown) / learner.replace(" ", "-").replace(",", "")
        if (kept := _read(folder)) is None:
            folder.mkdir(parents=True, exist_ok=True)
            progress(f"{model}, slowed {slowdown:g} times: {learner}")
            kept = self._train(session, self.problem(session, model, slowdown), learner, folder)
            _write(folder, *kept)
        return kept

    def optimized(self, model: str, slowdown: float) -> tuple[Placement, Found]:
        """Run ``optimize`` with a budget and no other option, unless that has been done."""
        folder = self._folder(model, slowdown) / "optimize"
        if (kept := _read(folder)) is None:
            folder.mkdir(parents=True, exist_ok=True)
            progress(f"{model}, slowed {slowdown:g} times: optimize")
            cache, began = Cache(self.folder / "costs", runs=False), time.perf_counter()
            found = optimize(
                model_file(model),
                self.cluster(slowdown),
                budget=self.sizes.budget_s,
                seed=self.seed,
                cache=cache,
                progress=progress,
            )
            kept = found.chosen.placement, Found(0.0, time.perf_counter() - began)
            _write(folder, *kept)
        return kept

    def _folder(self, model: str, slowdown: float) -> Path:
        return self.folder / f"{model}-{slowdown:g}"

    def _train(self, session: Session, problem: Problem, learner: str, folder: Path) -> tuple[Placement, Found]:
        source = session_source(session, problem)
        costs = MeasuredCosts(session, journal=folder / "runs.jsonl", seed=self.seed, progress=progress)
        agent, stages = LEARNERS[learner](problem, source.draw, self.seed, self.sizes.updates, self.sizes.measured_s)
        result = train(
            agent,
            stages,
            evaluate_on=source.held_out,
            seed=self.seed,
            costs={MEASURED: costs},
            folder=folder,
            resume=True,
            progress=progress,
        )
        began = time.perf_counter()
        cost = costs.measured
        best = cost.winner()
        simulated = [record.seconds for record in result.history if stages[record.stage - 1].cost != MEASURED]
        before, whole = max(simulated, default=0.0), result.history[-1].seconds + time.perf_counter() - began
        return best.placement, Found(before, whole - before, cost.compile_s, len(cost.tried), cost.samples)


def _read(folder: Path) -> tuple[Placement, Found] | None:
    path = folder / "found.json"
    if not path.exists():
        return None
    return Placement.load(folder / "placement.json"), Found(**json.loads(path.read_text(encoding="utf-8")))


def _write(folder: Path, placement: Placement, found: Found) -> None:
    placement.save(folder / "placement.json")
    write_text(folder / "found.json", json.dumps(asdict(found)) + "\n")  # written last, as a sign that the rest is complete
