"""``placeit profile``: the costs of each group of ops on each device."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from placeit.cli.options import SessionOptions
from placeit.cli.paths import OutputFile, check_outputs
from placeit.cli.terminal import Output, Terminal
from placeit.core.files import write_text
from placeit.report import as_csv, as_text

__all__ = ["EXAMPLES", "profile"]

EXAMPLES = """\b
Examples:
  placeit profile model.onnx --devices CPU@0,CPU@1
  placeit profile model.onnx --devices cluster.yaml --output costs.json
  placeit profile model.onnx --csv costs.csv
  placeit profile model.onnx --inputs x.npz
  placeit profile model.onnx --no-cache --max-groups 20
"""


def profile(
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Also write the costs to a JSON file.")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", metavar="FILE", help="Also write them as a table: a row for each group and device.")
    ] = None,
    options: SessionOptions,
    terminal: Terminal,
) -> Output:
    """Measure the costs of ops on each device.

    The time of a group of ops is that inside the whole model; its cut time is added where it is cut off from its neighbours:
    layout conversions, lost fusion. Its load is the additional time while other devices work. Costs of described devices are
    estimates from their figures.
    """
    from placeit.profiler.profile_report import ProfileReport

    check_outputs(output, csv, inputs=options.files())
    with terminal.progress() as progress, options.session() as session:
        costs = session.profile(check=True, progress=progress)
        found = ProfileReport(str(session.model.path), session.precision, session.grouping, costs, session.compiling.kinds)
    data = found.to_dict()
    files = []
    if csv is not None:
        files.append(OutputFile(csv, "the table of costs", lambda: write_text(csv, as_csv.profile(found))))
    if output is not None:
        content = json.dumps(data, indent=2, allow_nan=False) + "\n"
        files.append(OutputFile(output, "the list of costs", lambda: write_text(output, content)))
    written = [path for path in (output, csv) if path is not None]
    return Output(data, partial(as_text.profile, found=found, files=written), files=files)
