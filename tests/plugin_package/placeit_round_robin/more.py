"""A backend and an agent, for the other groups of entry points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import openvino

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.placers.learned.agents.placeto.agent import PlacetoAgent


def load(
    path: str | Path, *, input_shapes: Mapping[str, Sequence[int]] | None = None, batch: int | None = None
) -> OpenVinoModel:
    """Read a file that holds the number of tanh ops of a chain."""
    ops = openvino.opset13
    parameter = ops.parameter([batch or 1, 8], openvino.Type.f32, name="x")
    value = parameter.output(0)
    for i in range(int(Path(path).read_text(encoding="utf-8"))):
        value = ops.tanh(value, name=f"tanh{i}").output(0)
    return describe(openvino.Model([ops.result(value, name="y")], [parameter], "chain"), Path(path))


class DealtAgent(PlacetoAgent):
    """Placeto under another name."""

    name = "dealt"
