"""``placeit explain``: explain the devices of ops in a placement, or show the events of a recorded search."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from placeit.cli.command import was_given
from placeit.cli.options import SessionOptions
from placeit.cli.placements import PLACEMENT, open_session
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError, naming
from placeit.report import explained

__all__ = ["EXAMPLES", "explain"]

EXAMPLES = """\b
Examples:
  placeit explain model.onnx -p placement.json --op conv1
  placeit explain model.onnx -p placement.json --worst 5
  placeit explain model.onnx -p placement.json --op conv1 --json | jq .ops[0].moves
  placeit explain model.onnx -p placement.json -d cluster.yaml
  placeit explain recording.json --search
"""


def explain(
    *,
    placement: Annotated[Path | None, PLACEMENT] = None,
    op: Annotated[list[str] | None, typer.Option("--op", metavar="NAME", help="Op to explain; repeatable.")] = None,
    worst: Annotated[
        int,
        typer.Option(
            "--worst", metavar="N", min=1, help="Without --op: number of groups to show; those most worth moving come first."
        ),
    ] = 10,
    search: Annotated[
        bool, typer.Option("--search", help="Show what happened in the search of a recording, which MODEL names, and why.")
    ] = False,
    options: SessionOptions,
    terminal: Terminal,
) -> Output:
    """Show why ops are where a placement has them.

    For each op: its group and segment, what the group costs on every device, the transfers and cuts that it causes, by how much
    its segment could be late, what moving its group or its segment to each other device would change, and why it is there, if
    the placement has the reason. Costs are measured first, or taken from the cache. Effects of moves are simulated, for single
    requests.

    With --search: what a search did, stage by stage, as 'placeit optimize --record' keeps it. Nothing is measured.
    """
    from placeit.optimizer.explain import check_ops
    from placeit.optimizer.explain import explain as explained_by

    if search:
        if placement is not None or op or was_given("worst"):
            raise UsageError("--search shows the search of a recording: leave out --placement, --op and --worst.")
        return _story(options.model)
    if placement is None:
        raise UsageError("Give the placement to explain (--placement), or a recording with --search.")
    if op and was_given("worst"):
        raise UsageError("Give either --op or --worst: both say which ops to explain.")
    with terminal.progress() as progress, open_session(options, [placement], by_segments=True) as (session, [chosen]):
        check_ops(session.grouping.graph, op or ())
        session.home_of(chosen).profile(progress=progress)
        with naming(placement):
            found = explained_by(session, chosen, op or (), worst=worst)
    data = found.to_dict() | {"placement_file": str(placement)}
    return Output(data, partial(explained.explanation, found=found))


def _story(path: Path) -> Output:
    """Return the events of the search in a recording. Raises FileError if the recording cannot be read."""
    from placeit.core.jsonable import jsonable_dict
    from placeit.optimizer.story import events_of, replay
    from placeit.profiler.recording import read_recording

    recording = read_recording(path)
    events = events_of((recording.search or {}).get("story"))
    data = {
        "model": recording.model.path,
        "recording_file": str(path),
        "events": [one.to_dict() for one in events],
        "states": dict(replay(events)),
    }
    unit = str((recording.search or {}).get("objective_unit", "s"))
    return Output(
        jsonable_dict(data), partial(explained.story, events=events, unit=unit, searched=recording.search is not None)
    )
