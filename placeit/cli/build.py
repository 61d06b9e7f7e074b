"""``placeit build``: write a placement with its model as a bundle, to run it elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.options import CheckedOptions
from placeit.cli.placements import PlacementOption, open_session, profile_if_needed
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import UsageError, naming
from placeit.core.units import about_bytes
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXAMPLES", "build"]

EXAMPLES = """\b
Examples:
  placeit build model.onnx -p placement.json -o app.placeit
  placeit build model.onnx -p placement.json -o folder
  placeit run app.placeit --rate 50
"""


def build(
    *,
    placement: PlacementOption,
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Bundle to write: an archive if it ends in .placeit, else a folder. Nothing may be there.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="TEXT", help="Name of the model in the bundle; default: its file's name.")
    ] = None,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Write a bundle: a placement with all that is needed to run it elsewhere.

    A bundle holds the segments as they are cut, the plan, what devices it needs, and inputs with the outputs of the uncut
    model. 'placeit run' and placeit.load run it with the base install of placeit: without the model, PyTorch, conversion and
    profiling. Before it is written, it is run here, and its outputs are compared.
    """
    from placeit.workbench.building import check_target

    check_target(output)
    if name is not None and not name.strip():
        raise UsageError("--name is empty: leave it out for the name of the model's file.")
    with terminal.progress() as progress, open_session(options, [placement], by_segments=True) as (session, [chosen]):
        profile_if_needed(session, chosen, progress)
        with naming(placement):
            manifest = session.build(chosen, output, name=name)
    size = sum(file.bytes for file in manifest.files.values())
    data = {
        "model": str(options.model),
        "placement_file": str(placement),
        "output": str(output),
        "name": manifest.name,
        "precision": manifest.precision,
        "segments": len(manifest.segments),
        "bytes": size,
        "devices": [
            {"name": one.name, "full_name": one.full_name, "cores": one.cores or None, "weight_bytes": one.weight_bytes}
            for one in manifest.devices
        ],
        "versions": dict(manifest.versions),
    }

    def show(console: Console) -> None:
        facts = {
            "written": f"{output} ({about_bytes(size)})",
            "segments": str(len(manifest.segments)),
            "devices": ", ".join(one.name for one in manifest.devices),
            "precision": manifest.precision,
        }
        text.facts(console, facts)
        console.print()
        text.facts(console, {"next": ("placeit", "run", str(output))})

    return Output(data, show, answer=str(output))
