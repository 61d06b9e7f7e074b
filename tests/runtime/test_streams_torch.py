import sys
from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import numpy as np
import pytest
import torch

from placeit.backends.torch.model import load
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ExecutionError
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.accelerators import stream_accelerator, torch_library
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.module_program import ModuleProgram
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from placeit.runtime.accelerators.torch_library import open_torch, torch_streams
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.devices.accelerator import HOST, Inbox
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.runtime import Runtime
from tests.eager_streams import Recorded, devices, run_at_once
from tests.runtime.stream_cases import random_case
from tests.runtime.test_streams import case_of, chain


class Step(torch.nn.Module):
    """A segment of the chain: ``x -> w * x + 1``."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("weight", torch.full((100,), weight))

    def forward(self, x):
        return (self.weight * x + 1.0,)


class Shared(torch.nn.Module):
    """Something else with the same weight, seen through another tensor."""

    def __init__(self, weight):
        super().__init__()
        self.register_buffer("mine", weight.detach())


def torch_work(places, module=Step):
    case = chain(len(places), places)
    steps = iter(range(1, len(places) + 1))
    return case, PlanTasks.of(
        case.runtime.book, case.plan, [ModuleProgram(module(float(next(steps)))) for s in case.plan.programs]
    )


def expected(value, steps):
    for step in range(1, steps + 1):
        value = np.float32(step) * value + np.float32(1)
    return value


@pytest.fixture
def cpu(monkeypatch):
    run_at_once(monkeypatch)
    accelerator = open_torch(devices("cpu", "cpu"))
    yield accelerator
    accelerator.close()


def test_pytorch_modules_run_on_the_streams_of_pytorch(cpu):
    case, work = torch_work([0, 1, 1, 0])
    with StreamExecutor(work, cpu, in_flight=2) as executor:
        for number in range(2):
            got = executor.run(case.inputs(number))
            np.testing.assert_allclose(got["out_op5"], expected(case.inputs(number)["in_op0"], 4))
        executor.times(5)


def test_weights_are_on_a_device_once_and_for_as_long_as_a_program_there_uses_them():
    module, there = Step(2.0), torch.device("meta")
    one, other = ModuleProgram(module), ModuleProgram(Shared(module.weight))
    assert one.weight_bytes(there) == other.weight_bytes(there) == 400
    loaded = [one.load(there), other.load(there)]
    assert one.weight_bytes(there) == other.weight_bytes(there) == 0
    assert module.weight.device.type == "cpu"
    del loaded[0]
    assert one.weight_bytes(there) == 0
    del loaded[0]
    assert one.weight_bytes(there) == 400


def test_what_a_segment_makes_on_the_way_counts_as_it_is_alive_where_that_matters(exported):
    _, model = exported
    program = ModuleProgram(model.segment("torch", range(len(model.graph)), [], []))
    assert program.workspace_bytes(1e9) >= program.workspace_bytes(0) >= 3 * 6 * 4 + 3 * 4  # at least its two outputs
    assert program.workspace_bytes(0) < program.workspace_bytes(1e9)
    assert ModuleProgram(Step(2.0)).workspace_bytes(0) == 0


def test_on_the_cpu_weights_are_used_where_they_are():
    program = ModuleProgram(Step(2.0))
    assert program.weight_bytes(torch.device("cpu")) == 0
    out = torch.zeros(100)
    program.load(torch.device("cpu")).launch([torch.ones(100)], [out])
    np.testing.assert_array_equal(out, np.full(100, 3.0))


def test_a_traced_module_makes_its_tensors_on_the_device_that_it_is_loaded_to(cpu):
    class Traced(Step):
        def forward(self, x):
            return (x + self.weight + torch.ones(100, device=torch.device("cpu")),)

    module = torch.fx.symbolic_trace(Traced(2.0))
    program = ModuleProgram(module)
    place, out = torch.device("meta"), torch.zeros(100, device="meta")
    program.load(place).launch([torch.zeros(100, device=place)], [out])  # raises if anything is left on the CPU
    np.testing.assert_array_equal(module(torch.zeros(100))[0], np.full(100, 3.0))


class Branches(torch.nn.Module):
    """Two branches with weights, a constant that is made on the way, and two outputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = torch.nn.Linear(8, 6), torch.nn.Linear(8, 6)

    def forward(self, x):
        a, b = torch.relu(self.left(x)), torch.sigmoid(self.right(x))
        return a + b * torch.ones(6), a.sum(dim=1)


