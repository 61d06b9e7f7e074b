"""Trains agents in stages of REINFORCE, imitation or an agent's own method, with evaluation and resumption."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from placeit.core.errors import TrainingError, UsageError
from placeit.core.version import __version__
from placeit.placers.learned.agent import Agent, Explorer, ProblemInstance
from placeit.placers.learned.checkpoint import save_agent
from placeit.placers.learned.training.logs import Logs, Record
from placeit.placers.learned.training.stages import Draw, Stage
from placeit.placers.learned.training.state import TrainingState, load_run, save_run
from placeit.placers.learned.training.updates import update, which

if TYPE_CHECKING:
    from placeit.profiler.costs import Progress

__all__ = ["Draw", "Stage", "TrainingResult", "evaluate", "train"]


_STREAM = 1  # evaluation draws other numbers than training does


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """Result of a training; the agent has the best weights.

    Attributes:
        best: the lowest evaluation figure, that of the weights; None if there was nothing to evaluate on.
        best_at: stage and update after which it was met, as in the records.
        history: a record of each update.
        about: stages, seed and evaluation, as checkpoints keep them: ``save_agent(agent, path, **result.about)``.
    """

    best: float | None
    best_at: tuple[int, int] | None
    history: tuple[Record, ...]
    about: Mapping[str, Any]


def train(
    agent: Agent,
    stages: Sequence[Stage],
    *,
    evaluate_on: Sequence[ProblemInstance],
    seed: int,
    folder: str | Path | None = None,
    resume: bool = False,
    save_every: int = 25,
    tensorboard: bool = False,
    about: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> TrainingResult:
    """Train an agent, stage after stage; each starts with a new optimiser and the last weights of the stage before.

    The agent is evaluated before the first update, during each stage and at its end. It ends up with the weights of the best
    evaluation, so it never gets worse by these figures; without anything to evaluate on, with those of the last update.

    Args:
        agent: its network is changed in place.
        stages: one at least.
        evaluate_on: held-out problems; may be empty.
        seed: of everything that is drawn. The same seed gives the same weights on the same machine.
        folder: where to keep ``log.csv``, ``best.safetensors`` (a checkpoint) and ``state.safetensors``; made if it is not
            there; None to write nothing.
        resume: go on from the state in the folder, with the same result as if training had never stopped; start at the
            beginning if it holds none.
        save_every: updates between two states.
        tensorboard: also write logs for TensorBoard.
        about: what the problems are; any JSON. It goes to checkpoints, and a state with another ``about`` is refused.
        progress: called with the stage and the share of it that is done.

    Raises:
        UsageError: the state in the folder is of another training, or is there though ``resume`` is not asked for.
        TrainingError: a cost, reward, loss or gradient is not finite. Files and weights stay those of the update before.
        FileError: the folder cannot be written to, or the state is damaged.
    """
    if not stages:
        raise UsageError("There is nothing to train: give at least one stage.")
    if save_every < 1:
        raise UsageError(f"'save_every' is {save_every}; it must be at least 1.")
    if any(stage.explore or stage.final_explore for stage in stages) and not isinstance(agent, Explorer):
        raise UsageError(f"The agent '{agent.name}' does not explore; leave 'explore' out of its training stages.")
    where = None if folder is None else Path(folder)
    plan = dict(about or {})
    plan |= {"stages": [stage.to_dict() for stage in stages], "seed": seed, "evaluated_on": len(evaluate_on)}
    run = load_run(agent, plan, where, resume)
    started = time.perf_counter() - (run.history[-1].seconds if run.history else 0.0)
    with Logs(where, run.history, tensorboard) as logs:

        def report(figures: Mapping[str, float], evaluation: float | None) -> None:
            seconds = time.perf_counter() - started
            record = Record(run.stage + 1, run.update, seconds, evaluation=evaluation, **figures)
            run.history.append(record)
            logs.write(record)
            if run.is_best(evaluation):
                run.keep_best(agent, record)
                if where is not None:
                    save_agent(agent, where / "best.safetensors", **_about(plan, run))

        if evaluate_on and not run.history:
            report({}, evaluate(agent, evaluate_on, seed=seed))
        if where is not None:
            save_run(agent, plan, run, where)
        while run.stage < len(stages):
            stage = stages[run.stage]
            label = f"stage {run.stage + 1} of {len(stages)}: {stage.kind}"
            over = False
            while not over:
                share = run.update / stage.updates
                if progress is not None:
                    progress(label, share)
                drawn = stage.draw(run.rng, stage.problems, share)
                figures = update(agent, stage, drawn, run) if drawn else {}
                run.update += bool(drawn)
                over = not drawn or run.update == stage.updates
                figure = None
                if evaluate_on and (over or run.update % stage.evaluate_every == 0):
                    figure = evaluate(agent, evaluate_on, seed=seed)
                    run.stale = 0 if run.is_best(figure) else run.stale + 1
                    over |= stage.patience is not None and run.stale >= stage.patience
                if figures or figure is not None:
                    report(figures, figure)
                if where is not None and not over and run.update % save_every == 0:
                    save_run(agent, plan, run, where)
            if progress is not None:
                progress(label, 1.0)
            run.next_stage()
            if where is not None:
                save_run(agent, plan, run, where)
    if run.best_weights is not None:
        agent.network.load_state_dict(run.best_weights)
    agent.network.eval()
    return TrainingResult(run.best, run.best_at, tuple(run.history), _about(plan, run))


def evaluate(agent: Agent, instances: Sequence[ProblemInstance], *, seed: int = 0, batch: int = 32) -> float:
    """Return the mean over problems of the least cost in an episode, in multiples of the instance's unit.

    Args:
        agent: the agent; its weights are not changed.
        instances: the problems, at least one.
        seed: the same seed gives the same episodes for the same weights.
        batch: problems at a time; part of what is drawn.

    Raises:
        TrainingError: a cost is not finite.
    """
    rng = np.random.default_rng([seed, _STREAM])
    costs = []
    agent.network.eval()
    for first in range(0, len(instances), batch):
        part = instances[first : first + batch]
        costs.append(agent.rollout(part, rng).costs)
        for b in np.flatnonzero(~np.isfinite(costs[-1])).tolist():
            raise TrainingError(f"Evaluation met a cost of {costs[-1][b]} {which(part[b], first + b)}.")
    return float(np.concatenate(costs).mean())


def _about(plan: Mapping[str, Any], run: TrainingState) -> dict[str, Any]:
    return dict(plan) | {
        "evaluation": run.best,
        "best_at": run.best_at,
        "placeit": __version__,
        "torch": torch.__version__,
    }
