"""``placeit try``: find out in a minute what placeit gains with a model, and write a page about it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.command import command_line
from placeit.cli.optimize import optimize
from placeit.cli.options import BudgetOption, CheckedOptions, ObjectiveOption
from placeit.cli.paths import OutputFile, check_outputs
from placeit.cli.terminal import Output, Terminal
from placeit.core.extras import install, installed
from placeit.core.files import write_text
from placeit.core.units import about_bytes
from placeit.core.version import __version__
from placeit.report import text

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["EXAMPLES", "try_model"]

EXAMPLES = """\b
Examples:
  placeit try model.onnx
  placeit try model.onnx --output for_you.html
  placeit try model.onnx --input-shape ids:1,384 --devices CPU,GPU.0
  placeit try model.onnx --objective throughput
"""

_COLUMNS = 120  # of a page without pictures


def try_model(
    *,
    objective: ObjectiveOption = "latency",
    budget: BudgetOption = 40.0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write the page (.html); default: MODEL.try.html."),
    ] = None,
    options: CheckedOptions,
    terminal: Terminal,
) -> Output:
    """Find out in a minute what placeit gains with a model.

    This is 'placeit optimize' with the devices that are found, a short budget, and a guess at sizes that the model leaves open.
    Placements over several devices race against the whole CPU as OpenVINO uses it for the objective (as benchmark_app does with
    its hint for latency, or for throughput) and, for an ONNX file, against plain ONNX Runtime. The result is a page to send to
    others, with hardware, versions and the command. It has pictures if the extra 'report' is installed.
    """
    from placeit.backends.openvino.inputs import OpenSizesError

    page = options.model.parent / f"{options.model.name}.try.html" if output is None else output
    pictures = installed("bokeh") and installed("jinja2")
    if not pictures and (output is not None or page.parent.is_dir()):  # else the error is about the model
        check_outputs(page=page, inputs=options.files())
    find = partial(optimize, objective=objective, budget=budget, page=page if pictures else None, terminal=terminal)
    guess: Mapping[str, Sequence[int]] = {}
    try:
        found = find(options=options)
    except OpenSizesError as error:
        if not error.guess:
            raise
        guess = error.guess
    guessed = [f"{name}:{','.join(map(str, sizes))}" for name, sizes in guess.items()]
    if guessed:
        found = find(options=replace(options, input_shape=[*(options.input_shape or ()), *guessed]))

    def show(console: Console) -> None:
        text.paragraph(console, found.data["verdict"])
        if guessed:
            note = f"The model leaves sizes open. They were guessed: {', '.join(guessed)}. Give others with --input-shape."
            text.paragraph(console, note)
        if options.model.suffix.lower() == ".onnx" and not installed("onnxruntime"):
            text.paragraph(console, f"Plain ONNX Runtime did not take part, as it is not installed: {install('ort')}.")
        console.print()
        found.show(console)
        console.print()
        text.facts(console, _environment() | {"page": str(page)})

    files = [*found.files]
    if not pictures:
        files.append(OutputFile(page, "the page", lambda: write_text(page, _as_page(show))))
    data = {**found.data, "page_file": str(page), "guessed": {name: list(sizes) for name, sizes in guess.items()}}
    answer = f"{found.data['verdict']} {page}"
    return replace(found, data=data, show=show, files=files, answer=answer)


def _environment() -> dict[str, str]:
    """Return hardware, versions and the running command, by heading."""
    from placeit.devices.host import allowed_cores, cpu_name, memory_bytes

    packages = ["openvino", *(["onnxruntime"] if installed("onnxruntime") else [])]
    return {
        "hardware": f"{cpu_name()}, {len(allowed_cores())} cores, {about_bytes(memory_bytes())}",
        "versions": ", ".join([f"placeit {__version__}", *(f"{name} {version(name)}" for name in packages)]),
        "command": command_line(),
    }


def _as_page(show: Callable[[Console], object]) -> str:
    from rich.console import Console

    console = Console(file=io.StringIO(), record=True, width=_COLUMNS, markup=False, highlight=False, soft_wrap=True)
    show(console)
    return console.export_html()