@pytest.fixture(scope="module")  # exporting is slow, and leaves a thread of the progress bar behind
def exported():
    module = Branches()
    return module, load(module, (torch.zeros(3, 8),))


def branches(exported, accelerator, seed):
    """A random placement of an exported module: what to run, its inputs, and what PyTorch says of them."""
    module, model = exported
    grouping = Grouping.singletons(model.graph)
    names = [f"{d}" for d in range(len(accelerator.names))]
    cluster = Cluster(tuple(Device(name, "cuda") for name in names))
    costs = Costs.zero(len(grouping.groups), cluster)
    place = np.random.default_rng(seed).integers(0, len(names), len(grouping.groups))
    plan = Segmenter(grouping, costs).plan(place, merge=bool(seed % 2))
    runtime = Runtime(model, grouping, cluster, streams=torch_streams(accelerator))
    inputs = model.random_inputs(seed)
    with torch.inference_mode():
        results = module(*(torch.tensor(value) for value in inputs.values()))
    return (
        PlanTasks.of(runtime.book, plan, runtime.compiler.compile(plan.programs)),
        inputs,
        dict(zip(runtime.book.outputs, results, strict=True)),
    )


@pytest.mark.parametrize("seed", range(4))
def test_an_exported_model_gives_what_pytorch_gives(exported, cpu, seed):
    work, inputs, expected = branches(exported, cpu, seed)
    with StreamExecutor(work, cpu) as executor:
        got = executor.run(inputs)
    assert got.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-5)


def test_an_op_that_fails_is_an_error_that_names_segment_and_device(cpu):
    class Broken(Step):
        def forward(self, x):
            return (x @ self.weight.reshape(50, 2),)

    case, work = torch_work([0, 1], Broken)
    with (
        StreamExecutor(work, cpu) as executor,
        pytest.raises(ExecutionError, match=r"'op1' failed on cpu: cpu refused: .*shape"),
    ):
        executor.run(case.inputs())


def test_memory_that_runs_out_lets_go_of_what_the_segment_had_made(cpu):
    import weakref

    made = []

    class Hungry(Step):
        def forward(self, x):
            y = x + 1.0
            made.append(weakref.ref(y))
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has no more.")

    case, work = torch_work([0], Hungry)
    with StreamExecutor(work, cpu) as executor:
        with pytest.raises(ExecutionError, match=r"'op1' failed on cpu: .* out of memory .*Tried to allocate") as caught:
            executor.run(case.inputs())
        assert caught.value is not None  # alive, and with it its frames
        assert made[0]() is None


def test_views_of_memory_have_shape_type_and_order(cpu):
    memory = cpu.allocate(HOST, 96)
    for spec in (
        BufferSpec((), "float32"),
        BufferSpec((2, 3), "int64"),
        BufferSpec((5,), "bool"),
        BufferSpec((1, 2, 3, 4), "float32", channels_last=True),
    ):
        view = cpu.view(memory, spec)
        value = np.random.default_rng(0).integers(0, 2, spec.shape).astype(spec.dtype)
        cpu.write(view, value)
        np.testing.assert_array_equal(cpu.read(view), value)
        assert view.permute(0, 2, 3, 1).is_contiguous() if spec.channels_last else view.is_contiguous()
    cpu.free(memory)


class Refusing:
    """Makes graphs by keeping calls, up to a number of launches."""

    def __init__(self, most):
        self.most, self.replays = most, 0

    def record(self, launch):
        before = len(Counted.calls)
        launch("recording")
        if len(Counted.calls) - before > self.most:
            return None

        def replay():
            self.replays += 1
            launch("replay")

        return replay


