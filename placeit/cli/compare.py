"""``placeit compare``: placements against each other and against every single device, in one race."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli import text
from placeit.cli.options import SeedOption, SessionOptions
from placeit.cli.placements import naming, open_session
from placeit.cli.terminal import Output, Terminal
from placeit.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from rich.console import Console

    from placeit.problem import Placement
    from placeit.session import Session

__all__ = ["EXAMPLES", "compare"]

EXAMPLES = """\b
Examples:
  placeit compare model.onnx -p a.json -p b.json --devices CPU@0,CPU@1
  placeit compare model.onnx -p placement.json --runs 100
"""


def compare(
    *,
    placement: Annotated[
        list[Path] | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement to compare; repeatable.", show_default=False),
    ] = None,
    runs: Annotated[int, typer.Option("--runs", metavar="N", min=1, help="Timed runs of each.")] = 30,
    seed: SeedOption = 0,
    options: SessionOptions,
    terminal: Terminal,
) -> Output:
    """Race placements against every single device.

    The whole model on each device and each placement take turns, in a new random order each round, so that a machine that
    slows down slows all of them down. A speed-up is the median over rounds of one time over the other, with its 95 %
    confidence interval.
    """
    from placeit.runtime.measure import Race, faster

    files = placement or []
    if len({path.resolve() for path in files}) < len(files):
        raise UsageError("--placement names the same file twice.")
    with terminal.progress() as progress, open_session(options, files, progress) as (session, placements):
        groups = _candidates(session, dict(zip(map(str, files), placements, strict=True)))
        plans = {name: session.segmenter.plan(devices) for name, devices in groups.items()}
        with contextlib.ExitStack() as stack:
            executors = {name: stack.enter_context(session.executor(plan)) for name, plan in plans.items()}
            race = Race({name: executor.time for name, executor in executors.items()}, seed=seed)
            measured = race.run(
                rounds=runs,
                drop_losers=False,
                progress=None if progress is None else lambda _, share: progress("measuring", share),
            )
            errors = {name: session.check_outputs(executor) for name, executor in executors.items()}
        cluster = session.cluster
        counts = {name: session.placement(devices).counts() for name, devices in groups.items()}
    singles = [name for name in groups if name not in map(str, files)]
    speedups = {name: {single: faster(measured[single], measured[name]) for single in singles} for name in groups}
    order = sorted(groups, key=lambda name: measured[name].median)

    def row(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "placement_file": None if name in singles else name,
            "segments": text.programs(plans[name]),
            "devices": counts[name],
            "simulated_s": plans[name].schedule.makespan,
            "measured_s": measured[name].median,
            "p95_s": measured[name].p95,
            "ci_s": [measured[name].ci_low, measured[name].ci_high],
            "speedup_over": {
                single: {"ratio": ratio.ratio, "ci": [ratio.ci_low, ratio.ci_high]} for single, ratio in speedups[name].items()
            },
            "output_error": vars(errors[name]),
        }

    data = {
        "model": str(options.model),
        "rounds": runs,
        "candidates": [row(name) for name in order],
        "emulated": text.emulated(cluster),
    }

    def show(console: Console) -> None:
        heads = ["placement", "devices (ops)", "segments", "simulated", "measured", "95 % interval", "p95"]
        heads += [f"speed-up over {single}" for single in singles]
        rows = [
            (
                name,
                text.ops_by_device(counts[name]),
                str(text.programs(plans[name])),
                text.seconds(plans[name].schedule.makespan),
                text.seconds(measured[name].median),
                text.interval(measured[name]),
                text.seconds(measured[name].p95),
                *(text.ratio(ratio) for ratio in speedups[name].values()),
                text.error(errors[name]),
            )
            for name in order
        ]
        text.table(console, [*heads, "output error"], rows, left=2)
        text.show_notes(console, cluster)

    return Output(data, show)


def _candidates(session: Session, placements: dict[str, Placement]) -> dict[str, NDArray[np.int32]]:
    """Device of each group, by name, for every single device that can hold the model and for each placement."""
    import numpy as np

    problem = session.segmenter.problem()
    names = session.cluster.names
    candidates = {names[d]: np.full(len(problem), d, np.int32) for d in problem.single_devices}
    for name, placement in placements.items():
        with naming(name):
            candidates[name] = problem.check(session.groups_of(placement))
    if not candidates:
        raise UsageError(
            "No single device can hold the whole model (too little memory, or some op cannot run there), and no --placement is "
            "given: there is nothing to compare."
        )
    return candidates
