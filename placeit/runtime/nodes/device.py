"""Devices of other nodes, for the executor of this process, and the links to and from them."""

from __future__ import annotations

import contextlib
import functools
import math
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from placeit.core import clock
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, ExecutionError, LostError
from placeit.core.narrowing import narrowed
from placeit.core.threads import Gate, Worker
from placeit.devices.nodes.connection import Nodes, answer_of, connected, pinned, ray_module
from placeit.runtime.devices.base import (
    Buffer,
    BufferSpec,
    Delivers,
    DoneCallback,
    Instance,
    Program,
    RuntimeDevice,
    SegmentSource,
)
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.nodes.actor import ActorSettings, DeviceActor, local
from placeit.runtime.nodes.heartbeat import Heartbeat, PeerClock
from placeit.runtime.nodes.lane import DRIVER, MAX_TEXT_BYTES, data_parcel
from placeit.runtime.nodes.package import pack
from placeit.runtime.nodes.remote import RemoteBuffer, RemoteDevice, RemoteInstance, RemoteProgram, RemoteSlot
from placeit.runtime.nodes.states import RemoteKeepingInstance
from placeit.runtime.nodes.tensors import outgoing
from placeit.runtime.nodes.wire import Connection, Frame, Kind, Parcel, ProtocolError, connect
from placeit.runtime.nodes.wiring import wire_slot

__all__ = ["NodeDevice", "NodeLink"]

_START_TIMEOUT_S, _COMPILE_TIMEOUT_S, _ANSWER_TIMEOUT_S = 60.0, 300.0, 60.0
_PATIENCE_FACTOR = 6  # times the patience while a call through Ray is pending
_LINK_LOSS_DELAY_S = 0.5  # before a lost link is reported: a device that has ended should be found lost before its links


