"""ONNX Runtime devices, alone and beside OpenVINO's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnx.parser
import openvino
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from placeit.backends import load
from placeit.backends.onnx.segments import OnnxModel, with_onnx
from placeit.backends.torch.model import load as load_torch
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ExecutionError, InfeasibleError, UsageError
from placeit.core.narrowing import narrowed
from placeit.devices import discover
from placeit.devices.clusterfile import read_cluster, write_cluster
from placeit.devices.host import allowed_cores
from placeit.devices.names import parse_device, parse_devices
from placeit.measuring.check import OutputDifference
from placeit.planning.coarsen import Grouping, coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.costs import profile
from placeit.runtime.accelerators import ort_program, torch_library
from placeit.runtime.accelerators.library import StreamLibrary
from placeit.runtime.devices.base import BufferSpec, CompilesSlowly, RuntimeDevice
from placeit.runtime.devices.emulated import slowed
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.devices.ort import OrtDevice
from placeit.runtime.drivers import drive
from placeit.runtime.kinds.ort import KIND
from placeit.runtime.runtime import Runtime
from placeit.session import Session
from placeit.testing.devices import ComputingDeviceConformance
from tests.gpu_libraries import ON_GPU, needs_ort_gpu
from tests.open_models import divided
from tests.recorded_cuda import RecordedCuda
from tests.recorded_libraries import recorded_cupy

CORES = allowed_cores()
ONE = Device("one", "ort", Address("CPU", CORES[:1], runtime="ort"))
OTHER = Device("other", "openvino", Address("CPU", CORES[-1:]))
FLOAT = onnx.TensorProto.FLOAT


class TestOneCore(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return OrtDevice(ONE)


class TestAllCores(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return OrtDevice(Device("all", "ort", Address("CPU", runtime="ort"), all_cores=CORES))


class TestSlowed(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return slowed(OrtDevice(ONE), 3.0)


def save(path: Path, nodes: list[onnx.NodeProto], inputs: dict, outputs: dict, weights: dict | None = None) -> Path:
    graph = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in outputs.items()],
        initializer=[onnx.numpy_helper.from_array(value, name) for name, value in (weights or {}).items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> OnnxModel:
    """Nodes that become several ops, or fewer: bias, batch norm, layer norm, a shape that is computed, aliases, twins."""
    rng, node = np.random.default_rng(0), helper.make_node
    nodes = [
        node("Conv", ["image", "kernel", "bias"], ["conv"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["conv", "scale", "bias", "mean", "variance"], ["normal"]),
        node("Relu", ["normal"], ["left"]),
        node("Relu", ["normal"], ["right"]),  # a twin of the one before
        node("Identity", ["right"], ["alias"]),
        node("Conv", ["left", "kernel2"], ["again"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Add", ["again", "alias"], ["sum"]),
        node("Shape", ["sum"], ["shape"]),
        node("Gather", ["shape", "zero"], ["batch"]),
        node("Concat", ["batch", "minus"], ["flat_shape"], axis=0),
        node("Reshape", ["sum", "flat_shape"], ["flat"]),
        node("Gemm", ["flat", "weights", "offsets"], ["gemm"], alpha=0.5),
        node("ReduceMean", ["gemm"], ["average"], axes=[1]),
        node("Sub", ["gemm", "average"], ["centred"]),
        node("Softmax", ["centred"], ["answer"]),
        node("Tanh", ["sum"], ["second"]),
    ]
    weights = {
        "kernel": rng.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "kernel2": rng.standard_normal((4, 4, 3, 3)).astype(np.float32),
        "bias": rng.standard_normal(4).astype(np.float32),
        "scale": np.ones(4, np.float32),
        "mean": np.zeros(4, np.float32),
        "variance": np.ones(4, np.float32),
        "zero": np.array([0]),
        "minus": np.array([-1]),
        "weights": rng.standard_normal((144, 5)).astype(np.float32),
        "offsets": rng.standard_normal(5).astype(np.float32),
    }
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    shape = [1, 4, 6, 6]
    outputs = {"answer": [1, 5], "second": shape, "alias": shape}
    return with_onnx(load(save(path, nodes, {"image": [1, 3, 6, 6]}, outputs, weights)))  # type: ignore[arg-type]


def run(model: OnnxModel, grouping: Grouping, placement: list[int], *, merge: bool = True) -> OutputDifference:
    """Run a placement on ONNX Runtime (0) and OpenVINO (1), and compare it with OpenVINO's answer for the whole model."""
    inputs = model.random_inputs()
    with Runtime(model, grouping, Cluster((ONE, OTHER))) as runtime:
        plan = Segmenter(grouping, Costs.zero(len(grouping.groups), runtime.cluster)).plan(placement, merge=merge)
        answers = runtime.executor(plan).run(inputs)
    return OutputDifference.between(answers, model.reference(OTHER, "f32")(inputs))


