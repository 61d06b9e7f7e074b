"""Predicting what ops take from the history of kernel times."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from placeit.core.graph import OpGraph
from placeit.profiler.kernel_history import History, Overheads, ProfiledModel
from placeit.profiler.kernel_times import KernelTimes, profiled_model
from placeit.profiler.op_traits import OpTraits
from placeit.runtime.devices.kernels import Kernel
from tests.small_models import inception_like

NOTHING = Overheads(0.0, 0.0, 0.0, 0.0, 0.0)
DEVICE = {"kind": "openvino", "machine": "this one"}


def _made(name: str, sizes: list[float], rate: float = 1e-10) -> ProfiledModel:
    """A model of multiplications that take time in proportion to their operations, each followed by a Relu that is fused."""
    sorts = [("MatMul", "Relu", "Relu", [size, size / 50, 1e4, 1e4, 64.0]) for size in sizes]
    relus = [("Relu", "MatMul", "MatMul", [1e4, 0.0, 1e4, 1e4, 64.0])]
    ops = np.array([1.0] * len(sizes) + [len(sizes)])
    taken = np.array([size * rate for size in sizes] + [0.0])
    fused = np.array([0.0] * len(sizes) + [len(sizes)])
    return ProfiledModel(name, name, float(taken.sum()), NOTHING, OpTraits.from_rows(sorts + relus), ops, fused, taken)


def test_ops_between_those_that_were_seen_are_predicted() -> None:
    times = KernelTimes([_made("a", [1e7, 1e8]), _made("b", [3e7, 3e8])])
    asked = _made("c", [6e7, 2e8])
    assert times.seconds(asked.traits) @ asked.ops == pytest.approx(asked.seconds, rel=0.1)


def test_ops_that_are_always_fused_take_next_to_nothing() -> None:
    times = KernelTimes([_made("a", [1e7] * 20), _made("b", [1e8] * 20)])
    asked = _made("c", [3e7])
    matmul, relu = times.seconds(asked.traits)
    assert relu < matmul / 50


def test_the_error_is_that_of_models_that_were_left_out() -> None:
    fair, odd = [_made(name, [s, 2 * s]) for name, s in (("a", 1e7), ("b", 2e7), ("c", 4e7))], _made("odd", [2e7], rate=1e-9)
    good = KernelTimes(fair).error()
    assert good is not None
    assert good.models == 3
    assert good.worst < 0.3
    bad = KernelTimes([*fair, odd]).error()
    assert bad is not None
    assert bad.worst > 0.5  # ten times as slow as all that is known of the others
    times = KernelTimes([*fair, odd])
    before = times.seconds(odd.traits)
    times.error()
    assert np.array_equal(times.seconds(odd.traits), before)


@pytest.mark.parametrize("left", [0, 1, 2])
def test_leaving_a_model_out_is_never_having_seen_it(left: int) -> None:
    models = [_made("a", [1e7, 5e7]), _made("b", [2e7, 3e8], rate=2e-10), _made("c", [4e7])]
    others = [model for i, model in enumerate(models) if i != left]
    error = KernelTimes([*others, models[left]]).error()
    apart = abs(KernelTimes(others).seconds(models[left].traits) @ models[left].ops / models[left].seconds - 1)
    every = [
        abs(KernelTimes([m for m in models if m is not one]).seconds(one.traits) @ one.ops / one.seconds - 1) for one in models
    ]
    assert error is not None
    assert error.worst == pytest.approx(max(every))
    assert apart == pytest.approx(every[left])


def test_one_model_says_nothing_of_the_error() -> None:
    assert KernelTimes([_made("a", [1e7])]).error() is None


def _chain(kinds: list[str], flops: list[float]) -> OpGraph:
    count = len(kinds)
    return OpGraph(
        names=tuple(f"op{v}" for v in range(count)),
        kinds=tuple(kinds),
        flops=np.array(flops),
        param_bytes=np.zeros(count),
        tensor_op=np.arange(count, dtype=np.int32),
        tensor_port=np.zeros(count, np.int32),
        tensor_bytes=np.full(count, 4e4),
        tensor_shapes=((1, 100, 100),) * count,
        tensor_dtypes=("float32",) * count,
        edges=np.array([[v, v + 1] for v in range(count - 1)], np.int32).reshape(-1, 2),
        edge_tensor=np.arange(count - 1, dtype=np.int32),
    )


def test_the_time_of_a_kernel_is_that_of_its_op_with_the_most_operations() -> None:
    graph = _chain(["MatMul", "Add", "Relu", "Softmax"], [1e8, 1e4, 1e4, 1e5])
    of = profiled_model("m", "m", graph, [Kernel((0, 1), 3e-3), Kernel((3,), 1e-3)], 8e-3, NOTHING)
    kinds = of.traits.kind.tolist()
    taken = {"MatMul": 6e-3, "Add": 0, "Relu": 0, "Softmax": 2e-3}
    assert dict(zip(kinds, of.taken.tolist(), strict=True)) == pytest.approx(taken)
    assert dict(zip(kinds, of.fused.tolist(), strict=True)) == {"MatMul": 0, "Add": 1, "Relu": 1, "Softmax": 0}


def test_a_kernel_that_is_named_after_its_last_op_only_is_its_first_ones() -> None:
    graph = _chain(["MatMul", "Add", "Relu"], [1e8, 1e4, 1e4])
    of = profiled_model("m", "m", graph, [Kernel((2,), 5e-3)], 5e-3, NOTHING)
    taken = {"MatMul": 5e-3, "Add": 0, "Relu": 0}
    assert dict(zip(of.traits.kind.tolist(), of.taken.tolist(), strict=True)) == pytest.approx(taken)


def test_weights_that_the_file_computes_are_known_from_the_operations() -> None:
    graph = inception_like().graph
    heavy = int(graph.flops.argmax())
    bare = replace(graph, param_bytes=np.zeros(len(graph)))  # no constants
    assert OpTraits.of_graph(bare).size[heavy, 1] == pytest.approx(graph.param_bytes[heavy], rel=0.05)


def test_what_is_kept_is_found_again_for_this_device_only(tmp_path: Path) -> None:
    history, model = History(tmp_path), _made("a", [1e7, 2e7])
    history.add(DEVICE, model)
    (found,) = History(tmp_path).of(DEVICE)
    for what in ("identity", "name", "seconds", "overheads"):
        assert getattr(found, what) == getattr(model, what)
    assert found.traits.rows() == model.traits.rows()
    assert np.array_equal(np.stack([found.ops, found.fused, found.taken]), np.stack([model.ops, model.fused, model.taken]))
    assert history.of(DEVICE | {"machine": "another one"}) == []


def test_a_model_that_is_profiled_again_replaces_what_was_known_of_it(tmp_path: Path) -> None:
    history = History(tmp_path)
    history.add(DEVICE, _made("a", [1e7]))
    history.add(DEVICE, _made("b", [1e7]))
    history.add(DEVICE, _made("a", [1e7], rate=2e-10))
    assert [(one.name, one.seconds) for one in history.of(DEVICE)] == [("b", pytest.approx(1e-3)), ("a", pytest.approx(2e-3))]


def test_only_the_newest_models_are_kept(tmp_path: Path) -> None:
    history = History(tmp_path)
    for n in range(60):
        history.add(DEVICE, _made(str(n), [1e7]))
    assert [one.name for one in history.of(DEVICE)] == [str(n) for n in range(12, 60)]


@pytest.mark.parametrize("damage", ["text", "cut", "table", "number"])
def test_a_damaged_history_is_set_aside_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str) -> None:
    history = History(tmp_path)
    history.add(DEVICE, _made("a", [1e7, 2e7]))
    content = history.path.read_bytes()
    if damage == "text":
        history.path.write_bytes(b"no database at all" * 100)
    elif damage == "cut":
        history.path.write_bytes(content[: len(content) // 2])
    else:
        base = sqlite3.connect(history.path)
        base.execute("PRAGMA user_version = 7" if damage == "table" else "UPDATE kernel SET seconds = -1.0")
        base.commit()
        base.close()
    assert History(tmp_path).of(DEVICE) == []
    assert "is damaged" in caplog.text
    assert history.path.with_suffix(".damaged").name in caplog.text
    assert history.path.with_suffix(".damaged").exists()
    History(tmp_path).add(DEVICE, _made("b", [1e7]))
    assert [one.name for one in History(tmp_path).of(DEVICE)] == ["b"]


def test_a_history_that_cannot_be_written_is_no_error(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    there = tmp_path / "file"
    there.write_text("no folder")
    history = History(there)
    history.add(DEVICE, _made("a", [1e7]))
    history.add(DEVICE, _made("a", [1e7]))
    assert caplog.text.count("cannot be used") == 1
    assert history.of(DEVICE) == []
