"""Arrays of callers on GPUs are read and written there, by each library on a stand-in of CUDA below it."""

import contextlib

import numpy as np
import pytest
import torch

from placeit.core.errors import UsageError
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.serving.server import Server
from tests.recorded_cuda import CallersArray, RecordedAccelerator, RecordedCuda
from tests.recorded_libraries import open_library
from tests.runtime.test_libraries_proof import LIBRARIES, work_of
from tests.runtime.test_streams import case_of, chain


@contextlib.contextmanager
def opened(which, monkeypatch, case, *, in_flight=1, replayable=False):
    cuda = RecordedCuda(len(case.runtime.cluster))
    accelerator = RecordedAccelerator(cuda, open_library(which, cuda, monkeypatch))
    work = work_of(case, accelerator, replayable=replayable)
    with contextlib.closing(accelerator), StreamExecutor(work, accelerator, in_flight=in_flight) as executor:
        yield executor, cuda


def on_host(array):
    return array.numpy() if isinstance(array, torch.Tensor) else array.get()


@pytest.mark.parametrize("which", LIBRARIES)
@pytest.mark.parametrize("replayable", [False, True])
@pytest.mark.parametrize("places", [[0, 0, 0], [0, 1, 0]])
def test_arrays_that_stay_on_a_gpu_do_not_go_through_the_host(which, monkeypatch, places, replayable):
    case = chain(3, places)
    with opened(which, monkeypatch, case, replayable=replayable) as (executor, cuda):
        for number in range(4):
            inputs = case.inputs(number)
            if number == 1:  # one in between whose ends are on the host
                np.testing.assert_array_equal(executor.run(inputs)["out_op4"], case.expected(inputs)["out_op4"])
                continue
            cuda.copies.clear()
            got = executor.run({"in_op0": CallersArray(cuda, 0, inputs["in_op0"])}, on="device")["out_op4"]
            cuda.told()
            assert None not in {end for ends in cuda.copies for end in ends}
            np.testing.assert_array_equal(on_host(got), case.expected(inputs)["out_op4"])
            del got
        assert cuda.order.faults == []


@pytest.mark.parametrize("which", LIBRARIES)
def test_work_of_the_caller_that_is_not_waited_for_is_found(which, monkeypatch):
    case = chain(2, [0, 0])
    with opened(which, monkeypatch, case) as (executor, cuda):
        executor.run({"in_op0": CallersArray(cuda, 0, case.inputs()["in_op0"], careless=True)})
        assert any("the caller may still be writing" in fault for fault in cuda.order.faults)


@pytest.mark.parametrize("which", LIBRARIES)
def test_outputs_are_written_to_arrays_of_the_caller_on_the_gpu_that_makes_them(which, monkeypatch):
    case = chain(2, [0, 1])
    inputs = case.inputs()
    with opened(which, monkeypatch, case) as (executor, cuda):
        out = CallersArray(cuda, 1, np.zeros_like(inputs["in_op0"]))
        assert executor.run(inputs, out={"out_op3": out})["out_op3"] is out
        np.testing.assert_array_equal(out.value, case.expected(inputs)["out_op3"])
        assert cuda.order.faults == []
        with pytest.raises(UsageError, match=r"'out' has an array on a GPU for 'out_op3', which cuda:1 computes"):
            executor.run(inputs, out={"out_op3": CallersArray(cuda, 0, out.value)})
        np.testing.assert_array_equal(executor.run(inputs)["out_op3"], case.expected(inputs)["out_op3"])


@pytest.mark.parametrize("which", LIBRARIES)
def test_an_input_that_other_devices_read_is_copied_to_the_host_first(which, monkeypatch):
    case = case_of(["Parameter", "Op", "Op", "Result", "Result"], [(0, 1), (0, 2), (1, 3), (2, 4)], [0, 0, 1, 0, 1])
    inputs = case.inputs()
    with opened(which, monkeypatch, case) as (executor, cuda):
        got = executor.run({"in_op0": CallersArray(cuda, 0, inputs["in_op0"])}, on="device")
        cuda.told()
        want = case.expected(inputs)
        assert got.keys() == want.keys()
        assert all(np.array_equal(on_host(got[name]), want[name]) for name in want)


@pytest.mark.parametrize("which", LIBRARIES)
def test_arrays_of_another_shape_or_type_are_refused(which, monkeypatch):
    case = chain(1, [0])
    value = case.inputs()["in_op0"]
    with opened(which, monkeypatch, case) as (executor, cuda):
        with pytest.raises(UsageError, match=r"The input 'in_op0' is float32 \[3\]; the model expects float32 \[100\]"):
            executor.run({"in_op0": CallersArray(cuda, 0, value[:3])})
        with pytest.raises(UsageError, match=r"The input 'in_op0' is missing"):
            executor.run({})
        got = executor.run({"in_op0": CallersArray(cuda, 0, value.astype(np.int16))})  # converted on the host
        np.testing.assert_array_equal(got["out_op2"], case.expected({"in_op0": value.astype(np.int16)})["out_op2"])


@pytest.mark.parametrize("which", LIBRARIES)
@pytest.mark.parametrize("in_flight", [1, 2])
def test_servers_take_and_give_arrays_on_gpus(which, monkeypatch, in_flight):
    case = chain(2, [0, 0])
    with opened(which, monkeypatch, case, in_flight=in_flight) as (executor, cuda), Server([executor]) as server:
        for on in ("device", "host", "device"):
            inputs = [case.inputs(number) for number in range(4)]
            arrays = [CallersArray(cuda, 0, given["in_op0"]) for given in inputs]
            answers = [server.submit({"in_op0": array}, on=on) for array in arrays]
            for answer, given in zip(answers, inputs, strict=True):
                got = answer.result(30)["out_op3"]
                cuda.told()
                np.testing.assert_array_equal(got if on == "host" else on_host(got), case.expected(given)["out_op3"])
                del got
            del answers, answer
        assert cuda.order.faults == []
