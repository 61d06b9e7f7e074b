"""``placeit train``: train a learned placer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.options import SeedOption
from placeit.cli.paths import OutputFile, check_outputs, named_files
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

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

\b
A stage is KIND[:OPTION=VALUE,...]. Kinds are reinforce and the agent's own
methods, such as imitation. Options are updates, problems, episodes,
learning_rate, schedule (constant, linear, cosine), final_learning_rate, clip,
gamma, discount_steps, entropy, final_entropy, explore, final_explore, baseline
(none, episode-mean, batch, problem, moving), normalize, evaluate_every and
patience.
"""


def train(
    agent: Annotated[
        str, typer.Argument(metavar="AGENT[:OPTION=VALUE,...]", help="giph, placeto, hdp or a plug-in's.", show_default=False)
    ],
    *,
    problems: Annotated[
        str,
        typer.Option(
            "--problems",
            metavar="NAME|FOLDER",
            help="Training problems: single, multi, recurrent, sensor-fusion; random or any for new ones; or a folder.",
            show_default=False,
        ),
    ],
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
        Path | None, typer.Option("--folder", metavar="DIR", help="Folder for logs, the best weights and the state.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume from the state in the folder.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write TensorBoard logs to the folder too.")] = False,
    seed: SeedOption = 0,
    terminal: Terminal,
) -> Output:
    """Train a learned placer in simulation.

    Costs are simulated makespans over the critical path (the schedule length ratio, SLR); for problems of every kind ("any"),
    over HEFT's makespan. The weights with the best result on held-out problems are written to a file. With a folder, training
    that Ctrl-C or a crash has ended can be resumed. 'placeit optimize --placer giph:weights=FILE' uses the weights.
    """
    from placeit.placers.learned import FILES

    kept = [] if folder is None else [folder / name for name in FILES]
    check_outputs(output, inputs=[*kept, *named_files([agent]), *_problem_files(problems), *_problem_files(evaluate_on)])
    if evaluate_on is not None and held_out is not None:
        raise UsageError("Give either --held-out or --evaluate-on: both say what to evaluate on.")
    if folder is None and (resume or tensorboard):
        raise UsageError(f"{'--resume' if resume else '--tensorboard'} needs --folder, where the training is kept.")
    # imported only now, because it takes a second
    from placeit.core.memory import keep_freed_memory
    from placeit.placers.learned.checkpoint import save_agent
    from placeit.placers.learned.registry import parse_agent
    from placeit.placers.learned.training.loop import train as run
    from placeit.placers.learned.training.sources import find_source, read_folder
    from placeit.placers.learned.training.stages import default_stages, parse_stage, scale_updates

    learner = parse_agent(agent, seed=seed)
    source = find_source(problems, held_out=held_out if evaluate_on is None else 0)
    judges, unit = source.held_out, source.unit
    if evaluate_on is not None:
        judges, unit = read_folder(evaluate_on), "critical path"
    stages = [parse_stage(one, source.draw) for one in stage] if stage else default_stages(learner, source.draw)
    if updates is not None:
        stages = scale_updates(stages, updates)
    with keep_freed_memory(), terminal.progress() as progress:
        result = run(
            learner,
            stages,
            evaluate_on=judges,
            seed=seed,
            folder=folder,
            resume=resume,
            tensorboard=tensorboard,
            about={"problems": problems, "evaluated_with": str(evaluate_on or problems)},
            progress=progress,
        )
    before = next((record.evaluation for record in result.history if record.evaluation is not None), None)
    last = result.history[-1]
    data: dict[str, Any] = {
        "agent": learner.name,
        "config": dict(learner.config),
        "seed": seed,
        "problems": {"source": problems, "learned_from": source.size, "held_out": len(judges), "unit": unit},
        "stages": [one.to_dict() for one in stages],
        "evaluation": {"before": before, "best": result.best, "best_at": _position(result.best_at)},
        "updates": sum(record.loss is not None for record in result.history),
        "seconds": last.seconds,
        "checkpoint": str(output),
        "folder": None if folder is None else str(folder),
    }

    def show(console: Console) -> None:
        heads = ("stage", "updates", "learning rate", "reward", "evaluation")
        rows = []
        for number, one in enumerate(stages, 1):
            records = [record for record in result.history if record.stage == number and record.update]
            figures = [record.evaluation for record in records if record.evaluation is not None]
            rates = [record.learning_rate for record in records if record.learning_rate is not None]
            rewards = [record.reward for record in records if record.reward is not None]
            rows.append(
                (
                    f"{number} {one.kind}",
                    str(max((record.update for record in records), default=0)),
                    *(text.NOTHING if not values else f"{values[-1]:.3g}" for values in (rates, rewards, figures)),
                )
            )
        text.table(console, heads, rows, left=1)
        console.print()
        seen = "fresh ones at every update" if source.size is None else str(source.size)
        lines = {
            "problems": f"{problems}: {seen} to learn from, {len(judges)} held out",
            "unit": unit,
            "before": _figure(before),
            "best": f"{_figure(result.best)}{_at(result.best_at)}",
            "time": f"{last.seconds:.1f} s",
            "weights": str(output),
        }
        text.facts(console, lines)

    return Output(data, show, files=[OutputFile(output, "the policy", lambda: save_agent(learner, output, **result.about))])


def _problem_files(source: str | Path | None) -> list[Path]:
    """Files of a folder of problems; none of a source that is generated."""
    return [] if source is None else sorted(Path(source).glob("*.json"))


def _position(at: tuple[int, int] | None) -> dict[str, int] | None:
    return None if at is None else {"stage": at[0], "update": at[1]}


def _at(at: tuple[int, int] | None) -> str:
    if at is None:
        return ""
    return f", after update {at[1]} of stage {at[0]}" if at[1] else ", before any update"


def _figure(value: float | None) -> str:
    return text.NOTHING if value is None else f"{value:.4f}, mean of the problems held out"
