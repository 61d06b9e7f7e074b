"""Three nodes of this machine: one with PyTorch, one with an emulated Intel GPU, and one with ONNX Runtime."""

from __future__ import annotations

import math
import os
import re
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import openvino as ov
import pytest
import torch

from placeit.backends.openvino.model import describe
from placeit.backends.torch.model import load
from placeit.core.errors import DeviceError, ExecutionError, NoRoomError
from placeit.core.narrowing import narrowed
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import Grouping, coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.op_times import op_times
from placeit.profiler.support import supported_ops
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.drivers import drive
from placeit.runtime.nodes.device import NodeDevice
from placeit.runtime.runtime import Runtime
from placeit.serving.server import Server
from placeit.session import Session
from tests.beside import beside
from tests.emulated_gpu.build import environment
from tests.emulators import UnavailableError
from tests.open_models import divided
from tests.small_models import inception_like
from tests.stateful_models import SIZE, Totals, totals

pytest.importorskip("ray")
from placeit.devices.nodes import connection, local

ops = ov.opset13

pytestmark = [pytest.mark.timeout(600, method="thread")]

TIMEOUT_S = 240.0
FIRST, LAST = allowed_cores()[0], allowed_cores()[-1]
TORCH, GPU, ORT, HERE = f"head/torch:CPU@{FIRST}", "edge1/GPU.0", f"edge2/ort:CPU@{FIRST}", f"CPU@{LAST}"
ROOT = Path(__file__).parents[2]
HIDING = """
import os, sys
class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        found = None if top in os.environ["LACKS"].split(",") else self.finder.find_spec(name, path, target)
        if name == "onnxruntime" and found is not None:
            run = found.loader.exec_module
            found.loader.exec_module = lambda module: (run(module), setattr(module, "__version__", "1.2.3"))
        return found
    def invalidate_caches(self):
        self.finder.invalidate_caches()
sys.meta_path[:] = [*sys.meta_path[:2], *map(Hiding, sys.meta_path[2:])]
"""


def place(folder: Path, lacks: str, **variables: str) -> local.Place:
    """A node that lacks some packages, and has an ONNX Runtime of another version."""
    path = os.pathsep.join(map(str, (folder, ROOT)))
    said = {"PYTHONPATH": path, "LACKS": lacks, **variables}
    return local.Place(enter=("env", *(f"{name}={value}" for name, value in said.items())))


@pytest.fixture(scope="module", autouse=True)
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[connection.Nodes]:
    try:
        gpu = environment()
    except UnavailableError as error:
        pytest.skip(f"no emulated GPU: {error}")
    file, folder = tmp_path_factory.mktemp("cluster") / "cluster.json", tmp_path_factory.mktemp("hiding")
    (folder / "sitecustomize.py").write_text(HIDING)
    places = {
        "head": place(folder, "onnxruntime"),
        "edge1": place(folder, "torch,onnxruntime", LD_LIBRARY_PATH=gpu["LD_LIBRARY_PATH"], EMULATED_GPUS="1"),
        "edge2": place(folder, "torch"),
    }
    started = local.start(local.names(3), file, places=places)
    try:
        yield connection.connect(started.address, token=started.token)
    finally:
        connection.disconnect()
        started.stop(file)
    assert started.pids() == []


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ONNX file with weights that travel apart from it."""
    text = """<ir_version: 8, opset_import: ["": 17]>
    net (float[1, 64] x) => (float[1, 64] y) {
        a = MatMul (x, wa)
        b = Relu (a)
        c = MatMul (b, wb)
        d = Softmax <axis=-1> (c)
        e = MatMul (d, wc)
        y = Sigmoid (e)
    }"""
    model, rng = onnx.parser.parse_model(text), np.random.default_rng(0)
    for name in ("wa", "wb", "wc"):
        weight = rng.standard_normal((64, 64)).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, name))
    path = tmp_path_factory.mktemp("model") / "net.onnx"
    onnx.save(model, path)
    return path


class Net(torch.nn.Module):
    """A layer whose values are bfloat16 in between."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> Any:
        return self.second(torch.relu(self.first(x)).bfloat16().sigmoid().float()).transpose(0, 1)


