"""A Ray cluster of several nodes on this machine, for a first try, which no other user can reach."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from placeit.core.errors import DeviceError, FileError, UsageError
from placeit.core.files import user_folder, write_text
from placeit.core.interrupts import at_end
from placeit.core.records import parsed, record
from placeit.devices.nodes.connection import LABEL, ray_module

__all__ = ["LocalCluster", "Place", "names", "running", "start", "start_node", "state_file"]

_LOOPBACK = "127.0.0.1"
_MARK_VARIABLE = "PLACEIT_CLUSTER"
_STARTS_S = 90.0
_TERM_TIMEOUT_S, _KILL_TIMEOUT_S, _POLL_S = 2.0, 10.0, 0.05
_STORE_BYTES = 100_000_000
_SOCKET = "ray/session_2026-11-25_21-47-40_692289_4194304/sockets/plasma_store.63"  # longest socket name of Ray
_MAX_SOCKET_PATH = 107  # bytes of a socket's path that Linux allows
_OWN_FILES = re.compile(r"token|ray|[\w-]+\.log")  # files in the folder of a cluster
_HEALTH = {  # settings by which a node whose link is cut is dropped after about 4 s, not 64 s
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "3",
    "RAY_health_check_initial_delay_ms": "1000",
}


@dataclass(frozen=True)
class Place:
    """The place where a node runs.

    Attributes:
        host: its address in the cluster's network.
        enter: start of each command of the node; ``ip netns exec NAME`` runs it in a network namespace.
    """

    host: str = _LOOPBACK
    enter: tuple[str, ...] = ()


@dataclass(frozen=True)
class LocalCluster:
    """A cluster that was started on this machine, as its state file describes it.

    Attributes:
        mark: value in the environment of all its processes, and of no other process.
        address: address of its head.
        folder: folder with its token and Ray's files.
        nodes: names of its nodes.
        processes: id of each process, and its start in clock ticks since the start of the machine.
        starter: id and start of the process that is starting the cluster; None when all nodes are up.
    """

    mark: str
    address: str
    folder: str
    nodes: tuple[str, ...]
    processes: tuple[tuple[int, int], ...] = ()
    starter: tuple[int, int] | None = None

    @property
    def token(self) -> Path:
        """The file with the token that every connection needs."""
        return Path(self.folder, "token")

    @property
    def starting(self) -> bool:
        """True while the process that starts the cluster is still doing so."""
        return self.starter is not None and _processes().get(self.starter[0], (0, -1))[1] == self.starter[1]

    def pids(self) -> list[int]:
        """Return its running processes: the recorded ones, their descendants, and all with its mark."""
        table = _processes()
        found = {pid for pid, start in self.processes if pid in table and table[pid][1] == start}
        found |= {pid for pid in table if _marked(pid, self.mark)}
        while children := {pid for pid, (parent, _) in table.items() if parent in found} - found:
            found |= children
        return sorted(found - {os.getpid()})

    def lost(self) -> list[str]:
        """Return the names of nodes that have ended or are stopped; Ray drops a stopped node after about 4 s."""
        alive = set()
        for pid in self.pids():
            with contextlib.suppress(OSError, ValueError):
                words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                labels = [json.loads(word.partition("=")[2]) for word in words if word.startswith("--labels=")]
                if words[0].endswith("/raylet") and state != "T":
                    alive |= {found.get(LABEL) for found in labels}
        return [name for name in self.nodes if name not in alive]

    def check(self) -> None:
        """Raise DeviceError if nodes are missing, for which a caller would wait until its time-out."""
        if self.starting and self.starter is not None:
            raise DeviceError(f"Process {self.starter[0]} is starting the local cluster: wait until it is up.")
        if lost := self.lost():
            raise DeviceError(
                f"The local cluster at {self.address} has lost {_listed(lost)}: Ray drops a node that was silent for 4 s, as "
                "when the machine was suspended, and never takes it back. End the cluster with `placeit cluster down`, then "
                "start it again with `placeit cluster up`."
            )

    def stop(self, file: Path | None = None, *, at_once: bool = False) -> int:
        """End its processes and delete its folder; return the number of processes. Raises DeviceError if one does not end.

        Args:
            file: state file of the cluster, deleted when nothing is left.
            at_once: whether to kill the processes at once, instead of letting them end by themselves first.
        """
        count = 0
        for how, timeout in ((signal.SIGTERM, 0.0 if at_once else _TERM_TIMEOUT_S), (signal.SIGKILL, _KILL_TIMEOUT_S)):
            deadline = time.monotonic() + timeout
            while timeout and (pids := self.pids()):
                count = max(count, len(pids))
                for pid in pids:
                    _kill(pid, how)
                if time.monotonic() > deadline:
                    break
                time.sleep(_POLL_S)
        if pids := self.pids():
            raise DeviceError(f"Processes {', '.join(map(str, pids))} of the cluster do not end, even when killed.")
        _delete(Path(self.folder))
        if file is not None and (stored := running(file)) is not None and stored.mark == self.mark:
            file.unlink(missing_ok=True)
        return count


def state_file() -> Path:
    """Return this user's state file of the cluster. Raises FileError if it is in a home folder, and the user has none."""
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else user_folder("~/.local/state")) / "placeit" / "cluster.json"


