"""``placeit cluster``: start and end a Ray cluster of several nodes on this machine, for a first try."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import Command, command
from placeit.cli.commands import settings
from placeit.cli.nodes import left_behind
from placeit.cli.terminal import Output, Terminal
from placeit.core.interrupts import at_end
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["app"]

app = typer.Typer(**settings(), name="cluster", help="Start and end a local Ray cluster, whose nodes are all on this machine.")

_EXAMPLES = """\b
Examples:
  placeit cluster up --nodes 3
  placeit optimize model.onnx --devices head/CPU@0,edge1/CPU@1
  placeit cluster down
"""


def up(
    *,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", min=1, max=64, help="Nodes: head, edge1, edge2 ...")] = 3,
    terminal: Terminal,
) -> Output:
    """Start a Ray cluster of several nodes on this machine.

    It listens on the loopback address only, and requires a token, which is stored on this machine.
    """
    from placeit.devices.nodes import local

    with terminal.progress() as progress:
        if progress is not None:
            progress(f"starting {nodes} nodes", 0.0)
        cluster = local.start(local.names(nodes))
    at_end(functools.partial(cluster.stop, local.state_file(), at_once=True))  # stopped if this command is interrupted

    def show(console: Console) -> None:
        text.paragraph(console, f"The cluster is up at {cluster.address}. Nodes: {', '.join(cluster.nodes)}.")
        text.paragraph(console, f"Its token is in {cluster.token}. End it with `placeit cluster down`.")

    data = {"address": cluster.address, "nodes": list(cluster.nodes), "token_file": str(cluster.token)}
    return Output(data, show, answer=cluster.address)


def down(*, terminal: Terminal) -> Output:  # noqa: ARG001
    """End the Ray cluster that was started on this machine, and nothing else.

    All work on its nodes ends as well, and so do clusters that other commands started and left behind when they were killed.
    """
    from placeit.devices.nodes import local

    cluster = local.running()
    ended = 0 if cluster is None else cluster.stop(local.state_file())
    for file in left_behind():
        remaining = local.running(file)
        ended += 0 if remaining is None else remaining.stop(file)

    was_up = cluster is not None or ended
    message = f"{ended} processes of the cluster have been ended." if was_up else "No cluster was up."
    data = {"address": None if cluster is None else cluster.address, "ended": ended}
    return Output(data, lambda console: text.paragraph(console, message), answer=message)


for _function in (up, down):
    app.command(_function.__name__, cls=Command, epilog=_EXAMPLES)(command(_function))