class Counted(Step):
    """A module that notes its calls."""

    replayable = True
    calls: ClassVar[list[float]] = []

    def forward(self, x):
        self.calls.append(float(self.weight[0]))
        return super().forward(x)


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("most", [0, 1, 3])
def test_a_plan_on_one_device_is_one_graph_or_else_one_for_each_segment_or_none(monkeypatch, most, in_flight):
    monkeypatch.setattr(torch_library, "_can_time_graphs", lambda: True)
    monkeypatch.setattr(StreamAccelerator, "_graphs", lambda self, device, priority: graphs)
    monkeypatch.setattr(Recorded, "record", lambda self, stream: setattr(self, "recorded", True) or setattr(self, "at", 1.0))
    graphs = Refusing(most)
    run_at_once(monkeypatch)
    accelerator = open_torch(devices("cpu"))
    case, work = torch_work([0, 0, 0], Counted)
    with StreamExecutor(work, accelerator, in_flight=in_flight) as executor:
        for number in range(6):
            got = executor.run(case.inputs(number))["out_op4"]
            np.testing.assert_allclose(got, expected(case.inputs(number)["in_op0"], 3), rtol=1e-6)
        assert recorded(executor)[0] == {0: [False] * 3, 1: [True] * 3, 3: [True]}[most]
    # of the six runs: one is recorded; or two try that for all together, and one for each of three; or two and two try
    assert graphs.replays == {0: 0, 1: 3 * 3, 3: 5}[most]
    accelerator.close()


def test_inputs_are_copied_wherever_numpy_has_them(cpu):
    memory = cpu.allocate(HOST, 64)
    view = cpu.view(memory, BufferSpec((2, 3), "float32"))
    wide = np.arange(24, dtype=np.float32).reshape(2, 12)
    fixed = wide[:, :3].copy()
    fixed.flags.writeable = False
    fields = np.zeros((2, 3), [("a", np.float32), ("b", np.int8)])
    fields["a"] = 5.0
    for value in (
        wide[:, 2:8:2],
        wide[::-1, 5:2:-1],
        np.broadcast_to(np.float32(4.0), (2, 3)),
        fixed,
        fields["a"],
        fixed.T.copy().T,
    ):
        cpu.write(view, value)
        np.testing.assert_array_equal(cpu.read(view), value)
    cpu.free(memory)


# -- what is missing ---------------------------------------------------------------------------------------------------


def test_a_pytorch_without_cuda_says_what_to_install(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceError, match=r"is built without CUDA: install one built with it .*placeit\[cuda\]"):
        open_torch(devices("cuda:0"))


