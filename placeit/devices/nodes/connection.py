"""The connection of this process to a Ray cluster, and the devices of its nodes."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import pickle
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, LostError, PlaceitError, UsageError, first_line
from placeit.core.extras import import_extra
from placeit.core.threads import CHECK_S, Job
from placeit.core.version import __version__
from placeit.devices.discovery import available, named, other_names
from placeit.devices.kinds import driven_by_openvino, kind_of, load_kind
from placeit.devices.nodes.joining import Attempt, check_token_required, divert_errors
from placeit.devices.nodes.tokens import open_socket
from placeit.devices.other_nodes import not_connected, set_connection

__all__ = [
    "LABEL",
    "Compression",
    "Node",
    "Nodes",
    "answer_of",
    "compression",
    "connect",
    "connected",
    "disconnect",
    "ray_module",
]

T = TypeVar("T")

_LOG = logging.getLogger("placeit")

LABEL = "placeit-node"
"""The Ray label that names a node."""
Compression: TypeAlias = Literal["none", "fp16", "int8"]
"""Types in which float32 tensors are sent, numbered as in :class:`placeit.runtime.nodes.coding.Coding`."""
_CONNECT_TIMEOUT_S, _CALL_TIMEOUT_S, _HEAD_TIMEOUT_S = 30.0, 60.0, 10.0
_MIN_TIMEOUT_S = 1.0
_MIN_RAY = (2, 59)


@dataclass(frozen=True)
class Node:
    """A node of a Ray cluster.

    Attributes:
        name: its label ``placeit-node``; without a label ``head`` for the head, and the host name for other nodes.
        node_id: Ray's identifier of the node.
        host: its address in the cluster's network.
    """

    name: str
    node_id: str
    host: str


@dataclass(eq=False)
class Nodes:
    """A connection to a Ray cluster.

    Attributes:
        address: address of the cluster's head.
        coding: encoding of float32 tensors between nodes (:mod:`placeit.runtime.nodes.coding`).
        patience: seconds without a heartbeat after which a device counts as lost.
        token: the file with the cluster's token; None for a token that Ray has found by itself.
        on_lost: functions to call with the name of each lost device and the reason of the loss.
        borrowed: whether Ray itself connected this process, as an actor of the cluster, and will end the connection.
    """

    address: str
    coding: int = 0
    patience: float = 5.0
    token: Path | None = None
    on_lost: list[Callable[[str, str], None]] = field(default_factory=list)
    borrowed: bool = False
    _machines: dict[str, str] = field(default_factory=lambda: {"": _machine()})  # machine of each node; "" is this process
    _warned: set[frozenset[str]] = field(default_factory=set)

    def nodes(self) -> Mapping[str, Node]:
        """Return the nodes that are alive, by name, the head first.

        Raises:
            DeviceError: two nodes have one name, or the head of the cluster does not answer within 10 s.
        """
        found: dict[str, Node] = {}
        for node, alive in self._listed():
            if alive and node.name in found:
                raise DeviceError(
                    f"Two nodes of the Ray cluster are called '{node.name}': start them with --labels {LABEL}=NAME."
                )
            if alive:
                found[node.name] = node
        return found

    def node(self, name: str) -> Node:
        """Return a node by its name. Raises DeviceError if it does not exist, or was lost."""
        nodes = self.nodes()
        if name in nodes:
            return nodes[name]
        if any(node.name == name for node, _ in self._listed()):
            raise DeviceError(
                f"The node '{name}' of the Ray cluster at {self.address} has ended, or Ray has dropped it as it was silent: "
                "start it again."
            )
        raise DeviceError(f"The Ray cluster at {self.address} has no node '{name}'; its nodes are {', '.join(nodes)}.")

    def _listed(self) -> list[tuple[Node, bool]]:
        """Return all nodes that were ever in the cluster, the head first, and whether each is alive."""
        from ray.exceptions import RayError

        open_socket(self.address).close()
        try:
            entries = _with_timeout(ray_module().nodes, _HEAD_TIMEOUT_S)
        except TimeoutError as error:
            raise DeviceError(
                f"The head of the Ray cluster at {self.address} has not answered for {_HEAD_TIMEOUT_S:g} s: it hangs, or has "
                "ended."
            ) from error
        except (RayError, RuntimeError) as error:
            raise DeviceError(f"The Ray cluster at {self.address} does not list its nodes ({first_line(error)}).") from error
        entries.sort(key=lambda entry: ("node:__internal_head__" not in entry["Resources"], entry["NodeID"]))
        listed = []
        for entry in entries:
            head = "node:__internal_head__" in entry["Resources"]
            name = entry["Labels"].get(LABEL) or ("head" if head else entry["NodeManagerHostname"])
            listed.append((Node(name, entry["NodeID"], entry["NodeManagerAddress"]), bool(entry["Alive"])))
        return listed

    def device(self, address: Address, cancelled: Callable[[], bool] = lambda: False) -> Device:
        """Return a device of a node; ``cancelled`` returns whether to stop waiting for the node.

        Raises DeviceError if the node or the device does not exist, the node lacks the device's runtime or has another placeit,
        or waiting was cancelled.
        """
        job = functools.partial(_find, str(replace(address, node="")))
        found, self._machines[address.node], version = self.call(address.node, job, cancelled=cancelled)
        made = self._on_node(found, address, self.node(address.node).host)
        self._warn_of_version(made, version)
        return made

    def tried(self, device: Device) -> Device:
        """Run an op on a device of a node, if it has to be tried; the result says if and why it cannot. Raises DeviceError."""
        found = self.call(device.where.node, functools.partial(_tried, replace(device, address=replace(device.where, node=""))))
        return replace(device, unusable=found.unusable)

    def _on_node(self, found: Device, address: Address, host: str) -> Device:
        """Return a device that a node has found, with its address in the cluster. Raises DeviceError."""
        kind = load_kind(found.kind)
        if kind is None or not kind.on_nodes:
            raise DeviceError(
                f"{address} is of the kind '{found.kind}', whose devices can be used on their own machine only: choose others."
            )
        sent = f", tensors as {get_args(Compression)[self.coding]}" if self.coding else ""
        return replace(found, name=str(address), address=address, driver=f"{found.driver}, at {host}{sent}")

    def _warn_of_version(self, device: Device, version: str) -> None:
        """Warn, once, if a node has another version of a runtime than this process, as outputs may differ."""
        kind = load_kind(device.kind)
        key = frozenset({device.where.node, version})
        if kind is None or not kind.installed() or kind.version() == version or key in self._warned:
            return
        self._warned.add(key)
        _LOG.warning(
            "The node '%s' has %s, and this process has %s: their outputs are compared with the tolerance of the model.",
            device.where.node,
            version,
            kind.version(),
        )

    def warn_of_shared_cores(self, devices: Sequence[Device]) -> None:
        """Warn, once, if devices of several nodes share cores of one machine, since measured costs do not include that."""
        core_sets = [device for device in devices if device.core_set]
        for one, other in itertools.combinations(core_sets, 2):
            pair, (here, there) = frozenset({one.name, other.name}), (one.where.node, other.where.node)
            same_machine = here != there and self._machines.get(here) == self._machines.get(there)
            if same_machine and {*one.cores} & {*other.cores} and pair not in self._warned:
                self._warned.add(pair)
                _LOG.warning(
                    "%s and %s share cores of one machine: each is slower while the other one is busy, and no prediction takes "
                    "that into account. Choose cores that differ.",
                    one.name,
                    other.name,
                )

    @property
    def connected(self) -> bool:
        """True until :func:`disconnect` has ended this connection, after which any call of Ray would start a new cluster."""
        return _current is self

    def check(self) -> None:
        """Raise DeviceError if the connection has ended, or no server answers at the address; Ray itself would wait for one."""
        if not self.connected:
            raise DeviceError(f"This process is not connected to the Ray cluster at {self.address} any more.")
        open_socket(self.address).close()

    def available(self) -> list[tuple[Device, list[str]]]:
        """Return the devices of all nodes, each with the names that choose another runtime for it. Raises DeviceError."""
        found = []
        for node in self.nodes().values():
            for device, others in self.call(node.name, _available):
                ours = self._on_node(device, replace(device.where, node=node.name), node.host)
                found.append((ours, [f"{node.name}/{name}" for name in others]))
        return found

    def automatic(self) -> list[str]:
        """Return the names of all nodes' whole devices that OpenVINO finds there and that work. Raises DeviceError."""
        devices = [device for device, _ in self.available()]
        return [one.name for one in devices if driven_by_openvino(one) and not (one.unusable or one.where.cores)]

    def call(
        self, name: str, job: Callable[[], T], timeout: float = _CALL_TIMEOUT_S, cancelled: Callable[[], bool] = lambda: False
    ) -> T:
        """Run a job, which can be pickled, on a node, and return its result; ``cancelled`` returns whether to stop waiting.

        Raises DeviceError if the node does not exist, does not answer within ``timeout`` seconds or has another placeit, if
        waiting was cancelled, or if the job raised an error of placeit.
        """
        run = ray_module().remote(num_cpus=0, max_retries=0)(_answering()).options(scheduling_strategy=pinned(self.node(name)))
        what = f"The node '{name}'"
        answer = run.remote(pickle.dumps(job), __version__)
        version, value = answer_of(answer, what, timeout, lambda: cancelled() or not self.connected)
        if version is None:
            raise DeviceError(f"{what} has no placeit, or another version of it ({value}): install the same one.")
        if version != __version__:
            raise DeviceError(
                f"{what} has placeit {version}, and this process has placeit {__version__}: install the same one."
            )
        if isinstance(value, PlaceitError):
            raise (type(value) if isinstance(value, DeviceError) else DeviceError)(f"{what}: {value}")
        return cast("T", value)


