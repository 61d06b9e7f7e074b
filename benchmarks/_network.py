"""A network of edge nodes, emulated on this machine: a network namespace for each node, and links of a given rate and delay.

Links of up to 100 Mbit/s are a switch in user space (``_switch.py``), because many kernels lack netem: a TAP device in each
namespace, and one process that forwards frames. Report its CPU time together with the measurements. Faster links are pairs of
veth devices on a bridge, shaped by tbf, and add no delay. Nodes may have a CPU quota, and can be cut off and reconnected. All
of this needs root and Linux.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import itertools
import json
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

from benchmarks import _switch
from benchmarks._gpus import with_gpu
from placeit.devices.nodes import local

__all__ = ["MAX_SWITCHED", "Network", "cluster", "network", "reason_why_no_quotas", "reason_why_not"]

T = TypeVar("T")

MAX_SWITCHED = 100e6
"""Bits per second of the fastest links that the switch emulates."""
HEADERS = 1514 / 1448
"""Bytes of a full frame over the bytes of a tensor in it: Ethernet, IP and TCP with time stamps."""

_TUN = Path("/dev/net/tun")
_TUNSETIFF, _TAP, _NO_INFO = 0x400454CA, 0x0002, 0x1000
_CLONE_NEWNET = 0x40000000
_NETS = Path("/var/run/netns")
_QUOTAS = Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 5000
_ENDS_S = 10.0
_numbers = itertools.count()


@functools.cache
def reason_why_not() -> str:
    """Return why networks cannot be emulated here, in a sentence; empty if they can."""
    if sys.platform != "linux":
        return "Networks are emulated on Linux only."
    if os.geteuid() != 0:
        return "Emulating a network needs root."
    if missing := [command for command in ("ip", "tc") if shutil.which(command) is None]:
        return f"Emulating a network needs the command '{missing[0]}' (iproute2)."
    name = _name()
    try:
        _command("ip", "netns", "add", name)
        os.close(_make_tap(name))
    except OSError as error:
        return f"This system does not let TAP devices and network namespaces be made ({error})."
    finally:
        with contextlib.suppress(OSError):
            _command("ip", "netns", "del", name)
    return ""


def reason_why_no_quotas() -> str:
    """Return why nodes cannot have CPU quotas here, in a sentence; empty if they can."""
    if reason_why_not() or os.access(_QUOTAS / "cpu.cfs_quota_us", os.W_OK):
        return reason_why_not()
    return f"CPU quotas need cgroup v1 ({_QUOTAS})."


@dataclass(frozen=True)
class Network:
    """Nodes in separate namespaces. It is made by :func:`network`, at whose end its namespaces and processes are removed.

    Attributes:
        mark: prefix of the names of everything that belongs to it.
        nodes: names.
        rate: of the link between any two nodes, in each direction, bits per second; above :data:`MAX_SWITCHED`, the rate at
            which a node sends to all others.
        delay: seconds of each link.
        folder: records which links are cut.
        switch: process that forwards frames; 0 if the kernel does.
        gpu: the node with an emulated Intel GPU; empty for none.
    """

    mark: str
    nodes: tuple[str, ...]
    rate: float
    delay: float
    folder: Path
    switch: int
    gpu: str = ""

    def address(self, node: str) -> str:
        """Return the IP address of a node."""
        return f"10.77.0.{self.nodes.index(node) + 1}"

    def place(self, node: str) -> local.Place:
        """Return where processes of a node run: in its namespace, within its quota."""
        enter = ("ip", "netns", "exec", self.namespace(node))
        if self.group(node).is_dir():
            enter = ("sh", "-c", f'echo $$ > {self.group(node)}/cgroup.procs && exec "$@"', "sh", *enter)
        place = local.Place(self.address(node), enter)
        return with_gpu(place) if node == self.gpu else place

    def namespace(self, node: str) -> str:
        """Return the name of a node's namespace."""
        return f"{self.mark}-{node}"

    def hop(self, nbytes: float) -> float:
        """Return the seconds that a tensor takes from one node to another, at best."""
        return self.delay + nbytes * HEADERS * 8 / self.rate

    def call(self, node: str, function: Callable[..., T], *arguments: object, timeout: float | None = None) -> T:
        """Call a function in a new process that has the network of a node, but not its quota.

        Args:
            node: its name.
            function: a module-level function.
            arguments: picklable arguments.
            timeout: seconds.

        Raises:
            TimeoutError: it takes longer.
            BaseException: any exception of the function.
        """
        pool = ProcessPoolExecutor(1, get_context("spawn"), initializer=_enter, initargs=(self.namespace(node),))
        future = pool.submit(function, *arguments)
        try:
            return future.result(timeout)
        finally:
            pool.shutdown(wait=future.done())

    def cut(self, node: str) -> None:
        """Drop every frame from or to a node, without telling any process."""
        self._join(node, False)

    def mend(self, node: str) -> None:
        """Undo :meth:`cut`."""
        self._join(node, True)

    def _join(self, node: str, joined: bool) -> None:
        number, count = self.nodes.index(node), len(self.nodes)
        if not self.switch:
            _ip(self.mark, "link", "set", f"port{number}", *(["master", "bridge"] if joined else ["nomaster"]))
            return
        with (self.folder / "cuts").open("r+b") as file, mmap.mmap(file.fileno(), 0) as cuts:
            for other in range(count):
                cuts[number * count + other] = cuts[other * count + number] = not joined

    def limit(self, node: str, cores: float | None) -> None:
        """Limit the processes of a node to a number of cores, at least 0.2; None for all cores."""
        quota = -1 if cores is None else round(cores * _PERIOD_US)
        (self.group(node) / "cpu.cfs_quota_us").write_text(str(quota))

    def group(self, node: str) -> Path:
        """Return the control group of a node's processes, if there is one."""
        return _QUOTAS / self.namespace(node)

    def crossed(self) -> int:
        """Return the bytes that all nodes have sent to others until now, by the counters of their interfaces."""
        return sum(
            json.loads(_ip(self.namespace(node), "-j", "-s", "link", "show", "eth0"))[0]["stats64"]["tx"]["bytes"]
            for node in self.nodes
        )

    def crossed_by(self, run: Callable[[], object], times: int = 3) -> float:
        """Return the bytes that cross in a run, as the mean of several runs, including other messages sent during them."""
        before = self.crossed()
        for _ in range(times):
            run()
        return (self.crossed() - before) / times

    def switch_cpu(self) -> float:
        """Return the seconds of CPU time that the switch has used; 0 without one."""
        if not self.switch:
            return 0.0
        fields = Path(f"/proc/{self.switch}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def pids(self, node: str) -> list[int]:
        """Return the processes in the namespace of a node."""
        return [int(pid) for pid in _command("ip", "netns", "pids", self.namespace(node)).split()]


@contextmanager
def network(nodes: Sequence[str], *, rate: float = 100e6, delay: float = 5e-3, gpu: str = "") -> Iterator[Network]:
    """Make a network, and at the end remove it and every process in it.

    Args:
        nodes: names.
        rate: bits per second.
        delay: seconds; 0 for rates above :data:`MAX_SWITCHED`.
        gpu: the node that gets an emulated Intel GPU; empty for none.

    Raises:
        ValueError: a fast link cannot be delayed.
        OSError: a command fails; :func:`reason_why_not` says more.
    """
    if rate > MAX_SWITCHED and delay:
        raise ValueError(f"Links of {rate:g} bit/s cannot be delayed: the switch is too slow for them.")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="placeit-network-")))
        mark = _name()
        made = Network(mark, tuple(nodes), rate, delay, folder, 0, gpu)
        for node in nodes:
            _make_node(made, node, stack)
        if rate > MAX_SWITCHED:
            _bridge(made, stack)
        else:
            made = _with_switch(made, stack)
        for node in nodes:
            name = made.namespace(node)
            _ip(name, "link", "set", "lo", "up")
            _ip(name, "link", "set", "eth0", "addrgenmode", "none", "up")
            _ip(name, "address", "add", f"{made.address(node)}/24", "dev", "eth0")
            _ip(name, "route", "add", "default", "dev", "eth0")  # Ray looks up the address of the outward interface
        yield made


