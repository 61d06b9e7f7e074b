"""Sockets between nodes: who is let in, what may be sent, and in which order it arrives."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from placeit.core.errors import DeviceError
from placeit.core.sizes import LARGEST
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.nodes import wire
from placeit.runtime.nodes.coding import Coding, coded, coded_type, decoded
from placeit.runtime.nodes.tensors import ReceivingBuffers, bytes_of, outgoing
from placeit.runtime.nodes.wire import CHUNK, Connection, Frame, Kind, Listener, Parcel, ProtocolError

SECRET = b"s" * 32
NONCE = 48  # bytes that every client is sent when it connects


def around(array: NDArray[np.generic]) -> HostBuffer:
    return HostBuffer(BufferSpec(array.shape, array.dtype.name), ov.Tensor(array, shared_memory=True))


class Ends:
    """A receiver that writes down what it gets."""

    def __init__(self) -> None:
        self.inbox = ReceivingBuffers()
        self.frames: list[Frame] = []
        self.whole: list[int] = []
        self.why: list[str] = []
        self.go, self.arrived, self.over = threading.Event(), threading.Event(), threading.Event()
        self.go.set()
        self.awaited = 1
        self.trouble: Exception | None = None

    def place(self, frame: Frame) -> memoryview | None:
        assert self.go.wait(120)
        return self.inbox.place(frame)

    def handle(self, frame: Frame, payload: memoryview | None, connection: Connection) -> None:
        self.frames.append(frame)
        if self.trouble is not None:
            raise self.trouble
        if frame.kind != Kind.DATA or self.inbox.add_part(frame):
            if frame.kind == Kind.DATA:
                self.inbox.write_back(frame.target)
            self.whole.append(frame.target)
        if len(self.whole) == self.awaited:
            self.arrived.set()

    def lost(self, connection: Connection, why: str) -> None:
        self.why.append(why)
        self.over.set()


@pytest.fixture
def port() -> Iterator[tuple[Listener, Ends, list[str], ExitStack]]:
    """A listener whose connections feed one receiver; the names that it let in; and what to close at the end."""
    ends, names, connections = Ends(), list[str](), ExitStack()

    def accept(sock: socket.socket, name: str) -> None:
        names.append(name)
        connections.callback(Connection(sock, name, ends, 5.0).close)

    with connections:
        listener = Listener("127.0.0.1", SECRET, accept)
        connections.callback(listener.close)
        yield listener, ends, names, connections
    for thread in threading.enumerate():
        if thread.name.startswith(("placeit from", "placeit to", "placeit handshake", "placeit listener")):
            thread.join(120)


def meet(port: Any, ends: Ends | None = None) -> Connection:
    listener, _, _, connections = port
    sock = wire.connect(listener.address, SECRET, "a")
    made = Connection(sock, "listener", Ends() if ends is None else ends, 5.0)
    connections.callback(made.close)
    return made


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n" * 20, b"\x00" * 500, b"\xff" * 500])
def test_a_stranger_gets_a_nonce_and_nothing_else_and_breaks_nothing(port: Any, said: bytes) -> None:
    listener, ends, names, _ = port
    with socket.create_connection(listener.address, timeout=120) as stranger:
        stranger.sendall(said)
        if not said:
            stranger.shutdown(socket.SHUT_WR)
        got = b""
        try:
            while part := stranger.recv(1000):
                got += part
        except ConnectionResetError:
            pass
    assert len(got) <= NONCE
    assert names == []
    ends.inbox.expect(1, around(np.zeros(3, np.uint8)))
    meet(port).send(Frame(Kind.DATA, target=1), memoryview(b"abc"))
    assert ends.arrived.wait(120)
    assert names == ["a"]


def test_many_strangers_keep_nobody_out_who_knows_the_secret(port: Any) -> None:
    listener, ends, names, connections = port
    ends.inbox.expect(1, around(np.zeros(3, np.uint8)))
    for i in range(100):
        stranger = connections.enter_context(socket.create_connection(listener.address, timeout=120))
        with suppress(OSError):  # it was sent away
            stranger.sendall((b"", b"\xff" * 100, b"x")[i % 3])
    meet(port).send(Frame(Kind.DATA, target=1), memoryview(b"abc"))
    assert ends.arrived.wait(120)
    assert names == ["a"]


class Flaky:
    """A listening socket that first has something else to do than to accept."""

    def __init__(self, sock: socket.socket, first: Callable[[socket.socket], object]) -> None:
        self._sock, self._first = sock, [first]

    def accept(self) -> tuple[socket.socket, Any]:
        if self._first:
            self._first.pop()(self._sock)
        return self._sock.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


def too_many_open_files(sock: socket.socket) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def send_one_away(sock: socket.socket) -> None:
    sock.accept()[0].close()


@pytest.mark.parametrize("first", [too_many_open_files, send_one_away])
def test_what_passes_keeps_nobody_out(monkeypatch: pytest.MonkeyPatch, first: Callable[[socket.socket], object]) -> None:
    create, names = socket.create_server, list[str]()
    monkeypatch.setattr(socket, "create_server", lambda *args, **options: Flaky(create(*args, **options), first))
    with ExitStack() as stack:
        listener = Listener("127.0.0.1", SECRET, lambda sock, name: (stack.enter_context(sock), names.append(name)))
        stack.callback(listener.close)
        stack.enter_context(wire.connect(listener.address, SECRET, "a"))
        while not names:
            time.sleep(0.01)
    assert names == ["a"]


def test_who_does_not_know_the_secret_is_told_so_and_not_let_in(port: Any) -> None:
    listener, _, names, _ = port
    with pytest.raises(DeviceError, match="handshake"):
        wire.connect(listener.address, b"t" * 32, "a")
    assert names == []


def test_somebody_else_at_the_address_is_found_out() -> None:
    def answer(other: socket.socket) -> None:
        with other.accept()[0] as sock:
            sock.sendall(b"SSH-2.0-OpenSSH_9.6 " * 10)

    with socket.create_server(("127.0.0.1", 0)) as other:
        address = other.getsockname()
        thread = threading.Thread(target=answer, args=(other,))
        thread.start()
        with pytest.raises(DeviceError, match="another protocol"):
            wire.connect(address, SECRET, "a")
        thread.join(120)
    with pytest.raises(DeviceError, match="Nothing answers"):
        wire.connect(address, SECRET, "a")


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::"])
def test_nobody_listens_on_all_interfaces(host: str) -> None:
    with pytest.raises(DeviceError, match="own address only"):
        Listener(host, SECRET, lambda *_: None)


@pytest.mark.parametrize(
    ("frame", "why"),
    [
        (Frame(Kind.DATA, target=1, size=1 << 31), "more than the maximum"),
        (Frame(Kind.DATA, target=1, size=101), "which has 100"),
        (Frame(Kind.DATA, target=1, size=100, offset=1), "which has 100"),
        (Frame(Kind.DATA, target=1, size=1, offset=(1 << 64) - 1), "which has 100"),
        (Frame(Kind.DATA, target=2, size=1), "not expected"),
        (Frame(Kind.DATA, coding=9, target=1, size=1), "not expected"),
        (Frame(Kind.DATA, coding=1, target=1, size=1), "not expected"),
        (Frame(Kind.DATA, target=2), "not expected"),
        (Frame(Kind.DATA, coding=9, target=1), "not expected"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_is_allocated(port: Any, frame: Frame, why: str) -> None:
    listener, ends, _, _ = port
    memory = np.zeros(100, np.uint8)
    ends.inbox.expect(1, around(memory))
    with wire.connect(listener.address, SECRET, "a") as sock:
        sock.sendall(frame.packed(frame.size, frame.offset) + b"x" * min(frame.size, 200))
        assert ends.over.wait(120)
    assert why in ends.why[0]
    assert not memory.any()


OPEN = BufferSpec((1, 3, 4), "float32", limits=((1, 1), (0, 8), (1, 16)))


@pytest.mark.parametrize(
    ("sizes", "why"),
    [
        ((), "sizes []"),
        ((1, 3), "sizes [1, 3]"),
        ((1, 3, 4, 1), "sizes [1, 3, 4, 1]"),
        ((1, 9, 4), "sizes [1, 9, 4]"),
        ((1, 3, 0), "sizes [1, 3, 0]"),
        ((1, (1 << 32) - 1, 4), "which does not take them"),
        ((1,) * 255, "which does not take them"),
        ((1, 1, 1), "16 bytes for the buffer 1, which has 4"),
    ],
)
@pytest.mark.parametrize("coding", [Coding.NONE, Coding.INT8])
def test_sizes_out_of_the_limits_of_a_buffer_are_refused(port: Any, sizes: tuple[int, ...], why: str, coding: Coding) -> None:
    listener, ends, _, _ = port
    buffer = HostBuffer(OPEN)
    ends.inbox.expect(1, buffer)
    with wire.connect(listener.address, SECRET, "a") as sock:
        sock.sendall(Frame(Kind.DATA, coding, target=1, sizes=sizes).packed(16) + b"x" * 16)
        assert ends.over.wait(120)
    assert why.replace("has 4", f"has {1 if coding else 4}") in ends.why[0]
    assert buffer.array().shape == (1, 3, 4)
    assert not buffer.array().any()


def test_no_frame_has_more_memory_set_aside_than_the_machine_has(port: Any) -> None:
    listener, ends, _, _ = port
    ends.inbox.expect(1, HostBuffer(BufferSpec((1, 1), "float32", limits=((0, LARGEST), (0, LARGEST)))))
    with wire.connect(listener.address, SECRET, "a") as sock:
        sock.sendall(Frame(Kind.DATA, target=1, sizes=(LARGEST, LARGEST)).packed(4) + b"x" * 4)
        assert ends.over.wait(120)
    assert "more than this machine's memory" in ends.why[0]


def test_a_fixed_buffer_takes_no_larger_sizes_and_a_run_one_tensor_for_a_buffer() -> None:
    inbox = ReceivingBuffers()
    inbox.expect(1, around(np.zeros(8, np.uint8)))
    inbox.expect(2, HostBuffer(OPEN))
    with pytest.raises(ProtocolError, match="does not take them"):
        inbox.place(Frame(Kind.DATA, target=1, size=9, sizes=(9,)))
    part = Frame(Kind.DATA, target=2, size=4, sizes=(1, 2, 1))
    assert not inbox.add_part(part)
    for other in (part._replace(sizes=(1, 1, 2)), part._replace(coding=Coding.INT8)):
        with pytest.raises(ProtocolError, match="parts of different tensors"):
            inbox.place(other)
    assert inbox.add_part(part._replace(offset=4))
    with pytest.raises(ProtocolError, match="more than one tensor"):
        inbox.add_part(part)
    assert not inbox.add_part(part._replace(epoch=1, sizes=(1, 3, 1)))


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("coding", Coding)
def test_tensors_of_open_sizes_arrive_with_the_sizes_they_have(port: Any, coding: Coding, channels_last: bool) -> None:
    _, ends, _, _ = port
    spec = BufferSpec((1, 3, 2, 2), "float32", channels_last, limits=((1, 1), (3, 3), (0, 300), (1, 300)))
    there, here = HostBuffer(spec), HostBuffer(spec)
    ends.inbox.expect(1, there)
    sender = meet(port)
    for epoch, (height, width) in enumerate(((2, 2), (300, 299), (1, 7), (0, 5), (4, 300)), 1):
        value = np.random.default_rng(epoch).uniform(-1, 1, (1, 3, height, width)).astype(np.float32)
        here.fill(value)
        sent = outgoing(here, coding)
        frame = Frame(Kind.DATA, sent.coding, epoch=epoch, target=1, finish=sent.scale, sizes=sent.sizes)
        here.fill(np.full((1, 3, 300, 300), np.nan, np.float32))  # as the next run may do while it is sent
        ends.arrived.clear()
        ends.awaited = epoch
        sender.send(frame, sent.payload)
        assert ends.arrived.wait(120)
        assert there.array().shape == value.shape
        np.testing.assert_allclose(there.array(), value, atol=(0, 5e-4, 0.51 / 127)[coding])


def test_a_large_tensor_comes_in_parts_and_a_small_one_does_not_wait_for_it(port: Any) -> None:
    _, ends, _, _ = port
    ends.awaited = 2
    large = np.random.default_rng(0).integers(0, 256, 300 * CHUNK + 7, np.uint8)
    small, into, there = np.arange(9, dtype=np.uint8), np.zeros_like(large), np.zeros(9, np.uint8)
    ends.inbox.expect(1, around(into))
    ends.inbox.expect(2, around(there))
    ends.go.clear()
    sender = meet(port)
    sender.send(Frame(Kind.DATA, target=1), bytes_of(large), priority=(1.0,))
    sender.send(Frame(Kind.DATA, target=2), bytes_of(small), priority=(0.0,))
    ends.go.set()
    assert ends.arrived.wait(30)
    assert ends.whole == [2, 1]
    np.testing.assert_array_equal(into, large)
    np.testing.assert_array_equal(there, small)


@pytest.mark.parametrize("sizes", [[9, 3 * CHUNK + 1, 9], [10_000] * 50, [1 << 14] * 3, [0, 9, 0]])
def test_what_is_sent_together_arrives_in_order(port: Any, sizes: list[int]) -> None:
    _, ends, _, _ = port
    ends.awaited = len(sizes)
    values = [np.random.default_rng(i).integers(0, 256, size, np.uint8) for i, size in enumerate(sizes)]
    for i, value in enumerate(values):
        ends.inbox.expect(i, around(np.zeros_like(value)))
    meet(port).send_all([Parcel(Frame(Kind.DATA, target=i), bytes_of(value)) for i, value in enumerate(values)])
    assert ends.arrived.wait(120)
    assert ends.whole == [*range(len(sizes))]
    for i, value in enumerate(values):
        place = ends.inbox.place(Frame(Kind.DATA, target=i, size=value.nbytes))
        assert bytes(place) == value.tobytes()


def test_what_nobody_waits_for_any_more_is_not_sent(port: Any) -> None:
    _, ends, _, _ = port
    for number in (1, 2):
        ends.inbox.expect(number, around(np.zeros(2 * CHUNK, np.uint8)))
    sender = meet(port)
    payload = memoryview(bytes(2 * CHUNK))
    sender.send_all([Parcel(Frame(Kind.DATA, target=1), payload)], lambda: False)
    sender.send(Frame(Kind.DATA, target=2), payload)
    assert ends.arrived.wait(120)
    assert {frame.target for frame in ends.frames} == {2}


def test_an_end_that_goes_away_is_noticed(port: Any) -> None:
    listener, ends, _, _ = port
    wire.connect(listener.address, SECRET, "a").close()
    assert ends.over.wait(120)
    assert ends.why


@pytest.mark.parametrize("trouble", [KeyError(7), MemoryError(), UnicodeError("no text")])
def test_whatever_goes_wrong_with_a_frame_ends_the_connection_with_the_reason(port: Any, trouble: Exception) -> None:
    _, ends, _, _ = port
    ends.trouble, there = trouble, Ends()
    meet(port, there).send(Frame(Kind.PING))
    assert ends.over.wait(120)
    assert there.over.wait(120)
    assert ends.why == [f"{type(trouble).__name__}: {trouble}".removesuffix(": ")]
    assert len(ends.frames) == 1


def test_parts_of_an_earlier_run_do_not_count_for_a_later_one() -> None:
    inbox = ReceivingBuffers()
    inbox.expect(1, around(np.zeros(8, np.uint8)))
    first, second = Frame(Kind.DATA, epoch=1, target=1, size=4), Frame(Kind.DATA, epoch=2, target=1, size=4)
    assert not inbox.add_part(first)
    assert not inbox.add_part(second)
    assert inbox.add_part(second._replace(offset=4))


@pytest.mark.parametrize(("coding", "worst"), [(Coding.NONE, 0.0), (Coding.FP16, 5e-4), (Coding.INT8, 0.5 / 127)])
def test_codings_keep_what_they_promise(coding: Coding, worst: float) -> None:
    value = np.random.default_rng(1).uniform(-3, 3, (4, 5)).astype(np.float32)
    sent, scale = coded(coding, value)
    assert sent.dtype == coded_type(coding, value.dtype)
    assert np.abs(decoded(coding, sent, scale) - value).max() <= worst * np.abs(value).max() * 1.001
    whole = np.arange(4)
    assert coded(coding, whole)[0] is whole


def test_a_tensor_of_zeros_survives_int8() -> None:
    sent, scale = coded(Coding.INT8, np.zeros(3, np.float32))
    assert sent.dtype == np.int8
    assert not decoded(Coding.INT8, sent, scale).any()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 2e-43])
def test_what_no_step_of_int8_stands_for_is_sent_as_it_is(value: float) -> None:
    tensor = np.array([value, 1e-45], np.float32)
    sent, _ = coded(Coding.INT8, tensor)
    assert sent is tensor


def test_an_unexpected_buffer_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError):
        ReceivingBuffers().place(Frame(Kind.DATA, target=7, size=1))


def test_a_buffer_of_one_shape_takes_smaller_tensors_and_full_ones_after_them() -> None:
    inbox, buffer = ReceivingBuffers(), around(np.zeros((1, 6), np.uint8))
    inbox.expect(1, buffer)
    for epoch, count in enumerate((6, 2, 6, 0, 6), 1):
        value = np.arange(count, dtype=np.uint8)[None]
        frame = Frame(Kind.DATA, epoch=epoch, target=1, size=count, sizes=() if count == 6 else value.shape)
        inbox.place(frame)[:] = value.tobytes()
        assert inbox.add_part(frame)
        inbox.write_back(1)
        np.testing.assert_array_equal(buffer.array(), value)
