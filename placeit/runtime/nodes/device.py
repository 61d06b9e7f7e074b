"""Devices of other nodes, as the executor sees them, and the links to and from them."""

from __future__ import annotations

import contextlib
import functools
import secrets
import threading
import weakref
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

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
from placeit.runtime.nodes.actor import DeviceActor, Setting, local
from placeit.runtime.nodes.ahead import Ahead, RemoteBuffer, RemoteDevice, RemoteInstance, RemoteProgram
from placeit.runtime.nodes.lane import DRIVER, rank
from placeit.runtime.nodes.package import pack
from placeit.runtime.nodes.pulse import PeerClock, Pulse
from placeit.runtime.nodes.states import RemoteKeepingInstance
from placeit.runtime.nodes.tensors import Outgoing, outgoing
from placeit.runtime.nodes.wire import Connection, Frame, Kind, Parcel, ProtocolError, connect
from placeit.runtime.nodes.wiring import run_ahead

if TYPE_CHECKING:
    from placeit.planning.segments import Plan
    from placeit.runtime.device_pool import DevicePool
    from placeit.runtime.segment_book import SegmentBook
    from placeit.runtime.slots import Slot

__all__ = ["NodeDevice", "NodeLink"]

_STARTS_S, _COMPILES_S, _ANSWERS_S = 60.0, 300.0, 60.0
_LOADING = 6
_LONGEST_TEXT = 4096
_AFTERTHOUGHT_S = 0.5  # seconds until a lost link is reported: a device that has ended is to be found lost before its links


