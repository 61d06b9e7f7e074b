"""Bundles of segments for other runtimes than OpenVINO alone: ONNX Runtime, and PyTorch models that are converted."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import placeit
from placeit.backends.bundle.model import open_bundle
from placeit.backends.torch.model import load
from placeit.core.errors import DeviceError, ModelError, UsageError
from placeit.devices.host import allowed_cores
from placeit.session import Session
from tests.bundled import edited, placed, rewritten
from tests.torch_models import check_remembering, remembering

RNG = np.random.default_rng(0)
ONE, OTHER = (f"CPU@{core}" for core in (allowed_cores()[0], allowed_cores()[-1]))

pytestmark = pytest.mark.two_cores


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an ONNX file with two branches, an output that is an inner tensor, and weights in a separate file."""
    made, node = tmp_path_factory.mktemp("models") / "branches.onnx", helper.make_node
    weights = {name: RNG.standard_normal((128, 128)).astype(np.float32) / 8 for name in ("v", "w")}
    graph = helper.make_graph(
        [
            node("MatMul", ["x", "v"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("MatMul", ["x", "w"], ["c"]),
            node("Tanh", ["c"], ["d"]),
            node("Add", ["b", "d"], ["y"]),
        ],
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 128])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 128]) for name in ("y", "d")],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    whole = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(whole, made, save_as_external_data=True, location="branches.weights", size_threshold=1024)
    return made


@pytest.mark.parametrize(
    "devices", [(f"ort:{ONE}", f"ort:{OTHER}"), (f"ort:{ONE}", OTHER), ("ort:CPU",)], ids=["both", "mixed", "plain"]
)
def test_segments_of_onnx_runtime_hold_their_weights(model: Path, tmp_path: Path, devices: tuple[str, ...]) -> None:
    with Session(model, devices, cache=None) as session:
        manifest = session.build(placed(session, 3), tmp_path / "app.placeit")
        inputs = session.model.random_inputs(5)
        expected = session.reference(inputs)
    assert "onnxruntime" in manifest.versions
    with placeit.load(tmp_path / "app.placeit") as application:
        outputs = application.run(inputs)
        for name, value in expected.items():
            np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-4)
            np.testing.assert_allclose(application.session.reference(inputs)[name], value, rtol=1e-4, atol=1e-4)
        assert application.check().max_rel <= application.tolerance
    with pytest.raises(UsageError, match=r"rematch it to ort:CPU@0, say"):
        placeit.load(tmp_path / "app.placeit", rematch={devices[0]: "throughput:CPU"})


