"""ONNX files that OpenVINO cannot read, or cannot cut, in ONNX Runtime: with the file's own graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from placeit import Session
from placeit.backends import load
from placeit.backends.onnx.model import OnnxFileModel
from placeit.cli import app
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, ModelError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.measuring.check import OutputDifference
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.drivers import choose_driver
from placeit.workbench.options import Constraints

CORES = allowed_cores()
FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node
info = helper.make_tensor_value_info
DOMAINS = {"": 17, "ai.onnx.ml": 3, "com.microsoft": 1}
RNG = np.random.default_rng(0)


def save(
    path: Path, nodes: list, inputs: list, outputs: list, weights: dict | None = None, *, ir: int = 8, opset: int = 17
) -> Path:
    held = [numpy_helper.from_array(value, name) for name, value in (weights or {}).items()]
    graph = helper.make_graph(nodes, "graph", inputs, outputs, held)
    domains = [helper.make_opsetid(name, opset if name == "" else version) for name, version in DOMAINS.items()]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=ir), path)
    return path


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def trees(path: Path, *, zipmap: bool = False, size: object = 4) -> Path:
    """Two trees of one split each, that vote for three classes."""
    tables = {
        "nodes_treeids": [0, 0, 0, 1, 1, 1],
        "nodes_nodeids": [0, 1, 2, 0, 1, 2],
        "nodes_featureids": [0, 0, 0, 1, 0, 0],
        "nodes_values": [0.0, 0.0, 0.0, 0.5, 0.0, 0.0],
        "nodes_modes": ["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        "nodes_truenodeids": [1, 0, 0, 1, 0, 0],
        "nodes_falsenodeids": [2, 0, 0, 2, 0, 0],
        "class_treeids": [0, 0, 1, 1],
        "class_nodeids": [1, 2, 1, 2],
        "class_ids": [0, 1, 1, 2],
        "class_weights": [0.6, 0.7, 0.3, 0.4],
    }
    made = [
        node("Scaler", ["x"], ["scaled"], domain="ai.onnx.ml", offset=[0.1, 0.2], scale=[2.0, 3.0]),
        node(
            "TreeEnsembleClassifier",
            ["scaled"],
            ["label", "votes"],
            name="forest",
            domain="ai.onnx.ml",
            classlabels_int64s=[0, 1, 2],
            post_transform="NONE",
            **tables,
        ),
    ]
    ends = [info("label", INT, [size]), info("votes", FLOAT, [size, 3])]
    if zipmap:
        made.append(node("ZipMap", ["votes"], ["chances"], domain="ai.onnx.ml", classlabels_int64s=[0, 1, 2]))
        kind = helper.make_map_type_proto(INT, helper.make_tensor_type_proto(FLOAT, None))
        ends[1] = helper.make_value_info("chances", helper.make_sequence_type_proto(kind))
    return save(path, made, [info("x", FLOAT, [size, 2])], ends)


def contrib(path: Path) -> Path:
    made = [
        node("FusedMatMul", ["x", "w"], ["a"], domain="com.microsoft", alpha=0.5),
        node("QuickGelu", ["a"], ["b"], domain="com.microsoft"),
        node("SkipLayerNormalization", ["b", "x", "g", "o"], ["c", "", "", "s"], domain="com.microsoft"),
        node("FastGelu", ["s"], ["t"], domain="com.microsoft"),
        node("Add", ["c", "t"], ["y"]),
    ]
    held = {"w": weights(8, 8), "g": weights(8), "o": weights(8)}
    return save(path, made, [info("x", FLOAT, [2, 3, 8])], [info("y", FLOAT, [2, 3, 8])], held)


def sequences(path: Path) -> Path:
    made = [
        node("SplitToSequence", ["x"], ["parts"], axis=0),
        node("SequenceAt", ["parts", "one"], ["part"]),
        node("Relu", ["part"], ["positive"]),
        node("ConcatFromSequence", ["parts"], ["again"], axis=0),
        node("Add", ["again", "positive"], ["y"]),
    ]
    return save(path, made, [info("x", FLOAT, [4, 8])], [info("y", FLOAT, [4, 8])], {"one": np.array(1)})


def texts(path: Path) -> Path:
    made = [
        node("Exp", ["x"], ["e"]),
        node("Cast", ["e"], ["text"], to=TensorProto.STRING),
        node("Cast", ["text"], ["number"], to=FLOAT),
        node("Relu", ["number"], ["y"]),
    ]
    return save(path, made, [info("x", FLOAT, [4])], [info("y", FLOAT, [4])])


def open_outputs(path: Path) -> Path:
    made = [
        node("Relu", ["x"], ["positive"]),
        node("NonZero", ["positive"], ["places"]),
        node("Transpose", ["places"], ["rows"]),
        node("Compress", ["x", "chosen"], ["some"], axis=0),
        node("Exp", ["positive"], ["y"]),
    ]
    ends = [info("rows", INT, ["n", 2]), info("some", FLOAT, ["k", 8]), info("y", FLOAT, [4, 8])]
    return save(path, made, [info("x", FLOAT, [4, 8]), info("chosen", TensorProto.BOOL, [4])], ends)


def norm(path: Path) -> Path:
    """A layer norm of which all three outputs are read."""
    made = [
        node("MatMul", ["x", "w"], ["a"]),
        node("LayerNormalization", ["a", "g", "o"], ["normal", "mean", "deviation"], axis=-1),
        node("MatMul", ["normal", "w"], ["m"]),
        node("Add", ["m", "mean"], ["y"]),
        node("Sqrt", ["deviation"], ["z"]),
    ]
    held = {"w": weights(8, 8), "g": weights(8), "o": weights(8)}
    return save(path, made, [info("x", FLOAT, [4, 8])], [info("y", FLOAT, [4, 8]), info("z", FLOAT, [4, 1])], held)


def version_3(path: Path) -> Path:
    """Constants are inputs as well, as they had to be in the third version of the format."""
    made = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Add", ["a", "o"], ["b"]),
        node("Relu", ["b"], ["c"]),
        node("MatMul", ["c", "w"], ["y"]),
    ]
    inputs = [info("x", FLOAT, [2, 8]), info("w", FLOAT, [8, 8]), info("o", FLOAT, [8])]
    return save(path, made, inputs, [info("y", FLOAT, [2, 8])], {"w": weights(8, 8), "o": weights(8)}, ir=3, opset=9)


def bodies(path: Path) -> Path:
    """Models inside of nodes read a constant and values from outside, and nodes have no name or the same."""
    shape = [2, 8]
    then = [node("MatMul", ["h", "w"], ["tm"], name="n"), node("Add", ["tm", "v"], ["to"], name="n")]
    body = [
        node("MatMul", ["st", "w"], ["m"]),
        node("Tanh", ["m"], ["so"]),
        node("Add", ["so", "h"], ["sc"]),
        node("Identity", ["go"], ["on"]),
    ]
    graphs = {
        "then_branch": helper.make_graph(then, "then", [], [info("to", FLOAT, shape)]),
        "else_branch": helper.make_graph([node("Identity", ["v"], ["eo"])], "else", [], [info("eo", FLOAT, shape)]),
    }
    begin = [info("it", INT, []), info("go", TensorProto.BOOL, []), info("st", FLOAT, shape)]
    end = [info("on", TensorProto.BOOL, []), info("so", FLOAT, shape), info("sc", FLOAT, shape)]
    made = [
        node("Relu", ["x"], ["h"], name="n"),
        node("Exp", ["x"], ["v"], name="n"),
        node("ReduceSum", ["x"], ["t"], keepdims=0),
        node("Greater", ["t", "limit"], ["c"], name="n"),
        node("If", ["c"], ["i"], name="n", **graphs),
        node("Loop", ["trips", "", "i"], ["last", "all"], body=helper.make_graph(body, "body", begin, end)),
        node("ReduceMean", ["all"], ["mean"], axes=[0], keepdims=0),
        node("Sub", ["last", "mean"], ["y"]),
    ]
    held = {"w": weights(8, 8) / 4, "limit": np.array(0, np.float32), "trips": np.array(3)}
    return save(path, made, [info("x", FLOAT, shape)], [info("y", FLOAT, shape)], held)


def large_integers(path: Path) -> Path:
    made = [node("Mul", ["i", "large"], ["m"]), node("Add", ["m", "i"], ["a"]), node("Mod", ["a", "seven"], ["y"])]
    held = {"large": np.array(10**12), "seven": np.array(7)}
    return save(path, made, [info("i", INT, [8])], [info("y", INT, [8]), info("a", INT, [8])], held)


def plainly(path: Path, inputs: dict) -> dict[str, np.ndarray]:
    """What ONNX Runtime computes without placeit, from a model in which no two nodes have one name."""
    model = onnx.load(path)
    for graph in [model.graph, *(a.g for n in model.graph.node for a in n.attribute if a.HasField("g"))]:
        for one in graph.node:
            one.name = ""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([value.name for value in session.get_outputs()], session.run(None, inputs), strict=True))


def each_apart(session: Session) -> Placement:
    """Place neighbouring groups on different devices, each in a separate segment."""
    groups = np.arange(len(session.grouping.groups)) % len(session.cluster)
    plan = Segmenter(session.grouping, Costs.zero(len(groups), session.cluster)).plan(groups, merge=False)
    return session.placement(groups, plan)


FILES = [contrib, sequences, texts, open_outputs, norm, version_3, bodies, large_integers, trees]


@pytest.mark.parametrize("make", FILES, ids=lambda make: make.__name__)
@pytest.mark.parametrize("count", [1, 2], ids=["whole", "split"])
def test_onnx_runtime_runs_it_whole_and_in_parts_as_it_does_without_placeit(make, count: int, tmp_path: Path) -> None:
    path = make(tmp_path / "model.onnx")
    devices = ["ort:CPU"] if count == 1 else list(dict.fromkeys(f"ort:CPU@{core}" for core in (CORES[0], CORES[-1])))
    with Session(path, devices, cache=None, constraints=Constraints(max_groups=96)) as session:
        inputs = {name: np.array(value) for name, value in session.model.random_inputs(3).items()}
        with session.executor(session.plan_of(each_apart(session))) as executor:
            assert OutputDifference.between(executor.run(inputs), plainly(path, inputs)).wrong(1e-5) is None
            error = session.reference.check(executor)
    assert error.wrong(session.tolerance) is None


@pytest.mark.parametrize("make", [norm, bodies, version_3], ids=lambda make: make.__name__)
def test_it_is_split_between_both_runtimes(make, tmp_path: Path) -> None:
    path = make(tmp_path / "model.onnx")
    with (
        Session(path, f"ort:CPU@{CORES[0]},CPU@{CORES[-1]}", cache=None) as session,
        session.executor(session.plan_of(each_apart(session))) as executor,
    ):
        assert session.reference.check(executor).wrong(session.tolerance) is None


def test_a_dictionary_for_each_row_becomes_one_tensor(tmp_path: Path) -> None:
    path = trees(tmp_path / "model.onnx", zipmap=True)
    with Session(path, "ort:CPU", cache=None) as session:
        assert [(spec.name, spec.shape) for spec in session.model.outputs] == [("label", (4,)), ("chances", (4, 3))]
        inputs = {"x": weights(4, 2)}
        with session.executor(session.plan_of(each_apart(session))) as executor:
            outputs = executor.run(inputs)
    expected = plainly(path, inputs)["chances"]
    assert outputs["chances"].tolist() == [[row[key] for key in range(3)] for row in expected]


def test_what_openvino_cannot_read_runs_on_core_sets_and_is_refused_for_its_other_devices(tmp_path: Path) -> None:
    path = trees(tmp_path / "model.onnx")
    with Session(path, cache=None) as session:
        assert {device.kind for device in session.cluster.devices} == {"ort"}
        with session.executor(session.plan_of(each_apart(session))) as executor:
            outputs = executor.run(inputs := {"x": weights(4, 2)})
    np.testing.assert_array_equal(outputs["label"], plainly(path, inputs)["label"])
    model, gpu = load(path), Device("GPU.0", address=Address("GPU.0"))
    with pytest.raises(DeviceError, match=r"GPU\.0 cannot run .*ops ai\.onnx\.ml\.Scaler.*TreeEnsembleClassifier.*-d ort:CPU"):
        choose_driver(gpu, model.formats, path, model.why)


def gathered(path: Path) -> Path:
    """A Slice before a GatherElements on another axis, of which OpenVINO reads both and compiles neither."""
    inputs = [info("x", FLOAT, [1, 64, 9]), info("idx", INT, [1, 5, 4])]
    nodes = [
        node("Relu", ["x"], ["t"], name="t"),
        node("Slice", ["t", "zero", "four", "two"], ["few"], name="few"),
        node("GatherElements", ["few", "idx"], ["y"], axis=1, name="y"),
    ]
    held = {"zero": np.array([0]), "four": np.array([4]), "two": np.array([2])}
    return save(path, nodes, inputs, [info("y", FLOAT, [1, 5, 4])], held)


@pytest.mark.parametrize(
    ("devices", "used"),
    [(None, None), ("CPU", ["CPU"]), ("CPU,ort:CPU", ["ort:CPU"]), (f"ort:CPU@{CORES[0]},CPU@{CORES[-1]}", None)],
    ids=str,
)
def test_what_openvino_reads_and_cannot_compile_runs_in_onnx_runtime(
    devices: str | None, used: list[str] | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = gathered(tmp_path / "model.onnx")
    inputs = {"x": weights(1, 64, 9), "idx": RNG.integers(0, 64, (1, 5, 4))}
    with Session(path, devices, inputs=inputs, cache=None) as session:
        assert {device.kind for device in session.cluster.devices} == {"ort"}
        assert used in (None, list(session.cluster.names))
        assert ("CPU is left out. CPU cannot run" in caplog.text) == (devices == "CPU,ort:CPU")
        with session.executor(session.plan_of(each_apart(session))) as executor:
            outputs = executor.run(inputs)
    np.testing.assert_array_equal(outputs["y"], plainly(path, inputs)["y"])


def test_what_onnx_runtime_cannot_run_is_checked_against_openvino(tmp_path: Path) -> None:
    """ONNX Runtime's CPU has no MatMul of bfloat16."""
    held = [helper.make_tensor(name, TensorProto.BFLOAT16, [16, 16], weights(256).tolist()) for name in ("w", "v")]
    nodes = [
        node("Cast", ["x"], ["b"], to=TensorProto.BFLOAT16),
        node("MatMul", ["b", "w"], ["c"]),
        node("Relu", ["c"], ["d"]),
        node("MatMul", ["d", "v"], ["e"]),
        node("Cast", ["e"], ["y"], to=FLOAT),
    ]
    graph = helper.make_graph(nodes, "graph", [info("x", FLOAT, [2, 16])], [info("y", FLOAT, [2, 16])], held)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with Session(path, f"ort:CPU@{CORES[0]},CPU@{CORES[-1]}", cache=None) as session:
        on_openvino = np.full(len(session.grouping.groups), 1)
        plan = Segmenter(session.grouping, Costs.zero(len(on_openvino), session.cluster)).plan(on_openvino)
        with session.executor(session.plan_of(session.placement(on_openvino, plan))) as executor:
            assert session.reference.check(executor).wrong(session.tolerance) is None