def onnx_ops(model: OnnxModel) -> set[str]:
    return {op for ops, _ in model.onnx_kinds() for op in ops}


def grouped(model: OnnxModel) -> Grouping:
    return coarsen(model.graph, keep_together=model.together)


def test_every_op_of_the_model_can_run_on_onnx_runtime(model: OnnxModel) -> None:
    assert onnx_ops(model) == set(model.graph.names)
    assert not model.channels_last


@settings(max_examples=12)
@given(data=st.data(), merge=st.booleans())
def test_any_mixed_placement_gives_openvinos_answer(model: OnnxModel, data: st.DataObject, merge: bool) -> None:
    grouping = grouped(model)
    size = len(grouping.groups)
    placement = data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size))
    assert run(model, grouping, placement, merge=merge).max_rel < 1e-4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("magika/models/standard_v3_3/model.onnx", {"batch": 1}),
        ("rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", {"input_shapes": {"x": [1, 3, 48, 96]}}),
        ("silero_vad/data/silero_vad_op18_ifless.onnx", {"input_shapes": {"input": [1, 576], "state": [2, 1, 128]}}),
    ],
)
def test_published_models_can_be_split_between_both_runtimes(name: str, options: dict) -> None:
    package = pytest.importorskip(name.partition("/")[0])
    whole = load(Path(package.__path__[0], name.partition("/")[2]), **options)
    model = with_onnx(whole)  # type: ignore[arg-type]
    assert device_kind(ONE).supported(model, ONE) == onnx_ops(model) == set(model.graph.names)
    grouping = coarsen(model.graph, max_groups=12, keep_together=model.together)
    for placement in (np.zeros(len(grouping.groups), int), np.arange(len(grouping.groups)) % 2):
        assert run(model, grouping, placement.tolist()).max_rel < 1e-4


def test_a_body_reads_tensors_from_outside_and_is_cut_with_what_it_reads(tmp_path: Path) -> None:
    def branch(op: str) -> onnx.GraphProto:
        end = helper.make_tensor_value_info(f"{op}_out", FLOAT, [4])
        return helper.make_graph([helper.make_node(op, ["hidden"], [f"{op}_out"])], op, [], [end])

    nodes = [
        helper.make_node("Relu", ["x"], ["hidden"]),
        helper.make_node("ReduceSum", ["x"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "limit"], ["large"]),
        helper.make_node("If", ["large"], ["chosen"], then_branch=branch("Neg"), else_branch=branch("Exp")),
        helper.make_node("Sqrt", ["chosen"], ["y"]),
    ]
    path = save(tmp_path / "if.onnx", nodes, {"x": [4]}, {"y": [4]}, {"limit": np.array(1e9, np.float32)})
    model = with_onnx(load(path))  # type: ignore[arg-type]
    grouping = grouped(model)
    for first in (0, 1):
        placement = [(first + group) % 2 for group in range(len(grouping.groups))]
        assert run(model, grouping, placement, merge=False).max_rel < 1e-5


def test_sizes_that_depend_on_the_data_stay_inside_of_a_segment(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
        helper.make_node("Cast", ["places"], ["numbers"], to=FLOAT),
        helper.make_node("ReduceSum", ["numbers"], ["total"], keepdims=0),
        helper.make_node("Add", ["positive", "total"], ["y"]),
    ]
    model = with_onnx(load(save(tmp_path / "nonzero.onnx", nodes, {"x": [6]}, {"y": [6]})))  # type: ignore[arg-type]
    assert model.bounded
    assert onnx_ops(model) == set(model.graph.names)
    grouping = grouped(model)
    for first in (0, 1):
        placement = [(first + group) % 2 for group in range(len(grouping.groups))]
        assert run(model, grouping, placement, merge=False).max_rel < 1e-5


