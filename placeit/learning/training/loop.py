"""Train agents in stages of REINFORCE, imitation or an agent's own method, with evaluation and resumption."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placeit.core import clock
from placeit.core.errors import TrainingError, UsageError
from placeit.core.version import __version__
from placeit.learning.agent import Agent, ProblemInstance, Remembering
from placeit.learning.checkpoint import save_agent
from placeit.learning.training.cost_journal import CostJournal
from placeit.learning.training.logs import Logs, Record
from placeit.learning.training.stages import SIMULATED, CostFactory, Draw, Stage, check_stages
from placeit.learning.training.state import JOURNAL, FoundPlacement, TrainingState, load_run, save_run, training_key
from placeit.learning.training.time_limit import StageClock
from placeit.learning.training.updates import describe, update
from placeit.learning.training.valuing import check_costs, factory_of, lowest, value, with_cost_of

if TYPE_CHECKING:
    from placeit.profiler.costs import Progress

__all__ = ["Draw", "Stage", "StageResult", "TrainingResult", "evaluate", "train"]


_STREAM = 1  # random stream of evaluation, which differs from training's
_BATCH = 32  # problems that are evaluated together
_MAX_BARREN = 10  # consecutive updates without any measured cost after which training stops


@dataclass(frozen=True, eq=False)
class StageResult:
    """Results of a stage.

    Figures are evaluations by the stage's cost. Figures of stages with different costs cannot be compared.

    Attributes:
        cost: name of the cost.
        before: figure of the initial weights of the stage; None if there was nothing to evaluate on.
        best: the lowest figure.
        best_at: update after which the lowest figure was reached.
        dropped: number of decisions that were left out because their costs could not be measured.
        found: the best placement met for each problem, of the first hundred problems.
    """

    cost: str
    before: float | None
    best: float | None
    best_at: int | None
    dropped: int
    found: tuple[FoundPlacement, ...]


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """Result of a training; the agent has the best weights of the last stage.

    Attributes:
        best: the lowest evaluation figure of the last stage, which is the weights' figure; None if there was nothing to
            evaluate on.
        best_at: stage and update after which it was reached, as in the records.
        history: a record of each update, and of the evaluation before the first update of each stage.
        stages: results of each stage that was started.
        stopped: reason why training stopped before the end of its last stage; None if it did not.
        about: stages, seed and evaluation, as metadata of checkpoints: ``save_agent(agent, path, **result.about)``.
    """

    best: float | None
    best_at: tuple[int, int] | None
    history: tuple[Record, ...]
    stages: tuple[StageResult, ...]
    stopped: str | None
    about: Mapping[str, Any]


def train(
    agent: Agent,
    stages: Sequence[Stage],
    *,
    evaluate_on: Sequence[ProblemInstance],
    seed: int,
    costs: Mapping[str, CostFactory] | None = None,
    folder: str | Path | None = None,
    resume: bool = False,
    save_every: int = 25,
    tensorboard: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train an agent in stages. Each stage starts with a new optimiser and the best weights of the previous stage.

    The agent is evaluated by the cost of the stage: before the first update, during the stage and at its end. Each stage has
    its own best figure, since simulated and measured figures cannot be compared. The agent receives the best weights of the
    last stage, so by the figures of that stage it never gets worse. If there is nothing to evaluate on, it receives the weights
    of the last update.

    Args:
        agent: the agent, whose network is changed in place.
        stages: the stages, at least one.
        evaluate_on: held-out problems; may be empty.
        seed: seed of all random draws. The same seed gives the same weights on the same machine, if costs are the same.
        costs: cost factories by name, for stages whose cost is not ``simulated``, such as ``measured``.
        folder: folder for ``log.csv``, ``best.safetensors`` (a checkpoint of the current stage), ``state.safetensors``, and
            ``costs.jsonl`` with every cost that is not simulated. It is made if it does not exist; None to write no files.
        resume: whether to continue from the state in the folder, if there is one. Given the same costs, the result is the same
            as without the interruption, and no cost is measured again.
        save_every: updates between two saved states; if costs are not simulated, a state is saved after each update.
        tensorboard: whether to also write logs for TensorBoard.
        about: description of the problems; any JSON. It is stored in checkpoints, and a state with another ``about`` is
            refused.
        progress: called with the stage and the share of it that is done.

    Raises:
        UsageError: the state in the folder belongs to another training, or exists though ``resume`` is not set; a stage names
            a cost or a teacher that does not exist.
        TrainingError: a cost is infinite, or a reward, loss or gradient is not finite. Files and weights keep the state after
            the previous update.
        FileError: the folder cannot be written to, or a file in it is damaged.
    """
    if not stages:
        raise UsageError("There is nothing to train: give at least one stage.")
    if save_every < 1:
        raise UsageError(f"'save_every' is {save_every}; it must be at least 1.")
    check_stages(agent, stages)
    check_costs(stages, costs or {})
    path = None if folder is None else Path(folder)
    plan = dict(about or {})
    plan |= {"stages": [stage.to_dict() for stage in stages], "seed": seed, "evaluated_on": len(evaluate_on)}
    run = load_run(agent, plan, path, resume)
    journal = CostJournal(None if path is None else path / JOURNAL, training_key(agent, plan), run.told)
    with Logs(path, run.history, tensorboard) as logs:
        training = _Training(agent, stages, evaluate_on, plan, run, costs or {}, journal, logs, path, save_every, progress)
        while run.stage < len(stages) and training.stopped is None:
            training.run_stage(stages[run.stage])
    if run.best_weights is not None:
        agent.network.load_state_dict(run.best_weights)
    agent.network.eval()
    results = tuple(_stage_result(stage, number, run) for number, stage in enumerate(stages, 1))
    started = results[: run.stage + (training.stopped is not None)]
    return TrainingResult(run.best, run.best_at, tuple(run.history), started, training.stopped, _about(plan, run))