def ask(session: Session, parts: int) -> None:
    """Run and serve a placement that goes from device to device, and check the answers."""
    placement = divided(session, parts)
    difference = session.run(placement, runs=1).output_error
    assert difference is not None
    assert difference.max_rel < 1e-3
    inputs = [session.model.random_inputs(seed) for seed in range(6)]
    with session.serve(placement, in_flight=2) as server:
        answers = [server.submit(values) for values in inputs]
        for values, answer in zip(inputs, answers, strict=True):
            check(answer.result(TIMEOUT_S), session.reference(values))


def check(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-3, atol=1e-4)


def test_one_plan_runs_on_a_gpu_and_onnx_runtime_of_nodes_and_in_this_process(file: Path) -> None:
    with Session(file, [GPU, ORT, HERE], cache=None) as session:
        ask(session, 3)
        plan = session.plan_of(divided(session, 3))
        counted = op_times(session.model, session.grouping, session.cluster, plan, passes=1)
        assert {session.cluster.names[plan.segments[one.segment].device] for one in counted} == {GPU, HERE}


def test_a_node_stops_making_a_session_at_the_deadline(file: Path) -> None:
    with Session(file, [ORT], cache=None) as session:
        plan = session.plan_of(divided(session, 1))
        with session.compiling.until(-math.inf), pytest.raises(ExecutionError, match="in the 0 s that there was time for"):
            session.executor(plan)
        session.executor(plan).close()


def test_a_pytorch_model_runs_on_a_node_and_here_with_types_that_numpy_lacks_between() -> None:
    model = load(Net().eval(), (torch.randn(1, 64),))
    with Session(model, [f"head/CPU@{FIRST}", HERE], cache=None) as session:
        assert [device.kind for device in session.cluster.devices] == ["torch", "torch"]
        assert session.cluster.devices[0].driver.startswith(f"PyTorch {torch.__version__}, at ")
        ask(session, 2)


def test_sequences_keep_their_states_on_a_gpu_of_a_node() -> None:
    model = totals(2)
    grouping = coarsen(model.graph, keep_together=model.together, co_locate=False)
    with Runtime(model, grouping, discover([GPU])) as runtime:
        plan = Segmenter(grouping, Costs.zero(len(grouping.groups), runtime.cluster)).plan(np.zeros(len(grouping.groups), int))
        with runtime.executor(plan) as executor, Server([executor]) as server, server.sequence() as sequence:
            wanted = Totals(2)
            for step in range(4):
                x = np.random.default_rng(step).standard_normal((1, SIZE)).astype(np.float32)
                check(sequence.run({"x": x}, timeout=TIMEOUT_S), {"y": wanted.run(x)})


def test_a_node_is_asked_what_its_devices_support_and_how_long_their_kernels_take() -> None:
    model, cluster = inception_like(), discover([GPU])
    assert supported_ops(model, cluster).all()
    found = device_kind(cluster.devices[0]).kernels(model, Grouping.singletons(model.graph), cluster.devices[0], "f32", 1)
    assert {op for kernel in found for op in kernel.ops} <= set(range(len(model.graph)))
    assert sum(kernel.seconds for kernel in found) > 0


def test_all_devices_of_nodes_are_found_with_the_runtimes_that_each_node_has(nodes: connection.Nodes) -> None:
    others = {device.name: names for device, names in nodes.available()}
    assert others["head/CPU"] == ["head/torch:CPU"]
    assert others["edge1/CPU"] == others["edge1/GPU"] == []
    assert others[f"edge2/CPU@{FIRST}"] == [f"edge2/ort:CPU@{FIRST}"]
    assert sorted(nodes.automatic()) == ["edge1/CPU", "edge1/GPU", "edge2/CPU", "head/CPU"]


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("edge1/ort:CPU", "The node 'edge1': ONNX Runtime cannot be imported"),
        ("edge2/torch:CPU", "The node 'edge2': .*torch"),
        ("edge2/GPU.0", "The node 'edge2': There is no device 'GPU.0'"),
        ("edge1/cuda:0", "The node 'edge1': placeit finds no NVIDIA GPU 'cuda:0'"),
        ("edge1/throughput:CPU", "is of the kind 'throughput', whose devices can be used on their own machine only"),
    ],
)
def test_a_device_or_a_runtime_that_a_node_lacks_is_an_error_that_names_it(name: str, why: str) -> None:
    with pytest.raises(DeviceError, match=why):
        discover([name])


