"""PyTorch on CPU core sets."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from placeit.backends.base import Format
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.host import allowed_cores
from placeit.runtime.devices.base import BufferSpec, Instance, RuntimeDevice
from placeit.runtime.devices.emulated import slowed
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.inductor import InPlace
from placeit.runtime.devices.pytorch import TorchBuffer, TorchDevice, use_threads
from placeit.testing.devices import ComputingDeviceConformance

CORES = allowed_cores()
ONE = Device("one", address=Address("CPU", CORES[:1]))


class TestOneCore(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return TorchDevice(ONE)


class TestAllCores(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return TorchDevice(Device("all", address=Address("CPU"), all_cores=CORES))


class TestSlowed(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return slowed(TorchDevice(ONE), 3.0)


class Segment:
    """What a device compiles, from a function that builds the body of its module."""

    def __init__(self, spec: BufferSpec, *targets: object) -> None:
        self.inputs = self.outputs = (spec,)
        self._targets = targets

    def in_format(self, form: Format) -> object:
        assert form == "torch"
        graph = torch.fx.Graph()
        value = graph.placeholder("x")
        for target in self._targets:
            value = graph.call_function(target, (value,))  # type: ignore[arg-type]
        graph.output((value,))
        return torch.fx.GraphModule(torch.nn.Module(), graph)


def run(device: TorchDevice, instance: Instance) -> BaseException | None:
    ended, errors = threading.Event(), list[BaseException | None]()
    device.start(instance, lambda _, __, error: (errors.append(error), ended.set()))  # type: ignore[arg-type, return-value]
    assert ended.wait(30)
    return errors[0]


@pytest.fixture
def device():
    opened = TorchDevice(ONE)
    yield opened
    opened.close()


def test_an_op_that_fails_is_named(device: TorchDevice) -> None:
    spec = BufferSpec((2, 3), "float32")
    instance = device.instance(device.compile(Segment(spec, torch.ops.aten.relu.default, torch.ops.aten.inverse.default)))
    instance.bind(0, device.allocate(spec))
    assert "failed on one in op 'inverse_default'" in str(run(device, instance))


def test_a_buffer_of_another_shape_or_type_is_refused(device: TorchDevice) -> None:
    instance = device.instance(device.compile(Segment(BufferSpec((2, 3), "float32"), torch.ops.aten.relu.default)))
    for spec in (BufferSpec((3, 2), "float32"), BufferSpec((2, 3), "int64")):
        for buffer in (device.allocate(spec), HostBuffer(spec)):
            with pytest.raises(DeviceError, match=r"does not fit input 0 of a segment, float32 \[2, 3\]"):
                instance.bind(0, buffer)


def test_tensors_that_numpy_has_no_type_for_can_be_handed_over(device: TorchDevice) -> None:
    spec = BufferSpec((2, 2), "bfloat16")
    source = TorchBuffer(spec, torch.full((2, 2), 1.5, dtype=torch.bfloat16))
    assert source.nbytes == 8
    instance = device.instance(device.compile(Segment(spec, torch.ops.aten.neg.default)))
    instance.bind(0, source)
    assert run(device, instance) is None
    np.testing.assert_array_equal(instance.output(0).array(), np.full((2, 2), -1.5, np.float32))


def test_handing_over_copies_nothing(device: TorchDevice) -> None:
    spec = BufferSpec((4, 4), "float32")
    first, second = (device.instance(device.compile(Segment(spec, torch.ops.aten.t.default))) for _ in range(2))
    source = HostBuffer(spec)
    first.bind(0, source)
    second.bind(0, first.output(0))
    assert run(device, first) is None
    assert run(device, second) is None
    assert np.shares_memory(second.output(0).array(), source.array())


def in_new_thread(job) -> None:
    thread = threading.Thread(target=job)
    thread.start()
    thread.join()


def test_an_output_that_is_an_input_does_not_change_with_it_if_compiled_code_writes_it_anew(device: TorchDevice) -> None:
    spec, ones = BufferSpec((2, 3), "float32"), np.ones((2, 3), np.float32)
    instance, given = device.instance(device.compile(Segment(spec))), InPlace(spec)
    given.fill(ones)
    instance.bind(0, given)
    assert run(device, instance) is None
    given.blank(0)
    np.testing.assert_array_equal(instance.output(0).array(), ones)


def test_the_number_of_threads_is_that_of_the_calling_thread_only() -> None:
    here, seen = torch.get_num_threads(), dict[str, int]()

    def ask(who: str) -> None:
        seen[who] = torch.get_num_threads()

    def work() -> None:
        use_threads(here + 2)
        ask("worker")
        in_new_thread(lambda: ask("later"))

    in_new_thread(lambda: ask("before"))
    in_new_thread(work)
    assert seen == {"before": seen["before"], "worker": here + 2, "later": seen["before"]}
    assert torch.get_num_threads() == here


def test_the_threads_of_a_core_set_stay_on_its_cores() -> None:
    """PyTorch starts them from the worker, whose affinity they inherit."""
    started: dict[str, str] = {}

    def affinities() -> dict[str, str]:
        lines = {}
        for task in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread of an earlier test has ended
                lines[task.name] = (task / "status").read_text().splitlines()
        return {
            task: next(line.split()[1] for line in status if line.startswith("Cpus_allowed_list"))
            for task, status in lines.items()
        }

    def work() -> None:
        os.sched_setaffinity(0, CORES[-1:])
        use_threads(2)
        before = affinities()
        torch.relu(torch.ones(1 << 20))
        started.update({task: cores for task, cores in affinities().items() if task not in before})

    in_new_thread(work)
    assert started
    assert set(started.values()) == {str(CORES[-1])}
