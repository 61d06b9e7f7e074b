"""The checker of memory accesses judges what PyTorch and CuPy are told to do, on a stand-in of CUDA below them."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from placeit.runtime.accelerators import ort_program
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.accelerators.library import array_at
from placeit.runtime.accelerators.ort_program import OrtStreamProgram
from placeit.runtime.accelerators.work import PlanTasks
from placeit.runtime.devices.base import BufferSpec
from tests.recorded_cuda import OnCuda, RecordedAccelerator, RecordedCuda
from tests.recorded_libraries import open_library
from tests.runtime.stream_cases import Program, random_case
from tests.runtime.test_streams import chain

LIBRARIES = ["torch", "cupy"]


def work_of(case, accelerator, *, replayable=False):
    book, segments = case.runtime.book, case.plan.segments
    programs = [Program(book, segment) for segment in segments if not segment.passthrough]
    wrapped = [OnCuda(accelerator.cuda, accelerator.library, program, replayable=replayable) for program in programs]
    return PlanTasks.of(book, case.plan, wrapped)


def run(which, monkeypatch, case, *, in_flight=1, rounds=2, skip_wait=None, replayable=False):
    """Run a case on a stand-in; return CUDA and whether every output was right."""
    cuda, right = RecordedCuda(len(case.runtime.cluster), peers=case.peers, skip_wait=skip_wait), True
    accelerator = RecordedAccelerator(cuda, open_library(which, cuda, monkeypatch))
    work = work_of(case, accelerator, replayable=replayable)
    with StreamExecutor(work, accelerator, in_flight=in_flight) as one:
        for number in range(rounds):
            for request in range(in_flight):
                one.set_inputs(case.inputs(number + request), request=request)
            one.times(in_flight)
            for request in range(in_flight):
                got, want = one.outputs(request=request), case.expected(case.inputs(number + request))
                right &= got.keys() == want.keys() and all(np.array_equal(got[name], want[name]) for name in want)
    accelerator.close()
    return cuda, right


@pytest.mark.parametrize("which", LIBRARIES)
def test_random_plans_are_ordered_and_right(which, monkeypatch):
    waits = 0
    for seed in range(12):
        cuda, right = run(which, monkeypatch, random_case(seed), in_flight=1 + seed % 2)
        assert cuda.order.faults == [], seed
        assert right, seed
        waits += cuda.waits
    assert waits > 50


@pytest.mark.parametrize("which", LIBRARIES)
def test_leaving_out_any_one_wait_is_found(which, monkeypatch):
    left_out = 0
    for seed in range(6):
        case = random_case(seed, ops=8)
        waits = run(which, monkeypatch, case, rounds=1)[0].waits
        for wait in range(waits):
            cuda, _ = run(which, monkeypatch, case, rounds=1, skip_wait=wait)
            assert cuda.order.faults, (seed, wait)
            left_out += 1
    assert left_out > 10


@pytest.mark.parametrize("which", LIBRARIES)
@pytest.mark.parametrize("in_flight", [1, 2])
def test_recorded_launches_are_ordered_and_right(which, monkeypatch, in_flight):
    replays = 0
    for seed in range(6):
        case = random_case(seed, ops=8, devices=1 + seed % 2)
        cuda, right = run(which, monkeypatch, case, in_flight=in_flight, rounds=4, replayable=True)
        assert cuda.order.faults == [], seed
        assert right, seed
        replays += cuda.replays
    assert replays > 10


def test_only_pairs_of_gpus_that_may_are_copied_between_directly(monkeypatch):
    for seed in range(8):
        case = random_case(seed, ops=10, devices=3)
        cuda, right = run("cupy", monkeypatch, case, rounds=1)
        assert right
        assert cuda.enabled <= case.peers


class Session:
    """A session of ONNX Runtime: a kernel on the stream that it was made for, from bound inputs to bound outputs."""

    def __init__(self, cuda, handle):
        self.cuda, self.stream = cuda, cuda.streams[handle]

    def get_inputs(self):
        return [SimpleNamespace(name="x")]

    def get_outputs(self):
        return [SimpleNamespace(name="y")]

    def io_binding(self):
        bound = {}

        def bind(name, kind, device, dtype, shape, address):
            assert (kind, device) == ("cuda", self.stream.device_id)
            bound[name] = array_at(address, shape, np.dtype(dtype), None), address

        return SimpleNamespace(bind_input=bind, bind_output=bind, bound=bound)

    def run_with_iobinding(self, binding, options):
        (x, reads), (y, writes) = binding.bound["x"], binding.bound["y"]
        self.cuda.launch(self.stream, "a session", (reads,), (writes,), lambda: np.copyto(y, x + 1))


class Source:
    inputs = outputs = (BufferSpec((100,), "float32"),)

    def in_format(self, form):
        return SimpleNamespace(ByteSize=lambda: 0)


@pytest.mark.parametrize("which", LIBRARIES)
@pytest.mark.parametrize("forgotten", [None, "before", "behind"])
def test_sessions_of_onnx_runtime_are_ordered_with_the_streams_of_executors(which, forgotten, monkeypatch):
    cuda = RecordedCuda(2)
    accelerator = RecordedAccelerator(cuda, open_library(which, cuda, monkeypatch))
    made = lambda segment, name, of, **_: Session(cuda, int(of[1]["user_compute_stream"]))  # noqa: E731
    monkeypatch.setattr(ort_program, "open_session", made)
    follow, calls = accelerator.library.follow, itertools.count()

    def forgetful(stream, other):
        if next(calls) % 2 != {None: 2, "before": 0, "behind": 1}[forgotten]:
            follow(stream, other)

    monkeypatch.setattr(accelerator.library, "follow", forgetful)
    case = chain(4, [0, 1, 1, 0])
    programs = [OrtStreamProgram(Source(), accelerator) for _ in case.plan.programs]
    work = PlanTasks.of(case.runtime.book, case.plan, programs)
    with StreamExecutor(work, accelerator, in_flight=2) as executor:
        for number in range(3):
            got = executor.run(case.inputs(number))
            np.testing.assert_allclose(got["out_op5"], case.inputs(number)["in_op0"] + 4)
        executor.times(4)
    accelerator.close()
    assert bool(cuda.order.faults) == (forgotten is not None)
