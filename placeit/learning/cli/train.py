"""``placeit train``: train a learned placer."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.command import FAILED
from placeit.cli.options import SeedOption
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import complete_agents
from placeit.core.errors import PlaceitError, UsageError
from placeit.core.extras import need
from placeit.core.interrupts import INTERRUPTED
from placeit.learning.cli.learned_model import LearnedModelOptions, open_model
from placeit.report import as_text, text

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from placeit.learning.agent import ProblemInstance
    from placeit.learning.training.logs import Record
    from placeit.learning.training.loop import StageResult, TrainingResult
    from placeit.learning.training.sources import Source
    from placeit.learning.training.stages import CostFactory, Stage

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
  placeit train doppler:weights=doppler.safetensors --model other.onnx \\
    --devices cluster.yaml --output other.safetensors --placement best.json \\
    --stage reinforce:cost=measured,seconds=300

\b
A stage is KIND[:OPTION=VALUE,...]. Kinds are reinforce and the agent's own
methods, such as imitation. Options are updates, problems, episodes,
learning_rate, schedule (constant, linear, cosine), final_learning_rate, clip,
gamma, discount_steps, entropy, final_entropy, explore, final_explore, baseline
(none, episode-mean, batch, problem, moving), normalize, evaluate_every,
patience, cost (simulated, measured), seconds, epochs, reward_to_go and teacher
(of imitation by doppler and placeto: critical-path, heft; by doppler: best).
"""


