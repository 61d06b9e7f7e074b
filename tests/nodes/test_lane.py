"""What a device of a node does with frames, without sockets and without a node."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.host import allowed_cores
from placeit.runtime.accelerators.stream_device import PinnedBuffer, StreamDevice, StreamedProgram
from placeit.runtime.accelerators.torch_library import open_torch, torch_streams
from placeit.runtime.devices.base import BufferSpec, DoneCallback, Instance
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.runtime.nodes.lane import DRIVER, Lane, SegmentJob, Wiring
from placeit.runtime.nodes.tensors import bytes_of
from placeit.runtime.nodes.wire import Frame, Kind, Parcel
from tests.beside import beside
from tests.eager_streams import devices, run_at_once

ops = ov.opset13
SPEC = BufferSpec((1, 4), "float32", limits=((1, 1), (1, 1 << 20)))
SLOT, READS, JOB, WRITES, DELIVERED = range(1, 6)


class Doubles:
    """A segment that doubles a tensor of any length."""

    inputs, outputs, identity = (SPEC,), (SPEC,), ""

    def in_format(self, form: str) -> ov.Model:
        x = ops.parameter([1, ov.Dimension(1, 1 << 20)], ov.Type.f32)
        return ov.Model([ops.result(ops.add(x, x))], [x], "doubles")


class Held(OpenVinoDevice):
    """A device that starts nothing before it is told to."""

    def __init__(self) -> None:
        super().__init__(Device("CPU@0", "openvino", Address("CPU", allowed_cores()[:1]), all_cores=allowed_cores()))
        self.held: list[tuple[Instance, DoneCallback]] = []

    def start(self, instance: Instance, done: DoneCallback) -> None:
        self.held.append((instance, done))

    def go(self) -> None:
        instance, done = self.held.pop(0)
        instance.run()  # type: ignore[attr-defined]
        done(0.0, 0.0, None)


class Driver:
    """What the lane tells the driver."""

    name = DRIVER

    def __init__(self) -> None:
        self.frames: list[tuple[Frame, bytes]] = []
        self.ended = threading.Event()

    def send_all(self, parcels: Sequence[Parcel], current: Callable[[], bool]) -> None:
        self.frames += [(one.frame, b"" if one.payload is None else bytes(one.payload)) for one in parcels if current()]
        if any(one.frame.kind == Kind.ENDED for one in parcels):
            self.ended.set()


@pytest.fixture
def parts() -> Iterator[tuple[Held, Lane, Driver]]:
    device, driver = Held(), Driver()
    lane = Lane(device)
    lane.add_peer(driver)  # type: ignore[arg-type]
    wiring = Wiring(SLOT, {READS: SPEC}, (SegmentJob(JOB, 0, 0.0, (READS,), (WRITES,)),), ((WRITES, DRIVER, DELIVERED),))
    lane.wire(wiring, [device.instance(device.compile(Doubles()))])
    yield device, lane, driver
    device.close()


def bring(lane: Lane, epoch: int, value: np.ndarray[Any, Any]) -> None:
    frame = Frame(Kind.DATA, epoch=epoch, target=READS, size=value.nbytes, sizes=value.shape)
    payload = lane.place(frame)
    assert payload is not None
    payload[:] = bytes_of(value)
    lane.handle(frame, payload, None)  # type: ignore[arg-type]


def test_a_tensor_of_a_later_run_changes_nothing_that_an_earlier_one_still_reads(parts: tuple[Held, Lane, Driver]) -> None:
    device, lane, driver = parts
    short, long = np.ones((1, 3), np.float32), np.full((1, 100_000), 2, np.float32)
    bring(lane, 1, short)
    assert len(device.held) == 1
    bring(lane, 2, long)  # the first run is over for the driver, as another device has failed
    np.testing.assert_array_equal(lane.buffer(READS).array(), short)
    assert [frame.kind for frame, _ in driver.frames] == [Kind.ARRIVED]
    device.go()
    np.testing.assert_array_equal(lane.buffer(READS).array(), long)
    assert [(frame.kind, frame.epoch) for frame, _ in driver.frames[1:]] == [(Kind.ARRIVED, 2)]
    device.go()
    data, payload = driver.frames[2]
    assert (data.kind, data.epoch, data.target, data.sizes) == (Kind.DATA, 2, DELIVERED, long.shape)
    np.testing.assert_array_equal(np.frombuffer(payload, np.float32), 2 * long[0])


def test_what_came_late_for_a_run_that_is_over_as_well_is_dropped(parts: tuple[Held, Lane, Driver]) -> None:
    device, lane, driver = parts
    values = [np.full((1, length), length, np.float32) for length in (3, 1000, 2)]
    for epoch, value in enumerate(values, 1):
        bring(lane, epoch, value)
    device.go()
    device.go()
    assert not device.held
    sent = [(frame, payload) for frame, payload in driver.frames if frame.kind == Kind.DATA]
    assert [(frame.epoch, frame.sizes) for frame, _ in sent] == [(3, (1, 2))]
    np.testing.assert_array_equal(np.frombuffer(sent[0][1], np.float32), 4)


def test_an_instance_is_at_rest_when_what_still_runs_of_its_slot_has_ended_and_nothing_more_of_it_starts(
    parts: tuple[Held, Lane, Driver],
) -> None:
    device, lane, _ = parts
    one = np.ones((1, 1), np.float32)
    bring(lane, 1, one)
    with beside(lambda: lane.idle_instance(JOB, {SLOT: 2})) as found:
        assert not found
        device.go()
    assert found == [lane.idle_instance(JOB, {SLOT: 2})]
    assert lane.place(Frame(Kind.DATA, epoch=1, target=READS, size=4, sizes=(1, 1))) is None
    with pytest.raises(DeviceError, match="has no segment 77 any more"):
        lane.idle_instance(77, {})
    bring(lane, 3, one)
    assert len(device.held) == 1


class Doubling:
    """A program of an accelerator that doubles its input."""

    def load(self, place: object) -> Doubling:
        return self

    def launch(self, inputs: Any, outputs: Any) -> None:
        outputs[0][...] = 2 * inputs[0]


@pytest.mark.parametrize("type_name", ["float32", "bfloat16"])
def test_tensors_of_a_gpu_are_received_and_sent_in_memory_that_the_gpu_copies(
    type_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_at_once(monkeypatch)  # type: ignore[no-untyped-call]
    spec = BufferSpec((3,), type_name)
    segment: Any = SimpleNamespace(inputs=(spec,), outputs=(spec,))
    device = StreamDevice(torch_streams(open_torch(devices("cpu"))))  # type: ignore[no-untyped-call]
    program = StreamedProgram(segment, Doubling())  # type: ignore[arg-type]
    lane, driver = Lane(device), Driver()
    lane.add_peer(driver)  # type: ignore[arg-type]
    lane.wire(
        Wiring(SLOT, {READS: spec}, (SegmentJob(JOB, 0, 0.0, (READS,), (WRITES,)),), ((WRITES, DRIVER, DELIVERED),)),
        [device.instance(program)],
    )
    assert isinstance(lane.buffer(READS), PinnedBuffer)
    for epoch in (1, 2):
        value = np.arange(3, dtype=np.float32) + epoch  # bfloat16 travels as float32
        frame = Frame(Kind.DATA, epoch=epoch, target=READS, size=value.nbytes)
        payload = lane.place(frame)
        assert payload is not None
        payload[:] = bytes_of(value)
        in_place = type_name == "float32"
        assert np.array_equal(lane.buffer(READS).array(), value) == in_place
        driver.ended.clear()
        lane.handle(frame, payload, None)  # type: ignore[arg-type]
        assert driver.ended.wait(30)
        sent = [payload for frame, payload in driver.frames if (frame.kind, frame.epoch) == (Kind.DATA, epoch)]
        np.testing.assert_array_equal(np.frombuffer(sent[0], np.float32), 2 * value)
    device.close()


def test_jobs_with_one_state_run_in_the_order_in_which_the_driver_begins_their_slots() -> None:
    device = Held()
    lane = Lane(device)
    for slot, job, shares in ((1, 10, None), (2, 20, 10)):
        jobs = (SegmentJob(job, 0, 0.0, (job + 1,), (job + 2,), keeps_state=True, shares=shares),)
        lane.wire(Wiring(slot, {job + 1: SPEC}, jobs, ()), [device.instance(device.compile(Doubles()))])

    def tensor(slot: int, epoch: int) -> None:
        payload = bytes_of(np.ones((1, 1), np.float32))
        frame = Frame(Kind.DATA, epoch=epoch, target=10 * slot + 1, sizes=(1, 1), size=len(payload))
        place = lane.place(frame)
        assert place is not None
        place[:] = payload
        lane.handle(frame, place, None)  # type: ignore[arg-type]

    def begin(slot: int, epoch: int) -> None:
        lane.handle(Frame(Kind.BEGIN, slot=slot, epoch=epoch), None, None)  # type: ignore[arg-type]

    tensor(2, 1)
    assert device.held == []  # nothing says yet that no other request is before it
    begin(1, 1)
    begin(2, 1)
    assert device.held == []
    tensor(1, 1)
    (first,) = device.held
    device.go()
    assert [one is first for one in device.held] == [False]
    device.go()
    for slot in (1, 2):
        begin(slot, 2)
    lane.idle_instance(10, {1: 3})
    tensor(2, 2)
    assert len(device.held) == 1  # as the request before it is over
    device.close()
