"""``placeit train``: train a learned placer."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.command import FAILED
from placeit.cli.learned_model import LearnedModelOptions
from placeit.cli.options import SeedOption
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError
from placeit.report import text

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from placeit.placers.learned.agent import ProblemInstance
    from placeit.placers.learned.training.logs import Record
    from placeit.placers.learned.training.loop import StageResult, TrainingResult
    from placeit.placers.learned.training.sources import Source
    from placeit.placers.learned.training.stages import CostFactory, Stage
    from placeit.profiler.costs import Progress

__all__ = ["EXAMPLES", "train"]

EXAMPLES = """\b
Examples:
  placeit train giph --problems multi --output giph.safetensors
  placeit train giph:variant=giph-3 --problems folder/ --output giph3.safetensors
  placeit train giph --problems random --folder run --output giph.safetensors
  placeit train giph --problems random --folder run --output giph.safetensors \\
    --resume
  placeit train hdp --problems single --output hdp.safetensors --updates 50 \\
    --stage reinforce:baseline=moving,problems=8,learning_rate=0.003 --json
  placeit train placeto:devices=2 --model model.onnx --devices CPU@0,CPU@1 \\
    --folder run --output placeto.safetensors --stage reinforce \\
    --stage reinforce:cost=measured,seconds=600
  placeit train doppler --model chain-mm:shards=4 --devices cluster.yaml \\
    --output doppler.safetensors --stage imitation:teacher=critical-path \\
    --stage reinforce:cost=simulated \\
    --stage reinforce:cost=measured,seconds=600