def train(
    agent: Annotated[
        str,
        typer.Argument(
            metavar="AGENT[:OPTION=VALUE,...]",
            help="doppler, giph, hdp, hsdag, placeto, stream-allocation or a plug-in's.",
            autocompletion=complete_agents,
            show_default=False,
        ),
    ],
    *,
    problems: Annotated[
        str | None,
        typer.Option(
            "--problems",
            metavar="NAME|FOLDER",
            help="Training problems: single, multi, recurrent, sensor-fusion, streams; random, any for new ones; or a folder.",
            show_default=False,
        ),
    ] = None,
    on: LearnedModelOptions,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the weights (.safetensors).", show_default=False),
    ],
    placement: Annotated[
        Path | None,
        typer.Option(
            "--placement", "-p", metavar="FILE", help="Where to write the best placement of the model.", show_default=False
        ),
    ] = None,
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
    stages with cost=measured run its placements; the best ones met are then raced against single devices, and the answer is a
    placement (--placement). The weights with the best result of the last stage are written to a file. With a folder, training
    that Ctrl-C or a crash has ended can be resumed, and measures nothing again. 'placeit optimize --placer giph:weights=FILE'
    uses the weights; AGENT:weights=FILE goes on from them.
    """
    need("placeit train", "learn", "torch")
    from placeit.learning import FILES

    folder_files = [] if folder is None else [folder / name for name in FILES]
    sources = [*_problem_files(problems), *_problem_files(evaluate_on), *on.files()]
    weights = named_files([agent])
    check_outputs(output, placement, inputs=[*folder_files, *weights, *sources])
    _check(problems, on, evaluate_on, held_out)
    if placement is not None and problems is not None:
        raise UsageError("--placement is for the placement of a model: give --model and --devices, not --problems.")
    if folder is None and (resume or tensorboard):
        raise UsageError(f"{'--resume' if resume else '--tensorboard'} needs --folder, where the training is kept.")
    # imported only now, because it takes a second
    from placeit.core.memory import keep_freed_memory
    from placeit.learning.agent_notation import parse_agent
    from placeit.learning.checkpoint import save_agent
    from placeit.learning.training.loop import train as run
    from placeit.learning.training.stages import check_stages, default_stages, parse_stage, scale_updates
    from placeit.learning.training.state import check_folder

    def draw(rng: np.random.Generator, count: int, progress: float) -> Sequence[ProblemInstance]:
        assert task.source is not None  # noqa: S101
        return task.source.draw(rng, count, progress)

    learner = parse_agent(agent, seed=seed)
    stages = [parse_stage(one, draw) for one in stage] if stage else default_stages(learner, draw)
    if updates is not None:
        stages = scale_updates(stages, updates)
    check_stages(learner, stages)  # before anything is profiled
    result, found, failure = None, None, None
    with keep_freed_memory(), terminal.progress() as progress, contextlib.ExitStack() as stack:
        if problems is None:
            check_folder(folder, resume=resume)  # before anything is measured
            model = open_model(on, stages, folder, resume, seed, stack, progress)
            task = _Task(model.source, "critical path" if model.source is None else model.source.unit, model.about, model.costs)
        else:
            model, task = None, _problems_task(problems, stages, evaluate_on, held_out)
        if task.source is not None:
            result = run(
                learner,
                stages,
                evaluate_on=task.source.held_out,
                seed=seed,
                costs=task.costs,
                folder=folder,
                resume=resume,
                tensorboard=tensorboard,
                about=dict(task.about) | ({"weights": str(weights[0])} if weights else {}),
                progress=progress,
            )
        if model is not None and (result is None or placement is not None or model.measured is not None):
            try:
                found = model.answer(learner, stages, result, seed=seed, progress=progress)
            except PlaceitError as error:
                if result is None:
                    raise
                failure = str(error)  # no reason to lose the weights
    data: dict[str, Any] = {
        "agent": learner.name,
        "config": dict(learner.config),
        "seed": seed,
        "problems": {
            "source": task.about["problems"],
            "learned_from": None if task.source is None else task.source.size,
            "held_out": len(task.source.held_out) if problems and task.source else 0,
            "unit": task.unit,
        },
        "stages": [one.to_dict() for one in stages],
        **_result_data(result, placements=problems is None),
        "not_trained": None if model is None else model.obvious,
        "placements": None if model is None else model.counts(),
        "answer": found
        and (found.to_dict() | {"placement_file": placement and str(placement), "recording_file": None, "page_file": None}),
        "no_answer": failure,
        "checkpoint": None if result is None else str(output),
        "folder": None if folder is None else str(folder),
    }
    files = []
    if result is not None:
        files.append(OutputFile(output, "the policy", lambda: save_agent(learner, output, **result.about)))
    if found is not None and placement is not None:
        files.append(OutputFile(placement, "the placement", lambda: found.save(placement)))

    def show(console: Console) -> None:
        if result is not None:
            _show(console, stages, result, task, output, judged=problems is not None)
        if model is not None and (counts := model.counts()) and result is not None:
            text.facts(console, {"placements": ", ".join(f"{count} {name}" for name, count in counts.items() if count)})
        if model is not None and model.obvious is not None:
            text.paragraph(console, f"Nothing was trained, and no weights are written: {model.obvious}.")
        if found is not None:
            console.print()
            as_text.optimized(console, found, placement)
        if failure is not None:
            text.paragraph(console, f"There is no placement: {failure}")

    failed = failure is not None or (result is not None and result.stopped is not None)
    code = INTERRUPTED if found is not None and found.interrupted else FAILED if failed else 0
    answer = [] if result is None else [f"{output}: {_figure(result.best, task.unit)}{_at(result.best_at)}"]
    answer += [] if found is None else [as_text.answer(found, placement)]
    return Output(data, show, code, files, "; ".join(answer))


def _result_data(result: TrainingResult | None, *, placements: bool) -> dict[str, Any]:
    """Return the fields of a training's result for ``--json``, with the best placements if ``placements``."""
    if result is None:
        nothing = {"before": None, "best": None, "best_at": None}
        return {"stage_results": [], "evaluation": nothing, "updates": 0, "stopped": None, "seconds": 0.0}
    evaluation = {"before": _before(result), "best": result.best, "best_at": _position(result.best_at)}
    return {
        "stage_results": [_stage_data(one, placements=placements) for one in result.stages],
        "evaluation": evaluation,
        "updates": sum(record.loss is not None for record in result.history),
        "stopped": result.stopped,
        "seconds": result.history[-1].seconds,
    }


def _before(result: TrainingResult) -> float | None:
    """Return the first evaluation by the cost of the last stage."""
    return next(one.before for one in result.stages if one.cost == result.stages[-1].cost)


def _show(
    console: Console, stages: Sequence[Stage], result: TrainingResult, task: _Task, output: Path, *, judged: bool
) -> None:
    source = task.source
    assert source is not None  # noqa: S101
    seen = "fresh ones at every update" if source.size is None else str(source.size)
    count = f"{seen} to learn from, {len(source.held_out)} held out" if judged else "the model itself"
    by = "mean of the problems held out" if judged else f"by the cost '{result.stages[-1].cost}'"
    lines = {
        "problems": f"{task.about['problems']}: {count}",
        "unit": task.unit,
        "before": _figure(_before(result), by),
        "best": f"{_figure(result.best, by)}{_at(result.best_at)}",
        "time": f"{result.history[-1].seconds:.1f} s",
        "weights": str(output),
    }
    text.facts(console, lines | ({} if result.stopped is None else {"stopped": result.stopped}))
    console.print()
    text.table(console, *_table(stages, result), left=2)


