"""Generated whole numbers are such that the ops which read them allow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.backends.torch import model as torch_backend
from placeit.backends.values import ValueRange, draw
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.session import Session
from tests.torch_models import Calling

ops = ov.opset13
SEEDS = range(150)


def const(*values: int) -> Any:
    return ops.constant(np.array(values if len(values) != 1 else values[0], np.int64))


def model_of(build: Callable[[Any], Any], *shape: int, dtype: ov.Type = ov.Type.i64) -> OpenVinoModel:
    index = ops.parameter(list(shape), dtype, name="index")
    return describe(ov.Model([ops.result(build(index))], [index], "values"), Path("values"))


def floats(*shape: int) -> Any:
    return ops.constant(np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


CASES: dict[str, tuple[Callable[[Any], Any], tuple[int, ...], int, int]] = {
    "gather": (lambda i: ops.gather(floats(5, 7), i, const(1)), (30,), 0, 7),
    "gather elements": (lambda i: ops.gather_elements(floats(5, 3), i, 1), (5, 9), 0, 3),
    "gather nd": (lambda i: ops.gather_nd(floats(5, 3, 8), i, 0), (20, 2), 0, 3),
    "one hot": (lambda i: ops.one_hot(i, const(6), ops.constant(1.0), ops.constant(0.0), -1), (30,), 0, 6),
    "scatter": (lambda i: ops.scatter_update(floats(9), i, floats(4), const(0)), (4,), 0, 9),
    "scatter columns": (lambda i: ops.scatter_update(floats(4, 9), i, floats(4, 4), const(1)), (4,), 0, 9),
    "scatter elements": (lambda i: ops.scatter_elements_update(floats(4, 6), i, floats(4, 5), const(1)), (4, 5), 0, 6),
    "scatter nd": (lambda i: ops.scatter_nd_update(floats(9, 4), i, floats(3, 4)), (3, 1), 0, 9),
    "sum along an axis": (lambda i: ops.cum_sum(floats(2, 3), i), (), 0, 2),
    "boxes of an image": (
        lambda i: ops.roi_align(floats(2, 1, 4, 4), floats(6, 4), i, 2, 2, 1, 1.0, "avg"), (6,), 0, 2,
    ),
    "lengths of sequences": (lambda i: ops.reverse_sequence(floats(4, 6), i, 0, 1), (4,), 1, 7),
    "how many of the largest": (lambda i: ops.topk(floats(8), i, 0, "max", "value").output(0), (), 1, 9),
    "where a slice begins": (lambda i: ops.slice(floats(8), i, ops.constant([8]), ops.constant([1])), (1,), 0, 1),
    "where a slice ends": (lambda i: ops.slice(floats(8), ops.constant([0]), i, ops.constant([1])), (1,), 8, 9),
    "steps of a slice": (lambda i: ops.slice(floats(8), ops.constant([0]), ops.constant([8]), i), (1,), 1, 2),
    "nothing known": (lambda i: ops.multiply(i, i), (3,), 1, 2),
    "a table behind a conversion": (lambda i: ops.gather(floats(5), ops.convert(i, "i32"), const(0)), (9,), 0, 5),
    "a table behind others": (
        lambda i: ops.gather(floats(5), ops.reshape(ops.unsqueeze(i, const(0)), const(3, 3), False), const(0)), (9,), 0, 5,
    ),
    "a table behind a choice": (lambda i: ops.gather(floats(5), ops.select(ops.constant(True), i, i), const(0)), (9,), 0, 5),
    "two tables": (
        lambda i: ops.add(ops.gather(floats(50), i, const(0)), ops.gather(floats(6), i, const(0))), (40,), 0, 6,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_generated_numbers_are_all_that_the_op_allows_and_nothing_else(case: str) -> None:
    build, shape, low, end = CASES[case]
    model = model_of(build, *shape)
    drawn = [model.random_inputs(seed)["index"] for seed in SEEDS]
    values = np.concatenate([value.reshape(-1) for value in drawn])
    assert all((value.shape, value.dtype) == (shape, np.int64) for value in drawn)
    assert set(range(low, end)) == set(values.tolist())
    compiled = openvino_core().compile_model(model.ov_model, "CPU", {"NUM_STREAMS": 0, "INFERENCE_NUM_THREADS": 1})
    for value in drawn[:4]:
        compiled(value)


@pytest.mark.parametrize(("case", "axis"), [("scatter", 0), ("scatter columns", 0), ("scatter elements", 1), ("scatter nd", 0)])
def test_a_scatter_gets_no_place_twice(case: str, axis: int) -> None:
    model = model_of(*(CASES[case][0], *CASES[case][1]))
    for seed in SEEDS:
        ordered = np.sort(model.random_inputs(seed)["index"], axis)
        assert (np.diff(ordered, axis=axis) > 0).all()


@pytest.mark.parametrize("axis", [None, 0])
def test_numbers_of_a_small_type_do_not_become_negative(axis: int | None) -> None:
    drawn = draw(np.random.default_rng(0), ValueRange(0, 1000, axis), (128,), "int8")
    assert (drawn.dtype, drawn.min() >= 0) == (np.int8, True)
    assert axis is None or len(np.unique(drawn)) == 128
    assert draw(np.random.default_rng(0), ValueRange(300, 301), (1,), "uint8") == [255]


PASSING: tuple[Callable[[Any], Any], ...] = (
    lambda v: ops.convert(v, "i32"),
    lambda v: ops.convert(v, "i64"),
    lambda v: ops.unsqueeze(v, const(0)),
    lambda v: ops.reshape(v, ops.constant([-1]), False),
    lambda v: ops.transpose(v, ops.constant(np.arange(len(v.get_output_shape(0)))[::-1].copy())),
    lambda v: ops.concat([v, v], 0),
    lambda v: ops.clamp(v, 0, 1000),
    lambda v: ops.tile(v, ops.constant([2] * len(v.get_output_shape(0)))),
    lambda v: ops.split(v, const(0), 1).output(0).get_node(),
)


@settings(max_examples=60)
@given(st.lists(st.sampled_from(PASSING), max_size=4), st.integers(1, 9), st.integers(0, 99))
def test_ops_that_only_move_values_are_looked_through(passing: list[Callable[[Any], Any]], rows: int, seed: int) -> None:
    def build(value: Any) -> Any:
        for op in passing:
            value = op(value)
        return ops.gather(floats(rows, 2), value, const(0))

    index = model_of(build, 16).random_inputs(seed)["index"]
    assert index.min() >= 0
    assert index.max() < rows


TABLE = torch.arange(12.0).reshape(6, 2)


class Embeds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 2)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids.to(torch.int32).unsqueeze(0))


TORCH: dict[str, tuple[nn.Module, int]] = {
    "embedding": (Embeds(), 6),
    "index": (Calling(lambda _, i: TABLE[i]), 6),
    "index of the second axis": (Calling(lambda _, i: TABLE[:, i]), 2),
    "index after a mask": (Calling(lambda _, i: TABLE.reshape(3, 2, 2)[:, i.view(2, 2)]), 2),
    "gather": (Calling(lambda _, i: TABLE.gather(1, i.reshape(2, 2))), 2),
    "index_select": (Calling(lambda _, i: TABLE.index_select(0, i)), 6),
    "scatter": (Calling(lambda _, i: torch.zeros(9).scatter(0, i, 1.0)), 9),
    "index_add": (Calling(lambda _, i: torch.zeros(5).index_add(0, i, torch.ones(4))), 5),
    "index_put": (Calling(lambda _, i: torch.zeros(5).index_put((i,), torch.ones(4))), 5),
    "cross entropy": (Calling(lambda _, i: nn.functional.cross_entropy(TABLE[:4], i)), 2),
    "one hot": (Calling(lambda _, i: nn.functional.one_hot(i, 3)), 3),
    "nothing known": (Calling(lambda _, i: i * 2), 0),
}


@pytest.mark.parametrize("case", TORCH)
def test_a_pytorch_program_without_examples_indexes_what_is_there(case: str) -> None:
    module, end = TORCH[case]
    program = torch.export.export(module, (torch.zeros(4, dtype=torch.int64),))
    program.example_inputs = None
    model = torch_backend.load(program)
    drawn = [model.random_inputs(seed) for seed in SEEDS]
    values = {int(x) for inputs in drawn for value in inputs.values() for x in value.reshape(-1)}
    assert values == (set(range(end)) if end else {1})
    run = model.reference(None, "f32")
    for inputs in drawn[:3]:
        run(inputs)


def test_examples_of_a_pytorch_program_are_kept_and_other_seeds_stay_among_them() -> None:
    model = torch_backend.load(Embeds(), (torch.tensor([1, 4, 2, 2]),))
    assert model.random_inputs()["ids"].tolist() == [1, 4, 2, 2]
    values = {int(x) for seed in range(1, 40) for x in model.random_inputs(seed)["ids"]}
    assert values == {1, 2, 3, 4}


def test_a_sum_along_a_generated_axis_runs_on_a_device_of_one_core() -> None:
    model = model_of(lambda i: ops.cum_sum(floats(5), i, False, True), dtype=ov.Type.i32)
    with Session(model, f"CPU@{allowed_cores()[0]}", cache=None) as session:
        session.profile()
        names = session.model.graph.names
        placement = Placement(names, np.zeros(len(names), np.int32), session.cluster.names, session.model.graph.hash)
        assert session.run(placement, runs=2).output_error.max_abs == 0
