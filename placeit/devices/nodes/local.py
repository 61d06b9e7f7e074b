"""A Ray cluster of several nodes on this machine, for a first try: nobody else can reach it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from placeit.core.errors import DeviceError, UsageError
from placeit.core.files import write_text
from placeit.devices.nodes.connection import LABEL, ray_module

__all__ = ["LocalCluster", "Place", "names", "running", "start", "start_node", "state_file"]

_LOOPBACK = "127.0.0.1"
_MARK = "PLACEIT_CLUSTER"
_STARTS_S = 90.0
_ASKED_S, _ENDS_S = 2.0, 10.0
_STORE_BYTES = 100_000_000
_HEALTH = {  # of a node whose link is cut: noticed after about 4 s, not 64
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
}


@dataclass(frozen=True)
class Place:
    """Where a node runs.

    Attributes:
        host: its address in the cluster's network.
        enter: what its command begins with; ``ip netns exec NAME`` runs it in a network namespace.
    """

    host: str = _LOOPBACK
    enter: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalCluster:
    """A cluster that was started here, as the file that remembers it has it.

    Attributes:
        mark: in the environment of all its processes, and nobody else's.
        address: of its head.
        folder: with its token and what Ray writes.
        nodes: names of its nodes.
        processes: process and the moment of its start, in clock ticks since the machine's.
    """

    mark: str
    address: str
    folder: str
    nodes: tuple[str, ...]
    processes: tuple[tuple[int, int], ...] = ()

    @property
    def token(self) -> Path:
        """The file with the token that every connection needs."""
        return Path(self.folder, "token")

    def pids(self) -> list[int]:
        """Its processes that run now: those that were written down, those that they started, and those with its mark."""
        table = _processes()
        ours = {pid for pid, start in self.processes if pid in table and table[pid][1] == start}
        ours |= {pid for pid in table if _marked(pid, self.mark)}
        grown = True
        while grown:
            children = {pid for pid, (parent, _) in table.items() if parent in ours} - ours
            ours, grown = ours | children, bool(children)
        return sorted(ours - {os.getpid()})

    def stop(self, file: Path | None = None) -> int:
        """End its processes and delete its folder; return how many there were. Raises DeviceError if one does not end.

        Args:
            file: that remembers it, deleted when nothing is left.
        """
        count = 0
        for how, patience in ((signal.SIGTERM, _ASKED_S), (signal.SIGKILL, _ENDS_S)):
            deadline = time.monotonic() + patience
            while pids := self.pids():
                count = max(count, len(pids))
                for pid in pids:
                    _kill(pid, how)
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
        if pids := self.pids():
            raise DeviceError(f"Processes {', '.join(map(str, pids))} of the cluster do not end, even when killed.")
        shutil.rmtree(self.folder, ignore_errors=True)
        if file is not None:
            file.unlink(missing_ok=True)
        return count


def state_file() -> Path:
    """The file that remembers the cluster of this user."""
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base, "placeit", "cluster.json")


def running(file: Path | None = None) -> LocalCluster | None:
    """The cluster that a file remembers; None if there is none. Raises DeviceError if the file cannot be read."""
    file = state_file() if file is None else file
    try:
        kept = json.loads(file.read_text())
        processes = tuple((int(pid), int(begun)) for pid, begun in kept["processes"])
        return LocalCluster(str(kept["mark"]), str(kept["address"]), str(kept["folder"]), tuple(kept["nodes"]), processes)
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise DeviceError(f"{file}, which remembers the cluster that was started, cannot be read ({error}).") from error


def names(count: int) -> tuple[str, ...]:
    """Names of so many nodes: head, edge1, edge2 ... Raises UsageError if there is none."""
    if not 1 <= count <= 64:
        raise UsageError(f"A local cluster has 1 to 64 nodes, not {count}.")
    return ("head", *(f"edge{i}" for i in range(1, count)))


def start(nodes: Sequence[str], file: Path | None = None, *, places: Mapping[str, Place] | None = None) -> LocalCluster:
    """Start a cluster whose nodes are all on this machine; the first is its head.

    It listens on the loopback address, or at its places. It wants a token, and ends with :meth:`LocalCluster.stop`, even if
    this process is killed on the way: the file is written first.

    Args:
        nodes: names.
        file: that remembers it.
        places: of nodes, by name; None for the loopback address.

    Raises:
        DeviceError: Ray is not installed, one runs already, or a node does not start within 90 s. Nothing is left then.
    """
    ray_module()
    file = state_file() if file is None else file
    before = running(file)
    if before is not None:
        if before.pids():
            raise DeviceError(f"A local cluster is up at {before.address} already: end it with `placeit cluster down`.")
        before.stop(file)
    folder = Path(tempfile.mkdtemp(prefix="placeit-"))
    (folder / "token").touch(0o600)
    (folder / "token").write_text(secrets.token_hex(32))
    at = {name: Place() for name in nodes} | dict(places or {})
    cluster = LocalCluster(secrets.token_hex(16), f"{at[nodes[0]].host}:{_free_port()}", str(folder), tuple(nodes))
    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        _remember(cluster, file)
        for name in nodes:  # in turn: several at once run into Ray's time-outs where cores are few
            start_node(cluster, name, at[name])
        table = _processes()
        cluster = LocalCluster(
            **{**asdict(cluster), "processes": tuple((pid, table[pid][1]) for pid in cluster.pids() if pid in table)}
        )
        _remember(cluster, file)
    except BaseException:
        cluster.stop(file)
        raise
    return cluster


def _remember(cluster: LocalCluster, file: Path) -> None:
    write_text(file, json.dumps(asdict(cluster), indent=1) + "\n")


def start_node(cluster: LocalCluster, name: str, place: Place) -> None:
    """Start a node of a cluster, or start it again when its processes have ended. Raises DeviceError if it does not start."""
    head = name == cluster.nodes[0]
    where = ["--head", f"--port={cluster.address.rpartition(':')[2]}", f"--temp-dir={cluster.folder}/ray"]
    ray = "placeit.devices.nodes.launch" if place.host == _LOOPBACK else "ray.scripts.scripts"
    command = [
        *(*place.enter, sys.executable, "-m", ray, "start", f"--node-ip-address={place.host}", "--disable-usage-stats"),
        *([*where, "--include-dashboard=false"] if head else [f"--address={cluster.address}"]),
        *("--include-log-monitor=false", f"--labels={LABEL}={name}", f"--object-store-memory={_STORE_BYTES}", "--num-gpus=0"),
    ]
    said = {
        _MARK: cluster.mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster.token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")])),
        **_HEALTH,
    }
    others = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    output = Path(cluster.folder, f"{name}.log")
    with output.open("w") as log:
        process = subprocess.Popen(
            command, env=others | said, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(_STARTS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise DeviceError(f"The node '{name}' has not started within {_STARTS_S:g} s: {_last(output)}") from None
    if code:
        raise DeviceError(f"The node '{name}' does not start: {_last(output)}")


def _last(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "Ray says nothing about it."


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as sock:
        return int(sock.getsockname()[1])


def _processes() -> dict[int, tuple[int, int]]:
    """Parent and start time of each process."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # gone meanwhile
            if fields[0] != "Z":
                table[int(entry.name)] = int(fields[1]), int(fields[19])
    return table


def _marked(pid: int, mark: str) -> bool:
    try:
        return f"{_MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
