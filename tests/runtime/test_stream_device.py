"""Devices with streams among devices without: the host waits for their ends, and hands tensors over."""

import gc
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from placeit.core.errors import DeviceError
from placeit.runtime.accelerators.stream_device import PinnedBuffer, StreamDevice
from placeit.runtime.accelerators.torch_library import open_torch, torch_streams
from placeit.runtime.devices.accelerator import HOST, Streams
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.emulated import slowed
from placeit.testing.devices import ComputingDeviceConformance
from tests.eager_streams import devices, run_at_once, run_late
from tests.fake_accelerator import FakeAccelerator


class Conformance(ComputingDeviceConformance):
    """An accelerator of PyTorch, by stand-ins for its streams."""

    def open(self):
        return StreamDevice(torch_streams(open_torch(devices("cpu"))))


class TestAtOnce(Conformance):
    @pytest.fixture(autouse=True)
    def eager(self, monkeypatch):
        run_at_once(monkeypatch)


class TestSlowed(TestAtOnce):
    def open(self):
        return slowed(super().open(), 3.0)


class TestLate(Conformance):
    @pytest.fixture(autouse=True)
    def late(self, monkeypatch):
        driver = run_late(monkeypatch)
        yield
        driver.close()


class Doubling:
    """A program that doubles its input."""

    def workspace_bytes(self, enough):
        return 0

    def weight_bytes(self, place):
        return 0

    def load(self, place):
        return self

    def launch(self, inputs, outputs):
        outputs[0][...] = 2 * inputs[0]


SEGMENT = SimpleNamespace(inputs=(BufferSpec((3,), "float32"),), outputs=(BufferSpec((3,), "float32"),))


def fake(**options):
    accelerator = FakeAccelerator(1, **options)
    return accelerator, StreamDevice(Streams(accelerator, lambda segment: Doubling()))


def test_its_memory_is_freed_with_its_buffers_and_with_the_device():
    accelerator, device = fake()
    instance = device.instance(device.compile(SEGMENT))
    source = device.allocate(SEGMENT.inputs[0])
    source.fill(np.float32([1, 2, 3]))
    instance.bind(0, source)
    instance.run()
    np.testing.assert_array_equal(instance.output(0).array(), np.float32([2, 4, 6]))
    assert accelerator.allocated[0] == 24
    assert accelerator.allocated[HOST] == 24  # pinned, for either direction
    del instance
    gc.collect()
    assert accelerator.allocated[0] == 12
    del source
    device.close()
    gc.collect()
    assert not any(accelerator.allocated.values())
    assert accelerator.order.faults == []


def test_what_is_seen_of_pinned_memory_is_no_copy_and_keeps_it(monkeypatch):
    run_at_once(monkeypatch)
    accelerator, spec = open_torch(devices("cpu")), BufferSpec((1, 2, 3, 4), "int32", channels_last=True)
    freed = []
    free = accelerator.free
    accelerator.free = lambda memory: freed.append(True) or free(memory)
    buffer = PinnedBuffer(accelerator, spec)
    value = np.arange(24, dtype=np.int32).reshape(spec.shape)
    seen = buffer.array()
    buffer.fill(value)
    np.testing.assert_array_equal(seen, value)
    buffer.fill(value + 1)
    np.testing.assert_array_equal(seen, value + 1)
    del buffer
    gc.collect()
    assert not freed
    del seen
    gc.collect()
    assert freed
    accelerator.close()


def test_no_room_for_a_buffer_is_a_device_error():
    _, device = fake(memory_bytes=20)
    kept = device.allocate(SEGMENT.inputs[0])
    with pytest.raises(DeviceError, match="fake:0 is out of memory"):
        device.allocate(SEGMENT.inputs[0])
    del kept
    device.close()


def test_what_was_launched_before_a_failure_is_waited_for():
    accelerator, device = fake(fail_at=0)
    instance = device.instance(device.compile(SEGMENT))
    instance.bind(0, SimpleNamespace(array=lambda: np.float32([1, 2, 3])))  # copied to the device before the launch
    with pytest.raises(DeviceError, match="fake:0 is out of memory"):
        instance.run()
    instance.run()
    np.testing.assert_array_equal(instance.output(0).array(), np.float32([2, 4, 6]))
    del instance
    gc.collect()
    device.close()
    assert accelerator.order.faults == []


def test_a_bfloat16_tensor_keeps_its_value_between_memories(monkeypatch):
    """NumPy has no such type."""
    from placeit.runtime.devices.hand_over import HandOver
    from placeit.runtime.devices.pytorch import TorchBuffer

    run_at_once(monkeypatch)
    device, spec = StreamDevice(torch_streams(open_torch(devices("cpu")))), BufferSpec((2, 2), "bfloat16")
    value = torch.tensor([[1.5, -2.0], [3.25, 1e30]], dtype=torch.bfloat16)
    here, there, back = TorchBuffer(spec, value), device.allocate(spec), TorchBuffer(spec)
    link, reports = HandOver("there and back"), []
    for source, destination in ((here, there), (there, back), (back, back)):
        link.start(source, destination, lambda start, finish, error: reports.append(error))
    link.close()
    device.close()
    assert reports == [None] * 3
    assert torch.equal(back.tensor, value)
    assert there.nbytes == 8
