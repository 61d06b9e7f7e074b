"""What a placement was found for is in its file, and holds when it runs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from examples.decoder import TINY, write_decoder
from placeit import Session
from placeit.cli import app
from placeit.core.errors import PlacementError
from placeit.core.placement import Placement
from placeit.workbench.options import Inputs, Traffic


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 64]) for name in ("x", "y")]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture
def placement(model: Path, tmp_path: Path) -> Path:
    path = tmp_path / "placement.json"
    arguments = ["optimize", str(model), "-d", "CPU", "--batch", "8", "--precision", "bf16", "--budget", "1", "-o", str(path)]
    done = CliRunner().invoke(app, [*arguments, "--no-cache"])
    assert done.exit_code == 0, done.output
    return path


def run(*arguments: object) -> dict:
    done = CliRunner().invoke(app, ["run", *map(str, arguments), "--runs", "1", "--json"])
    assert done.exit_code == 0, done.output
    return {**json.loads(done.stdout), "stderr": done.stderr}


def test_precision_and_sizes_are_those_that_it_was_found_for(model: Path, placement: Path) -> None:
    found = Placement.load(placement).conditions
    assert found is not None
    assert (found.precision, found.compression, found.shapes) == ("bf16", "none", {"x": (8, 64)})
    assert run(model, "-p", placement)["precision"] == "bf16"
    text = CliRunner().invoke(app, ["run", str(model), "-p", str(placement), "--runs", "1"])
    assert "bf16, with which the placement was found" in text.stdout


def test_the_file_of_a_placement_has_the_result_that_json_prints(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    arguments = ["optimize", str(model), "-d", "CPU", "--batch", "8", "--budget", "1", "-o", str(path), "--no-cache", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    printed, placement = json.loads(done.stdout), Placement.load(path)
    assert placement.result is not None
    assert printed.pop("placement_file") == str(path)
    assert printed.pop("recording_file") is None
    assert printed.pop("page_file") is None
    assert printed.pop("schema") == "placeit.optimize/1"
    kept = dict(placement.result)
    assert printed.pop("profiled").keys() == kept.pop("profiled").keys()  # one of which is an age
    assert kept == printed
    placement.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_text() == path.read_text()


def test_a_session_runs_the_file_of_a_placement_as_the_command_does(model: Path, placement: Path) -> None:
    inputs = {"x": np.ones((8, 64), np.float32)}
    with Session(model, "CPU", precision="bf16", inputs=Inputs(batch=8), cache=None) as session:
        report = session.run(placement, runs=3, warmup=1, inputs=inputs)
        served = session.run(placement, warmup=0, inputs=inputs, traffic=Traffic(requests=5))
    printed = run(model, "-p", placement)
    files = {f"{what}_file" for what in ("placement", "recording", "trace", "outputs", "csv")}
    assert {*report.to_dict(), *files, "schema", "differences", "stderr"} >= printed.keys()
    assert report.to_dict()["runs"] == 3
    assert printed["devices"] == report.to_dict()["devices"]
    assert (served.to_dict()["arrived"], served.to_dict()["ended"], served.failed) == (5, 5, None)
    json.dumps([report.to_dict(), served.to_dict()], allow_nan=False)


def test_another_precision_holds_if_it_is_asked_for_and_is_told(model: Path, placement: Path) -> None:
    said = run(model, "-p", placement, "--precision", "f32")
    assert said["precision"] == "f32"
    assert "was found with --precision bf16, and runs with --precision f32" in said["stderr"]


def test_a_file_without_conditions_runs_in_float32(model: Path, placement: Path) -> None:
    data = json.loads(placement.read_text())
    for key in ("precision", "compression", "input_shapes"):
        del data[key]
    placement.write_text(json.dumps(data))
    assert Placement.load(placement).conditions is None
    assert run(model, "-p", placement, "--batch", "8")["precision"] == "f32"


@pytest.mark.parametrize(("key", "known"), [("precision", "f32, bf16, f16"), ("compression", "none"), ("logits", "last, all")])
def test_conditions_that_do_not_exist_are_refused(model: Path, placement: Path, key: str, known: str) -> None:
    placement.write_text(json.dumps(json.loads(placement.read_text()) | {key: "f8"}))
    done = CliRunner().invoke(app, ["run", str(model), "-p", str(placement), "--runs", "1"])
    assert done.exit_code == 1
    assert f"'{key}' is 'f8', and not one of {known}" in " ".join(done.output.split())


def test_inputs_that_are_kept_as_state_are_so_when_the_placement_runs(tmp_path: Path) -> None:
    ends = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in ("x", "h", "h_next", "y")}
    nodes = [helper.make_node("Add", ["h", "x"], ["h_next"]), helper.make_node("Neg", ["h_next"], ["y"])]
    graph = helper.make_graph(nodes, "graph", [ends["x"], ends["h"]], [ends["y"], ends["h_next"]])
    path, file = tmp_path / "model.onnx", tmp_path / "placement.json"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with Session(path, "CPU", inputs=Inputs(state={"h": "h_next"}), cache=None) as session:
        session.placement(np.zeros(len(session.grouping.groups), np.int32)).save(file)
    kept = Placement.load(file).conditions
    assert kept is not None
    assert (kept.state, kept.shapes) == ({"h": "h_next"}, {"x": (1, 4)})
    assert set(run(path, "-p", file)["devices"]) == {"CPU"}


@pytest.mark.parametrize(
    "change", [('"precision": "bf16"', '"precision": 16'), ('"precision"', '"state": {"x": 1}, "precision"')]
)
def test_conditions_that_make_no_sense_are_an_error(placement: Path, change: tuple[str, str]) -> None:
    placement.write_text(placement.read_text().replace(*change))
    with pytest.raises(PlacementError, match=r"'precision', 'compression' and 'logits' are names"):
        Placement.load(placement)


def test_an_overflow_between_segments_is_found_on_the_given_inputs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kind = TensorProto.FLOAT16
    ends = [helper.make_tensor_value_info(name, kind, [8]) for name in ("x", "y")]
    nodes = [helper.make_node("Mul", ["x", "x"], ["square"]), helper.make_node("Sqrt", ["square"], ["y"])]
    path = tmp_path / "half.onnx"
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    found = []
    for value in (2.0, 300.0):
        with Session(path, "CPU", inputs={"x": np.full(8, value, np.float16)}, cache=None) as session:
            groups = np.arange(len(session.model.graph))
            ops = dict(zip(session.model.graph.names, ["CPU"] * len(groups), strict=True))
            placement = Placement(tuple(ops), np.zeros(len(ops), np.int32), ("CPU",), segments=groups.astype(np.int32))
            session.divide(placement, by_segments=True)
            found.append(session.run(placement, runs=1).failed)
            assert not caplog.records
    assert found[0] is None
    assert found[1] is not None
    assert "has inf where the uncut model's has 300" in found[1]
    with Session(path, "CPU", cache=None) as session:
        session.reference.output_check()
    assert "give --inputs to check them on yours" in caplog.text


def test_the_reference_is_float32_in_any_precision(model: Path) -> None:
    with Session(model, "CPU", inputs=Inputs(batch=8), precision="bf16", cache=None) as session:
        session.profile(budget_s=0.2)
        placement = session.placement(np.zeros(len(session.grouping.groups), np.int32))
        error = session.run(placement, runs=1).output_error
        computes = "bf16" in session.cluster.devices[0].tags
    assert error.alike == 0  # the same as the whole model in bfloat16, of which it has one segment
    assert (error.max_rel > 1e-4) == computes


def test_a_placement_of_a_decoder_that_computes_all_logits_runs_with_all_of_them(tmp_path: Path) -> None:
    path, file = write_decoder(TINY, tmp_path / "decoder.xml"), tmp_path / "placement.json"
    shapes = {"input_ids": (1, 4), "attention_mask": (1, 4), "position_ids": (1, 4)}
    with Session(path, "CPU", inputs=Inputs(shapes=shapes, logits="all"), cache=None) as session:
        groups = np.zeros(len(session.grouping.groups), np.int32)
        session.placement(groups).save(file)
    assert json.loads(file.read_text())["logits"] == "all"
    given = [word for name in shapes for word in ("--input-shape", f"{name}:1,4")]
    assert set(run(path, "-p", file, *given)["devices"]) == {"CPU"}
