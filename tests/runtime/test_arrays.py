"""Arrays of other libraries as inputs and outputs on the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from placeit.backends.checking import checked_inputs
from placeit.core.arrays import GpuArray, gpu_array, host_array
from placeit.core.errors import UsageError
from placeit.runtime.accelerators.executor import StreamExecutor
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.lending import MIN_LENT_BYTES
from placeit.serving.server import Server
from tests.runtime.test_lending import opened
from tests.runtime.test_streams import chain

SPEC = {"x": BufferSpec((2, 3), "float32")}
VALUE = np.arange(6, dtype=np.float32).reshape(2, 3)


class Exchanged:
    """An array with DLPack and nothing else."""

    def __init__(self, value: Any, device: tuple[int, int] = (1, 0)) -> None:
        self._value, self.shape, self.dtype, self._device = value, value.shape, value.dtype, device

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        return self._value.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


@pytest.mark.parametrize("make", [torch.from_numpy, Exchanged], ids=["PyTorch", "DLPack"])
def test_arrays_of_other_libraries_are_inputs_without_a_copy(make: Any) -> None:
    assert np.shares_memory(checked_inputs({"x": make(VALUE)}, SPEC)["x"], VALUE)


def test_an_array_on_a_gpu_is_copied_where_the_host_reads_it() -> None:
    there = Exchanged(VALUE, (2, 1))
    found = gpu_array("It", there)
    assert isinstance(found, GpuArray)
    assert (found.shape, found.dtype) == ((2, 3), np.dtype("float32"))
    np.testing.assert_array_equal(checked_inputs({"x": there}, SPEC)["x"], VALUE)
    assert gpu_array("It", torch.from_numpy(VALUE)) is gpu_array("It", VALUE) is None


def test_inputs_are_given_by_name() -> None:
    with pytest.raises(UsageError, match="a dict of arrays by name, not list; the model's inputs are x"):
        checked_inputs([VALUE], SPEC)  # type: ignore[arg-type]


class Elsewhere(Exchanged):
    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        raise BufferError("no copies")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (torch.ones(2, 3, requires_grad=True), r"The input 'x' is no array that NumPy can read \(.*grad.*\): give a NumPy"),
        (torch.ones(2, 3, dtype=torch.bfloat16), r"The input 'x' is no array that NumPy can read"),
        ([[1.0], [2.0, 3.0]], r"The input 'x' is no array"),
        (VALUE.astype(object), r"The input 'x' .*object"),
        (Elsewhere(VALUE, (2, 0)), r"The input 'x' is on a GPU, and cannot be copied to the host \(no copies\)"),
        (Exchanged(torch.ones(2, 3, dtype=torch.bfloat16), (2, 0)), r"The input 'x' (has a type that NumPy|is on a GPU)"),
    ],
)
def test_what_is_no_array_here_is_an_error_that_says_why(value: Any, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        checked_inputs({"x": value}, SPEC)


def test_an_interface_of_cuda_says_where_an_array_is() -> None:
    class Interface:
        __cuda_array_interface__ = {"shape": (2, 3), "typestr": "<f4", "data": (16, False), "version": 3}  # noqa: RUF012

    found = gpu_array("It", Interface())
    assert found is not None
    assert (found.shape, found.dtype) == ((2, 3), np.dtype("float32"))
    with pytest.raises(UsageError, match="is on a GPU, and cannot be copied"):
        host_array("It", Interface())


def test_core_sets_read_and_write_tensors_of_pytorch_in_place() -> None:
    runtime, plan = opened(MIN_LENT_BYTES // 4)
    x = torch.randn(1, MIN_LENT_BYTES // 4)
    y, z = torch.zeros_like(x), np.zeros(x.shape, np.float32)
    with runtime, runtime.executor(plan) as executor:
        got = executor.run({"x": x}, out={"y": y, "z": z})
        assert got["y"] is y
        np.testing.assert_array_equal(y, x + 1)
        np.testing.assert_array_equal(z, 2 * x)
        with Server([runtime.executor(plan)]) as server:
            np.testing.assert_array_equal(server.submit({"x": x}, on="device").result(30)["y"], x + 1)


def test_core_sets_copy_arrays_on_gpus_to_the_host_and_write_none() -> None:
    runtime, plan = opened(64)
    x = np.ones((1, 64), np.float32)
    with runtime, runtime.executor(plan) as executor:
        np.testing.assert_array_equal(executor.run({"x": Exchanged(x, (2, 0))}, on="device")["y"], x + 1)
        with pytest.raises(UsageError, match=r"'out' has an array on a GPU for 'y', and the devices of this placement write"):
            executor.run({"x": x}, out={"y": Exchanged(x, (2, 0))})
        with pytest.raises(UsageError, match=r"'out' needs an array that can be written to for 'y'"):
            executor.run({"x": x}, out={"y": [[0.0] * 64]})
        with pytest.raises(UsageError, match=r"'on' says whether outputs are on the 'host' or .*got 'gpu'"):
            executor.run({"x": x}, on="gpu")  # type: ignore[arg-type]


def test_a_stream_writes_outputs_to_tensors_of_pytorch_on_the_host() -> None:
    case = chain(2, [0, 1])
    inputs, out = case.inputs(), torch.zeros(100)
    with StreamExecutor(case.work(), case.accelerator()) as executor:
        assert executor.run({"in_op0": torch.from_numpy(inputs["in_op0"])}, out={"out_op3": out})["out_op3"] is out
    np.testing.assert_array_equal(out, case.expected(inputs)["out_op3"])
