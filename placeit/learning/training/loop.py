"""Trains agents in stages of REINFORCE, imitation or an agent's own method, with evaluation and resumption."""

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
from placeit.learning.training.updates import update, which
from placeit.learning.training.valuing import check_costs, factory_of, least, pricing, value

if TYPE_CHECKING:
    from placeit.profiler.costs import Progress

__all__ = ["Draw", "Stage", "StageResult", "TrainingResult", "evaluate", "train"]


_STREAM = 1  # evaluation draws other numbers than training does
_AT_ONCE = 32  # problems that are evaluated together
_MAX_BARREN = 10  # updates in a row without any cost that could be measured, after which training stops


@dataclass(frozen=True, eq=False)
class StageResult:
    """Results of a stage. Figures are evaluations by the stage's cost; stages with different costs cannot be compared.

    Attributes:
        cost: name of the cost.
        before: figure of the weights that the stage began with; None if there was nothing to evaluate on.
        best: the lowest figure.
        best_at: update after which the lowest figure was met.
        dropped: decisions that were not learned from, since their costs could not be measured.
        found: the best placement met of each problem, of the first hundred problems.
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
        best: the lowest evaluation figure of the last stage, which the weights have; None if there was nothing to evaluate on.
        best_at: stage and update after which it was met, as in the records.
        history: a record of each update, and of the evaluation with which each stage begins.
        stages: results of each stage that was begun.
        stopped: why training ended before its last stage was over; None if it did not.
        about: stages, seed and evaluation, as checkpoints keep them: ``save_agent(agent, path, **result.about)``.
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
    """Train an agent, stage after stage; each starts with a new optimiser and the best weights of the stage before.

    The agent is evaluated by the cost of the stage: before its first update, during it and at its end. Each stage has its own
    best, so a good simulated figure never outdoes a measured one. The agent ends up with the best weights of the last stage: by
    the figures of that stage it never gets worse. Without anything to evaluate on, they are the weights of the last update.

    Args:
        agent: its network is changed in place.
        stages: one at least.
        evaluate_on: held-out problems; may be empty.
        seed: seed of all random draws. The same seed gives the same weights on the same machine, if costs are the same.
        costs: makes cost functions, by the names that stages may use beside ``simulated``, such as ``measured``.
        folder: where to keep ``log.csv``, ``best.safetensors`` (a checkpoint, of the stage under way), ``state.safetensors``,
            and ``costs.jsonl`` with every cost that is not simulated; made if it is not there; None to write nothing.
        resume: go on from the state in the folder, with the same result as if training had never stopped, given the same
            costs; what was measured is not measured again. Start at the beginning if it holds none.
        save_every: updates between two saved states; if costs are not simulated, a state is saved after each update.
        tensorboard: also write logs for TensorBoard.
        about: description of the problems; any JSON. It goes to checkpoints, and a state with another ``about`` is refused.
        progress: called with the stage and the share of it that is done.

    Raises:
        UsageError: the state in the folder belongs to another training, or exists though ``resume`` is not set; a stage names
            a cost or a teacher that does not exist.
        TrainingError: a cost is infinite, or a reward, loss or gradient is not finite. Files and weights keep the state of the
            update before.
        FileError: the folder cannot be written to, or what is in it is damaged.
    """
    if not stages:
        raise UsageError("There is nothing to train: give at least one stage.")
    if save_every < 1:
        raise UsageError(f"'save_every' is {save_every}; it must be at least 1.")
    check_stages(agent, stages)
    check_costs(stages, costs or {})
    where = None if folder is None else Path(folder)
    plan = dict(about or {})
    plan |= {"stages": [stage.to_dict() for stage in stages], "seed": seed, "evaluated_on": len(evaluate_on)}
    run = load_run(agent, plan, where, resume)
    journal = CostJournal(None if where is None else where / JOURNAL, training_key(agent, plan), run.told)
    with Logs(where, run.history, tensorboard) as logs:
        training = _Training(agent, stages, evaluate_on, plan, run, costs or {}, journal, logs, where, save_every, progress)
        while run.stage < len(stages) and training.stopped is None:
            training.play(stages[run.stage])
    if run.best_weights is not None:
        agent.network.load_state_dict(run.best_weights)
    agent.network.eval()
    results = tuple(_stage_result(stage, number, run) for number, stage in enumerate(stages, 1))
    begun = results[: run.stage + (training.stopped is not None)]
    return TrainingResult(run.best, run.best_at, tuple(run.history), begun, training.stopped, _about(plan, run))


@dataclass(eq=False)
class _Training:
    """State that the stages of a training share.

    Attributes:
        stopped: why training is over before its time.
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

    def play(self, stage: Stage) -> None:
        """Play a stage to its end, from its present update on."""
        run = self.run
        label = f"stage {run.stage + 1} of {len(self.stages)}: {stage.kind}"
        priced, clock = pricing(stage, self.costs, self.journal), StageClock(stage, factory_of(stage, self.costs), run.spent)
        judges = [priced(instance) for instance in self.evaluate_on]
        save_every = self.save_every if stage.cost == SIMULATED else 1
        if not run.records:
            self._save()  # a state to resume from exists before anything is measured
            if judges:
                with clock.evaluation():
                    self._carry_over(stage, judges)
                    figure = self._opening(stage, judges)
                self._report({}, figure)
            self._save()
        over = run.update == stage.updates  # resumed after a last update that measured nothing
        while not over:
            share = run.update / stage.updates
            if self.progress is not None:
                self.progress(label, max(share, clock.share))
            drawn = stage.draw(run.rng, stage.problems, share)
            clock.begin_update(judged=bool(judges))
            figures = update(self.agent, stage, [priced(one) for one in drawn], run) if drawn else {}
            run.update += bool(drawn)
            run.barren = run.barren + 1 if figures and "loss" not in figures else 0
            over = not drawn or run.update == stage.updates or clock.is_late or run.barren == _MAX_BARREN
            figure = None
            if judges and (over or run.update % stage.evaluate_every == 0):
                with clock.evaluation(last=over):
                    figure = self._evaluate(judges)
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

    def _carry_over(self, stage: Stage, judges: Sequence[ProblemInstance]) -> None:
        """Value the best placements of the stage before by this stage's cost, if the two costs differ."""
        run = self.run
        if not run.stage or self.stages[run.stage - 1].cost == stage.cost:
            return
        for judge in judges:
            if (best := run.found.get((run.stage, judge.problem.key))) is None:
                continue
            visited = [best.placement[None]]
            costs = value([judge], visited)
            run.meet([judge], visited, costs)
            if isinstance(self.agent, Remembering):
                self.agent.meet(judge.problem, visited[0], costs[0] / judge.unit)

    def _opening(self, stage: Stage, judges: Sequence[ProblemInstance]) -> float | None:
        """Return the figure of the weights that a stage begins with; after a stage with the same cost it is known already."""
        run = self.run
        if run.stage and self.stages[run.stage - 1].cost == stage.cost:
            figures = [record.evaluation for record in run.history if record.stage == run.stage]
            known = [figure for figure in figures if figure is not None]
            if known:
                return min(known)
        return self._evaluate(judges)

    def _evaluate(self, judges: Sequence[ProblemInstance]) -> float | None:
        figure = _evaluate(self.agent, judges, self.plan["seed"], _AT_ONCE, self.run.meet)
        return None if np.isnan(figure) else figure

    def _report(self, figures: Mapping[str, Any], evaluation: float | None) -> None:
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