class NodeDevice(RemoteDevice):
    """A device of another node.

    An actor of Ray drives it there, and runs segments as soon as their inputs arrive (:mod:`placeit.runtime.nodes.lane`). So
    an instance may have ended when ``start`` is called.

    Args:
        device: the device; its address names the node.
        precision: inference precision.
        nodes: the cluster; None for the one that this process is connected to.
        opened: makes the device on the node; None for one of its kind.
        given_up: returns True when the node is not to be waited for any longer.
        expected: whether it need not be there yet: then it counts as lost until it is opened anew.
        counting: whether its programs count the time of each kernel.

    Attributes:
        gone: why the device is lost; None while it is there.
        cut: why its link with another device is lost, by the name of that device.
        silent_s: seconds from its last sign of life to the moment when it was found lost; 0 before.
    """

    def __init__(
        self,
        device: Device,
        precision: str,
        *,
        nodes: Nodes | None = None,
        opened: Callable[[Device], RuntimeDevice] | None = None,
        given_up: Callable[[], bool] = lambda: False,
        expected: bool = False,
        counting: bool = False,
    ) -> None:
        self.name, self.where = device.name, device.where
        self.space = f"{device.name} of {device.where.node}"
        self.program_key = f"node {device.name}"
        self._nodes = connected() if nodes is None else nodes
        self._anew = functools.partial(NodeDevice, device, precision, nodes=self._nodes, opened=opened, counting=counting)
        self._forms = device_kind(device).formats
        self.gone: DeviceError | None = None
        self.cut: dict[str, DeviceError] = {}
        self.silent_s = 0.0
        self.routes: weakref.WeakValueDictionary[int, Ahead] = weakref.WeakValueDictionary()
        self.arrivals: weakref.WeakKeyDictionary[Buffer, int] = weakref.WeakKeyDictionary()
        self.clock = PeerClock()
        self._asked, self._closing = 0, Gate()
        self._pulse = Pulse(device.name, self._ping, self._patience, self._silent, self._closing)
        self._ends = threading.Lock()
        self._expected = expected
        if expected:
            self.gone = DeviceError(f"{device.name} is not there yet.")
            return
        node = self._nodes.node(device.where.node)
        self.secret = secrets.token_bytes(32)
        setting = Setting(
            *(self.name, local(device), node.host, self.secret, precision),
            *(self._nodes.coding, self._nodes.patience, counting, opened),
        )
        actor_class = ray_module().remote(num_cpus=0, max_restarts=0, max_concurrency=8)(DeviceActor)
        self._actor = actor_class.options(scheduling_strategy=pinned(node)).remote(setting)
        self.worker = Worker(f"placeit {self.name}")
        try:
            answer = self._actor.where.remote()
            self.address, self.pid = answer_of(answer, f"{self.name}, when it was opened,", _STARTS_S, given_up)
            sock = connect(self.address, self.secret, DRIVER)
            self.connection = Connection(sock, self.name, self, self._nodes.patience)
            self._pulse.start()  # before all other frames: its reports are in its clock's time, which this measures
        except BaseException:
            self.worker.close()
            ray_module().kill(self._actor)
            raise

    @property
    def coding(self) -> int:
        """Form in which float32 tensors are sent."""
        return self._nodes.coding

    # -- through Ray ------------------------------------------------------------------------------------------------------

    def ask(self, what: str, *arguments: Any, timeout: float = _ANSWERS_S) -> Any:
        """Call a method of the actor and wait for its answer. Raises DeviceError."""
        if self.gone is not None:
            raise self.gone
        if not self._nodes.connected:
            raise DeviceError(f"{self.name} cannot be asked to {what}: this process has left its Ray cluster.")
        self._asked += 1
        try:
            answer = getattr(self._actor, what).remote(*arguments)
            found = answer_of(
                answer, f"{self.name}, asked to {what},", timeout, lambda: self._given_up() or self.gone is not None
            )
        except DeviceError as error:
            raise self.gone or error from error
        finally:
            self._asked -= 1
        self._pulse.hear()  # an answer is a sign of life
        return found

    def _given_up(self) -> bool:
        return self._closing.is_open or not self._nodes.connected

    def tell(self, what: str, *arguments: Any) -> None:
        """Call a method of the actor without waiting for its answer."""
        if self.gone is None and not self._closing.is_open and self._nodes.connected:
            getattr(self._actor, what).remote(*arguments)

    def compile(self, segment: SegmentSource) -> Program:
        """Compile a segment on the node, which gets the weights that it has not been sent before. Raises DeviceError."""
        package, pieces = pack(segment, self._forms)
        number = self.ask("compile", package, timeout=_COMPILES_S)
        for _ in range(3):  # another process may delete pieces that were just sent, to make room
            if number is not None:
                break
            missing = self.ask("missing", package.pieces)
            self.ask("keep", {name: pieces[name] for name in missing}, timeout=_COMPILES_S)
            number = self.ask("compile", package, timeout=_COMPILES_S)
        if number is None:
            raise DeviceError(f"{self.name} has no room for the weights of a segment.")
        program = RemoteProgram(self, segment, number, package.variables)
        weakref.finalize(program, _release, weakref.ref(self), number).atexit = False
        return program

    def reach(self, other: NodeDevice) -> None:
        """Have the node connect to another one. Raises DeviceError."""
        self.ask("reach", other.name, other.address, other.secret)

    def reopened(self) -> NodeDevice:
        """Open the device anew, as a new object; see :class:`placeit.runtime.reopening.Losable`. Raises DeviceError."""
        self._nodes.check()
        self._nodes.device(self.where, self._given_up)  # checks its version and its cores
        made = self._anew(given_up=self._given_up)
        made.program_key += f" {self.number()}"  # the new actor has no programs yet
        return made

    @staticmethod
    def link(source: RuntimeDevice, destination: RuntimeDevice) -> NodeLink:
        """Open a link from or to it. Raises DeviceError."""
        return NodeLink(source, destination)

    def mend(self, other: RuntimeDevice) -> None:
        """Open the lost link with another device anew. Raises DeviceError."""
        there = narrowed(NodeDevice, other)
        self.reach(there)
        there.reach(self)
        for one, far in ((self, there), (there, self)):
            one.cut.pop(far.name, None)

    @staticmethod
    def run_ahead(book: SegmentBook, pool: DevicePool, plan: Plan, slot: Slot) -> Callable[[], None] | None:
        """Tell nodes what a slot runs there; return a function that renews it. See :mod:`placeit.runtime.nodes.wiring`."""
        ahead = run_ahead(book, pool, plan, slot)
        return None if ahead is None else ahead.renew

    # -- as a device ------------------------------------------------------------------------------------------------------

    def instance(self, program: Program) -> Instance:
        """Make an instance; it is made on the node together with the others of its slot."""
        made = narrowed(RemoteProgram, program)
        return RemoteKeepingInstance(self, made) if made.variables else RemoteInstance(self, made)

    def allocate(self, spec: BufferSpec) -> Buffer:
        """Make a buffer; it is made on the node together with the others of its slot."""
        return RemoteBuffer(self, spec)

    def start(self, instance: Instance, done: DoneCallback) -> None:
        """Have ``done`` called when an instance has ended, also if it has ended before this call."""
        made = narrowed(RemoteInstance, instance)
        if made.ahead is None:
            raise ExecutionError(f"{self.name} runs the instances of an executor only.")
        made.ahead.go(made.number)
        made.ahead.expect(made.number, done, (self,))

    def begin(self, ahead: Ahead, inputs: Sequence[tuple[int, HostBuffer]]) -> None:
        """Begin a run of a slot on the device, with the inputs that come from this process."""
        begin = Parcel(Frame(Kind.BEGIN, slot=ahead.number, epoch=ahead.epoch))  # before all tensors, in the order of requests
        self._send_all(ahead, [begin, *(self._parcel(ahead, number, outgoing(buffer, 0)) for number, buffer in inputs)])

    def send(self, ahead: Ahead, number: int, buffer: Buffer) -> None:
        """Send a tensor of this process into the device's buffer with a number."""
        self._send_all(ahead, [self._parcel(ahead, number, outgoing(buffer, self.coding))])

    def _parcel(self, ahead: Ahead, number: int, sent: Outgoing) -> Parcel:
        frame = Frame(Kind.DATA, sent.coding, 0, ahead.epoch, number, start=perf_counter(), finish=sent.scale, sizes=sent.sizes)
        return Parcel(frame, sent.payload, rank(len(sent.payload), 0.0))

    def _send_all(self, ahead: Ahead, parcels: Sequence[Parcel]) -> None:
        epoch = ahead.epoch
        self.connection.send_all(parcels, lambda: ahead.epoch == epoch)

    # -- frames -----------------------------------------------------------------------------------------------------------

    def place(self, frame: Frame) -> memoryview | None:
        """Return the memory for a payload; see :class:`placeit.runtime.nodes.wire.Receiver`."""
        if frame.kind in (Kind.ENDED, Kind.LOST) and frame.size <= _LONGEST_TEXT:
            return memoryview(bytearray(frame.size))
        if frame.kind != Kind.DATA:
            raise ProtocolError(f"a payload where none belongs (kind {frame.kind})")
        ahead = self.routes.get(frame.target)
        return None if ahead is None or ahead.epoch != frame.epoch else ahead.inbox.place(frame)

    def took(self, frame: Frame, payload: memoryview | None, connection: Connection) -> None:  # noqa: ARG002
        """Handle a frame; see :class:`placeit.runtime.nodes.wire.Receiver`."""
        self._pulse.hear()
        if frame.kind == Kind.PONG:
            self.clock.hear(frame.start, frame.finish)
            return
        if frame.kind == Kind.LOST:
            name, _, why = _text(payload).partition(": ")
            timer = threading.Timer(_AFTERTHOUGHT_S, self._link_lost, (name, why))
            timer.daemon = True
            timer.start()
            return
        ahead = self.routes.get(frame.target)
        if ahead is None:
            return
        match frame.kind:
            case Kind.ENDED:
                error = ExecutionError(_text(payload)) if payload else None
                ahead.report(frame.target, frame.epoch, self.here(frame.start), self.here(frame.finish), error)
            case Kind.ARRIVED:
                sender = ahead.senders.get(frame.target)
                start = frame.start if sender is None else sender.here(frame.start)
                ahead.report(frame.target, frame.epoch, start, max(start, self.here(frame.finish)))
            case Kind.DATA if ahead.epoch == frame.epoch:
                if ahead.inbox.took(frame):
                    ahead.inbox.settle(frame.target)
                    now = perf_counter()
                    ahead.report(frame.target, frame.epoch, min(now, self.here(frame.start)), now)
            case Kind.DATA:
                pass
            case _:
                raise ProtocolError(f"a frame of kind {frame.kind}")

    def here(self, moment: float) -> float:
        """Convert a moment of the device's clock to this process's clock."""
        return self.clock.here(moment)

    def _patience(self) -> float:
        """Return the seconds without a sign of life after which the device is lost."""
        # a call through Ray, to compile a model for example, may keep it from answering for a while
        return self._nodes.patience * (_LOADING if self._asked > 0 else 1)

    def _silent(self, seconds: float) -> None:
        self._lose(f"it has shown no sign of life for {seconds:.1f} s: it hangs, or its network is cut off")

    def _ping(self) -> None:
        self.connection.send(Frame(Kind.PING, start=perf_counter()), urgency=(-1.0,))

    # -- ends -------------------------------------------------------------------------------------------------------------

    def lost(self, connection: Connection, why: str) -> None:  # noqa: ARG002
        """Declare the device lost, as the connection has ended; see :class:`placeit.runtime.nodes.wire.Receiver`."""
        if not self._closing.is_open:
            loading = " while it loaded something, as it does when its node has too little memory" if self._asked else ""
            self._lose(f"its process has ended{loading}, or the connection to it has ({why})")

    def _lose(self, why: str) -> None:
        with self._ends:
            if self.gone is not None:
                return
            self.silent_s = self._pulse.silent_s
            self.gone = LostError(f"{self.name} is lost: {why}.")
        self.connection.close()
        for ahead in _all_ahead(self):
            ahead.lost({self}, self.gone)
        for tell in self._nodes.on_lost:
            tell(self.name, why)

    def _link_lost(self, name: str, why: str) -> None:
        """Fail the transfers on a link that a node has lost, unless one of its ends is known to be lost."""
        others = {device for ahead in _all_ahead(self) for device in ahead.feeds if device.name == name}
        for other in others:
            if self.gone is None and other.gone is None:
                error = DeviceError(f"The link between {self.name} and {name} is lost: {why}.")
                self.cut[name] = other.cut[self.name] = error
                for ahead in _all_ahead(self):
                    ahead.lost({self, other}, error)

    def close(self) -> None:
        """End the actor, and the connection and the threads for it in this process. A second call has no effect."""
        if self._closing.is_open:
            return
        self._closing.open()
        if self._expected:
            return
        self.connection.close()
        self._pulse.join(2.0)
        if self._nodes.connected:
            with contextlib.suppress(Exception):  # Ray may be about to shut down
                ray_module().kill(self._actor)
        self.worker.close()


def _all_ahead(device: NodeDevice) -> set[Ahead]:
    return set(device.routes.values())


def _text(payload: memoryview | None) -> str:
    return bytes(payload or b"").decode(errors="replace")


def _release(device: weakref.ref[NodeDevice], program: int) -> None:
    found = device()
    if found is not None:
        with contextlib.suppress(Exception):  # Ray may be about to shut down
            found.tell("release", program)


class NodeLink:
    """A link with a node at one end or both. Tensors cross it as soon as they are made, and are reported when they arrive.

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
            ahead = destination.ahead
            if ahead is None:
                raise ExecutionError(f"{destination.device.name} is sent the tensors of an executor only.")
            ahead.go(destination.number)
            if not isinstance(source, RemoteBuffer):  # the segment before has delivered it to the host, if need be
                there = source.deliver() if isinstance(source, Delivers) else source
                destination.device.send(ahead, destination.number, there)
            ahead.expect(destination.number, done, self._ends)
        else:
            device = narrowed(RemoteBuffer, source).device
            number = device.arrivals[destination]
            device.routes[number].expect(number, done, self._ends)

    def close(self) -> None:
        """Do nothing: connections end with their devices."""