def running(file: Path | None = None) -> LocalCluster | None:
    """Return the cluster that a state file of this user describes, None without a file. Raises DeviceError if unreadable."""
    file = state_file() if file is None else file
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(handle) as source:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise ValueError("it is not a file of this user")
            return record(LocalCluster, parsed(source.read()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, OSError) as error:
        raise DeviceError(
            f"{file}, which remembers the cluster that was started, cannot be read ({error}). Delete it."
        ) from error


def names(count: int) -> tuple[str, ...]:
    """Return the names of ``count`` nodes: head, edge1, edge2 ... Raises UsageError unless there are 1 to 64."""
    if not 1 <= count <= 64:
        raise UsageError(f"A local cluster has 1 to 64 nodes, not {count}.")
    return ("head", *(f"edge{i}" for i in range(1, count)))


def start(nodes: Sequence[str], file: Path | None = None, *, places: Mapping[str, Place] | None = None) -> LocalCluster:
    """Start a cluster whose nodes are all on this machine; the first is its head.

    It listens on the loopback address, or at its places, and requires a token. :meth:`LocalCluster.stop` ends it, even if this
    process was killed while starting it, since the state file is written first.

    Args:
        nodes: names of the nodes.
        file: state file of the cluster.
        places: place of each node, by name; None for the loopback address.

    Raises:
        DeviceError: Ray is not installed, a cluster is up or being started, or a node does not start within 90 s.
        FileError: the state file or the cluster's folder cannot be written.

        After an error, nothing of the cluster is left.
    """
    ray_module()
    file = state_file() if file is None else file
    at = {name: Place() for name in nodes} | dict(places or {})
    address, folder = f"{at[nodes[0]].host}:{_free_port()}", _short_folder()
    pid = os.getpid()
    cluster = LocalCluster(secrets.token_hex(16), address, str(folder), tuple(nodes), starter=(pid, _processes()[pid][1]))
    unregister = at_end(functools.partial(cluster.stop, file, at_once=True))
    try:
        _claim_state_file(cluster, file)
        _make(cluster)
        for name in nodes:  # in turn: if several start at once on few cores, Ray's time-outs pass
            start_node(cluster, name, at[name])
        table = _processes()
        cluster = replace(
            cluster, processes=tuple((pid, table[pid][1]) for pid in cluster.pids() if pid in table), starter=None
        )
        with _locked(file):
            if (found := running(file)) is None or found.mark != cluster.mark:
                raise DeviceError("The cluster was ended by another command while it was being started.")
            _write_state(cluster, file)
    except BaseException:
        cluster.stop(file, at_once=True)
        raise
    finally:
        unregister()
    return cluster


def _short_folder() -> Path:
    """Return a path for the folder of a cluster that is short enough for Ray's socket names. Raises FileError."""
    bases = dict.fromkeys((tempfile.gettempdir(), "/tmp", os.environ.get("XDG_RUNTIME_DIR", ""), "/dev/shm"))  # noqa: S108
    for base in filter(os.path.isabs, bases):
        folder = Path(base, f"placeit-{secrets.token_hex(4)}")
        if len(os.fsencode(folder / _SOCKET)) <= _MAX_SOCKET_PATH and os.access(base, os.W_OK | os.X_OK):
            return folder
    raise FileError(
        f"A local cluster needs a folder for temporary files whose path has at most {_MAX_SOCKET_PATH - len(_SOCKET) - 18} "
        "bytes, for the names of Ray's sockets: set TMPDIR to one."
    )


def _make(cluster: LocalCluster) -> None:
    """Make the folder of a cluster, with its token. Raises FileError."""
    try:
        Path(cluster.folder).mkdir(mode=0o700)
        cluster.token.touch(0o600, exist_ok=False)
        cluster.token.write_text(secrets.token_hex(32))
    except OSError as error:
        raise FileError(f"Cannot make the folder {cluster.folder} of a cluster: {error.strerror or error}.") from error


def _delete(folder: Path) -> None:
    """Delete the folder of a cluster, unless it holds other files, as the state file may name a wrong folder."""
    with contextlib.suppress(OSError):
        status = folder.lstat()
        own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
        if own and all(_OWN_FILES.fullmatch(path.name) for path in folder.iterdir()):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Hold a lock on the folder of state files, against other processes, during the block. Raises FileError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise FileError(
            f"The cluster cannot be remembered in {file.parent}: {error.strerror or error}. Set XDG_STATE_HOME to another "
            "folder."
        ) from error
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # until it is closed
        yield
    finally:
        os.close(handle)


def _claim_state_file(cluster: LocalCluster, file: Path) -> None:
    """Write the state file of a cluster before it is started. Raises DeviceError if another cluster is up."""
    with _locked(file):
        before = running(file)
        if before is not None:
            if before.starting or before.pids():
                before.check()
                raise DeviceError(f"A local cluster is up at {before.address} already: end it with `placeit cluster down`.")
            before.stop(file)
        _write_state(cluster, file)


def _write_state(cluster: LocalCluster, file: Path) -> None:
    write_text(file, json.dumps(asdict(cluster), indent=1) + "\n")


def _listed(names: Sequence[str]) -> str:
    return f"its node {names[0]}" if len(names) == 1 else f"its nodes {', '.join(names)}"


def start_node(cluster: LocalCluster, name: str, place: Place) -> None:
    """Start a node of a cluster, for the first time or after its processes have ended. Raises DeviceError if it fails."""
    head = name == cluster.nodes[0]
    where = ["--head", f"--port={cluster.address.rpartition(':')[2]}", f"--temp-dir={cluster.folder}/ray"]
    ray = "placeit.devices.nodes.launch" if place.host == _LOOPBACK else "ray.scripts.scripts"
    command = [
        *(*place.enter, sys.executable, "-m", ray, "start", f"--node-ip-address={place.host}", "--disable-usage-stats"),
        *([*where, "--include-dashboard=false"] if head else [f"--address={cluster.address}"]),
        *("--include-log-monitor=false", f"--labels={LABEL}={name}", f"--object-store-memory={_STORE_BYTES}", "--num-gpus=0"),
    ]
    variables = {
        _MARK_VARIABLE: cluster.mark,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(cluster.token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # at Ray's default of 15, devices get almost no time on busy cores
        "PYTHONPATH": os.pathsep.join(filter(None, [str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")])),
        **_HEALTH,
    }
    others = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    output = Path(cluster.folder, f"{name}.log")
    with output.open("w") as log:
        process = subprocess.Popen(
            command, env=others | variables, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )
        try:
            code = process.wait(_STARTS_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise DeviceError(f"The node '{name}' has not started within {_STARTS_S:g} s: {_last_line(output)}") from None
    if code:
        raise DeviceError(f"The node '{name}' does not start: {_last_line(output)}")


def _last_line(output: Path) -> str:
    lines = [line.strip() for line in output.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "Ray says nothing about it."


def _free_port() -> int:
    with socket.create_server((_LOOPBACK, 0)) as sock:
        return int(sock.getsockname()[1])


def _processes() -> dict[int, tuple[int, int]]:
    """Return the parent and the start time of each process."""
    table = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            if fields[0] != "Z":
                table[int(entry.name)] = int(fields[1]), int(fields[19])
    return table


def _marked(pid: int, mark: str) -> bool:
    try:
        return f"{_MARK_VARIABLE}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _kill(pid: int, how: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, how)
