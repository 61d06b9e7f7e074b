"""What accelerators ask of PyTorch and of CuPy: on a stand-in of CUDA below each, and on real GPUs."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.devices.accelerator import HOST
from placeit.runtime.devices.base import BufferSpec
from tests.gpu_libraries import ON_GPU
from tests.recorded_cuda import RecordedCuda
from tests.recorded_libraries import fake_cupy, recorded_cupy, recorded_torch
from tests.runtime.stream_cases import Program, random_case

STAND_INS = [
    pytest.param(recorded_torch, id="stand-in of PyTorch"),
    pytest.param(recorded_cupy, id="stand-in of CuPy"),
]


@pytest.fixture(params=[*STAND_INS, *ON_GPU])
def accelerator(request, monkeypatch):
    """Two devices that are the same GPU, as parts of one are."""
    of = request.param
    library = of(RecordedCuda(1), monkeypatch) if of in (recorded_torch, recorded_cupy) else of()
    opened = StreamAccelerator([Device(name, kind="cuda", address=Address("cuda:0")) for name in ("first", "second")], library)
    yield opened
    opened.close()


def views(accelerator, spec):
    """A tensor of the host, one of the device, and another one of the host."""
    memory = [accelerator.allocate(place, max(1, spec.nbytes)) for place in (HOST, 0, HOST)]
    return [accelerator.view(one, spec) for one in memory], memory


SPECS = [
    BufferSpec((), "float32"),
    BufferSpec((2, 3), "int64"),
    BufferSpec((5,), "bool"),
    BufferSpec((1, 2, 3, 4), "float32", channels_last=True),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_tensors_go_to_a_gpu_and_back(accelerator, spec):
    (there, device, back), memory = views(accelerator, spec)
    value = np.random.default_rng(0).integers(0, 2, spec.shape).astype(spec.dtype)
    stream = accelerator.open_stream(0)
    accelerator.write(there, value)
    accelerator.copy(stream, there, device)
    accelerator.copy(stream, device, back)
    accelerator.finish(stream)
    np.testing.assert_array_equal(accelerator.read(back), value)
    np.testing.assert_array_equal(accelerator.host_view(back, memory), value)
    for sentinel in (0, 1):
        accelerator.blank(device, sentinel)
        assert accelerator.is_blank(device, sentinel)
    accelerator.copy(stream, there, device)
    accelerator.finish(stream)
    assert accelerator.is_blank(device, 1) == bool((value == 1).all() and spec.dtype != "float32")
    accelerator.close_stream(stream)
    for one in memory:
        accelerator.free(one)
    accelerator.trim()


def test_events_have_times_and_streams_wait_for_them(accelerator):
    (there, device, back), _ = views(accelerator, BufferSpec((1000,), "float32"))
    first, second = accelerator.open_stream(0), accelerator.open_stream(1, -1)
    events = [accelerator.event(0) for _ in range(3)]
    accelerator.write(there, np.arange(1000, dtype=np.float32))
    accelerator.record(events[0], first)
    accelerator.copy(first, there, device)
    accelerator.record(events[1], first)
    accelerator.wait(second, events[1])
    accelerator.copy(second, device, back)
    accelerator.record(events[2], second)
    events[2].synchronize()
    np.testing.assert_array_equal(accelerator.read(back), np.arange(1000))
    assert all(accelerator.elapsed(events[n], events[n + 1]) >= 0 for n in range(2))


def test_copies_are_recorded_as_a_graph_that_reads_what_is_there_when_it_is_launched(accelerator):
    (there, device, back), _ = views(accelerator, BufferSpec((4,), "int64"))
    library, stream = accelerator.library, accelerator.open_stream(0)
    replays = []

    def launch(_):
        library.copy(there, device)
        library.copy(device, back)

    def record():
        replays.append(stream.graphs.record(launch))

    for number in range(3):
        accelerator.write(there, np.full(4, number))
        library.launch_on(stream.stream, replays[0] if replays else record)
        accelerator.finish(stream)
        np.testing.assert_array_equal(accelerator.read(back), np.full(4, number))
    assert replays[0] is not None


class OnHost:
    """A program that the host computes, between copies on the current stream."""

    replayable = False

    def __init__(self, accelerator, program):
        self.accelerator, self.program = accelerator, program

    def workspace_bytes(self, enough):
        return 0

    def weight_bytes(self, place):
        return 0

    def load(self, place):
        return OnHost(self.accelerator, self.program.load(place))

    def launch(self, inputs, outputs):
        library, graph = self.accelerator.library, self.program.program.graph
        stream = library.current(library.place("cuda:0"))
        ends, memory = [], []
        for tensors, found in ((self.program.program.reads, inputs), (self.program.program.writes, outputs)):
            specs = [BufferSpec(graph.tensor_shapes[t], graph.tensor_dtypes[t]) for t in tensors]
            pinned = [library.allocate(None, max(1, spec.nbytes)) for spec in specs]
            ends.append([*zip(found, map(library.view, pinned, specs), strict=True)])
            memory += pinned
        for view, host in ends[0]:
            library.copy(view, host)
        library.finish(stream)
        made = [np.zeros_like(library.read(host)) for _, host in ends[1]]
        self.program.launch([library.read(host) for _, host in ends[0]], made)
        for (view, host), value in zip(ends[1], made, strict=True):
            library.write(host, value)
            library.copy(host, view)
        library.finish(stream)
        ends.clear()
        for one in memory:
            library.free(one)


@pytest.mark.parametrize("seed", range(4))
def test_random_plans_are_right(accelerator, seed):
    case = random_case(seed, ops=8, devices=2)
    book = case.runtime.book
    programs = [OnHost(accelerator, Program(book, segment)) for segment in case.plan.segments if not segment.passthrough]
    with StreamExecutor(PlanTasks.of(book, case.plan, programs), accelerator, in_flight=2) as executor:
        for number in range(3):
            inputs = case.inputs(number)
            got, want = executor.run(inputs), case.expected(inputs)
            assert all(np.array_equal(got[name], want[name]) for name in want)


def test_a_gpu_that_does_not_exist_is_an_error_that_lists_those_that_do(accelerator):
    with pytest.raises(DeviceError, match=r"There is no device cuda:99; .* sees cuda:0"):
        accelerator.library.place("cuda:99")


@pytest.mark.parametrize("library", ON_GPU)
def test_arrays_of_a_library_are_adopted_without_a_copy(library):
    opened = StreamAccelerator([Device("cuda:0", kind="cuda", address=Address("cuda:0"))], library())
    spec = BufferSpec((2, 3), "float32")
    view = opened.view(opened.allocate(0, spec.nbytes), spec)
    place, adopted, ready = opened.adopt(opened.array(view))
    ready.synchronize()
    assert place == opened.place(0)
    assert opened.library.address(adopted) == opened.library.address(view)
    opened.close()


def test_the_stand_in_has_what_cupy_has():
    cupy = pytest.importorskip("cupy", reason="the package cupy is not installed")
    fake = fake_cupy(RecordedCuda(1))
    assert {name for name in vars(fake) if not name.startswith("_")} <= set(dir(cupy))
    assert set(vars(fake.cuda)) <= set(dir(cupy.cuda))
    assert set(vars(fake.cuda.runtime)) <= set(dir(cupy.cuda.runtime))
    for kind in ("Stream", "Event"):
        taken = set(inspect.signature(getattr(fake.cuda, kind)).parameters)
        assert taken <= set(inspect.signature(getattr(cupy.cuda, kind)).parameters)
    assert {"begin_capture", "end_capture", "wait_event", "synchronize"} <= set(dir(cupy.cuda.Stream))
    assert {"record", "synchronize"} <= set(dir(cupy.cuda.Event))
    assert {"malloc", "free_bytes", "free_all_blocks"} <= set(dir(cupy.cuda.MemoryPool))
    assert {"malloc", "free_all_blocks"} <= set(dir(cupy.cuda.PinnedMemoryPool))


def test_onnx_models_on_gpus_import_no_pytorch():
    code = """
import sys, types
sys.modules["torch"] = None
cupy = sys.modules["cupy"] = types.ModuleType("cupy")
cupy.cuda = types.SimpleNamespace(memory=types.SimpleNamespace(OutOfMemoryError=MemoryError))
from placeit.runtime.accelerators import cupy_library, executor, ort_program, stream_device
"""
    subprocess.run([sys.executable, "-c", code], check=True)