class NodeDevice(RemoteDevice):
    """A device of another node.

    An actor of Ray drives it there, and runs segments as soon as their inputs arrive (:mod:`placeit.runtime.nodes.lane`). An
    instance may therefore have ended before ``start`` is called.

    Args:
        device: the device; its address names the node.
        precision: inference precision.
        nodes: the cluster; None for the one that this process is connected to.
        open_device: opens the device on the node; None to open it by its kind.
        cancelled: returns whether to stop waiting for the node.
        expected: whether the device may be missing: it then counts as lost until it is reopened.
        counting: whether its programs count the time of each kernel.

    Attributes:
        gone: why the device is lost; None while it is there.
        cut: why its link with another device is lost, by the name of that device.
        silent_s: seconds for which it had been silent when it was found lost; 0 before.
    """

    run_ahead = staticmethod(wire_slot)

    def __init__(
        self,
        device: Device,
        precision: str,
        *,
        nodes: Nodes | None = None,
        open_device: Callable[[Device], RuntimeDevice] | None = None,
        cancelled: Callable[[], bool] = lambda: False,
        expected: bool = False,
        counting: bool = False,
    ) -> None:
        self.name, self.where = device.name, device.where
        self.space = f"{device.name} of {device.where.node}"
        self.program_key = f"node {device.name}"
        self._nodes = connected() if nodes is None else nodes
        self._reopen = functools.partial(
            NodeDevice, device, precision, nodes=self._nodes, open_device=open_device, counting=counting
        )
        self._forms = device_kind(device).formats
        self.gone: DeviceError | None = None
        self.cut: dict[str, DeviceError] = {}
        self.silent_s = 0.0
        self.routes: weakref.WeakValueDictionary[int, RemoteSlot] = weakref.WeakValueDictionary()
        self.arrivals: weakref.WeakKeyDictionary[Buffer, int] = weakref.WeakKeyDictionary()
        self.clock = PeerClock()
        self._pending_calls, self._closing = 0, Gate()
        self._heartbeat = Heartbeat(device.name, self._ping, self._patience, self._on_silence, self._closing)
        self._lock = threading.Lock()
        self._expected = expected
        if expected:
            self.gone = DeviceError(f"{device.name} has not joined the cluster yet.")
            return
        node = self._nodes.node(device.where.node)
        self.secret = secrets.token_bytes(32)
        setting = ActorSettings(
            *(self.name, local(device), node.host, self.secret, precision),
            *(self._nodes.coding, self._nodes.patience, counting, open_device),
        )
        actor_class = ray_module().remote(num_cpus=0, max_restarts=0, max_concurrency=8)(DeviceActor)
        self._actor = actor_class.options(scheduling_strategy=pinned(node)).remote(setting)
        self.worker = Worker(f"placeit {self.name}")
        try:
            answer = self._actor.where.remote()
            self.address, self.pid = answer_of(answer, f"{self.name}, when it was opened,", _START_TIMEOUT_S, cancelled)
            sock = connect(self.address, self.secret, DRIVER)
            self.connection = Connection(sock, self.name, self, self._nodes.patience)
            self._heartbeat.start()  # first, as it measures the offset of the clock that times in reports are by
        except BaseException:
            self.worker.close()
            ray_module().kill(self._actor)
            raise

    # -- through Ray ------------------------------------------------------------------------------------------------------

    def ask(self, what: str, *arguments: Any, timeout: float = _ANSWER_TIMEOUT_S) -> Any:
        """Call a method of the actor and wait for its answer. Raises DeviceError."""
        if self.gone is not None:
            raise self.gone
        if not self._nodes.connected:
            raise DeviceError(f"{self.name} cannot be asked to {what}: this process has left its Ray cluster.")
        with self._lock:
            self._pending_calls += 1
        try:
            answer = getattr(self._actor, what).remote(*arguments)
            found = answer_of(
                answer, f"{self.name}, asked to {what},", timeout, lambda: self._cancelled() or self.gone is not None
            )
        except DeviceError as error:
            raise self.gone or error from error
        finally:
            with self._lock:
                self._pending_calls -= 1
        self._heartbeat.record_contact()
        return found

    def _cancelled(self) -> bool:
        return self._closing.is_open or not self._nodes.connected

    def tell(self, what: str, *arguments: Any) -> None:
        """Call a method of the actor without waiting for its answer. Errors are ignored."""
        if self.gone is None and not self._closing.is_open and self._nodes.connected:
            with contextlib.suppress(Exception):  # Ray may be about to shut down
                getattr(self._actor, what).remote(*arguments)

    def compile(self, segment: SegmentSource) -> Program:
        """Compile a segment on the node, after sending it the weights that it does not have. Raises DeviceError."""
        return self.compile_within(segment, math.inf)

    def compile_within(self, segment: SegmentSource, seconds: float) -> Program:
        """Compile a segment; a compiler that can be given a time limit raises ExecutionError after ``seconds``."""
        deadline = clock.now() + seconds
        package, pieces = pack(segment, self._forms)
        for _ in range(4):  # another process may delete pieces that were just sent, to make room
            number = self.ask("compile", package, deadline - clock.now(), timeout=_COMPILE_TIMEOUT_S)
            if number is not None:
                program = RemoteProgram(self, segment, number, package.variables)
                weakref.finalize(program, _release, weakref.ref(self), number).atexit = False
                return program
            missing = self.ask("missing", package.pieces)
            self.ask("keep", {name: pieces[name] for name in missing}, timeout=_COMPILE_TIMEOUT_S)
        raise DeviceError(f"{self.name} has no room for the weights of a segment.")

    def reach(self, other: NodeDevice) -> None:
        """Have the node connect to another one. Raises DeviceError."""
        self.ask("reach", other.name, other.address, other.secret)

    def reopened(self) -> NodeDevice:
        """Open the device again, and return the new object. Raises DeviceError.

        See :class:`placeit.runtime.reopening.Losable`.
        """
        self._nodes.check()
        self._nodes.device(self.where, self._cancelled)  # checks its version and its cores
        made = self._reopen(cancelled=self._cancelled)
        made.program_key += f" {self.number()}"  # the new actor has no programs yet
        return made

    @staticmethod
    def link(source: RuntimeDevice, destination: RuntimeDevice) -> NodeLink:
        """Open a link from or to it. Raises DeviceError."""
        return NodeLink(source, destination)

    def mend(self, other: RuntimeDevice) -> None:
        """Reopen the lost link with another device. Raises DeviceError."""
        there = narrowed(NodeDevice, other)
        self.reach(there)
        there.reach(self)
        for one, far in ((self, there), (there, self)):
            one.cut.pop(far.name, None)

    # -- as a device ------------------------------------------------------------------------------------------------------

    def instance(self, program: Program) -> Instance:
        """Make an instance. The node makes it when its slot is wired."""
        made = narrowed(RemoteProgram, program)
        return RemoteKeepingInstance(self, made) if made.variables else RemoteInstance(self, made)

    def allocate(self, spec: BufferSpec) -> Buffer:
        """Make a buffer. The node makes it when its slot is wired."""
        return RemoteBuffer(self, spec)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Have ``done`` called when an instance has ended, even if it ended before this call."""
        made = narrowed(RemoteInstance, instance)
        if made.slot is None:
            raise ExecutionError(f"{self.name} runs the instances of an executor only.")
        made.slot.ensure_begun(made.number)
        made.slot.expect(made.number, done, (self,))

    def begin(self, slot: RemoteSlot, inputs: Sequence[tuple[int, HostBuffer]]) -> None:
        """Begin a run of a slot on the device, with the inputs that come from this process."""
        begin = Parcel(Frame(Kind.BEGIN, slot=slot.number, epoch=slot.epoch))  # precedes all tensors
        self._send_all(slot, [begin, *(data_parcel(outgoing(buffer, 0), slot.epoch, number) for number, buffer in inputs)])

    def send(self, slot: RemoteSlot, number: int, buffer: Buffer) -> None:
        """Send a tensor of this process into the device's buffer with a number."""
        self._send_all(slot, [data_parcel(outgoing(buffer, self._nodes.coding), slot.epoch, number)])

    def _send_all(self, slot: RemoteSlot, parcels: Sequence[Parcel]) -> None:
        epoch = slot.epoch
        self.connection.send_all(parcels, lambda: slot.epoch == epoch)

    # -- frames -----------------------------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> memoryview | None:
        """Return memory for a payload; see :meth:`placeit.runtime.nodes.wire.Receiver.place`."""
        if frame.kind in (Kind.ENDED, Kind.LOST) and frame.size <= MAX_TEXT_BYTES:
            return memoryview(bytearray(frame.size))
        if frame.kind != Kind.DATA:
            raise ProtocolError(f"an unexpected payload (kind {frame.kind})")
        slot = self.routes.get(frame.target)
        return None if slot is None or slot.epoch != frame.epoch else slot.inbox.place(frame)

    def handle(self, frame: Frame, payload: memoryview | None, connection: Connection) -> None:  # noqa: ARG002
        """Handle a frame; see :meth:`placeit.runtime.nodes.wire.Receiver.handle`."""
        self._heartbeat.record_contact()
        if frame.kind == Kind.PONG:
            self.clock.add_round_trip(frame.start, frame.finish)
            return
        if frame.kind == Kind.LOST:
            name, _, why = _text(payload).partition(": ")
            timer = threading.Timer(_LINK_LOSS_DELAY_S, self._link_lost, (name, why))
            timer.daemon = True
            timer.start()
            return
        slot, here = self.routes.get(frame.target), self.clock.here
        if slot is None:
            return
        match frame.kind:
            case Kind.ENDED:
                error = ExecutionError(_text(payload)) if payload else None
                slot.report(frame.target, frame.epoch, here(frame.start), here(frame.finish), error)
            case Kind.ARRIVED:
                sender = slot.senders.get(frame.target)
                start = frame.start if sender is None else sender.clock.here(frame.start)
                slot.report(frame.target, frame.epoch, start, max(start, here(frame.finish)))
            case Kind.DATA if slot.epoch == frame.epoch:
                if slot.inbox.add_part(frame):
                    slot.inbox.write_back(frame.target)
                    now = perf_counter()
                    slot.report(frame.target, frame.epoch, min(now, here(frame.start)), now)
            case Kind.DATA:
                pass
            case _:
                raise ProtocolError(f"a frame of kind {frame.kind}")

    def _patience(self) -> float:
        """Return the seconds of silence after which the device counts as lost."""
        # a call through Ray, such as compiling a model, may keep it from answering for a while
        return self._nodes.patience * (_PATIENCE_FACTOR if self._pending_calls > 0 else 1)

    def _on_silence(self, seconds: float) -> None:
        self._lose(f"it has shown no sign of life for {seconds:.1f} s: it hangs, or its network is cut off")

    def _ping(self) -> None:
        self.connection.send(Frame(Kind.PING, start=perf_counter()), priority=(-1.0,))

    # -- ends -------------------------------------------------------------------------------------------------------------

    def lost(self, connection: Connection, why: str) -> None:  # noqa: ARG002
        """Declare the device lost, since the connection has ended; see :meth:`placeit.runtime.nodes.wire.Receiver.lost`."""
        if not self._closing.is_open:
            loading = " while it loaded something, as it does when its node has too little memory"
            self._lose(f"its process has ended{loading if self._pending_calls else ''}, or the connection to it has ({why})")

    def _lose(self, why: str) -> None:
        with self._lock:
            if self.gone is not None:
                return
            self.silent_s = self._heartbeat.silent_s
            self.gone = LostError(f"{self.name} is lost: {why}.")
        self.connection.close()
        for slot in _slots_of(self):
            slot.lost({self}, self.gone)
        for tell in self._nodes.on_lost:
            tell(self.name, why)

    def _link_lost(self, name: str, why: str) -> None:
        """Fail the transfers on a link that a node has lost, unless one of its ends is known to be lost."""
        others = {device for slot in _slots_of(self) for device in slot.feeds if device.name == name}
        for other in others:
            if self.gone is None and other.gone is None:
                error = DeviceError(f"The link between {self.name} and {name} is lost: {why}.")
                self.cut[name] = other.cut[self.name] = error
                for slot in _slots_of(self):
                    slot.lost({self, other}, error)

    def close(self) -> None:
        """End the actor, and the connection and the threads for it in this process. A second call has no effect."""
        if self._closing.is_open:
            return
        self._closing.open()
        if self._expected:
            return
        self.connection.close()
        self._heartbeat.join(2.0)
        if self._nodes.connected:
            with contextlib.suppress(Exception):  # Ray may be about to shut down
                ray_module().kill(self._actor)
        self.worker.close()