def _make_node(made: Network, node: str, stack: ExitStack) -> None:
    _command("ip", "netns", "add", made.namespace(node))
    stack.callback(_command, "ip", "netns", "del", made.namespace(node))
    if not reason_why_no_quotas():
        made.group(node).mkdir()
        stack.callback(made.group(node).rmdir)
        (made.group(node) / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
    stack.callback(_empty, made, node)


def _empty(made: Network, node: str) -> None:
    """Kill the processes of a node."""
    deadline = time.monotonic() + _ENDS_S
    while time.monotonic() < deadline:
        group = made.group(node) / "cgroup.procs"
        left = {*made.pids(node), *(map(int, group.read_text().split()) if group.exists() else ())} - {os.getpid()}
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _with_switch(made: Network, stack: ExitStack) -> Network:
    taps = []
    for number, node in enumerate(made.nodes):
        tap = _make_tap(made.namespace(node), number)
        stack.callback(os.close, tap)
        taps.append(tap)
    (made.folder / "cuts").write_bytes(bytes(len(taps) ** 2))
    asked = json.dumps({"taps": taps, "rate": made.rate, "delay": made.delay, "cuts": str(made.folder / "cuts")})
    command = [sys.executable, _switch.__file__, asked]
    switch = subprocess.Popen(command, pass_fds=taps, stdin=subprocess.DEVNULL, start_new_session=True)
    stack.callback(switch.wait)
    stack.callback(switch.kill)
    return replace(made, switch=switch.pid)


def _make_tap(namespace: str, number: int = 0) -> int:
    """Make a TAP device that a namespace sees as eth0, and return the file from which its frames are read."""
    name = f"tap{os.getpid()}.{number}"
    tap = os.open(_TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tap, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _TAP | _NO_INFO))
        address = (_switch.MAC + bytes([number + 1])).hex(":")
        _command("ip", "link", "set", name, "netns", namespace, "name", "eth0", "address", address)
    except BaseException:
        os.close(tap)
        raise
    return tap