def test_an_input_that_is_no_tensor_is_refused_at_once(tmp_path: Path) -> None:
    ends = [
        [helper.make_value_info(name, helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2])))]
        for name in ("x", "y")
    ]
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    onnx.save(helper.make_model(helper.make_graph(nodes, "graph", *ends)), path := tmp_path / "model.onnx")
    with pytest.raises(ModelError, match="the input 'x' is a sequence, and only tensors of numbers can be passed"):
        Session(path, "CPU", inputs={"x": [weights(2), weights(2)]})


def test_open_sizes_of_such_a_model_are_asked_for_with_a_suggestion(tmp_path: Path) -> None:
    path = trees(tmp_path / "model.onnx", size="n")
    with pytest.raises(ModelError, match=r"open shape \[\?,2\].*--input-shape x:1,2` \(or --batch 1\)"):
        load(path)
    model = load(path, batch=5)
    assert isinstance(model, OnnxFileModel)
    assert model.inputs[0].shape == (5, 2)


@pytest.mark.parametrize(
    "arguments", [["inspect"], ["profile"], ["optimize", "--budget", "3", "-o", "found.json"]], ids="".join
)
def test_commands_work_on_it(arguments: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    trees(tmp_path / "model.onnx")
    devices = [] if arguments == ["inspect"] else ["-d", "ort:CPU", "--no-cache"]
    done = CliRunner().invoke(app, [arguments[0], "model.onnx", *arguments[1:], *devices])
    assert done.exit_code == 0, done.output
    if arguments[0] == "optimize":
        done = CliRunner().invoke(app, ["run", "model.onnx", "-p", "found.json", "--runs", "2"])
        assert done.exit_code == 0, done.output


def test_integers_of_more_than_32_bits_count_as_onnx_runtime_computes_them(tmp_path: Path) -> None:
    path = large_integers(tmp_path / "model.onnx")
    inputs = {"i": np.arange(1, 9)}
    with Session(path, ["CPU", "ort:CPU"], cache=None, inputs=inputs) as session:
        assert session.reference(inputs)["a"].tolist() == [i * (10**12 + 1) for i in range(1, 9)]


def test_a_branch_that_the_inputs_do_not_take_may_not_fit_them(tmp_path: Path) -> None:
    """A model for two rates, as silero-vad's is: without its dimension of 1, what the other branch reads has too few."""

    def branch(op: str) -> onnx.GraphProto:
        nodes = [node(op, ["hidden"], [f"{op}_in"]), node("Transpose", [f"{op}_in"], [f"{op}_out"], perm=[2, 0, 1])]
        return helper.make_graph(nodes, op, [], [onnx.ValueInfoProto(name=f"{op}_out")])

    nodes = [
        node("Equal", ["rate", "sixteen"], ["fast"]),
        node("Tanh", ["x"], ["hidden"]),
        node("If", ["fast"], ["chosen"], then_branch=branch("Identity"), else_branch=branch("Squeeze")),
        node("Exp", ["chosen"], ["y"]),
    ]
    inputs = [info("x", FLOAT, ["a", "b", "c"]), info("rate", INT, [])]
    path = save(tmp_path / "rates.onnx", nodes, inputs, [info("y", FLOAT, None)], {"sixteen": np.array(16, np.int64)})
    with pytest.raises(ModelError, match=r"'x' cannot stay open: OpenVINO .*Transpose.*Give one size for each\."):
        load(path, input_shapes={"x": [1, "2..4@3", 2]})
    model = load(path, input_shapes={"x": [1, 3, 2]})
    assert isinstance(model, OnnxFileModel)
    assert [spec.shape for spec in model.outputs] == [(2, 1, 3)]
    assert model.random_inputs(5)["rate"] == 16
    with Session(model, ",".join(f"ort:CPU@{core}" for core in {CORES[0], CORES[-1]}), cache=None) as session:
        session.profile(budget_s=0.2)
        plan = np.arange(len(session.grouping.groups)) % len(session.cluster)
        report = session.run(session.placement(plan), runs=1)
    assert report.output_error.max_rel < 1e-5
    assert report.outputs["y"].shape == (2, 1, 3)
