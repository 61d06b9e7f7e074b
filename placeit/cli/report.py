"""``placeit report``: show a recorded run as a page for a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from placeit.cli.paths import OutputFile, check_outputs
from placeit.cli.terminal import Output, Terminal
from placeit.report import text

__all__ = ["EXAMPLES", "report"]

EXAMPLES = """\b
Examples:
  placeit profile model.onnx -p placement.json -o run.json
  placeit report run.json -o report.html
  placeit optimize model.onnx -d CPU@0,CPU@1 --record run.json
  placeit report run.json
"""


def report(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="Recorded run (.json).")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Page (.html) to write; default: the name of the recording."),
    ] = None,
    terminal: Terminal,  # noqa: ARG001 (every command takes one)
) -> Output:
    """Show a recorded run as a page for a browser.

    The page is one HTML file, which needs no network: the decision and its candidates, timelines, utilisation, the task
    graph, the times of ops, and what the simulator said, as far as the recording has them. 'placeit profile' with a
    placement makes a recording, and so does --record of 'placeit optimize', 'placeit run' and 'placeit tune'.
    """
    from placeit.profiler.recording import read_recording
    from placeit.report.page import check_page, write_page

    check_page()
    page = recording.with_suffix(".html") if output is None else output
    check_outputs(page=page, inputs=[recording])
    recorded = read_recording(recording)
    data = {"recording": str(recording), "output": str(page)}
    file = OutputFile(page, "the page", lambda: write_page(page, recorded))
    return Output(data, lambda console: text.facts(console, {"written": str(page)}), files=[file], answer=str(page))
