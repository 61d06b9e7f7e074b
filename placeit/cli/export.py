"""``placeit export``: write a placement as an OpenVINO IR, or a model in another format, for use without placeit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from placeit.cli.options import ModelOptions
from placeit.cli.paths import check_outputs
from placeit.cli.placements import read_placement
from placeit.cli.terminal import Output, Terminal
from placeit.cli.values import parse_pairs
from placeit.core.errors import UsageError, naming
from placeit.report import as_json, text

if TYPE_CHECKING:
    from rich.console import Console

    from placeit.core.placement import Placement

__all__ = ["EXAMPLES", "export"]

EXAMPLES = """\b
Examples:
  placeit export model.onnx -p placement.json --output placed.xml
  placeit export model.onnx -p placement.json -o placed.xml --map fast=GPU.0 --map slow=CPU
  placeit export model.pt2 -o model.onnx
  placeit export model.pt2 -o model.xml
"""


def export(
    *,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FILE", help="File (.xml or .onnx) to write; weights of .xml beside it."),
    ],
    placement: Annotated[
        Path | None,
        typer.Option("--placement", "-p", metavar="FILE", help="Placement to write with the model; default: the model alone."),
    ] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="NAME=DEVICE", help="OpenVINO's name of a device, as in CPU@0=CPU; repeatable."),
    ] = None,
    options: ModelOptions,
    terminal: Terminal,  # noqa: ARG001 (every command takes one)
) -> Output:
    """Write a placement, or a model, for use without placeit.

    With --placement, the model is written with the device of each node, for OpenVINO's HETERO. HETERO runs its parts one
    after the other, so devices do not work at the same time as they do with 'placeit run'. It knows OpenVINO's own
    devices only: core sets and names of a cluster file need --map.

    Without it, a PyTorch program (.pt2) is written as ONNX or OpenVINO IR, and an ONNX file as IR. A placement is for the
    model that it was made with: optimize the new file to place it.
    """
    weights = output.with_suffix(".bin") if output.suffix == ".xml" or placement is not None else None
    check_outputs(output, weights, inputs=[*options.files(), placement])
    names = parse_pairs("--map", mapping or (), "NAME=DEVICE, such as CPU@0=CPU")
    model = options.load_with_inputs()
    chosen: Placement | None = None
    device: str | None = None
    if placement is None:
        if names:
            raise UsageError("--map names the devices of a placement: give --placement as well.")
        from placeit.backends.convert import convert

        convert(model, output)
    else:
        from placeit.backends.openvino.hetero import HOW_TO_RUN, export_hetero
        from placeit.backends.openvino.model import OpenVinoModel

        if not isinstance(model, OpenVinoModel):
            raise UsageError(
                f"A placement of {options.model} cannot be written for HETERO, which runs models that OpenVINO reads: write "
                "the model alone (without --placement) as .onnx or .xml, and optimize that file."
            )
        chosen = read_placement(placement, model.graph)
        for name in names:
            if name not in chosen.device_names:
                known = ", ".join(chosen.device_names)
                raise UsageError(f"--map names '{name}', which is not a device of {placement}; its devices are {known}.")
        with naming(placement):
            device = export_hetero(model, chosen.as_dict(), output, devices=names)
    data = {
        "model": str(options.model),
        **as_json.files({"placement": placement}),
        "output": str(output),
        "weights": None if weights is None else str(weights),
        "device": device,
        "devices": None if chosen is None else chosen.counts(),
    }

    def show(console: Console) -> None:
        facts = {"written": str(output) if weights is None else f"{output} and {weights.name}"}
        text.facts(console, facts if chosen is None else {**facts, "device": device or "", "ops": chosen.ops_by_device})
        if chosen is not None:
            console.print("\nTo run it:\n")
            console.print(f"import openvino\n\n{HOW_TO_RUN.format(path=output, device=device)}", end="")

    return Output(data, show, answer=str(output))
