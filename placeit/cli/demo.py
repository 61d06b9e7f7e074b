"""``placeit demo``: find a placement of a small generated model, as a first try."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from placeit.cli.optimize import optimize
from placeit.cli.options import BudgetOption, CheckedOptions
from placeit.cli.paths import check_outputs
from placeit.cli.terminal import Output, Terminal
from placeit.core.errors import FileError
from placeit.core.files import replacing, write_text
from placeit.report import text

if TYPE_CHECKING:
    from onnx import ModelProto, ValueInfoProto
    from rich.console import Console

__all__ = ["EXAMPLES", "demo", "demo_model"]

EXAMPLES = """\b
Examples:
  placeit demo
  placeit demo folder --budget 10s
"""

_BLOCKS, _CHANNELS, _SIZE = 4, 64, 16  # 0.5 GFLOP: tens of milliseconds on a slow core
_BRANCHES = ((1,), (3,), (3, 3), (5,))  # sizes of the kernels of each branch of a block


def demo(
    *,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to write the model, the boards and the placement.")
    ] = Path("placeit-demo"),
    budget: BudgetOption = 40.0,
    terminal: Terminal,
) -> Output:
    """Find a placement of a small model on two boards.

    Two CPU cores of this machine stand for the boards, with an emulated network between them. The model is made on the spot,
    with random weights: nothing is downloaded. The search, its output and its JSON are like 'placeit optimize' with one placer,
    HEFT.
    """
    from placeit.devices.host import allowed_cores, one_per_physical_core

    model, boards, placement = (folder / name for name in ("model.onnx", "boards.yaml", "placement.json"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror or error}.") from error
    check_outputs(model, boards, placement)
    with replacing(model) as temporary:
        temporary.write_bytes(demo_model().SerializeToString())
    cores = one_per_physical_core(allowed_cores())
    cores = allowed_cores() if len(cores) < 2 else cores
    write_text(boards, _boards(*cores[:2]))
    options = CheckedOptions(model=model, devices=str(boards))
    # one placer and a search from its placement: more would take longer to compile than a first try should last
    found = optimize(placer=["heft"], budget=budget, output=placement, options=options, terminal=terminal)
    where = "As this process may use one CPU core only, two boards are simulated"
    if len(cores) > 1:
        where = f"CPU cores {cores[0]} and {cores[1]} of this machine, slowed, stand for two boards"

    def show(console: Console) -> None:
        intro = f"The model is made up: {_BLOCKS} blocks of {len(_BRANCHES)} branches, with random weights."
        text.paragraph(console, f"{intro} {where}, with an emulated network between them. The files of both are in {folder}.")
        console.print()
        found.show(console)
        console.print()
        text.paragraph(console, "With a model of your own (ONNX, OpenVINO IR or PyTorch) on the devices of this machine:")
        console.print("\n  placeit devices\n  placeit optimize YOUR_MODEL.onnx\n")

    return replace(found, show=show)


def _boards(*cores: int) -> str:
    """Return a cluster file of two boards: a core each or, if there are fewer than two cores, simulated catalog devices."""
    kinds = [f"runs_on: CPU@{core}, slowdown: 3" for core in cores] if len(cores) > 1 else ["catalog: raspberry-pi-5"] * 2
    return (
        f"devices:\n  left: {{{kinds[0]}}}\n  right: {{{kinds[1]}}}\n"
        "links:\n  - {between: [left, right], bandwidth: 10 Gbit/s, latency: 50 us}\n"
    )


def demo_model() -> ModelProto:
    """Return a model of blocks; each has parallel branches of convolutions, of unequal length, joined by a convolution."""
    import numpy as np
    from onnx import NodeProto, TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    nodes: list[NodeProto] = []
    weights: list[TensorProto] = []

    def add(kind: str, name: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def convolution(name: str, x: str, channels: int, kernel: int) -> str:
        shape = (_CHANNELS, channels, kernel, kernel)
        scale = (2 / (channels * kernel * kernel)) ** 0.5  # keeps values at the same magnitude from layer to layer
        values = (scale * rng.standard_normal(shape)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"{name}_weights"))
        return add("Relu", name, add("Conv", f"{name}_conv", x, f"{name}_weights", pads=[kernel // 2] * 4))

    x = convolution("stem", "image", 3, 3)
    for block in range(1, _BLOCKS + 1):
        branch_ends = []
        for branch, kernels in enumerate(_BRANCHES, 1):
            x_branch = x
            for layer, kernel in enumerate(kernels, 1):
                x_branch = convolution(f"block{block}_branch{branch}_{layer}", x_branch, _CHANNELS, kernel)
            branch_ends.append(x_branch)
        joined = add("Concat", f"block{block}_concat", *branch_ends, axis=1)
        x = convolution(f"block{block}", joined, _CHANNELS * len(_BRANCHES), 1)
    add("GlobalAveragePool", "features", x)

    def tensor(name: str, *shape: int) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, *shape])

    graph = helper.make_graph(nodes, "demo", [tensor("image", 3, _SIZE, _SIZE)], [tensor("features", _CHANNELS, 1, 1)], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