def test_another_version_of_a_runtime_is_said_once(nodes: connection.Nodes, caplog: pytest.LogCaptureFixture) -> None:
    nodes._warned.clear()
    for _ in range(2):
        assert discover([ORT]).devices[0].driver.startswith("ONNX Runtime 1.2.3, at ")
    (said,) = [record.message for record in caplog.records]
    assert said.startswith("The node 'edge2' has ONNX Runtime 1.2.3, and this process has ONNX Runtime ")


def test_a_node_without_the_runtime_of_a_model_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    model = load(Net().eval(), (torch.randn(1, 64),))
    left = drive(discover([f"edge2/CPU@{FIRST}", f"head/CPU@{LAST}"]), model)
    assert left.names == (f"head/CPU@{LAST}",)
    (said,) = [record.message for record in caplog.records if "left out" in record.message]
    assert said.startswith(f"edge2/CPU@{FIRST} is left out. The node 'edge2': ")


def test_a_node_that_is_lost_while_it_compiles_is_an_error_that_names_the_device(file: Path) -> None:
    with Session(file, [ORT], cache=None) as session:
        device = narrowed(NodeDevice, session.runtime.devices[0])
        os.kill(device.pid, signal.SIGSTOP)
        plan = session.plan_of(divided(session, 1))
        with beside(lambda: session.runtime.executor(plan)) as made:
            while not device._pending_calls:
                time.sleep(0.01)
            os.kill(device.pid, signal.SIGKILL)
    (error,) = made
    assert isinstance(error, DeviceError)
    # the call that compiles may end before the connection does
    assert re.match(f"{re.escape(ORT)}(, asked to compile,)? is lost: its process has ended", str(error))


def test_a_segment_without_room_on_a_gpu_of_a_node_is_an_error_that_says_so() -> None:
    x = ops.parameter([1, 1], ov.Type.f32, name="x")
    huge = ops.broadcast(x, ops.constant([1 << 17, 1 << 17]))
    model = describe(ov.Model([ops.result(ops.relu(huge))], [x], "huge"), Path("huge"))
    with Runtime(model, coarsen(model.graph), discover([GPU])) as runtime:
        groups = len(runtime.grouping.groups)
        plan = Segmenter(runtime.grouping, Costs.zero(groups, runtime.cluster)).plan(np.zeros(groups, int))
        with pytest.raises(NoRoomError, match=GPU):
            runtime.executor(plan)


def test_outputs_of_a_node_are_compared_with_those_of_this_machine_which_may_lack_its_gpu() -> None:
    with Session(inception_like(), [GPU, f"edge1/CPU@{LAST}"], cache=None) as session:
        inputs = session.model.random_inputs()
        with Session(session.model, [HERE], cache=None) as here:
            check(session.reference(inputs), here.reference(inputs))


def test_an_output_whose_size_depends_on_the_data_crosses_with_that_size(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]>
    places (float[6] x) => (int64[1, n] y) {
        r = Relu (x)
        y = NonZero (r)
    }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "places.onnx")
    for device in (ORT, f"edge1/CPU@{FIRST}"):
        with Session(tmp_path / "places.onnx", [device], cache=None) as session, session.serve(divided(session, 1)) as server:
            for x in ([1, -1, 2, -2, 3, -3], [0] * 6, [1] * 6):
                (found,) = server.submit({"x": np.array(x, np.float32)}).result(TIMEOUT_S).values()
                np.testing.assert_array_equal(found, np.array([np.flatnonzero(np.maximum(x, 0))]))


def test_an_error_in_a_run_names_node_device_and_op() -> None:
    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = torch.nn.Embedding(4, 8)

        def forward(self, places: torch.Tensor) -> Any:
            return self.rows(places)

    model = load(Rows().eval(), (torch.tensor([1, 2]),))
    with Session(model, [TORCH], cache=None) as session, session.serve(divided(session, 1)) as server:
        with pytest.raises(ExecutionError, match=f"{TORCH} in op 'embedding'"):
            server.submit({model.inputs[0].name: np.array([1, 9])}).result(TIMEOUT_S)
        server.submit({model.inputs[0].name: np.array([1, 3])}).result(TIMEOUT_S)
