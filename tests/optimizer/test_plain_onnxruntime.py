"""Plain ONNX Runtime as a candidate beside plain OpenVINO, and the references of models that both run."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from placeit import Session
from placeit.core.placement import Placement
from placeit.devices.plain import plain_devices
from placeit.optimizer.compare import compare
from placeit.optimizer.deployed import Deployed
from placeit.optimizer.whole_models import alone_on, plain_candidates
from placeit.planning.segments import Costs, Segmenter
from tests.eight_bit import EIGHT_BIT
from tests.steady import STEADY, optimize

FLOAT = TensorProto.FLOAT


def save(path: Path, nodes: list, shape: list, weights: dict, *, dtype: int = FLOAT, ir: int = 8, out: int = FLOAT) -> Path:
    held = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    ends = [helper.make_tensor_value_info("x", dtype, shape)], [helper.make_tensor_value_info("y", out, shape)]
    graph = helper.make_graph(nodes, "graph", *ends, held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = {"w": np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Tanh", ["m"], ["y"])]
    return save(tmp_path / "model.onnx", nodes, [4, 16], weights)


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    """What dynamic quantisation makes of a matrix product."""
    weights = {
        "w": np.random.default_rng(0).integers(-127, 127, (64, 64)).astype(np.int8),
        "zero": np.array(0, np.int8),
        "scale": np.array(0.01, np.float32),
    }
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "zero"], ["p"]),
        helper.make_node("Cast", ["p"], ["f"], to=FLOAT),
        helper.make_node("Mul", ["s", "scale"], ["both"]),
        helper.make_node("Mul", ["f", "both"], ["y"]),
    ]
    return save(tmp_path / "quantised.onnx", nodes, [8, 64], weights)


@pytest.mark.parametrize("devices", [["CPU"], ["CPU", "ort:CPU"]], ids=" ".join)
def test_it_is_raced_as_any_program_would_use_it(model: Path, devices: list[str]) -> None:
    with Session(model, devices, cache=None, policy=STEADY) as session:
        session.profile(budget_s=0.5)
        found = compare(session, {}, runs=3)
        name = "plain ort:CPU" if len(devices) > 1 else "ort:CPU"
        plain = next(one for one in found.candidates if one.name == name)
        assert plain.plain
        assert plain.measured is not None
        assert plain.output_error is not None
        assert plain.output_error.max_rel == 0  # of the same runtime
        assert session.home_of(plain.placement).cluster.devices[0].plain
        assert session.run(plain.placement, runs=1).failed is None


def test_its_placement_is_run_by_itself(model: Path, tmp_path: Path) -> None:
    with Session(model, "CPU", cache=None, policy=STEADY) as session:
        home = session.alone(plain_devices(session.cluster, onnx=True)[0])
        home.placement(np.zeros(len(home.grouping.groups), np.int32)).save(tmp_path / "placement.json")
    placement = Placement.load(tmp_path / "placement.json")
    with Session(model, list(placement.device_names), cache=None, policy=STEADY) as session:
        session.profile(budget_s=0.5)
        assert session.cluster.devices[0].plain
        assert session.run(placement, runs=1).failed is None


def test_a_file_that_it_does_not_open_is_no_candidate(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = save(tmp_path / "new.onnx", [helper.make_node("Exp", ["x"], ["y"])], [4], {}, ir=99)
    caplog.set_level(logging.INFO, "placeit")
    with Session(path, "CPU", cache=None, policy=STEADY) as session:
        session.profile(budget_s=0.2)
        assert [one.name for one in compare(session, {}, runs=1).candidates] == ["CPU"]
    assert "is not a candidate: ONNX Runtime cannot compile" in caplog.text


def test_it_is_no_candidate_without_time_to_open_the_file(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "placeit")
    with Session(model, "CPU", cache=None, policy=STEADY) as session:
        problem = Segmenter(session.grouping, Costs.zero(len(session.grouping.groups), session.cluster)).problem()
        assert [one.name for one, _ in plain_candidates(session, problem, 0.0)] == []
        assert [one.name for one, _ in plain_candidates(session, problem, 1000.0)] == ["ort:CPU"]
    assert "is not a candidate: compiling it takes about" in caplog.text


def test_it_is_timed_with_threads_that_are_awake_and_leaves_them_at_rest(model: Path) -> None:
    with Session(model, "CPU", cache=None, policy=STEADY) as session:
        home = session.alone(plain_devices(session.cluster, onnx=True)[0])
        with Deployed([lambda: home.executor(alone_on(home, "it").plan)], spins=True) as deployed:
            ran: list[int] = []
            runs = deployed.executors[0].time
            deployed.executors[0].time = lambda: ran.append(1) or runs()  # type: ignore[method-assign, func-returns-value]
            assert deployed.time() > 0
            assert len(ran) == 2  # the first wakes them, and does not count


@EIGHT_BIT
def test_quantised_operators_are_checked_against_the_runtime_that_writes_them(quantised: Path) -> None:
    inputs = {"x": np.random.default_rng(1).standard_normal((8, 64)).astype(np.float32)}
    with Session(quantised, "CPU", cache=None, inputs=inputs, policy=STEADY) as session:
        whole = session.alone(plain_devices(session.cluster, onnx=True)[0])
        assert (session.reference(inputs)["y"] == whole.reference(inputs)["y"]).all()
        assert session.tolerance == 0.1
    found = optimize(quantised, "CPU", budget=1.0, cache=None, inputs=inputs)
    assert all(one.failed is None for one in found.candidates)


def test_runtimes_that_do_not_agree_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = [helper.make_node("Mul", ["x", "large"], ["y"])]
    kind = TensorProto.INT64
    path = save(tmp_path / "large.onnx", nodes, [4], {"large": np.array(10**12)}, dtype=kind, out=kind)
    with Session(path, "CPU", cache=None, inputs={"x": np.arange(4)}, policy=STEADY) as session:
        session.profile(budget_s=0.2)
        compare(session, {}, runs=1)
    assert "OpenVINO and ONNX Runtime compute different outputs" in caplog.text
