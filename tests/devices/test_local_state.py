"""What is remembered of a cluster on this machine, and what is deleted with it; the nodes are processes that only sleep."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from placeit.core.errors import DeviceError, FileError
from placeit.devices.nodes import local

pytest.importorskip("ray")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "cluster.json"


@pytest.fixture
def sleeping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have nodes that do nothing."""
    begun: list[subprocess.Popen[bytes]] = []

    def start_node(cluster: local.LocalCluster, name: str, place: local.Place) -> None:
        mark = {"PLACEIT_CLUSTER": cluster.mark}
        begun.append(subprocess.Popen(["sleep", "1000"], env=os.environ | mark, start_new_session=True))

    monkeypatch.setattr(local, "start_node", start_node)
    yield
    for process in begun:
        process.kill()
        process.wait()


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files of the test's own, with a short name."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(local, "_SOCKET", "s")
    return tmp_path


@pytest.mark.usefixtures("sleeping")
def test_of_two_that_start_a_cluster_at_once_one_is_refused(file: Path, temporary: Path) -> None:
    barrier, outcomes = threading.Barrier(8), []

    def start() -> None:
        barrier.wait()
        try:
            outcomes.append(local.start(("head",), file))
        except DeviceError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (up,) = [outcome for outcome in outcomes if isinstance(outcome, local.LocalCluster)]
    assert local.running(file) == up
    assert [path.name for path in temporary.glob("placeit-*")] == [Path(up.folder).name]
    assert up.stop(file) == 1
    assert list(temporary.glob("placeit-*")) == []
    assert not file.exists()


def test_a_cluster_that_is_being_started_is_no_leftover(file: Path, tmp_path: Path) -> None:
    kept = local.LocalCluster("0" * 32, "127.0.0.1:1", str(tmp_path), ("head",), starter=(os.getpid(), begun_at(os.getpid())))
    file.parent.mkdir()
    file.write_text(json.dumps(kept.__dict__))
    with pytest.raises(DeviceError, match=f"Process {os.getpid()} is starting"):
        local.start(("head",), file)
    file.write_text(json.dumps(replace(kept, starter=(os.getpid(), 1)).__dict__))
    assert local.running(file) is not None
    assert not local.running(file).starting


def begun_at(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


@pytest.mark.usefixtures("sleeping")
def test_a_cluster_without_its_nodes_is_said_to_have_lost_them(file: Path, temporary: Path) -> None:
    cluster = local.start(("head", "edge1"), file)
    try:
        for refused in (cluster.check, lambda: local.start(("head",), file)):
            with pytest.raises(DeviceError, match=r"lost its nodes head, edge1: .*placeit cluster down.*placeit cluster up"):
                refused()
    finally:
        cluster.stop(file)


@pytest.mark.usefixtures("sleeping")
def test_a_cluster_that_was_ended_while_it_was_started_leaves_nothing(
    file: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_node = local.start_node

    def meanwhile(cluster: local.LocalCluster, name: str, place: local.Place) -> None:
        start_node(cluster, name, place)
        file.unlink()

    monkeypatch.setattr(local, "start_node", meanwhile)
    with pytest.raises(DeviceError, match="ended by another command"):
        local.start(("head",), file)
    assert list(temporary.glob("placeit-*")) == []


@pytest.mark.parametrize("stage", ["state", "token", "node"])
def test_what_fails_on_the_way_leaves_nothing(stage: str, file: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    match stage:
        case "state":
            file.parent.write_text("a file where the folder has to be")
        case "token":
            monkeypatch.setattr(local, "_short_folder", lambda: Path("/sys/cluster"))  # where no user can make folders
        case _:
            monkeypatch.setattr(local, "start_node", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises((FileError, KeyboardInterrupt)) as caught:
        local.start(("head",), file)
    if stage == "state":
        assert "Set XDG_STATE_HOME" in str(caught.value)
    assert list(temporary.glob("placeit-*")) == []
    assert not file.exists()


def test_a_long_path_for_temporary_files_is_not_used_for_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name of a socket has 107 bytes at most."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    folder = local._short_folder()
    longest = folder / "ray/session_2026-11-25_21-47-40_692289_4194304/sockets/plasma_store.63"
    longest.parent.mkdir(parents=True)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(longest))
    finally:
        local._delete(folder)
    assert not folder.exists()


@pytest.mark.parametrize("kind", ["a folder of something else", "a link", "a folder of the system"])
def test_only_the_folder_of_a_cluster_is_deleted_whatever_a_file_says(kind: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis").write_text("of years")
    (tmp_path / "token").write_text("")
    (tmp_path / "link").symlink_to(mine)
    folder = {"a folder of something else": tmp_path, "a link": tmp_path / "link", "a folder of the system": Path("/proc")}[
        kind
    ]
    assert local.LocalCluster("0" * 32, "127.0.0.1:1", str(folder), ("head",)).stop() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "mine", "token"]
    assert (mine / "thesis").exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "other user", "list", "text"])
def test_a_state_that_somebody_else_may_have_written_is_not_believed(kind: str, file: Path, tmp_path: Path) -> None:
    file.parent.mkdir()
    (tmp_path / "state.json").write_text(json.dumps(local.LocalCluster("0", "a:1", "/tmp", ("head",)).__dict__))
    match kind:
        case "link":
            file.symlink_to(tmp_path / "state.json")
        case "pipe":
            os.mkfifo(file)
        case "folder":
            file.mkdir()
        case "other user":
            if os.geteuid() != 0:
                pytest.skip("only root can give files away")
            (tmp_path / "state.json").rename(file)
            os.chown(file, 12345, 12345)
        case _:
            file.write_text("[]" if kind == "list" else "text")
    with pytest.raises(DeviceError, match=r"cluster\.json, which remembers the cluster"):
        local.running(file)


def test_stopping_kills_at_once_what_would_take_its_time(file: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ready, started = os.pipe()
    code = f"import signal, os, time; signal.signal(15, signal.SIG_IGN); os.write({started}, b'x'); time.sleep(1000)"

    def start_node(cluster: local.LocalCluster, name: str, place: local.Place) -> None:
        mark = {"PLACEIT_CLUSTER": cluster.mark}
        deaf.append(subprocess.Popen(["python3", "-c", code], env=os.environ | mark, pass_fds=[started]))
        os.read(ready, 1)

    deaf: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(local, "start_node", start_node)
    try:
        cluster = local.start(("head",), file)
        assert cluster.stop(file, at_once=True) == 1
        assert deaf[0].wait(60) == -signal.SIGKILL
    finally:
        for process in deaf:
            process.kill()
            with suppress(ProcessLookupError):
                process.wait()
        os.close(ready)
        os.close(started)