def test_an_output_whose_size_depends_on_the_data_has_that_size(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["positive"]),
        helper.make_node("NonZero", ["positive"], ["places"]),
        helper.make_node("Cast", ["places"], ["y"], to=FLOAT),
    ]
    model = with_onnx(load(save(tmp_path / "nonzero.onnx", nodes, {"x": [6]}, {"y": [1, "n"]})))  # type: ignore[arg-type]
    assert onnx_ops(model) == set(model.graph.names)
    grouping = grouped(model)
    inputs = {"x": np.array([1, 0, 2, 0, 0, 3], np.float32)}
    with Runtime(model, grouping, Cluster((ONE,))) as runtime:
        zeros = np.zeros(len(grouping.groups), np.int32)
        plan = Segmenter(grouping, Costs.zero(len(zeros), runtime.cluster)).plan(zeros)
        with runtime.executor(plan) as executor:
            assert executor.run(inputs)["y"].tolist() == [[0, 2, 5]]
            assert executor.run({"x": np.ones(6, np.float32)})["y"].tolist() == [[0, 1, 2, 3, 4, 5]]


def test_an_op_in_the_middle_of_a_node_cannot_be_cut_off(model: OnnxModel) -> None:
    whole = model.graph
    inner = next(group for group in model.together if len(group) > 1)
    tensor = next(
        int(t)
        for (u, v), t in zip(whole.edges, whole.edge_tensor, strict=True)
        if whole.names[u] in inner and whole.names[v] in inner
    )
    with pytest.raises(DeviceError, match=r"the ONNX model has no tensor there"):
        model.segment("onnx", [int(whole.tensor_op[tensor])], [], [tensor])


def test_what_reads_more_in_the_onnx_model_is_refused_by_name(model: OnnxModel) -> None:
    last = len(model.graph) - 1
    tensor = int(model.graph.edge_tensor[model.graph.edges[:, 1] == last][0])
    with pytest.raises(DeviceError, match=r"in the ONNX model it reads 'image'"):
        model.segment("onnx", [int(model.graph.tensor_op[tensor])], [], [tensor])


def test_ops_that_compute_alike_come_together_and_others_apart(model: OnnxModel) -> None:
    kinds = [sorted(node.op_type for node in example.graph.node) for _, example in model.onnx_kinds()]
    assert kinds.count(["Conv", "Identity"]) == 1  # the other one has a bias and a batch norm
    relus = [
        ops for ops, example in model.onnx_kinds() if [node.op_type for node in example.graph.node] == ["Relu", "Identity"]
    ]
    assert len(relus) == 1


def test_an_input_that_nothing_reads_is_no_obstacle(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    model = with_onnx(load(save(tmp_path / "unused.onnx", nodes, {"x": [4], "idle": [2]}, {"y": [4]})))  # type: ignore[arg-type]
    assert onnx_ops(model) == set(model.graph.names)
    assert device_kind(ONE).supported(model, ONE) == set(model.graph.names)
    assert run(model, grouped(model), [0] * len(grouped(model).groups)).max_rel == 0


# --- ops without a kernel


@pytest.fixture
def int16_file(tmp_path: Path) -> Path:
    """ONNX Runtime has kernels for Neg and Add of int16 on the CPU, and none for Relu; OpenVINO has them all."""
    nodes = [
        helper.make_node("Neg", ["x"], ["minus"], name="minus"),
        helper.make_node("Relu", ["minus"], ["positive"], name="positive"),
        helper.make_node("Add", ["positive", "x"], ["y"], name="sum"),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.INT16, [8]) for name in "xy"]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    path = tmp_path / "int16.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_an_op_without_a_kernel_is_left_to_the_other_devices(int16_file: Path) -> None:
    model = with_onnx(load(int16_file))  # type: ignore[arg-type]
    with Runtime(model, grouping := Grouping.singletons(model.graph), Cluster((ONE, OTHER))) as runtime:
        costs = profile(model, grouping, runtime.cluster, runtime, budget_s=0.1)
        groups = np.where(np.isfinite(costs.core[:, 0]), 0, 1)
        assert [name for name, device in zip(model.graph.names, groups, strict=True) if device] == ["positive"]
        answers = runtime.executor(Segmenter(grouping, costs).plan(groups)).run({"x": np.arange(-4, 4, dtype=np.int16)})
    assert answers["y"].tolist() == [0, 0, 0, 0, 0, 1, 2, 3]