@dataclass(frozen=True, eq=False)
class _Task:
    """A learning task: the problems, and the costs by which placements are valued.

    Attributes:
        source: problems to learn from and to evaluate on; None if there is nothing to learn.
        unit: unit of evaluation figures, in words.
        about: origin of the problems, as checkpoints and states record it.
        costs: cost factories that stages may use in addition to simulated costs, by name.
    """

    source: Source | None
    unit: str
    about: Mapping[str, Any]
    costs: Mapping[str, CostFactory]


def _check(problems: str | None, on: LearnedModelOptions, evaluate_on: Path | None, held_out: int | None) -> None:
    from placeit.simulator.objectives.registry import check_objective

    if (problems is None) == (on.model is None):
        raise UsageError("Give either --problems or --model: training problems, or one model on devices.")
    if evaluate_on is not None and held_out is not None:
        raise UsageError("Give either --held-out or --evaluate-on: both say what to evaluate on.")
    if problems is None and (evaluate_on is not None or held_out is not None):
        raise UsageError("With --model, the model itself is evaluated on: leave out --held-out and --evaluate-on.")
    if on.model is None and on.devices is not None:
        raise UsageError("--devices goes with --model; each problem has its own devices.")
    if on.model is None and on.objective is not None:
        raise UsageError("--objective goes with --model; each problem has its own costs.")
    if on.objective is not None:
        check_objective(on.objective)


def _problems_task(problems: str, stages: Sequence[Stage], evaluate_on: Path | None, held_out: int | None) -> _Task:
    from placeit.learning.training.sources import find_source, read_folder
    from placeit.learning.training.stages import MEASURED

    if any(one.cost == MEASURED for one in stages):
        raise UsageError(
            "A stage with cost=measured runs placements of a model on devices: give --model and --devices, not --problems."
        )
    source = find_source(problems, held_out=held_out if evaluate_on is None else 0)
    if evaluate_on is not None:
        source = dataclasses.replace(source, held_out=read_folder(evaluate_on), unit="critical path")
    return _Task(source, source.unit, {"problems": problems, "evaluated_with": str(evaluate_on or problems)}, {})


def _stage_data(one: StageResult, *, placements: bool) -> dict[str, Any]:
    found = [{"problem": best.problem, "cost": best.cost, "placement": best.placement.tolist()} for best in one.found]
    figures = {"cost": one.cost, "before": one.before, "best": one.best, "best_at": one.best_at, "dropped": one.dropped}
    return figures | {"found": found if placements else None}


def _table(stages: Sequence[Stage], result: TrainingResult) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    heads = ("stage", "cost", "updates", "learning rate", "reward", "before", "best", "dropped")
    rows = []
    for number, (stage, outcome) in enumerate(zip(stages, result.stages, strict=False), 1):
        records = [record for record in result.history if record.stage == number and record.update]
        rate, reward = (_last(records, name) for name in ("learning_rate", "reward"))
        values = (rate, reward, outcome.before, outcome.best)
        rows.append(
            (
                f"{number} {stage.kind}",
                outcome.cost,
                str(max((record.update for record in records), default=0)),
                *(text.NOTHING if value is None else f"{value:.3g}" for value in values),
                str(outcome.dropped),
            )
        )
    return heads, rows


def _last(records: Sequence[Record], name: str) -> float | None:
    """Return the last figure of that name that is not None; None if all are."""
    return next((value for record in reversed(records) if (value := getattr(record, name)) is not None), None)


def _problem_files(source: str | Path | None) -> list[Path]:
    """Return the problem files in a folder; empty for a source that is generated."""
    return [] if source is None else sorted(Path(source).glob("*.json"))


def _position(at: tuple[int, int] | None) -> dict[str, int] | None:
    return None if at is None else {"stage": at[0], "update": at[1]}


def _at(at: tuple[int, int] | None) -> str:
    if at is None:
        return ""
    return f", after update {at[1]} of stage {at[0]}" if at[1] else ", before any update"


def _figure(value: float | None, judged: str) -> str:
    return text.NOTHING if value is None else f"{value:.4f}, {judged}"