@dataclass(eq=False)
class _Training:
    """State that the stages of a training share.

    Attributes:
        stopped: reason why training stopped early; None if it did not.
    """

    agent: Agent
    stages: Sequence[Stage]
    evaluate_on: Sequence[ProblemInstance]
    plan: Mapping[str, Any]
    run: TrainingState
    costs: Mapping[str, CostFactory]
    journal: CostJournal
    logs: Logs
    folder: Path | None
    save_every: int
    progress: Progress | None
    stopped: str | None = None

    def __post_init__(self) -> None:
        run = self.run
        self._started = clock.now() - (run.history[-1].seconds if run.history else 0.0)

    def run_stage(self, stage: Stage) -> None:
        """Run a stage from its current update to its end."""
        run = self.run
        label = f"stage {run.stage + 1} of {len(self.stages)}: {stage.kind}"
        with_cost = with_cost_of(stage, self.costs, self.journal)
        clock = StageClock(stage, factory_of(stage, self.costs), run.spent)
        held_out = [with_cost(instance) for instance in self.evaluate_on]
        save_every = self.save_every if stage.cost == SIMULATED else 1
        if not run.records:
            self._save()  # a state to resume from exists before anything is measured
            if held_out:
                with clock.evaluation():
                    self._carry_over(stage, held_out)
                    figure = self._initial_figure(stage, held_out)
                self._report({}, figure)
            self._save()
        over = run.update == stage.updates  # resumed after a last update that measured nothing
        while not over:
            share = run.update / stage.updates
            if self.progress is not None:
                self.progress(label, max(share, clock.share))
            drawn = stage.draw(run.rng, stage.problems, share)
            clock.start_update(evaluated=bool(held_out))
            figures = update(self.agent, stage, [with_cost(instance) for instance in drawn], run) if drawn else {}
            run.update += bool(drawn)
            run.barren = run.barren + 1 if figures and "loss" not in figures else 0
            over = not drawn or run.update == stage.updates or clock.is_late or run.barren == _MAX_BARREN
            figure = None
            if held_out and (over or run.update % stage.evaluate_every == 0):
                with clock.evaluation(last=over):
                    figure = self._evaluate(held_out)
                if figure is not None:
                    run.stale = 0 if run.is_best(figure) else run.stale + 1
                over |= stage.patience is not None and run.stale >= stage.patience
            if figures or figure is not None:
                self._report(figures, figure)
            run.spent = clock.spent
            if not over and run.update % save_every == 0:
                self._save()
        if self.progress is not None:
            self.progress(label, 1.0)
        if run.barren == _MAX_BARREN:
            run.barren = 0  # a resumed training may try again
            self.stopped = (
                f"Training stopped in stage {run.stage + 1} ({stage.kind}) after {run.update} updates: in the last "
                f"{_MAX_BARREN}, nothing could be measured by the cost '{stage.cost_name}'. The weights are the best so far."
            )
        else:
            run.end_stage(self.agent, last=run.stage + 1 == len(self.stages))
            if (
                run.stage < len(self.stages)
                and self.stages[run.stage].cost != stage.cost
                and isinstance(self.agent, Remembering)
            ):
                self.agent.recall({})  # its memory holds costs that cannot be compared with the next stage's
        self._save()

    def _carry_over(self, stage: Stage, held_out: Sequence[ProblemInstance]) -> None:
        """Value the best placements of the previous stage by this stage's cost, if the two costs differ."""
        run = self.run
        if not run.stage or self.stages[run.stage - 1].cost == stage.cost:
            return
        for instance in held_out:
            if (best := run.found.get((run.stage, instance.problem.key))) is None:
                continue
            visited = [best.placement[None]]
            costs = value([instance], visited)
            run.meet([instance], visited, costs)
            if isinstance(self.agent, Remembering):
                self.agent.meet(instance.problem, visited[0], costs[0] / instance.unit)

    def _initial_figure(self, stage: Stage, held_out: Sequence[ProblemInstance]) -> float | None:
        """Return the figure of a stage's initial weights, from the history if the previous stage has the same cost."""
        run = self.run
        if run.stage and self.stages[run.stage - 1].cost == stage.cost:
            figures = [record.evaluation for record in run.history if record.stage == run.stage]
            known = [figure for figure in figures if figure is not None]
            if known:
                return min(known)
        return self._evaluate(held_out)

    def _evaluate(self, held_out: Sequence[ProblemInstance]) -> float | None:
        figure = evaluate(self.agent, held_out, seed=self.plan["seed"], meet=self.run.meet)
        return None if np.isnan(figure) else figure

    def _report(self, figures: Mapping[str, Any], evaluation: float | None) -> None:
        """Record an update and its evaluation; keep the weights if the figure is the best."""
        run = self.run
        seconds = clock.now() - self._started
        record = Record(run.stage + 1, run.update, seconds, evaluation=evaluation, **figures)
        run.history.append(record)
        self.logs.write(record)
        if run.is_best(evaluation):
            run.keep_best(self.agent, record)
            if self.folder is not None:
                save_agent(self.agent, self.folder / "best.safetensors", **_about(self.plan, run))

    def _save(self) -> None:
        if self.folder is not None:
            self.run.told = self.journal.position
            save_run(self.agent, self.plan, self.run, self.folder)