\b
A stage is KIND[:OPTION=VALUE,...]. Kinds are reinforce and the agent's own
methods, such as imitation. Options are updates, problems, episodes,
learning_rate, schedule (constant, linear, cosine), final_learning_rate, clip,
gamma, discount_steps, entropy, final_entropy, explore, final_explore, baseline
(none, episode-mean, batch, problem, moving), normalize, evaluate_every,
patience, cost (simulated, measured), seconds, epochs, reward_to_go and teacher
(of doppler's imitation: critical-path, heft).
"""


def train(
    agent: Annotated[
        str,
        typer.Argument(
            metavar="AGENT[:OPTION=VALUE,...]", help="doppler, giph, hdp, placeto or a plug-in's.", show_default=False
        ),
    ],
    *,
    problems: Annotated[
        str | None,
        typer.Option(
            "--problems",
            metavar="NAME|FOLDER",
            help="Training problems: single, multi, recurrent, sensor-fusion; random or any for new ones; or a folder.",
            show_default=False,
        ),
    ] = None,
    on: LearnedModelOptions,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the weights (.safetensors).", show_default=False),
    ],
    stage: Annotated[
        list[str] | None,
        typer.Option(
            "--stage", metavar="STAGE", help="Training stage, see below; repeatable. Default: the agent's own stages."
        ),
    ] = None,
    updates: Annotated[
        int | None, typer.Option("--updates", metavar="N", min=1, help="Updates of all stages together.", show_default=False)
    ] = None,
    held_out: Annotated[
        int | None,
        typer.Option("--held-out", metavar="N", min=0, help="Number of problems held out for evaluation.", show_default=False),
    ] = None,
    evaluate_on: Annotated[
        Path | None,
        typer.Option("--evaluate-on", metavar="FOLDER", help="Evaluate on these problems instead.", show_default=False),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", metavar="DIR", help="Folder for logs, the best weights, the state and what was measured."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the state in the folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard logs to the folder too.")] = False,
    seed: SeedOption = 0,
    terminal: Terminal,
) -> Output:
    """Train a learned placer, in simulation or by measured runs.

    Problems are simulated: costs are makespans over the critical path (the schedule length ratio, SLR); for problems of every
    kind ("any"), over HEFT's makespan. A model on devices (--model, --devices) is one problem, for training and evaluation, and
    stages with cost=measured run its placements. The weights with the best result of the last stage are written to a file. With
    a folder, training that Ctrl-C or a crash has ended can be resumed, and measures nothing again. 'placeit optimize --placer
    giph:weights=FILE' uses the weights.
    """
    from placeit.placers.learned import FILES

    kept = [] if folder is None else [folder / name for name in FILES]
    sources = [*_problem_files(problems), *_problem_files(evaluate_on), *on.files()]
    check_outputs(output, inputs=[*kept, *named_files([agent]), *sources])
    _check(problems, on, evaluate_on, held_out)
    if folder is None and (resume or tensorboard):
        raise UsageError(f"{'--resume' if resume else '--tensorboard'} needs --folder, where the training is kept.")
    # imported only now, because it takes a second
    from placeit.core.memory import keep_freed_memory
    from placeit.placers.learned.checkpoint import save_agent
    from placeit.placers.learned.registry import parse_agent
    from placeit.placers.learned.training.loop import train as run
    from placeit.placers.learned.training.stages import check_stages, default_stages, parse_stage, scale_updates
    from placeit.placers.learned.training.state import check_folder

    def draw(rng: np.random.Generator, count: int, progress: float) -> Sequence[ProblemInstance]:
        return task.source.draw(rng, count, progress)

    learner = parse_agent(agent, seed=seed)
    stages = [parse_stage(one, draw) for one in stage] if stage else default_stages(learner, draw)
    if updates is not None:
        stages = scale_updates(stages, updates)
    check_stages(learner, stages)  # before anything is profiled
    with keep_freed_memory(), terminal.progress() as progress, contextlib.ExitStack() as stack:
        if problems is None:
            check_folder(folder, resume=resume)  # before anything is measured
            task = _model_task(on, stages, folder, resume, seed, stack, progress)
        else:
            task = _problems_task(problems, stages, evaluate_on, held_out)
        result = run(
            learner,
            stages,
            evaluate_on=task.judges,
            seed=seed,
            costs=task.costs,
            folder=folder,
            resume=resume,
            tensorboard=tensorboard,
            about=task.about,
            progress=progress,
        )
    last = result.history[-1]
    final = result.stages[-1]
    before = next(one.before for one in result.stages if one.cost == final.cost)
    data: dict[str, Any] = {
        "agent": learner.name,
        "config": dict(learner.config),
        "seed": seed,
        "problems": {
            "source": task.about["problems"],
            "learned_from": task.source.size,
            "held_out": 0 if problems is None else len(task.judges),
            "unit": task.unit,
        },
        "stages": [one.to_dict() for one in stages],
        "stage_results": [_stage_data(one, placements=problems is None) for one in result.stages],
        "evaluation": {"before": before, "best": result.best, "best_at": _position(result.best_at)},
        "updates": sum(record.loss is not None for record in result.history),
        "stopped": result.stopped,
        "seconds": last.seconds,
        "checkpoint": str(output),
        "folder": None if folder is None else str(folder),
    }

    def show(console: Console) -> None:
        text.table(console, *_table(stages, result), left=2)
        console.print()
        seen = "fresh ones at every update" if task.source.size is None else str(task.source.size)
        count = f"{seen} to learn from, {len(task.judges)} held out" if problems else "the model itself"
        judged = "mean of the problems held out" if problems else f"by the cost '{final.cost}'"
        lines = {
            "problems": f"{task.about['problems']}: {count}",
            "unit": task.unit,
            "before": _figure(before, judged),
            "best": f"{_figure(result.best, judged)}{_at(result.best_at)}",
            "time": f"{last.seconds:.1f} s",
            "weights": str(output),
        }
        text.facts(console, lines | ({} if result.stopped is None else {"stopped": result.stopped}))

    file = OutputFile(output, "the policy", lambda: save_agent(learner, output, **result.about))
    return Output(data, show, 0 if result.stopped is None else FAILED, [file])


@dataclass(frozen=True, eq=False)
class _Task:
    """What is learned.

    Attributes:
        source: problems to learn from.
        judges: problems to evaluate on.
        unit: what figures are multiples of.
        about: where problems are from, as checkpoints and states say it.
        costs: what stages may learn from beside simulated costs.
    """

    source: Source
    judges: Sequence[ProblemInstance]
    unit: str
    about: Mapping[str, Any]
    costs: Mapping[str, CostFactory]


def _check(problems: str | None, on: LearnedModelOptions, evaluate_on: Path | None, held_out: int | None) -> None:
    if (problems is None) == (on.model is None):
        raise UsageError("Give either --problems or --model: training problems, or one model on devices.")
    if evaluate_on is not None and held_out is not None:
        raise UsageError("Give either --held-out or --evaluate-on: both say what to evaluate on.")
    if problems is None and (evaluate_on is not None or held_out is not None):
        raise UsageError("With --model, the model itself is evaluated on: leave out --held-out and --evaluate-on.")
    if on.model is None and on.devices is not None:
        raise UsageError("--devices goes with --model; problems have devices of their own.")


def _problems_task(problems: str, stages: Sequence[Stage], evaluate_on: Path | None, held_out: int | None) -> _Task:
    from placeit.placers.learned.training.sources import find_source, read_folder
    from placeit.placers.learned.training.stages import MEASURED

    if any(one.cost == MEASURED for one in stages):
        raise UsageError(
            "A stage with cost=measured runs placements of a model on devices: give --model and --devices, not --problems."
        )
    source = find_source(problems, held_out=held_out if evaluate_on is None else 0)
    judges, unit = source.held_out, source.unit
    if evaluate_on is not None:
        judges, unit = read_folder(evaluate_on), "critical path"
    return _Task(source, judges, unit, {"problems": problems, "evaluated_with": str(evaluate_on or problems)}, {})


def _model_task(
    on: LearnedModelOptions,
    stages: Sequence[Stage],
    folder: Path | None,
    resume: bool,
    seed: int,
    stack: contextlib.ExitStack,
    progress: Progress | None,
) -> _Task:
    from placeit.core.problem import Problem
    from placeit.optimizer.learning import measured_costs, session_source
    from placeit.placers.learned import PROBLEM, RUNS
    from placeit.placers.learned.training.stages import MEASURED

    session = stack.enter_context(on.session())
    journal, kept = (None if folder is None else folder / name for name in (RUNS, PROBLEM))
    wanted = any(one.cost == MEASURED for one in stages)
    costs = measured_costs(session, journal=journal, seed=seed) if wanted else {}
    session.profile(progress=progress)
    source = session_source(session, Problem.from_json(kept) if resume and kept is not None and kept.exists() else None)
    (instance,) = source.held_out
    if kept is not None:
        instance.problem.to_json(kept)
    about = {
        "problems": str(on.model),
        "evaluated_with": str(on.model),
        "devices": ", ".join(session.cluster.names),
        "problem": instance.problem.key,
    }
    return _Task(source, source.held_out, source.unit, about, costs)


def _stage_data(one: StageResult, *, placements: bool) -> dict[str, Any]:
    found = [{"problem": best.problem, "cost": best.cost, "placement": best.placement.tolist()} for best in one.found]
    figures = {"cost": one.cost, "before": one.before, "best": one.best, "best_at": one.best_at, "dropped": one.dropped}
    return figures | {"found": found if placements else None}


def _table(stages: Sequence[Stage], result: TrainingResult) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    heads = ("stage", "cost", "updates", "learning rate", "reward", "before", "best", "dropped")
    rows = []
    for number, (one, came_to) in enumerate(zip(stages, result.stages, strict=False), 1):
        records = [record for record in result.history if record.stage == number and record.update]
        rate, reward = (_last(records, name) for name in ("learning_rate", "reward"))
        values = (rate, reward, came_to.before, came_to.best)
        rows.append(
            (
                f"{number} {one.kind}",
                came_to.cost,
                str(max((record.update for record in records), default=0)),
                *(text.NOTHING if value is None else f"{value:.3g}" for value in values),
                str(came_to.dropped),
            )
        )
    return heads, rows


def _last(records: Sequence[Record], name: str) -> float | None:
    """The last figure of that name that is known."""
    return next((value for record in reversed(records) if (value := getattr(record, name)) is not None), None)


def _problem_files(source: str | Path | None) -> list[Path]:
    """Files of a folder of problems; none of a source that is generated."""
    return [] if source is None else sorted(Path(source).glob("*.json"))


def _position(at: tuple[int, int] | None) -> dict[str, int] | None:
    return None if at is None else {"stage": at[0], "update": at[1]}


def _at(at: tuple[int, int] | None) -> str:
    if at is None:
        return ""
    return f", after update {at[1]} of stage {at[0]}" if at[1] else ", before any update"


def _figure(value: float | None, judged: str) -> str:
    return text.NOTHING if value is None else f"{value:.4f}, {judged}"