def test_an_op_that_no_device_has_a_kernel_for_is_named(int16_file: Path) -> None:
    with (
        Session(int16_file, f"ort:CPU@{CORES[0]}", cache=None) as session,
        pytest.raises(InfeasibleError, match=r"None of the devices ort:CPU@\d+ supports op 'positive' \(Relu\): add a device"),
    ):
        session.profile()


def test_a_model_that_this_onnx_runtime_does_not_read_is_refused_with_its_reason(
    model: OnnxModel, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    newer = with_onnx(load(model.path))  # type: ignore[arg-type]
    kinds = list(newer.onnx_kinds())
    for _, example in kinds:
        example.ir_version = 1000
    monkeypatch.setattr(OnnxModel, "onnx_kinds", lambda _: iter(kinds))
    with pytest.raises(
        DeviceError, match=r"can run nothing of .*model\.onnx on one: Unsupported model IR version: 1000.*\d\. Install"
    ) as raised:
        device_kind(ONE).supported(newer, ONE)
    assert len(str(raised.value).splitlines()) == 1
    assert capfd.readouterr().err == ""  # its log is not repeated beside the error


# --- how devices are asked for


def test_a_prefix_asks_for_onnx_runtime() -> None:
    address = parse_device("ort:CPU@2-3")
    assert (str(address), address.runtime, address.hardware, address.cores) == ("ort:CPU@2-3", "ort", "CPU", (2, 3))
    assert str(parse_device("ort:cuda:01")) == "ort:cuda:1"
    with pytest.raises(UsageError, match=r"ONNX Runtime runs on the CPU and on NVIDIA GPUs"):
        parse_device("ort:GPU.0")
    with pytest.raises(UsageError, match=r"'auto' stands for several devices .* written by itself"):
        parse_device("ort:auto")
    with pytest.raises(DeviceError, match=r"both the device cuda:0"):
        parse_devices("ort:cuda:0,cuda:0")


def test_a_cluster_file_may_ask_for_it_too(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(f"devices:\n  fast: {{runs_on: 'ort:CPU@{CORES[0]}', slowdown: 2}}\n")
    cluster = read_cluster(path)
    (device,) = cluster.devices
    assert (device.kind, str(device.address), device.cores) == ("ort", f"ort:CPU@{CORES[0]}", CORES[:1])
    assert device.driver.startswith("ONNX Runtime ")
    write_cluster(cluster, tmp_path / "again.yaml")
    (again,) = read_cluster(tmp_path / "again.yaml").devices
    assert (again.kind, again.address, again.slowdown) == (device.kind, device.address, 2)


def test_an_onnx_model_on_an_nvidia_gpu_is_for_onnx_runtime(model: OnnxModel) -> None:
    whole = load(model.path)
    cluster = drive(Cluster((Device("cuda:0", "cuda", Address("cuda:0"), driver="NVIDIA 1"), OTHER)), whole)
    assert [device.kind for device in cluster.devices] == ["ort", "openvino"]
    assert isinstance(whole.prepared(cluster), OnnxModel)
    assert whole.prepared(Cluster((OTHER,))) is whole


def test_a_whole_file_with_open_sizes_draws_and_checks_inputs_of_other_sizes(tmp_path: Path) -> None:
    nodes, shape = [helper.make_node("Add", ["a", "b"], ["y"])], ["n", 4]
    path = save(tmp_path / "open.onnx", nodes, {"a": shape, "b": shape}, {"y": shape})
    whole = load(path, input_shapes={"a": ["2..8@2", 4], "b": ["2..8@2", 4]}).whole_file("onnx")
    assert whole.inputs_at({"a": (5, 4), "b": (5, 4)})["b"].shape == (5, 4)
    with pytest.raises(UsageError, match="do not fit each other"):
        whole.check_sizes({"a": (5, 4), "b": (3, 4)})


# --- what goes wrong


def test_an_openvino_ir_is_refused(tmp_path: Path, model: OnnxModel) -> None:
    path = tmp_path / "model.xml"
    openvino.save_model(model.ov_model, path)
    with pytest.raises(DeviceError, match=r"ONNX Runtime runs ONNX models, and .*model\.xml is not an ONNX model"):
        Session(path, f"ort:CPU@{CORES[0]}")


def test_a_pytorch_model_that_cannot_be_converted_is_refused() -> None:
    module = load_torch(torch.nn.Linear(2, 2).bfloat16(), (torch.ones(2, 2, dtype=torch.bfloat16),))
    with Session(module, f"ort:CPU@{CORES[0]}", cache=None) as session, pytest.raises(DeviceError, match="not an ONNX model"):
        session.profile()


def test_a_missing_package_is_an_error_that_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DeviceError, match=r"pip install 'placeit\[ort\]"):
        discover(f"ort:CPU@{CORES[0]}")
    with pytest.raises(DeviceError, match=r"pip install 'placeit\[ort\]"):
        OrtDevice(ONE)


def test_onnx_runtime_leaves_nothing_in_the_home_folder(tmp_path: Path) -> None:
    program = (
        "from placeit.devices.onnxruntime import onnxruntime\n"
        "from onnx import helper\n"
        "ends = [[helper.make_tensor_value_info(name, 1, [2])] for name in 'xy']\n"
        "graph = helper.make_graph([helper.make_node('Relu', ['x'], ['y'])], 'g', *ends)\n"
        "model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 17)], ir_version=9)\n"
        "onnxruntime().InferenceSession(model.SerializeToString())\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "ORT_"))}
    places = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], env=environment | places, check=True)
    assert list(tmp_path.rglob("*")) == []