def evaluate(
    agent: Agent, instances: Sequence[ProblemInstance], *, seed: int = 0, meet: Callable[..., None] = lambda *_: None
) -> float:
    """Return the mean over problems of the lowest cost in an episode, in multiples of the instance's unit.

    Args:
        agent: the agent; its weights are not changed.
        instances: the problems, at least one.
        seed: seed of the episodes. The same seed gives the same episodes for the same weights.
        meet: called with instances, the placements visited for each, and their costs.

    Returns:
        The mean; NaN if no placement of some problem could be measured.

    Raises:
        TrainingError: the lowest cost of a problem is infinite.
    """
    rng = np.random.default_rng([seed, _STREAM])
    figures = np.full(len(instances), np.nan)
    agent.network.eval()
    for first in range(0, len(instances), _BATCH):
        part = instances[first : first + _BATCH]
        visited = agent.rollout(part, rng).visited
        costs = value(part, visited)
        meet(part, visited, costs)
        for b, (instance, path) in enumerate(zip(part, costs, strict=True)):
            if (best := lowest(path)) is None:
                continue
            figures[first + b] = path[best] / instance.unit
            if not np.isfinite(figures[first + b]):
                raise TrainingError(f"Evaluation met a cost of {figures[first + b]} {describe(instance, first + b)}.")
    return float(figures.mean())


def _stage_result(stage: Stage, number: int, run: TrainingState) -> StageResult:
    records = [record for record in run.history if record.stage == number]
    figures = {record.update: record.evaluation for record in reversed(records) if record.evaluation is not None}
    best_at = min(figures, key=lambda update: (figures[update], update), default=None)
    return StageResult(
        cost=stage.cost_name,
        before=figures.get(0),
        best=None if best_at is None else figures[best_at],
        best_at=best_at,
        dropped=sum(record.dropped or 0 for record in records),
        found=tuple(best for (stage_number, _), best in run.found.items() if stage_number == number),
    )


def _about(plan: Mapping[str, Any], run: TrainingState) -> dict[str, Any]:
    return dict(plan) | {
        "evaluation": run.best,
        "best_at": run.best_at,
        "placeit": __version__,
        "torch": torch.__version__,
    }
