"""The output check itself: what it compares, on which inputs, and what it says if it proves little."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from placeit.backends import load
from placeit.backends.openvino.model import describe
from placeit.backends.torch.model import load as load_module
from placeit.cli import app
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices.host import allowed_cores
from placeit.learning.workloads import tensor_program
from placeit.measuring.check import OutputCheck, OutputDifference
from placeit.profiler.cache import Cache
from placeit.runtime.drivers import drive
from placeit.session import Session
from placeit.workbench.options import Constraints
from tests.torch_models import Calling

ops = ov.opset13
CORE = allowed_cores()[0]
LINKS = {pair: Link(np.inf, 0.0) for pair in (("a", "b"), ("b", "a"))}
PAIR = Cluster(tuple(Device(name, address=Address("CPU", (CORE,))) for name in ("a", "b")), LINKS)
NOWHERE_ELSE = "same outputs, so that outputs of an earlier run would not be noticed"


def between(ours: NDArray[Any], theirs: NDArray[Any]) -> OutputDifference:
    return OutputDifference.between({"y": ours}, {"y": theirs})


@pytest.mark.parametrize(
    ("ours", "theirs", "why"),
    [
        (np.array([1.0, np.nan]), np.array([1.0, 2.0]), "the output 'y' has nan where the uncut model's has 2"),
        (np.array([1.0, 2.0]), np.array([1.0, np.nan]), "has 2 where the uncut model's has nan"),
        (np.array([np.inf]), np.array([-np.inf]), "has inf where the uncut model's has -inf"),
        (np.float16([np.nan]), np.float32([1.0]), "has nan"),
        (np.array([1.0]), np.array([1.0, 1.0]), r"has the shape \[1\]; the uncut model's has \[2\]"),
        (np.array([1j * np.nan]), np.array([1j]), "has .*nan.* where"),
    ],
)
def test_what_is_infinitely_wrong_says_why(ours: NDArray[Any], theirs: NDArray[Any], why: str) -> None:
    error = between(ours, theirs)
    assert (error.max_abs, error.max_rel) == (np.inf, np.inf)
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(error.fault)
    found = error.to_dict()
    assert found["max_abs"] is None
    assert found["max_rel"] is None
    assert found["fault"] == error.fault


def test_an_output_that_is_missing_is_infinitely_wrong() -> None:
    assert OutputDifference.between({}, {"y": np.ones(2)}).fault == "the output 'y' is missing"


@pytest.mark.parametrize(
    "value", [np.array([np.nan, np.inf, -np.inf]), np.array([1j * np.nan, 2j]), np.array([True]), np.zeros(0)]
)
def test_what_is_the_same_has_no_error(value: NDArray[Any]) -> None:
    error = between(value, value.copy())
    assert (error.max_abs, error.max_rel, error.fault) == (0.0, 0.0, None)


@pytest.mark.parametrize(
    ("value", "share", "why"),
    [
        (np.array([np.nan, np.nan]), 1, "every value of the output 'y' is NaN, and of the uncut model's as well"),
        (np.array([np.inf, -np.inf]), 1, "every value of the output 'y' is infinite"),
        (np.array([np.inf, np.nan]), 1, "every value of the output 'y' is NaN or infinite"),
        (np.array([1j * np.nan]), 1, "every value of the output 'y' is NaN"),
        (np.array([1.0, 2.0, 3.0, np.nan]), 0.25, None),
        (np.array([1, 2]), 0, None),
        (np.zeros(0), 0, None),
    ],
)
def test_what_is_no_number_on_both_sides_is_said(value: NDArray[Any], share: float, why: str | None) -> None:
    error = between(value, value.copy()).worse(between(np.ones(1), np.ones(1)))
    assert error.not_finite == share
    assert error.not_checked == why if why is None else error.not_checked.startswith(why)  # type: ignore[union-attr]
    assert error.to_dict()["not_finite"] == share


def test_imaginary_parts_count() -> None:
    assert between(np.array([1 + 1j]), np.array([1 + 0j])) == OutputDifference(1.0, 1.0)


def test_the_worse_of_two_errors_keeps_every_reason() -> None:
    wrong, unsure = OutputDifference(np.inf, np.inf, "why"), OutputDifference(0.5, 0.25, None, "not")
    assert wrong.worse(unsure) == unsure.worse(wrong) == OutputDifference(np.inf, np.inf, "why", "not")


class Computes:
    """An executor that computes a function."""

    def __init__(self, function: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
        self.function = function

    def run(self, inputs: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        self.last = {"y": self.function(inputs["x"])}
        return self.last

    def outputs(self) -> dict[str, NDArray[Any]]:
        return self.last

    def blank(self, _: int) -> None:
        pass


@pytest.mark.parametrize(
    ("gain", "error", "tolerance", "wrong"),
    [
        (1e5, 2**-22, 1e-3, False),  # as two roundings of the inputs
        (1e5, 1e-3, 1e-3, True),
        (1e5, 2**-22, 0.0, True),  # a user who tolerates nothing
        (1.0, 1e-2, 1e-3, True),
        (1.0, 2**-22, 1e-3, False),
    ],
)
def test_outputs_that_rounding_moves_as_far_are_not_wrong(gain: float, error: float, tolerance: float, *, wrong: bool) -> None:
    uncut = Computes(lambda x: np.sin(gain * x.astype(float)))
    samples = [{"x": np.random.default_rng(seed).random(100, np.float32) + np.float32(1)} for seed in (0, 1)]
    check = OutputCheck(samples[0], samples[1:], uncut.run, tolerance)
    found = check(Computes(lambda x: np.sin(gain * (1 + error) * x.astype(float))))
    assert (found.wrong(tolerance) is not None) == wrong
    assert (found.not_checked is not None) == (gain > 1 and not wrong)
    assert (found.rounding > tolerance) == (gain > 1 and not wrong)


def report_of(model: Any, cluster: Cluster, cache: Cache, inputs: Any = None) -> Any:
    with Session(model, cluster, cache=cache, constraints=Constraints(max_groups=12)) as session:
        session.profile(budget_s=1.0)
        groups = np.arange(len(session.grouping.groups)) % 2
        return session.run(session.placement(groups), runs=2, inputs=inputs)


def test_a_model_that_gives_one_output_for_any_input_is_not_checked(cache: Cache) -> None:
    x = ops.parameter([2, 3], ov.Type.f32, name="x")
    model = describe(ov.Model([ops.result(ops.add(ops.multiply(x, np.float32(0)), np.float32(3)))], [x], "zero"), Path("zero"))
    report = report_of(model, PAIR, cache)
    assert report.output_error.max_abs == 0
    assert report.output_error.fault is None
    assert report.output_error.not_checked.endswith(NOWHERE_ELSE)


@pytest.mark.parametrize("tolerance", [0.001, 1000.0])
def test_outputs_that_pass_for_each_other_by_the_tolerance_are_not_two(cache: Cache, tolerance: float) -> None:
    x = ops.parameter([2, 3], ov.Type.f32, name="x")
    model = describe(ov.Model([ops.result(ops.tanh(x))], [x], "tanh"), Path("tanh"))
    with Session(model, PAIR, cache=cache, constraints=Constraints(tolerance=tolerance)) as session:
        session.profile()
        report = session.run(session.placement(np.zeros(len(session.grouping.groups), np.int32)), runs=1)
    assert (report.output_error.not_checked is None) == (tolerance < 1)


def test_a_model_without_inputs_is_not_checked(cache: Cache) -> None:
    model = tensor_program.tensor_model("ffnn", shards=2, batch=24, features=6, hidden=20)
    report = report_of(model, drive(PAIR, model), cache)
    assert report.output_error.max_rel < 1e-4
    assert report.output_error.not_checked.startswith("the model has no inputs")


@pytest.mark.parametrize("given", [False, True])
def test_whole_numbers_stay_in_the_range_that_is_known_to_be_valid(cache: Cache, given: bool) -> None:
    """The range of the example inputs, or of inputs from the user."""
    table = torch.arange(50.0)
    asked: list[list[int]] = []

    def look_up(module: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        return module.table[ids] * 2

    model = load_module(Calling(look_up, table=table), (torch.tensor([3, 1, 4, 1, 5]),))
    run = model.reference(None, "f32")
    object.__setattr__(model, "reference", lambda *_: lambda inputs: asked.append(inputs["x"].tolist()) or run(inputs))
    inputs = {"x": np.array([7, 8, 9, 9, 9])} if given else None
    report = report_of(model, drive(PAIR, model), cache, inputs)
    assert report.output_error == OutputDifference(0.0, 0.0)
    if given:
        assert {tuple(sorted(values)) for values in asked} == {(7, 8, 9, 9, 9)}
    assert {value for values in asked for value in values} <= ({7, 8, 9} if given else {1, 2, 3, 4, 5})
    assert len({tuple(values) for values in asked}) > 1


def test_inputs_that_the_model_refuses_are_not_the_second_ones(cache: Cache) -> None:
    def steps(module: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.gather(module.table, 0, x[1:] - x[:-1] - 1)  # for numbers that rise only

    rising = torch.tensor([0, 1, 3, 4, 7])
    model = load_module(Calling(steps, table=torch.arange(4.0)), (rising,))
    report = report_of(model, drive(PAIR, model), cache, {"x": rising.numpy()})
    assert report.output_error == OutputDifference(0.0, 0.0, not_checked=report.output_error.not_checked)
    assert report.output_error.not_checked is not None


LIGHT = Path(importlib.util.find_spec("onnx").origin).parent / "backend/test/data/light"  # type: ignore[union-attr, arg-type]


def with_weights(path: Path, target: Path, seed: int = 0) -> Path:
    """Give a light model of the onnx package, whose weights are all one number, seeded random ones."""
    model, rng = onnx.load(path), np.random.default_rng(seed)
    made = {node.output[0]: node for node in model.graph.node if node.op_type == "ConstantOfShape"}
    shapes = {value.name: numpy_helper.to_array(value) for value in model.graph.initializer}
    for name, node in made.items():
        shape = shapes[node.input[0]].tolist()
        fan_in = max(1, int(np.prod(shape[1:])))
        weights = rng.standard_normal(shape) / np.sqrt(fan_in) if len(shape) > 1 else rng.uniform(0.5, 1.5, shape)
        model.graph.initializer.append(numpy_helper.from_array(weights.astype(np.float32), name))
        model.graph.node.remove(node)
    onnx.save(model, target)
    return target


def test_light_models_are_checked_once_they_have_weights(cache: Cache, tmp_path: Path) -> None:
    path = LIGHT / "light_squeezenet.onnx"  # as it is, all classes are equal but for rounding, whatever the input
    error = report_of(load(with_weights(path, tmp_path / "model.onnx")), PAIR, cache).output_error
    assert error.not_checked is None
    assert error.max_rel < 1e-4


@pytest.fixture
def always_three(tmp_path: Path) -> Path:
    """Write a model whose output does not depend on its input."""
    three = numpy_helper.from_array(np.float32([3]), "three")
    nodes = [helper.make_node("Sub", ["x", "x"], ["zero"]), helper.make_node("Add", ["zero", "three"], ["y"])]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "three", ends[:1], ends[1:], [three])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "three.onnx")
    return tmp_path / "three.onnx"


@pytest.mark.parametrize("kind", [TensorProto.UINT8, TensorProto.INT32])
def test_outputs_of_a_model_that_reads_integers_as_numbers_are_checked(tmp_path: Path, kind: int) -> None:
    shape = [1, 3, 8, 8]
    ends = [helper.make_tensor_value_info("image", kind, shape), helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    nodes = [helper.make_node("Cast", ["image"], ["pixels"], to=TensorProto.FLOAT), helper.make_node("Relu", ["pixels"], ["y"])]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "image", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)]),
        tmp_path / "image.onnx",
    )
    with Session(tmp_path / "image.onnx", [f"CPU@{CORE}"], cache=None) as session:
        whole = session.placement(np.zeros(len(session.grouping.groups), np.int32))
        report = session.run(replace(whole, segments=np.zeros(len(whole), np.int32)), runs=1)
    assert report.output_error.not_checked is None
    assert report.output_error.max_rel == 0


@pytest.mark.parametrize("command", ["run", "compare", "optimize"])
def test_the_report_says_not_checked_and_why(
    always_three: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    from typer.testing import CliRunner

    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.chdir(tmp_path)
    device = f"CPU@{CORE}"
    first = ["optimize", always_three, "--devices", device, "--budget", "1", "-o", tmp_path / "p.json"]
    others: dict[str, list[Any]] = {
        "optimize": first,
        "run": ["run", always_three, "-p", tmp_path / "p.json", "--runs", "2"],
        "compare": ["compare", always_three, "-p", tmp_path / "p.json", "--runs", "2"],
    }

    def call(*args: Any) -> str:
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        assert result.exit_code == 0, result.output
        return result.stdout

    call(*first)
    said = call(*others[command])
    assert "not checked" in said
    assert "exact" not in said
    assert "--inputs FILE takes an array for each input" in said
    assert f"Outputs are not checked: all inputs that were tried give the {NOWHERE_ELSE}." in said
    data = json.loads(call(*others[command], "--json"))
    for found in data.get("candidates", [data]):
        assert found["output_error"]["not_checked"].endswith(NOWHERE_ELSE)
        assert found["output_error"]["fault"] is None


@pytest.mark.parametrize("command", ["run", "compare", "optimize"])
def test_outputs_that_are_all_nan_are_not_called_exact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    from typer.testing import CliRunner

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("x", "y")]
    minus = numpy_helper.from_array(np.float32([-1]), "minus")
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["squared"]),
        helper.make_node("Sub", ["minus", "squared"], ["negative"]),
        helper.make_node("Log", ["negative"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "nan", ends[:1], ends[1:], [minus])
    model = tmp_path / "nan.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), model)
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    commands: dict[str, list[Any]] = {
        "optimize": ["optimize", model, "--devices", f"CPU@{CORE}", "--budget", "1", "-o", "p.json", "--wide"],
        "run": ["run", model, "-p", "p.json", "--runs", "2"],
        "compare": ["compare", model, "-p", "p.json", "--runs", "2", "--wide"],
    }
    for name in dict.fromkeys(("optimize", command)):
        result = CliRunner().invoke(app, [str(arg) for arg in commands[name]])
        assert result.exit_code == 0, result.output
    said = " ".join(result.stdout.split())
    assert "not checked (all NaN or infinite)" in said
    assert "Outputs are not checked: every value of the output 'y' is NaN, and of the uncut model's as well." in said
    assert "exact" not in result.stdout
