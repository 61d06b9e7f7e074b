"""The devices and links of a cluster, open to run segments."""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ExecutionError, LostError, PlaceitError, UsageError
from placeit.core.threads import Gate
from placeit.runtime.device_stats import DeviceStats
from placeit.runtime.devices.accelerator import Streams
from placeit.runtime.devices.base import RuntimeDevice, Transport
from placeit.runtime.devices.emulated import EmulatedLink, SlowedLink, slowed
from placeit.runtime.devices.hand_over import HandOver
from placeit.runtime.devices.kinds import DeviceKind, device_kind
from placeit.runtime.reopening import Losable, lost_of, reopened

__all__ = ["DevicePool", "PoolOptions", "open_links", "shared_devices"]

_Open: TypeAlias = tuple[tuple[RuntimeDevice, ...], dict[tuple[int, int], Transport]]

_LOG = logging.getLogger("placeit")
_SHARED: ContextVar[list[tuple[Cluster, str, _Open]] | None] = ContextVar("open devices that pools share", default=None)
_REOPEN_TIMEOUT_S = 5.0
_MAX_SPIN_S = 1e-3  # limit on spinning: a longer wait is worth a switch of threads


class PoolOptions(TypedDict, total=False):
    """How the devices of a cluster are opened, as :class:`DevicePool` describes it."""

    precision: str
    devices: Sequence[RuntimeDevice] | None
    transports: Mapping[tuple[int, int], Transport] | None
    streams: Streams | None
    wait: Callable[[Gate], object] | None
    expected: Collection[str]
    spin_s: float
    own: bool


@dataclass(frozen=True)
class _Failed:
    """A device that is lost because it failed at run time.

    Attributes:
        why: the failure.
        trial: runs segments on the device, and raises PlaceitError if it fails again.
    """

    why: DeviceError
    trial: Callable[[], object]