def _slots_of(device: NodeDevice) -> set[RemoteSlot]:
    return set(device.routes.values())


def _text(payload: memoryview | None) -> str:
    return bytes(payload or b"").decode(errors="replace")


def _release(device: weakref.ref[NodeDevice], program: int) -> None:
    if (found := device()) is not None:
        found.tell("release", program)


class NodeLink:
    """A link with a node at one end or both. Tensors are sent as soon as they are computed, and reported when they arrive.

    Args:
        source: device that tensors come from.
        destination: device that they go to.

    Raises:
        DeviceError: one device cannot connect to the other.
    """

    def __init__(self, source: RuntimeDevice, destination: RuntimeDevice) -> None:
        self._ends = tuple(device for device in (source, destination) if isinstance(device, NodeDevice))
        if len(self._ends) == 2 and all(device.gone is None for device in self._ends):
            self._ends[0].reach(self._ends[1])

    @property
    def worker(self) -> Worker:
        """The thread that reports transfers that ended before the scheduler asked for them."""
        return self._ends[0].worker

    def start(self, source: Buffer, destination: Buffer, done: DoneCallback) -> None:
        """Have ``done`` called when a tensor has arrived; send it if it is in this process."""
        now = perf_counter()
        if source is destination:
            self.worker.submit(functools.partial(done, now, now, None))
        elif isinstance(destination, RemoteBuffer):
            slot = destination.slot
            if slot is None:
                raise ExecutionError(f"{destination.device.name} is sent the tensors of an executor only.")
            slot.ensure_begun(destination.number)
            if not isinstance(source, RemoteBuffer):  # the segment that wrote it has delivered it to the host
                there = source.deliver() if isinstance(source, Delivers) else source
                destination.device.send(slot, destination.number, there)
            slot.expect(destination.number, done, self._ends)
        else:
            device = narrowed(RemoteBuffer, source).device
            number = device.arrivals[destination]
            device.routes[number].expect(number, done, self._ends)

    def close(self) -> None:
        """Do nothing: connections end with their devices."""
