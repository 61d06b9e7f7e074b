"""The model on which ``placeit train`` trains a policy, its devices, and the placement that training finds."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.options import (
    BatchOption,
    DevicesOption,
    GroupsOption,
    InputsOption,
    NoCacheOption,
    Precision,
    PrecisionOption,
    SessionOptions,
    ShapesOption,
    TrustOption,
)
from placeit.cli.values import complete_objectives, minimised
from placeit.core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from placeit.learning.agent import Agent
    from placeit.learning.measured import MeasuredCosts
    from placeit.learning.training.loop import TrainingResult
    from placeit.learning.training.sources import Source
    from placeit.learning.training.stages import CostFactory, Stage
    from placeit.optimizer.result import Optimized
    from placeit.profiler.costs import Progress
    from placeit.session import Session

__all__ = ["LearnedModel", "LearnedModelOptions", "open_model"]

_RACE_SHARE, _RACE_S = 0.2, 60.0  # share of a measured stage's seconds for the final race; its seconds without such stages


@dataclass(frozen=True)
class LearnedModelOptions:
    """Options of a model on devices, which replaces training problems."""

    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Learn to place this model: a file, or a tensor program by name (chain-mm:shards=4).",
            show_default=False,
        ),
    ] = None
    devices: DevicesOption = None
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            metavar="NAME",
            help=f"{minimised()}; default: latency.",
            show_default=False,
            autocompletion=complete_objectives,
        ),
    ] = None
    max_groups: GroupsOption = 96
    precision: PrecisionOption = Precision.F32
    inputs: InputsOption = None
    input_shape: ShapesOption = None
    batch: BatchOption = None
    trust: TrustOption = False
    no_cache: NoCacheOption = False

    def files(self) -> list[Path]:
        """Return the input files of these options, which must not be overwritten."""
        return [] if self.model is None else self._options(self.model).files()

    def session(self) -> Session:
        """Open the model on the devices. Raises UsageError if no model is given."""
        if self.model is None:
            raise UsageError("There is no model: give --model.")
        return self._options(self.model).session()

    def _options(self, model: Path) -> SessionOptions:
        return SessionOptions(
            model=model,
            devices=self.devices,
            max_groups=self.max_groups,
            precision=self.precision,
            inputs=self.inputs,
            input_shape=self.input_shape,
            batch=self.batch,
            trust=self.trust,
            no_cache=self.no_cache,
        )


@dataclass(frozen=True, eq=False)
class LearnedModel:
    """A model on devices, opened for training.

    Attributes:
        session: the profiled session.
        objective: name of the objective that is minimised.
        source: source of the model's only problem, the placement of its groups; None if there is nothing to learn.
        about: origin of the problem, as checkpoints and states record it.
        measured: costs by measured runs; None if no stage measures.
        journal: file of measured runs; None for no file.
        obvious: reason why there is nothing to learn; None if there is something to learn.
    """

    session: Session
    objective: str
    source: Source | None
    about: Mapping[str, Any]
    measured: MeasuredCosts | None
    journal: Path | None
    obvious: str | None

    @property
    def costs(self) -> Mapping[str, CostFactory]:
        """Cost factories that stages may use in addition to simulated costs, by name."""
        from placeit.learning.training.stages import MEASURED

        return {} if self.measured is None else {MEASURED: self.measured}

    def counts(self) -> dict[str, int] | None:
        """Return the number of placements by the source of their cost, in this process; None if no stage measures."""
        if self.measured is None:
            return None
        sources = list(self.measured.sources.values())
        return {name: sources.count(name) for name in ("measured", "estimated", "failed", "dropped", "infeasible")}

    def answer(
        self, agent: Agent, stages: Sequence[Stage], result: TrainingResult | None, *, seed: int, progress: Progress | None
    ) -> Optimized:
        """Race the best placements that training met against single devices, in the time that its stages have reserved."""
        from placeit.learning.agent import Decisive
        from placeit.learning.training.stages import MEASURED, SIMULATED
        from placeit.optimizer.optimize import decide

        found: dict[str, NDArray[np.int32]] = {}
        if result is not None and self.source is not None:
            if isinstance(agent, Decisive):
                found["the policy's choice"] = agent.greedy_placement(self.source.held_out[0].problem)
            simulated = [best for one in result.stages if one.cost == SIMULATED for best in one.found]
            if simulated:
                found["best in simulation"] = min(simulated, key=lambda best: best.cost).placement
        seconds = [one.seconds * _RACE_SHARE for one in stages if one.cost == MEASURED and one.seconds is not None]
        return decide(
            self.session,
            found,
            cost=None if self.measured is None or result is None else self.measured.measured,
            objective=self.objective,
            budget=sum(seconds) if seconds else _RACE_S,
            seed=seed,
            journal=self.journal,
            progress=progress,
        )


def open_model(
    on: LearnedModelOptions,
    stages: Sequence[Stage],
    folder: Path | None,
    resume: bool,
    seed: int,
    stack: contextlib.ExitStack,
    progress: Progress | None,
) -> LearnedModel:
    """Open and profile a model for training, and write its problem to the training's folder, for resumption.

    Args:
        on: the model and its devices.
        stages: the stages of training.
        folder: the training's folder; None for none.
        resume: whether to take the problem from the folder.
        seed: seed of the order of measured runs.
        stack: exit stack that closes the session.
        progress: called with the current activity.
    """
    from placeit.core.problem import Problem
    from placeit.learning import PROBLEM, RUNS
    from placeit.learning.measured import MeasuredCosts, session_source
    from placeit.learning.training.stages import MEASURED
    from placeit.simulator.objectives.latency import Latency
    from placeit.simulator.objectives.registry import get_objective

    session, objective = stack.enter_context(on.session()), on.objective or Latency.name
    get_objective(objective, session.cluster)  # before anything is profiled
    journal, problem_file = (None if folder is None else folder / name for name in (RUNS, PROBLEM))
    measured, obvious = None, None
    if any(one.cost == MEASURED for one in stages):
        measured = MeasuredCosts(session, objective, journal=journal, seed=seed, spare=_RACE_SHARE, progress=progress)
    if len(session.cluster) == 1:
        obvious = "there is one device, and every placement is on it"
    elif len(session.grouping.groups) == 1:
        obvious = "the model is one group, and every placement is on one device"
    session.profile(progress=progress, worth=None if len(session.cluster) > 1 else lambda _: False)
    about = {"problems": str(on.model), "evaluated_with": str(on.model), "devices": ", ".join(session.cluster.names)}
    about |= {} if objective == Latency.name else {"objective": objective}
    if obvious is not None:
        return LearnedModel(session, objective, None, about, measured, None, obvious)
    resumed = Problem.from_json(problem_file) if resume and problem_file is not None and problem_file.exists() else None
    source = session_source(session, resumed, objective=objective)
    problem = source.held_out[0].problem
    if problem_file is not None:
        problem.to_json(problem_file)
    return LearnedModel(session, objective, source, about | {"problem": problem.key}, measured, journal, None)