class DevicePool:
    """Open devices of a cluster and the links between them, or the streams that drive all of them.

    Args:
        cluster: real or emulated devices.
        precision: inference precision of every device.
        devices: open devices to use instead of opening the cluster's, in its order; for example, fake devices of tests.
        transports: open links between ``devices``, by (source, destination); None to open the cluster's emulated links, and a
            copy through the host's memory between devices with different memories.
        streams: streams that drive all devices, instead of ``devices``.
        wait: called with the gate of a run, to make the run end, for example by advancing a virtual clock.
        expected: names of devices that may be missing: they count as lost until they can be opened (:meth:`reopen`).
        spin_s: seconds that threads of devices, and callers, spin for the next segment before they sleep. They spin only
            while fewer threads of the process are active than there are cores. At most 0.001; 0 to sleep at once.
        own: whether the pool shares no devices with other pools, even in :func:`shared_devices`.

    Attributes:
        devices: the open devices, in the cluster's order; empty if there are streams.
        transports: the open links, by (source, destination).
        streams: streams that drive all devices; None if the host decides when each segment starts.
        is_shared: whether other pools of the process use these devices, and their segments take turns.

    Raises:
        DeviceError: a device exists in simulation only, or is of a kind that this version cannot run.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        precision: str = "f32",
        devices: Sequence[RuntimeDevice] | None = None,
        transports: Mapping[tuple[int, int], Transport] | None = None,
        streams: Streams | None = None,
        wait: Callable[[Gate], object] | None = None,
        expected: Collection[str] = (),
        spin_s: float = 0.0,
        own: bool = False,
    ) -> None:
        if not 0 <= spin_s <= _MAX_SPIN_S:
            raise UsageError(f"'spin_s' is between 0 and {_MAX_SPIN_S} seconds; got {spin_s}.")
        self.spin_s = spin_s
        self.cluster, self.precision, self.wait, self.streams = cluster, precision, wait, streams
        self._returns, self._reopened = Counter[str](), Counter[str]()
        self._failed: dict[str, _Failed] = {}
        self._opens_devices = False
        self._lock, self._reopening, self._closed, self.is_shared = threading.Lock(), threading.Lock(), False, False
        if devices is None and streams is None:
            _check_real(cluster)
            self.streams = _open_streams(cluster, precision)
        if self.streams is not None:
            self.devices, self.transports = tuple(devices or ()), dict(transports or {})
        elif devices is None and not (own or expected) and (shared := _shared(cluster, precision)) is not None:
            (self.devices, self.transports), self.is_shared = shared, True
        elif devices is None:
            (self.devices, self.transports), self._opens_devices = _open(cluster, precision, expected), True
        else:
            self.devices = tuple(devices)
            self.transports = open_links(cluster, self.devices, ()) if transports is None else dict(transports)

    def refuse(self) -> None:
        """Refuse new runs: :meth:`check_open` raises from now on."""
        with self._lock:
            self._closed = True

    def close(self) -> None:
        """Stop all threads of devices and links, even if one raises. Shared devices stop with :func:`shared_devices`."""
        self.refuse()
        with contextlib.ExitStack() as stack:
            stack.callback(self._end_reopening)
            if self.streams is not None:
                stack.callback(self.streams.accelerator.close)
            if not self.is_shared:
                _close(stack, self.devices, self.transports)

    def check_open(self) -> None:
        """Raise ExecutionError if the pool is closed, or is being closed."""
        if self._closed:
            raise ExecutionError(self.why_closed())

    def why_closed(self) -> str:
        """Return the message of errors after the pool was closed."""
        return f"{', '.join(self.cluster.names)} is closed, and nothing more can run there: open a new session or runtime."

    def lost(self) -> dict[frozenset[str], DeviceError]:
        """Return the errors of lost devices and links: by the name of the device, or by the names of the link's ends."""
        failed = {frozenset({name}): failure.why for name, failure in [*self._failed.items()]}
        return lost_of(self.cluster.names, self.devices) | failed

    def fail(self, name: str, why: PlaceitError, trial: Callable[[], object]) -> DeviceError:
        """Declare a device lost that fails at run time, and return the error that says so.

        Args:
            name: name of the device.
            why: the failure.
            trial: runs segments on the device, and raises PlaceitError while they fail. :meth:`reopen` opens the device anew,
                and restores it if the trial then passes. Streams, shared devices, and devices that were passed to this pool are
                tried without being opened anew. A device of another node is opened anew without a trial.
        """
        error = LostError(f"{name} is lost: {why}")
        device: object = self.devices[self.cluster.names.index(name)] if self.devices else None
        if isinstance(device, Losable):
            device.gone = error
        else:
            self._failed[name] = _Failed(error, trial)
        return error

    def program_key(self, device: int) -> str:
        """Return the key of a device's programs. A device that was opened anew does not run its earlier programs."""
        times = self._reopened[self.cluster.names[device]]
        return f"{self.devices[device].program_key} {times}" if times else self.devices[device].program_key

    def stats(self) -> list[DeviceStats]:
        """Return the state of each device, and how often it has been restored."""
        lost = self.lost()
        return [
            DeviceStats(
                device.name,
                device.address.node if device.address is not None else "",
                up=frozenset({device.name}) not in lost,
                returns=self._returns[device.name],
            )
            for device in self.cluster.devices
        ]

    def reopen(self) -> list[frozenset[str]]:
        """Try to restore lost devices and links; return the names of the restored ones, as :meth:`lost` has them.

        Existing executors do not use the restored ones. Each node may take up to a minute to answer.
        """
        with self._reopening:
            before = self.devices
            devices, transports, restored = reopened(self.cluster.names, before, self.transports)
            with self._lock:
                is_open = not self._closed
                if is_open:
                    self.transports, self.devices = dict(transports), devices
                    self._returns.update(name for names in restored if len(names) == 1 for name in names)
            for old, new in zip(before, devices, strict=True):
                if new is not old:
                    (old if is_open else new).close()
            tried = [frozenset({name}) for name, failed in [*self._failed.items()] if is_open and self._try(name, failed)]
        return [*restored, *tried] if is_open else []

    def _try(self, name: str, failed: _Failed) -> bool:
        """Open a failed device anew, and return whether its trial passes; if it fails, the old object stays in place."""
        d, before, passed = self.cluster.names.index(name), self.devices, False
        self._reopened[name] += self._opens_devices
        try:
            if self._opens_devices:
                device = self.cluster.devices[d]
                made = _slowed(device_kind(device).open(device, self.precision), device)
                self.devices = (*before[:d], made, *before[d + 1 :])
            failed.trial()
            passed = True
        except PlaceitError as error:
            _LOG.debug("%s is still lost: %s", name, error)
        finally:  # also after an interrupt of the trial
            with self._lock:
                now, passed = self.devices, passed and not self._closed
                self.devices = now if passed else before
                if passed:
                    del self._failed[name]
                    self._returns[name] += 1
            for old, new in zip(before, now, strict=True):
                if new is not old:
                    (old if passed else new).close()
        return passed

    def _end_reopening(self) -> None:
        """Wait for a call of :meth:`reopen`, which ends early when its devices are closed."""
        if self._reopening.acquire(timeout=_REOPEN_TIMEOUT_S):
            self._reopening.release()

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Set ``device`` of each DeviceError that the block raises to the name of a device."""
        try:
            yield
        except DeviceError as error:
            error.device = self.cluster.names[device]
            raise


@contextlib.contextmanager
def shared_devices() -> Iterator[None]:
    """Share devices and links among sessions that open in the block: their segments take turns in one lane for each device.

    Otherwise, each session has its own threads, and the operating system divides the cores among them. Sessions of equal
    precision share the devices that their clusters have in common, and the links if their clusters are equal. Streams, devices
    of other nodes, and emulated devices of unequal clusters are not shared; nor are plain devices, as they are used as without
    placeit. Shared devices are closed at the end of the block: close the sessions before.
    """
    opened: list[tuple[Cluster, str, _Open]] = []
    token = _SHARED.set(opened)
    try:
        with contextlib.ExitStack() as stack:
            try:
                yield
            finally:
                for _, _, (_, links) in opened:
                    _close(stack, (), links)
                _close(stack, [*{id(device): device for _, _, (devices, _) in opened for device in devices}.values()], {})
    finally:
        _SHARED.reset(token)


def _shared(cluster: Cluster, precision: str) -> _Open | None:
    """Return the shared devices and links of a cluster, opened on first use; None if the cluster shares no devices."""
    opened = _SHARED.get()
    if opened is None or any(device.where.node for device in cluster.devices):
        return None
    for other, other_precision, found in opened:
        if other.devices == cluster.devices and dict(other.links) == dict(cluster.links) and other_precision == precision:
            return found
    known = [pair for one, of, found in opened if of == precision for pair in zip(one.devices, found[0], strict=True)]
    opened.append((cluster, precision, _open(cluster, precision, (), known)))
    return opened[-1][2]


def _close(stack: contextlib.ExitStack, devices: Sequence[RuntimeDevice], links: Mapping[tuple[int, int], Transport]) -> None:
    """Push callbacks on a stack that close devices, then links."""
    for link in links.values():
        stack.callback(link.close)
    for device in devices:
        stack.callback(device.close)


def _check_real(cluster: Cluster) -> None:
    for device in cluster.devices:
        if device.described:
            raise DeviceError(f"{device.name} is a described device: it exists in simulation only and cannot run anything.")


def _open_streams(cluster: Cluster, precision: str) -> Streams | None:
    """Open streams that drive the whole cluster, if a kind of device has them; else None.

    The host has to pace clusters of several kinds or nodes, and emulated devices and links.
    """
    emulates = any(link.origin == "emulated" for link in cluster.links.values())
    if emulates or any(device.emulated or device.where.node for device in cluster.devices):
        return None
    asked = (device_kind(device).streams(cluster.devices, precision) for device in cluster.devices)
    return next((streams for streams in asked if streams is not None), None)


def _open(
    cluster: Cluster, precision: str, expected: Collection[str], known: Collection[tuple[Device, RuntimeDevice]] = ()
) -> _Open:
    """Open each device that is not among the known ones, and the links between all, by their kinds."""
    kinds = [device_kind(device) for device in cluster.devices]
    real: list[RuntimeDevice] = []
    with contextlib.ExitStack() as stack:
        for kind, device in zip(kinds, cluster.devices, strict=True):
            shared = next((opened for one, opened in known if one == device and not one.emulated), None)
            if shared is None:
                make = kind.expected if device.name in expected else kind.open
                real.append(make(device, precision))
                stack.callback(real[-1].close)
            else:
                real.append(shared)
        links = open_links(cluster, real, kinds)
        stack.pop_all()
    return tuple(map(_slowed, real, cluster.devices)), links


def _slowed(opened: RuntimeDevice, device: Device) -> RuntimeDevice:
    """Slow an open device down if it is emulated; a node slows its devices down itself."""
    return slowed(opened, device.slowdown) if device.emulated and not device.where.node else opened


def open_links(
    cluster: Cluster, devices: Sequence[RuntimeDevice], kinds: Sequence[DeviceKind]
) -> dict[tuple[int, int], Transport]:
    """Open a link between two devices if a kind has one, if their memories differ, or if the cluster emulates one.

    Args:
        cluster: the cluster.
        devices: its open devices.
        kinds: kinds of the devices; empty for devices of no kind.

    Raises:
        DeviceError: a link cannot be opened.
    """
    links: dict[tuple[int, int], Transport] = {}
    try:
        for src, dst in itertools.permutations(range(len(cluster)), 2):
            ends = cluster.names[src], cluster.names[dst]
            name = f"placeit {' -> '.join(ends)}"
            asked = (kinds[d].link(devices[src], devices[dst]) for d in (src, dst) if kinds)
            made = next((link for link in asked if link is not None), None)
            if made is None and devices[src].space != devices[dst].space:
                made = HandOver(name)
            if made is not None:
                links[src, dst] = made
            link = cluster.links.get(ends)
            if link is not None and link.origin == "emulated":
                if any(cluster.devices[d].address is not None and cluster.devices[d].where.node for d in (src, dst)):
                    raise DeviceError(
                        f"The link {' -> '.join(ends)} leads to another node, and cannot be emulated: leave it out."
                    )
                emulated = EmulatedLink(name, link.bandwidth, link.latency)
                links[src, dst] = emulated if made is None else SlowedLink(made, emulated)
    except BaseException:
        for opened in links.values():
            opened.close()
        raise
    return links