def _bridge(made: Network, stack: ExitStack) -> None:
    """Join nodes by a bridge in a separate namespace."""
    _command("ip", "netns", "add", made.mark)
    stack.callback(_command, "ip", "netns", "del", made.mark)
    _ip(made.mark, "link", "add", "bridge", "type", "bridge")
    _ip(made.mark, "link", "set", "bridge", "addrgenmode", "none", "up")
    for number, node in enumerate(made.nodes):
        port, name = f"port{number}", made.namespace(node)
        _ip(made.mark, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip(made.mark, "link", "set", port, "addrgenmode", "none", "master", "bridge", "up")
        shape = ("tbf", "rate", f"{made.rate:.0f}bit", "burst", "32kb", "latency", "50ms")
        _command("tc", "-n", name, "qdisc", "add", "dev", "eth0", "root", *shape)


@contextmanager
def cluster(made: Network) -> Iterator[local.LocalCluster]:
    """Start a Ray cluster on the nodes of a network, the first its head, and end it. Raises DeviceError if it cannot."""
    file = made.folder / "cluster.json"
    started = local.start(made.nodes, file, places={node: made.place(node) for node in made.nodes})
    try:
        yield started
    finally:
        started.stop(file)


def _name() -> str:
    return f"placeit{os.getpid()}-{next(_numbers)}"


def _enter(namespace: str) -> None:
    """Have this process, which has no other threads of importance, use the network of a namespace."""
    with (_NETS / namespace).open() as file:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"The namespace {namespace} cannot be entered")


def _ip(namespace: str, *arguments: str) -> str:
    return _command("ip", "-n", namespace, *arguments)


def _command(*command: str) -> str:
    """Run a command and return its output. Raises OSError with the command's error message."""
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