def evaluate(agent: Agent, instances: Sequence[ProblemInstance], *, seed: int = 0, batch: int = _AT_ONCE) -> float:
    """Return the mean over problems of the least cost in an episode, in multiples of the instance's unit.

    Args:
        agent: the agent; its weights are not changed.
        instances: the problems, at least one.
        seed: the same seed gives the same episodes for the same weights.
        batch: number of problems that are played together; random draws depend on it.

    Returns:
        The mean; NaN if for some problem no placement could be measured.

    Raises:
        TrainingError: the least cost is infinite.
    """
    return _evaluate(agent, instances, seed, batch, lambda *_: None)


def _evaluate(agent: Agent, instances: Sequence[ProblemInstance], seed: int, batch: int, meet: Callable[..., None]) -> float:
    rng = np.random.default_rng([seed, _STREAM])
    figures = np.full(len(instances), np.nan)
    agent.network.eval()
    for first in range(0, len(instances), batch):
        part = instances[first : first + batch]
        visited = agent.rollout(part, rng).visited
        costs = value(part, visited)
        meet(part, visited, costs)
        for b, (instance, path) in enumerate(zip(part, costs, strict=True)):
            at = least(path)
            if at is None:
                continue
            figures[first + b] = path[at] / instance.unit
            if not np.isfinite(figures[first + b]):
                raise TrainingError(f"Evaluation met a cost of {figures[first + b]} {which(instance, first + b)}.")
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
        found=tuple(best for (of, _), best in run.found.items() if of == number),
    )


def _about(plan: Mapping[str, Any], run: TrainingState) -> dict[str, Any]:
    return dict(plan) | {
        "evaluation": run.best,
        "best_at": run.best_at,
        "placeit": __version__,
        "torch": torch.__version__,
    }