def pinned(node: Node) -> Any:
    """Return Ray's scheduling strategy that runs a task on this node only."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node.node_id, soft=False)


def _answering() -> Callable[[bytes, str], tuple[Any, Any]]:
    """Return a function that Ray sends as code, since a function of a module would have to exist on the node."""

    def answer(job: bytes, version: str) -> tuple[Any, Any]:
        try:
            from placeit.devices.nodes.connection import _answer
        except ImportError as error:
            return None, str(error)
        return _answer(job, version)

    return answer


def _answer(job: bytes, version: str) -> tuple[str, Any]:
    """Run a job from a process with the same version of placeit; return the version here, and the job's result or error."""
    if version != __version__:
        return __version__, None
    try:
        return __version__, pickle.loads(job)()  # noqa: S301 (it comes through Ray, which could bring any code)
    except PlaceitError as error:
        return __version__, error


def _find(name: str) -> tuple[Device, str, str]:
    device = named(name).devices[0]
    return device, _machine(), kind_of(device).version()


def _tried(device: Device) -> Device:
    return kind_of(device).tried(device)


def _available() -> list[tuple[Device, list[str]]]:
    return [(device, other_names(device)) for device in available() if kind_of(device).on_nodes]


def _machine() -> str:
    """Return an identifier of this machine that is equal in all its containers and network namespaces."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def answer_of(reference: Any, what: str, timeout: float, cancelled: Callable[[], bool] = lambda: False) -> Any:
    """Wait for the value of a Ray reference, and return it. ``what`` is the task, at the beginning of a sentence in errors.

    Raises DeviceError if the value has not arrived within ``timeout`` seconds or ``cancelled()`` became true before, and the
    error of placeit that the remote task raised.
    """
    from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError

    ray, deadline = ray_module(), time.monotonic() + timeout
    try:
        while not ray.wait([reference], timeout=min(CHECK_S, max(0.0, deadline - time.monotonic())))[0]:
            if cancelled():
                raise DeviceError(f"{what} is no longer available.")
            if time.monotonic() >= deadline:
                break
        return ray.get(reference, timeout=0)
    except GetTimeoutError as error:
        raise DeviceError(f"{what} has not answered for {timeout:g} s: it hangs, or its network is cut off.") from error
    except RayActorError as error:
        raise LostError(f"{what} is lost: its process has ended ({first_line(error)}).") from error
    except RayTaskError as error:
        cause = error.cause
        if isinstance(cause, PlaceitError):
            raise cause from None
        if isinstance(cause, MemoryError):
            raise DeviceError(f"{what} has run out of memory.") from error
        raise DeviceError(f"{what}: {type(cause).__name__}: {first_line(cause)}.") from error
    except RayError as error:
        raise DeviceError(f"{what}: {first_line(error)}.") from error


def _with_timeout(call: Callable[[], T], seconds: float) -> T:
    """Call a function on a separate thread, as Ray may wait for ever. Raises TimeoutError, or the function's exception."""
    job = Job(call)
    threading.Thread(target=job, name="placeit ray", daemon=True).start()
    if not job.ended.wait(seconds):
        raise TimeoutError
    return job.result()