class Branches(nn.Module):
    """Two branches, an output twice, and an input that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.norm, self.last = nn.Conv2d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, x: torch.Tensor, unread: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(self.norm(self.one(x)))
        return self.last((y * torch.sigmoid(self.two(x))).mean((2, 3))), y, y


def test_segments_of_a_pytorch_model_are_converted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    program = load(Branches().eval(), (torch.randn(1, 3, 8, 8), torch.randn(2)), name="branches")
    with Session(program, [ONE, OTHER], cache=None) as session:
        session.build(placed(session, 1), tmp_path / "app.placeit")
        inputs = session.model.random_inputs(3)
        expected = session.reference(inputs)
    assert "has its segments for OpenVINO" in caplog.text
    with placeit.load(tmp_path / "app.placeit") as application:
        assert application.versions.keys() == {"placeit", "openvino"}
        assert application.differences == ()
        outputs = application.run(inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-4)


def test_segments_stay_pytorch_programs_where_the_name_asks_for_pytorch(tmp_path: Path) -> None:
    program = load(Branches().eval(), (torch.randn(1, 3, 8, 8), torch.randn(2)), name="branches")
    with Session(program, [f"torch:{ONE}", OTHER], cache=None) as session:
        session.build(placed(session, 1), tmp_path / "app.placeit")
        inputs = session.model.random_inputs(3)
        expected = session.reference(inputs)
    with placeit.load(tmp_path / "app.placeit") as application:
        assert application.versions.keys() == {"placeit", "openvino", "torch"}
        for outputs in (application.run(inputs), application.session.reference(inputs)):
            for name, value in expected.items():
                np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=r"rematch it to torch:CPU@0, say"):
        placeit.load(tmp_path / "app.placeit", rematch={f"torch:{ONE}": "throughput:CPU"})


@pytest.mark.parametrize("devices", [(f"torch:{ONE}", f"torch:{OTHER}"), (ONE, OTHER)], ids=["pytorch", "converted"])
def test_sequences_continue_from_the_state_of_a_pytorch_model(devices: tuple[str, str], tmp_path: Path) -> None:
    with Session(load(remembering(), (torch.ones(2, 3),)), devices, cache=None) as session:
        session.build(placed(session, 2), tmp_path / "app.placeit")
    with placeit.load(tmp_path / "app.placeit") as application, application.server() as server, server.sequence() as sequence:
        check_remembering(sequence)
        assert sequence.state_bytes >= 8 + 4 * 6
        np.testing.assert_array_equal(application.run({"x": np.ones((2, 3), np.float32)})["output.1"], [[3, 3, 3]])


def test_a_tensor_program_is_refused_with_the_way_out(tmp_path: Path) -> None:
    for device, says in ((ONE, "placeit export"), (f"torch:{ONE}", "build it of another model")):
        with (
            Session("ffnn:batch=64,features=8,hidden=64", [device], cache=None) as session,
            pytest.raises(ModelError, match=says),
        ):
            session.build(placed(session), tmp_path / "app.placeit")
    assert list(tmp_path.iterdir()) == []


def test_segments_of_onnx_runtime_with_state_have_a_reference_for_all_inputs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["past_key_values.0.key", "x"], ["sum"]),
        helper.make_node("Tanh", ["sum"], ["present.0.key"]),
        helper.make_node("Mul", ["present.0.key", "x"], ["y"]),
    ]
    names = ("x", "past_key_values.0.key"), ("y", "present.0.key")
    ends = ([helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in some] for some in names)
    graph = helper.make_graph(nodes, "recurrent", *ends)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "model.onnx")
    with Session(tmp_path / "model.onnx", f"ort:{ONE}", cache=None) as session:
        session.build(placed(session), tmp_path / "app.placeit")
    model = open_bundle(tmp_path / "app.placeit")
    x = np.full((1, 8), 0.3, np.float32)
    reference = model.reference(None, "f32")
    for _ in range(2):  # each time from the initial state
        np.testing.assert_allclose(reference({"x": x})["y"], np.tanh(x) * x, rtol=1e-5)
    model.files.wait()


def test_segments_of_onnx_runtime_read_no_file_of_this_machine(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Session(model, f"ort:{ONE}", cache=None) as session:
        session.build(placed(session), tmp_path / "app.placeit")
    monkeypatch.chdir(tmp_path)
    Path("secret").write_bytes(np.ones((128, 128), np.float32).tobytes())
    sizes: dict[str, dict[str, object]] = {}

    def reach_out(files: dict[str, bytes]) -> None:
        name = next(name for name in files if name.endswith(".onnx"))
        program = onnx.ModelProto.FromString(files[name])
        weights = program.graph.initializer[0]
        weights.ClearField("raw_data")
        weights.data_location = TensorProto.EXTERNAL
        weights.external_data.add(key="location", value="secret")
        files[name] = program.SerializeToString()
        sizes[name] = {"bytes": len(files[name]), "sha256": hashlib.sha256(files[name]).hexdigest()}

    changed = rewritten(tmp_path / "app.placeit", tmp_path / "changed.placeit", reach_out)
    with pytest.raises(DeviceError, match="does not exist"):
        placeit.load(edited(changed, tmp_path / "hostile.placeit", lambda data: data["files"].update(sizes)))