def test_a_missing_driver_says_what_to_check(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(DeviceError, match=r"built for CUDA 12\.8 and finds no GPU to use: check that `nvidia-smi`"):
        open_torch(devices("cuda:0"))


def test_a_gpu_that_is_not_there_lists_those_that_are(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(DeviceError, match=r"There is no device cuda:7; PyTorch sees cuda:0, cuda:1"):
        open_torch(devices("cuda:0", "cuda:7"))


def test_devices_of_different_types_are_refused(monkeypatch):
    with pytest.raises(DeviceError, match=r"different types"):
        open_torch(devices("cpu", "meta"))
    with pytest.raises(DeviceError, match=r"does not support devices of type 'meta'|finds no device of type 'meta'"):
        open_torch(devices("meta"))


def test_a_device_that_breaks_while_the_host_waits_is_an_error(cpu, monkeypatch):
    class Broken:
        def query(self):
            raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with")

    monkeypatch.setattr(stream_accelerator, "_CHECK_INTERVAL_S", 0.01)
    monkeypatch.setattr(torch, "Stream", lambda device: Broken())
    cpu.open_stream(0)
    with pytest.raises(DeviceError, match=r"cpu refused: CUDA error: an illegal memory access was encountered$"):
        cpu.take(Inbox())


def test_nothing_of_this_is_loaded_with_the_package():
    import subprocess

    code = "import sys, placeit; print('torch' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True).stdout.strip()
        == "False"
    )


# -- on GPUs -----------------------------------------------------------------------------------------------------------

GPUS = torch.cuda.device_count() if torch.cuda.is_available() else 0
one_gpu = pytest.mark.skipif(GPUS < 1, reason="needs an NVIDIA GPU and a PyTorch built with CUDA; this machine has no GPU")
two_gpus = pytest.mark.skipif(GPUS < 2, reason=f"needs two NVIDIA GPUs; this machine has {GPUS}")


@pytest.fixture
def gpus():
    accelerator = open_torch(devices(*(f"cuda:{d}" for d in range(GPUS))))
    yield accelerator
    accelerator.close()


@pytest.mark.gpu
@one_gpu
def test_one_gpu_computes_what_numpy_does(gpus):
    case, work = torch_work([0, 0, 0])
    with StreamExecutor(work, gpus, in_flight=2) as executor:
        for number in range(20):
            got = executor.run(case.inputs(number))["out_op4"]
            np.testing.assert_allclose(got, expected(case.inputs(number)["in_op0"], 3), rtol=1e-6)


@pytest.mark.gpu
@one_gpu
@pytest.mark.parametrize("priority", [0, -1])
def test_streams_are_each_executors_own_and_come_back(gpus, priority):
    case, work = torch_work([0, 0])
    opened = []
    for _ in range(3):
        with StreamExecutor(work, gpus, priority=priority) as executor, StreamExecutor(work, gpus, priority=priority) as other:
            mine, others = ({queue.stream for queue in one._launcher._opened} for one in (executor, other))
            assert not mine & others
            assert {stream.priority for stream in mine} == {priority}
            opened.append(mine | others)
            got = other.run(case.inputs())["out_op3"]
            np.testing.assert_allclose(got, expected(case.inputs()["in_op0"], 2), rtol=1e-6)
    assert opened[0] == opened[1] == opened[2]


@pytest.mark.gpu
@pytest.mark.skipif(GPUS < 3, reason=f"needs three NVIDIA GPUs; this machine has {GPUS}")
def test_copies_into_a_gpu_are_on_streams_of_their_own(gpus):
    case = case_of(["Op", "Op", "Op", "Op"], [(0, 2), (1, 3)], [0, 1, 2, 2])
    with StreamExecutor(case.work(), gpus) as executor:
        beside = [queue.stream for queue in executor._launcher._destination_streams if queue is not None]
    assert len(set(beside)) == 2
    assert {stream.device_index for stream in beside} == {2}


@pytest.mark.gpu
@two_gpus
@pytest.mark.parametrize("peers", [True, False])
def test_two_gpus_compute_what_numpy_does(gpus, peers, monkeypatch):
    if not peers:
        monkeypatch.setattr(gpus, "can_peer", lambda src, dst: False)
    case, work = torch_work([0, 1, 0, 1])
    with StreamExecutor(work, gpus) as executor:
        for number in range(20):
            got = executor.run(case.inputs(number))["out_op5"]
            np.testing.assert_allclose(got, expected(case.inputs(number)["in_op0"], 4), rtol=1e-6)


@pytest.mark.gpu
@one_gpu
@pytest.mark.parametrize("seed", range(4))
def test_an_exported_model_gives_on_gpus_what_pytorch_gives_on_the_cpu(exported, gpus, seed):
    work, inputs, expected = branches(exported, gpus, seed)
    with StreamExecutor(work, gpus) as executor:
        got = executor.run(inputs)
    for name, value in expected.items():
        np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-5)


class Recordable(Step):
    replayable = True


class Unrecordable(Step):
    """Says that it can be recorded, and looks at a value that it has computed."""

    replayable = True

    def forward(self, x):
        return (self.weight * x + 1.0 if (x == x).all() else x,)