_current: Nodes | None = None
_attempt: Attempt | None = None  # an attempt to connect that timed out or was interrupted


def connected() -> Nodes:
    """Return the connection of this process. Raises DeviceError if it has no connection."""
    if _current is None:
        raise not_connected()
    return _current


def connect(address: str, *, token: Path | None = None, compress: Compression = "none", patience: float = 5.0) -> Nodes:
    """Connect this process to a Ray cluster, or use the connection that it has as an actor of that cluster.

    The cluster must require a token. A cluster without a token is used only if the environment allows that, by
    ``RAY_AUTH_MODE=disabled``.

    Args:
        address: host and port of the cluster's head.
        token: a file with the cluster's token; None for a token that Ray finds by itself (``RAY_AUTH_TOKEN``,
            ``RAY_AUTH_TOKEN_PATH``, ``~/.ray/auth_token``).
        compress: encoding of float32 tensors that are sent between devices: unchanged, or in half or a quarter of their bytes.
            Inputs and weights of the model are never compressed. The effect on outputs is part of the reported output error.
        patience: seconds without a heartbeat after which a device counts as lost; at least 1.

    Raises:
        UsageError: the address has another form, or the patience is too short.
        DeviceError: Ray is not installed or too old; no server answers at the address; the token is wrong, missing or not
            wanted; or the process is connected to another cluster, or in another way.
    """
    global _current
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise UsageError(f"'{address}' is not the address of a Ray cluster; it is written HOST:PORT, such as 127.0.0.1:6379.")
    if not _MIN_TIMEOUT_S <= patience < math.inf:
        raise UsageError(
            f"Patience is {_MIN_TIMEOUT_S:g} s at least, as devices give a sign of life twice a second; not {patience:g} s."
        )
    made = Nodes(address, get_args(Compression).index(compress), patience, token=token)
    if _current is not None:
        _check_same(_current, made)
        return _current
    ray = ray_module()
    made.borrowed = _attempt is None and _is_actor_of(ray, address)
    if not made.borrowed:
        _join(ray, address, token)
    _current = made
    set_connection(made)
    return made


