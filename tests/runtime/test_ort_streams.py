"""ONNX Runtime on the streams of an accelerator: PyTorch's device ``cpu``, with streams that run everything at once."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ExecutionError
from placeit.measuring.check import OutputDifference
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.accelerators import ort_program
from placeit.runtime.accelerators.ort_program import ort_streams
from placeit.runtime.accelerators.torch_library import open_torch
from placeit.runtime.devices import ort
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.runtime import Runtime
from tests.eager_streams import devices, run_at_once
from tests.gpu_libraries import ON_GPU, needs_ort_gpu
from tests.runtime.test_ort import OTHER, grouped, model  # noqa: F401 (a fixture)


@pytest.fixture
def accelerator(monkeypatch):
    run_at_once(monkeypatch)
    opened = open_torch(devices("cpu", "cpu:0"))
    yield opened
    opened.close()


def opened(model, accelerator):  # noqa: F811
    cluster = Cluster(tuple(devices(*accelerator.names)))
    return Runtime(model, grouped(model), cluster, streams=ort_streams(accelerator))


def plan_of(runtime, placement, *, merge=True):
    groups = len(runtime.grouping.groups)
    return Segmenter(runtime.grouping, Costs.zero(groups, runtime.cluster)).plan(placement, merge=merge)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), merge=st.booleans())
def test_any_placement_gives_openvinos_answer(model, accelerator, data, merge):  # noqa: F811
    runtime = opened(model, accelerator)
    size = len(runtime.grouping.groups)
    plan = plan_of(runtime, data.draw(st.lists(st.integers(0, 1), min_size=size, max_size=size)), merge=merge)
    with runtime.executor(plan, in_flight=2) as executor:
        for seed in range(2):
            inputs = model.random_inputs(seed)
            assert OutputDifference.between(executor.run(inputs), model.reference(OTHER, "f32")(inputs)).max_rel < 1e-4
        executor.times(4)


def test_a_segment_has_one_session_on_a_device_for_as_long_as_an_executor_uses_it(model, accelerator, monkeypatch):  # noqa: F811
    made = []

    def count(*args, **how):
        made.append(args[1])
        return open_session(*args, **how)

    open_session = ort_program.open_session
    monkeypatch.setattr(ort_program, "open_session", count)
    runtime = opened(model, accelerator)
    plan = plan_of(runtime, np.arange(len(runtime.grouping.groups)) % 2, merge=False)
    segments = len(plan.programs)
    with runtime.executor(plan), runtime.executor(plan, in_flight=2):
        assert len(made) == segments
        assert set(made) == set(accelerator.names)
    runtime.executor(plan).close()
    assert len(made) == 2 * segments


def test_what_fails_names_the_segment_the_device_and_the_cause(model, accelerator, monkeypatch):  # noqa: F811
    runtime = opened(model, accelerator)
    plan = plan_of(runtime, np.zeros(len(runtime.grouping.groups), int))
    with runtime.executor(plan) as executor:

        def refuse(*of, **how):
            raise RuntimeError("out of memory\nsomewhere")

        monkeypatch.setattr(ort_program.LoadedSession, "_bind", refuse)
        with pytest.raises(
            ExecutionError, match=r"segment that starts with '.*' failed on cpu: ONNX Runtime failed: out of mem"
        ):
            executor.run(model.random_inputs())
    monkeypatch.setattr(runtime.compiler, "source", lambda segment: pytest.fail("compiled again"))
    monkeypatch.setattr(ort, "_session", refuse)
    with pytest.raises(DeviceError, match=r"cannot be loaded onto cpu: ONNX Runtime cannot compile a segment for cpu: out of"):
        runtime.executor(plan)


def test_gpus_alone_are_driven_through_streams_and_others_are_not(monkeypatch):
    opened = []
    monkeypatch.setattr(ort_program, "check_device", lambda device, precision: opened.append((device.name, precision)))
    monkeypatch.setattr(ort_program, "_library", lambda name: "a library")
    monkeypatch.setattr(ort_program, "StreamAccelerator", lambda devices, _: [device.where.hardware for device in devices])
    first, second = Device("cuda:0", "ort", Address("cuda:0")), Device("mine", "ort", Address("cuda:1", runtime="ort"))
    streams = device_kind(first).streams((first, second), "f32")
    assert streams.accelerator == ["cuda:0", "cuda:1"]
    assert opened == [("cuda:0", "f32"), ("mine", "f32")]
    assert device_kind(first).streams((first, OTHER), "f32") is None
    assert device_kind(first).streams((first, Device("core", "ort", Address("CPU", (0,), runtime="ort"))), "f32") is None


def test_a_session_on_a_gpu_computes_on_the_stream_of_its_device_without_tf32(monkeypatch):
    asked = []
    monkeypatch.setattr(ort_program, "open_session", lambda _, name, of, **__: asked.append((name, of)) or Device("session"))

    class Gpus:
        names = ("fast", "slow")
        library = SimpleNamespace(number=lambda place: place.index, handle=lambda stream: stream)

        def place(self, device):
            return torch.device("cuda", device)

        def shared_stream(self, device):
            return 1000 + device

    class Segment:
        inputs = outputs = ()
        in_format = str

    ort_program.OrtStreamProgram(Segment(), Gpus()).load(torch.device("cuda", 1))
    options = {"device_id": "1", "use_tf32": "0", "user_compute_stream": "1001"}
    assert asked == [("slow", ("CUDAExecutionProvider", options))]


@pytest.mark.parametrize("library", ON_GPU)
@needs_ort_gpu
def test_segments_on_a_gpu_hand_tensors_over_there(model, library, monkeypatch):  # noqa: F811
    monkeypatch.setattr(ort_program, "_library", lambda name: library())
    cluster = Cluster((Device("cuda:0", "ort", Address("cuda:0")),))
    with Runtime(model, grouped(model), cluster) as runtime:
        plan = plan_of(runtime, np.zeros(len(runtime.grouping.groups), int), merge=False)
        with runtime.executor(plan, in_flight=2) as executor:
            inputs = model.random_inputs()
            assert OutputDifference.between(executor.run(inputs), model.reference(OTHER, "f32")(inputs)).max_rel < 1e-4
            assert all("host" in span.where for span in executor.spans() if span.kind == "copy")