def test_a_build_without_cuda_is_an_error_that_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    build = SimpleNamespace(get_available_providers=lambda: ["CPUExecutionProvider"], __version__="1.0")
    monkeypatch.setitem(sys.modules, "onnxruntime", build)
    with pytest.raises(DeviceError, match=r"cuda:0: .*no CUDAExecutionProvider.*onnxruntime-gpu"):
        KIND.open(Device("cuda:0", "ort", Address("cuda:0")), "f32")


@pytest.fixture
def for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    build = SimpleNamespace(get_available_providers=lambda: ["CUDAExecutionProvider"], __version__="1.0")
    monkeypatch.setitem(sys.modules, "onnxruntime", build)


@pytest.mark.usefixtures("for_cuda")
def test_a_gpu_without_cupy_and_pytorch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_program, "installed", lambda module: False)
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceError, match=r"cuda:0: ONNX Runtime on an NVIDIA GPU needs CuPy, .*pip install 'placeit\[cuda\]'"):
        KIND.open(Device("cuda:0", "ort", Address("cuda:0")), "f32")


@pytest.mark.usefixtures("for_cuda")
def test_pytorch_has_the_streams_where_cupy_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_program, "installed", lambda module: module != "cupy")
    monkeypatch.setattr(torch_library, "_module", lambda kind: SimpleNamespace(device_count=lambda: 1))
    with pytest.raises(DeviceError, match=r"There is no device cuda:1; PyTorch sees cuda:0"):
        KIND.open(Device("gpu", "ort", Address("cuda:1", runtime="ort")), "f32")


@pytest.mark.usefixtures("for_cuda")
def test_cupy_has_the_streams_even_where_pytorch_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_cupy(RecordedCuda(2), monkeypatch)
    monkeypatch.setattr(ort_program, "installed", lambda module: True)
    with pytest.raises(DeviceError, match=r"There is no device cuda:2; CuPy sees cuda:0, cuda:1"):
        KIND.open(Device("gpu", "ort", Address("cuda:2", runtime="ort")), "f32")