def _join(ray: Any, address: str, token: Path | None) -> None:
    """Have Ray connect this process to a cluster. Raises DeviceError."""
    global _attempt
    if (before := _attempt) is not None:
        if not before.wait(_CONNECT_TIMEOUT_S):
            raise DeviceError(f"This process still tries to reach the Ray cluster at {before.address}, which hangs.")
        ray.shutdown()  # an earlier call may have been interrupted after it connected
    check_token_required(address, token)
    _attempt = Attempt(ray, address, token)
    if not _attempt.wait(_CONNECT_TIMEOUT_S):
        raise DeviceError(
            f"The Ray cluster at {address} has not let this process in for {_CONNECT_TIMEOUT_S:g} s: it hangs, or has another "
            "address."
        )
    ended, _attempt = _attempt, None
    ended.check()


def _is_actor_of(ray: Any, address: str) -> bool:
    """Return whether this process is an actor of a cluster, which Ray has connected to it."""
    context = ray.get_runtime_context() if ray.is_initialized() else None
    return context is not None and context.get_actor_id() is not None and context.gcs_address == address


def _check_same(current: Nodes, requested: Nodes) -> None:
    """Raise DeviceError if the connection differs from the requested one."""
    here = f"This process is connected to the Ray cluster at {current.address}"
    if current.address != requested.address:
        raise DeviceError(f"{here}: disconnect first.")
    token = requested.token or current.token
    if (current.coding, current.patience, current.token) != (requested.coding, requested.patience, token):
        raise DeviceError(f"{here} with another compression, patience or token: disconnect first.")


def compression() -> Compression:
    """Return the type in which this process's connection sends float32 tensors between nodes."""
    kinds: tuple[Compression, ...] = get_args(Compression)
    return kinds[0 if _current is None else _current.coding]


def disconnect() -> None:
    """End the connection, if there is one, and with it everything that still runs on nodes."""
    global _current
    ended, _current = _current, None
    set_connection(None)
    if ended is not None and not ended.borrowed:
        ray_module().shutdown()
        divert_errors(False)


def ray_module() -> Any:
    """Import Ray. Raises DeviceError if it is not installed, or too old."""
    ray = import_extra("A device of another node", "ray", "ray", DeviceError)
    if tuple(map(int, ray.__version__.split(".")[:2])) < _MIN_RAY:
        raise DeviceError(f"Ray {ray.__version__} has no authentication: placeit needs Ray 2.59 or later.")
    return ray
