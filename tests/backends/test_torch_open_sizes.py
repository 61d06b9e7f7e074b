"""PyTorch programs whose sizes stay open."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import placeit
from placeit.backends.convert import convert
from placeit.backends.torch.model import TorchModel, load
from placeit.core.errors import ModelError, UsageError
from placeit.workbench.options import Inputs
from tests.torch_models import Calling


class _Encoder(nn.Module):
    """Sizes enter as shapes of views, as positions, as a size of a constant, and doubled."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(30, 8), nn.Linear(8, 8)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        batch, length = ids.shape
        x = self.table(ids) + torch.arange(length)[None, :, None]
        heads = self.linear(x).view(batch, length, 2, 4).transpose(1, 2)
        scores = heads @ heads.transpose(-1, -2) - (1 - mask[:, None, None, :]) * 1e9
        y = (torch.softmax(scores, -1) @ heads).transpose(1, 2).reshape(batch, -1, 8)
        twice = torch.cat([y, y], 1)
        return twice.flatten(0, 1), torch.zeros(twice.shape[1], 3) + y.mean()


EXAMPLE = torch.ones(2, 1, dtype=torch.long), torch.ones(2, 1)
RANGES = {"ids": (2, "1..64@1"), "mask": (2, "1..64@1")}


@functools.cache
def encoder() -> tuple[_Encoder, TorchModel]:
    torch.manual_seed(0)
    module = _Encoder().requires_grad_(False)
    return module, load(module, EXAMPLE, input_shapes=RANGES)


def test_shapes_of_the_graph_are_typical_and_have_limits() -> None:
    _, model = encoder()
    assert [(spec.shape, spec.limits) for spec in model.inputs] == [((2, 1), ((2, 2), (1, 64)))] * 2
    first, second = model.outputs
    assert (first.shape, first.limits) == ((4, 8), ((4, 256), (8, 8)))
    assert (second.shape, second.limits) == ((2, 3), ((2, 128), (3, 3)))
    assert model.random_inputs()["ids"].shape == (2, 1)


@pytest.mark.parametrize("seed", range(4))
def test_segments_however_cut_compute_what_the_module_does_at_each_size(seed: int) -> None:
    module, model = encoder()
    graph = model.graph
    first = np.maximum.accumulate(np.random.default_rng(seed).random(len(graph)) < 0.5) if seed else None
    parts = [[v] for v in range(len(graph))] if first is None else [np.flatnonzero(first == half) for half in (False, True)]
    edges = list(zip(graph.edges.tolist(), graph.edge_tensor.tolist(), strict=True))
    for length in (1, 5, 9):
        given = torch.randint(30, (2, length)), torch.ones(2, length)
        inputs = dict(zip(("ids/", "mask/"), given, strict=True))
        values: dict[int, torch.Tensor] = {}
        found: dict[str, torch.Tensor] = {}
        for ops in parts:
            enter = sorted({t for (u, v), t in edges if v in ops and u not in ops})
            leave = sorted({t for (u, v), t in edges if u in ops and v not in ops})
            own = [inputs[f"{graph.names[v]}/"] for v in ops if graph.kinds[v] == "Parameter"]
            made = model.segment("torch", ops, enter, leave)(*(values[t] for t in enter), *own)
            values |= zip(leave, made, strict=False)
            found |= zip((graph.names[v] for v in ops if graph.kinds[v] == "Result"), made[len(leave) :], strict=True)
        for name, wanted in zip(("output.0/result", "output.1/result"), module(*given), strict=True):
            torch.testing.assert_close(found[name], wanted)


def test_a_placed_module_takes_every_size_in_range_and_no_sizes_that_contradict_each_other(tmp_path: Path) -> None:
    module, _ = encoder()
    given = torch.randint(30, (2, 7)), torch.ones(2, 7)
    with placeit.Session(module, "torch:CPU@0", example=EXAMPLE, inputs=Inputs(shapes=RANGES), cache=None) as session:
        placement = session.placement(np.zeros(len(session.grouping.groups), int))
        whole = replace(placement, segments=np.zeros(len(placement.op_names), np.int32))
        with session.executor(session.plan_of(whole)) as executor:
            placed = session.model.called(executor.run)
            for found, wanted in zip(placed(*given), module(*given), strict=True):
                torch.testing.assert_close(found, wanted)
            with pytest.raises(UsageError, match="size 1 of 'ids' equals size 1 of 'mask'"):
                placed(given[0], given[1][:, :5])
            with pytest.raises(UsageError, match=r"expects int64 \[2, 1..64@1\]"):
                placed(torch.ones(2, 65, dtype=torch.long), torch.ones(2, 65))
        with pytest.raises(ModelError, match="PyTorch programs are written at one size"):
            session.build(whole, tmp_path / "bundle.placeit")
        with pytest.raises(ModelError, match="PyTorch programs are written at one size"):
            convert(session.model, tmp_path / "model.onnx")


@pytest.mark.parametrize(
    ("function", "shape", "why"),
    [
        (
            lambda _, x: x * 2 if x.shape[0] > 4 else x,
            ("1..64@9", 3),
            "may have sizes from 5 to 64 only, as the model does something else",
        ),
        (lambda _, x: x + torch.ones(6, 1), ("1..64@6", 3), r"Cannot export small.*specialized it to be a constant \(6\)"),
        (lambda _, x: x, ("1..64@2/9", 3), "one typical size"),
        (lambda _, x: x, ("1..64",), "has 1 dimensions where the model has 2"),
        (lambda _, x: (x, x.shape[0]), ("1..64", 3), "returns a size"),
    ],
)
def test_ranges_that_a_program_does_not_take_are_errors(function: object, shape: tuple[object, ...], why: str) -> None:
    with pytest.raises(ModelError, match=why):
        load(Calling(function), (torch.ones(6, 3),), name="small", input_shapes={"x": shape})


def test_an_example_without_elements_stands_for_zeros_of_the_typical_sizes() -> None:
    model = load(nn.Linear(3, 4), (torch.zeros(0, 3),), input_shapes={"input": ("1..8@3", 3)})
    assert (model.inputs[0].shape, model.outputs[0].limits) == ((3, 3), ((1, 8), (4, 4)))


def test_a_program_keeps_the_sizes_open_that_it_was_exported_with(tmp_path: Path) -> None:
    module, example = nn.Linear(3, 4), (torch.ones(2, 3),)
    rows = torch.export.Dim("rows", min=1, max=8)
    torch.export.save(torch.export.export(module, example, dynamic_shapes=({0: rows},)), tmp_path / "open.pt2")
    assert load(tmp_path / "open.pt2", input_shapes={"input": ("1..8@3", 3)}).outputs[0].limits == ((1, 8), (4, 4))
    with pytest.raises(ModelError, match="may have sizes from 2 to 8 only"):
        load(tmp_path / "open.pt2", input_shapes={"input": ("1..9", 3)})
    with pytest.raises(ModelError, match=r"has no input 'x'.*input"):
        load(tmp_path / "open.pt2", input_shapes={"x": ("1..8", 3)})
    with pytest.raises(ModelError, match="fixed by the example inputs that it was exported for"):
        load(torch.export.export(module, example), input_shapes={"input": ("1..8", 3)})