@pytest.mark.usefixtures("for_cuda")
def test_cupy_without_a_driver_says_what_to_check(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded_cupy(RecordedCuda(1), monkeypatch)

    def fail() -> int:
        raise sys.modules["cupy"].cuda.runtime.CUDARuntimeError(35)

    monkeypatch.setattr(sys.modules["cupy"].cuda.runtime, "getDeviceCount", fail)
    monkeypatch.setattr(ort_program, "installed", lambda module: True)
    with pytest.raises(DeviceError, match=r"CuPy 0 for CUDA 12\.9 finds no GPU .*\(cudaError 35\): check that `nvidia-smi`"):
        KIND.open(Device("cuda:0", "ort", Address("cuda:0")), "f32")


class Negation:
    inputs = outputs = (BufferSpec((2, 3), "float32"),)

    def in_format(self, form: str) -> object:
        assert form == "onnx"
        ends = [helper.make_tensor_value_info(name, FLOAT, [2, 3]) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "negation", ends[:1], ends[1:])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def device():
    opened = OrtDevice(ONE)
    yield opened
    opened.close()


def test_a_buffer_of_another_shape_or_type_is_refused(device: OrtDevice) -> None:
    instance = device.instance(device.compile(Negation()))  # type: ignore[arg-type]
    for spec in (BufferSpec((3, 2), "float32"), BufferSpec((2, 3), "int64")):
        with pytest.raises(DeviceError, match=r"does not fit input 0 of a segment, float32 \[2, 3\]"):
            instance.bind(0, HostBuffer(spec))


def test_a_failure_on_the_thread_of_the_caller_is_told_as_on_the_lane(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    pick (float[4] x, int64[2] i) => (float[2] y) { y = Gather (x, i) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "pick.onnx")
    x, good, bad = np.arange(4, dtype=np.float32), np.array([1, 3]), np.array([1, 9])
    said = []
    with Session(tmp_path / "pick.onnx", "ort:CPU", cache=None) as session:
        plan = session.plan_of(divided(session, 1))
        for runs in (0, 3):  # the lane runs a segment first, and callers do once they know that it is short
            with session.executor(plan) as executor:
                for _ in range(runs):
                    np.testing.assert_array_equal(executor.run({"x": x, "i": good})["y"], x[good])
                with pytest.raises(ExecutionError, match=r"failed on ort:CPU: .*Gather") as failed:
                    executor.run({"x": x, "i": bad})
                said.append(str(failed.value))
                np.testing.assert_array_equal(executor.run({"x": x, "i": good})["y"], x[good])
    assert said[0] == said[1]


@pytest.mark.parametrize("emulated", [False, True])
def test_the_making_of_a_session_stops_at_a_deadline(device: OrtDevice, *, emulated: bool) -> None:
    limited = narrowed(CompilesSlowly, slowed(device, 2.0) if emulated else device)
    with pytest.raises(ExecutionError, match=r"has not compiled it in the 0 s that there was time for: set a larger budget\."):
        limited.compile_within(Negation(), -1.0)  # type: ignore[arg-type]
    assert limited.compile_within(Negation(), 600.0).inputs == Negation.inputs  # type: ignore[arg-type]


def test_a_session_with_other_shapes_than_the_segment_is_refused(device: OrtDevice) -> None:
    segment = Negation()
    segment.inputs = (BufferSpec((6,), "float32"),)
    with pytest.raises(DeviceError, match=r"segment for one: .*\[\[2, 3\]\] in the ONNX model, not \[\[6\]\]"):
        device.compile(segment)  # type: ignore[arg-type]


def affinities() -> dict[str, str]:
    """Return the cores of each thread: as two readings in a row had it, since one may leave out threads while others end."""
    found, read = None, _affinities()
    while found != read:
        found, read = read, _affinities()
    return read


def _affinities() -> dict[str, str]:
    found = {}
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread of an earlier test has ended
            status = (task / "status").read_text().splitlines()
            found[task.name] = next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list"))
    return found


def test_one_core_needs_no_threads_besides_the_worker_and_those_of_larger_sets_are_bound(device: OrtDevice) -> None:
    before = affinities()
    device.compile(Negation())  # type: ignore[arg-type]
    assert affinities().keys() <= before.keys()
    wide = OrtDevice(Device("wide", "ort", Address("CPU", CORES[-1:] * 3, runtime="ort")))  # three threads, one core
    before = affinities()
    program = wide.compile(Negation())  # type: ignore[arg-type]
    deadline = time.monotonic() + 120  # a thread binds itself, a moment after it has started
    while (found := [cores for task, cores in affinities().items() if task not in before]) != [str(CORES[-1])] * 2:
        if time.monotonic() > deadline:
            break
        time.sleep(0.001)
    del program
    wide.close()
    assert found == [str(CORES[-1])] * 2


@pytest.mark.parametrize("library", ON_GPU)
@needs_ort_gpu
def test_a_model_on_an_nvidia_gpu_gives_openvinos_answer(
    model: OnnxModel, library: Callable[[], StreamLibrary], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ort_program, "_library", lambda name: library())
    with Session(model.path, f"cuda:0,CPU@{CORES[0]}", cache=None) as session:
        session.profile(budget_s=0.2)
        for groups in (np.zeros(len(session.grouping.groups), int), np.arange(len(session.grouping.groups)) % 2):
            assert session.run(session.placement(groups), runs=1).output_error.max_rel < 1e-3
