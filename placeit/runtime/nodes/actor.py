"""The actor: a process on a node that drives one of its devices."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.narrowing import narrowed
from placeit.runtime.alternating import Alternating, SharesState, alternating
from placeit.runtime.devices.base import CompilesSlowly, Instance, Program, RuntimeDevice
from placeit.runtime.devices.emulated import slowed
from placeit.runtime.devices.kernels import CountedKernel, CountsKernels
from placeit.runtime.devices.kinds import Counts, device_kind
from placeit.runtime.devices.state import KeepsState
from placeit.runtime.nodes.formats import Package
from placeit.runtime.nodes.lane import Lane, SegmentJob, Wiring
from placeit.runtime.nodes.package import Unpacked
from placeit.runtime.nodes.states import SentVariable, sent
from placeit.runtime.nodes.weights import WeightStore
from placeit.runtime.nodes.wire import Connection, Listener, connect

__all__ = ["ActorSettings", "DeviceActor", "local"]


@dataclass(frozen=True)
class ActorSettings:
    """Settings that an actor gets when it starts.

    Attributes:
        name: name of the device in the cluster.
        device: the device as its node addresses it: its address has no node.
        host: network address that the actor listens on.
        secret: secret that peers have to know to connect.
        precision: inference precision.
        coding: form in which float32 tensors are sent; see :mod:`placeit.runtime.nodes.coding`.
        patience: seconds in which a peer has to acknowledge data.
        counting: whether programs count the time of each kernel.
        open_device: opens the device, in tests and benchmarks; None to open it by its kind.
    """

    name: str
    device: Device
    host: str
    secret: bytes
    precision: str = "f32"
    coding: int = 0
    patience: float = 5.0
    counting: bool = False
    open_device: Callable[[Device], RuntimeDevice] | None = None


class DeviceActor:
    """Compiles segments for a device, and runs them when their inputs arrive. Its methods are called through Ray."""

    def __init__(self, setting: ActorSettings) -> None:
        self._setting, self._refusal = setting, ""
        try:
            self._device = _open_device(setting.device, setting)
        except DeviceError as error:  # raised by `where`: if a constructor raises it, Ray reports that the actor has died
            self._refusal = str(error)
            return
        self._lane = Lane(self._device, setting.coding)
        self._programs: dict[int, Program] = {}
        self._copies: dict[int, Mapping[str, Any]] = {}  # copies of states, by number
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._listener = Listener(setting.host, setting.secret, self._add_peer)

    def _add_peer(self, sock: Any, name: str) -> None:
        self._lane.add_peer(Connection(sock, name, self._lane, self._setting.patience))

    @functools.cached_property
    def _store(self) -> WeightStore:
        return WeightStore.of_user()

    def where(self) -> tuple[tuple[str, int], int]:
        """Return the address that it listens on, and its process id. Raises DeviceError if the device was not opened."""
        if self._refusal:
            raise DeviceError(self._refusal)
        return self._listener.address, os.getpid()

    def reach(self, name: str, address: tuple[str, int], secret: bytes) -> None:
        """Connect to another device, to send tensors there. Raises DeviceError."""
        self._add_peer(connect(address, secret, self._setting.name), name)

    def missing(self, pieces: tuple[str, ...]) -> list[str]:
        """Return the pieces of weights that are not on this machine."""
        return self._store.missing(pieces)

    def keep(self, pieces: Mapping[str, bytes]) -> None:
        """Store pieces of weights. Raises DeviceError if there is no room."""
        self._store.put(pieces)

    def compile(self, package: Package, seconds: float) -> int | None:
        """Compile a segment and return its number; None if some of its weights are missing here.

        Raises DeviceError, or ExecutionError after ``seconds`` if the compiler can be given a time limit.
        """
        pieces = self._store.get(package.pieces) if package.pieces else {}
        if pieces is None:
            return None
        segment, device = Unpacked(package, pieces), self._device
        program = device.compile_within(segment, seconds) if isinstance(device, CompilesSlowly) else device.compile(segment)
        with self._lock:
            number = next(self._numbers)
            self._programs[number] = program
        return number

    def counted(self, program: int) -> list[CountedKernel]:
        """Return the time of each kernel of a program; empty if it does not count them."""
        found = self._programs[program]
        return found.counted() if isinstance(found, CountsKernels) else []

    def release(self, program: int) -> None:
        """Release a program, which its instances still keep alive."""
        with self._lock:
            self._programs.pop(program, None)

    def wire(self, wiring: Wiring) -> list[bool]:
        """Make a slot ready to run; return for each instance whether other slots can use its state. Raises DeviceError."""
        instances = [self._instance(job) for job in wiring.jobs]
        self._lane.wire(wiring, instances)
        return [isinstance(instance, SharesState) for instance in instances]

    def _instance(self, job: SegmentJob) -> Instance:
        program = self._programs[job.program]
        if job.shares is not None:
            first = narrowed(Alternating, self._lane.idle_instance(job.shares, {}))
            return first.beside([self._device.allocate(spec) for spec in program.outputs])
        made = self._device.instance(program)
        if not job.keeps_state:
            return made
        self._keeping(made).keep_state(keep=True)
        return alternating(made, len(program.outputs))

    def _keeping(self, instance: Instance) -> KeepsState:
        if isinstance(instance, Alternating):
            instance = instance.instance
        if not isinstance(instance, KeepsState):
            raise DeviceError(f"{self._setting.name} does not keep the state of a segment from one request to the next.")
        return instance

    def _idle_instance(self, job: int, epochs: Mapping[int, int]) -> KeepsState:
        return self._keeping(self._lane.idle_instance(job, epochs))

    def unwire(self, slot: int) -> None:
        """Release a slot."""
        self._lane.unwire(slot)

    def keep_state(self, job: int, epochs: Mapping[int, int], keep: bool) -> None:
        """Choose whether later runs continue from the current state; see :meth:`reset_state`. Raises DeviceError."""
        self._idle_instance(job, epochs).keep_state(keep=keep)

    def reset_state(self, job: int, epochs: Mapping[int, int]) -> None:
        """Return an instance to its initial state. Raises DeviceError.

        Runs of slots before ``epochs``, by slot, end first: nothing more of them starts, and a running segment is waited for.
        """
        self._idle_instance(job, epochs).reset_state()

    def state_bytes(self, job: int, epochs: Mapping[int, int]) -> int:
        """Return the bytes of an instance's state; see :meth:`reset_state`. Raises DeviceError."""
        return self._idle_instance(job, epochs).state_bytes()

    def copy_states(self, job: int, epochs: Mapping[int, int]) -> int:
        """Copy the state of an instance, and return the number of the copy. See :meth:`reset_state`. Raises DeviceError."""
        copy = self._idle_instance(job, epochs).states()
        with self._lock:
            number = next(self._numbers)
            self._copies[number] = copy
        return number

    def forget_states(self, copy: int) -> None:
        """Release a copy of a state."""
        with self._lock:
            self._copies.pop(copy, None)

    def fetch_state(self, copy: int, name: str) -> SentVariable:
        """Return the value of a variable in a copy."""
        return sent(self._copies[copy][name])

    def set_states(self, job: int, epochs: Mapping[int, int], states: Mapping[str, int | SentVariable]) -> None:
        """Set an instance's variables, each to its value in a copy here or to a value that was sent. Raises DeviceError."""
        values = {
            name: self._copies[value][name] if isinstance(value, int) else value.tensor() for name, value in states.items()
        }
        self._idle_instance(job, epochs).set_states(values)

    def read(self, buffer: int) -> NDArray[np.generic]:
        """Return a copy of a buffer's value, in its logical shape."""
        return np.array(self._lane.buffer(buffer).array(), order="C")

    def fill(self, buffer: int, value: NDArray[np.generic]) -> None:
        """Write a buffer."""
        self._lane.buffer(buffer).fill(value)

    def blank(self, buffer: int, sentinel: int) -> None:
        """Fill a buffer with NaN, or the sentinel."""
        self._lane.buffer(buffer).blank(sentinel)


def _open_device(device: Device, setting: ActorSettings) -> RuntimeDevice:
    if setting.open_device is not None:
        return setting.open_device(device)
    kind = device_kind(device)
    if setting.counting and isinstance(kind, Counts):
        made = kind.counting(device, setting.precision)
    else:
        made = kind.open(device, setting.precision)
    return slowed(made, device.slowdown) if device.emulated else made


def local(device: Device) -> Device:
    """Return a device of a node as the node itself addresses it. Raises DeviceError if it has no address."""
    if device.address is None:
        raise DeviceError(f"{device.name} has no address.")
    return replace(device, address=replace(device.address, node=""))