def recorded(executor):
    """For each request, whether its launches are recorded: all together, or each program for itself."""
    return [[one.recorded for one in slot.batch.recorders] for slot in executor._launcher.slots]


@pytest.mark.gpu
@one_gpu
@pytest.mark.parametrize("kind", [Recordable, Unrecordable])
def test_launches_that_were_recorded_compute_what_they_did_before(gpus, kind):
    case, work = torch_work([0, 0, 0], kind)
    with StreamExecutor(work, gpus, in_flight=2) as executor:
        for number in range(20):
            got = executor.run(case.inputs(number))["out_op4"]
            np.testing.assert_allclose(got, expected(case.inputs(number)["in_op0"], 3), rtol=1e-6)
        assert recorded(executor) == ([[kind is Recordable] * (1 if kind is Recordable else 3)] * 2)
        executor.times(5)
    case, work = torch_work([0, 0, 0], Recordable)  # after recording has failed, it works elsewhere
    with StreamExecutor(work, gpus) as executor:
        for number in range(3):
            got = executor.run(case.inputs(number))["out_op4"]
            np.testing.assert_allclose(got, expected(case.inputs(number)["in_op0"], 3), rtol=1e-6)
        assert recorded(executor) == [[True]]


@pytest.mark.gpu
@one_gpu
def test_two_executors_of_a_gpu_record_while_the_other_launches(gpus):
    work = [torch_work([0] * 6, Recordable) for _ in range(2)]
    wrong = []

    def serve(case, what):
        for _ in range(20):
            with StreamExecutor(what, gpus, in_flight=2) as executor:
                for number in range(4):
                    got = executor.run(case.inputs(number))["out_op7"]
                    if not np.allclose(got, expected(case.inputs(number)["in_op0"], 6), rtol=1e-6):
                        wrong.append(number)

    with ThreadPoolExecutor(2) as pool:
        for served in [pool.submit(serve, *each) for each in work]:
            served.result()
    assert wrong == []


@pytest.mark.gpu
@one_gpu
def test_a_gpu_is_usable_after_its_memory_ran_out(gpus):
    class Hungry(Step):
        def forward(self, x):
            kept = [torch.empty(2**30, device=x.device) for _ in range(1000)]
            return (kept[0][:100] + x,)

    free = gpus.free_bytes(0)
    case, work = torch_work([0, 0], Hungry)
    with (
        StreamExecutor(work, gpus) as executor,
        pytest.raises(ExecutionError, match=r"'op1' failed on cuda:0: .*out of memory"),
    ):
        executor.run(case.inputs())
    assert gpus.free_bytes(0) > 0.95 * free
    case, work = torch_work([0, 0])
    with StreamExecutor(work, gpus) as executor:
        executor.run(case.inputs())


@pytest.mark.gpu
@one_gpu
@pytest.mark.parametrize("seed", range(10))
def test_random_plans_on_gpus_run_in_order(gpus, seed):
    """A tensor that is read too early would give a wrong sum; the programs are the fake accelerator's, as modules."""

    class Evaluate(torch.nn.Module):
        def __init__(self, program):
            super().__init__()
            self.program = program

        def forward(self, *inputs):
            outputs = [np.zeros(self.shapes[t], self.dtypes[t]) for t in self.program.writes]
            self.program.load(None).launch([value.cpu().numpy() for value in inputs], outputs)
            return tuple(torch.from_numpy(value) for value in outputs)

    case = random_case(seed, ops=10, devices=GPUS)
    graph = case.runtime.grouping.graph
    Evaluate.shapes, Evaluate.dtypes = graph.tensor_shapes, graph.tensor_dtypes
    fake = case.work()
    work = PlanTasks.of(case.runtime.book, case.plan, [ModuleProgram(Evaluate(t.program)) for t in fake.tasks if t.program])
    with StreamExecutor(work, gpus) as executor:
        got, want = executor.run(case.inputs()), case.expected(case.inputs())
    for name in want:
        np.testing.assert_array_equal(got[name], want[name])
