"""Standard streams that are closed, full or without a reader: results are in their files all the same, and nothing is a bug."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from placeit.core.placement import Placement

CLOSED_OUT, CLOSED_ERROR, CLOSED = ">&-", "2>&-", "<&- >&- 2>&-"
FULL_OUT, FULL_ERROR = ">/dev/full", "2>/dev/full"
NO_READER = ">&9"  # a pipe whose reader has ended
REFUSED = {
    CLOSED_OUT: "Bad file descriptor",
    FULL_OUT: "No space left on device",
}


def shell(streams: str, *arguments: object, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command with its streams as a shell makes them."""
    line = f'exec 9> >(true); wait $!; "$@" {streams} 9>&-'
    command = ["bash", "-c", line, "bash", sys.executable, "-m", "placeit", *map(str, arguments)]
    environment = {"PYTHONUNBUFFERED": None} | environment  # what Python holds back is lost or kept, too
    said = {name: value for name, value in (os.environ | environment).items() if value is not None}
    return subprocess.run(command, capture_output=True, encoding="utf-8", check=False, env=said, timeout=240)


@pytest.mark.parametrize(
    ("streams", "code"),
    [(CLOSED_ERROR, 0), (CLOSED, 1), (f"{NO_READER} 2>&1", 141)],
)
def test_a_placement_is_written_whatever_becomes_of_the_terminal(
    streams: str, code: int, tiny: Path, cores: Sequence[str], cost_cache: Path, tmp_path: Path
) -> None:
    path = tmp_path / "placement.json"
    options = ["-d", ",".join(cores), "--budget", 1, "--placer", "heft", "-o", path]
    done = shell(streams, "optimize", tiny, *options, PLACEIT_CACHE=str(cost_cache))
    assert done.returncode == code, done.stderr
    assert len(Placement.load(path)) == 8
    assert "bug in placeit" not in done.stderr
    if code == 0:
        assert "chosen" in done.stdout


@pytest.mark.parametrize(
    ("command", "streams"),
    [
        *(("inspect", streams) for streams in (*REFUSED, CLOSED_ERROR, FULL_ERROR, NO_READER)),
        *(("generate", streams) for streams in (CLOSED, NO_READER)),
        *(("--help", streams) for streams in (*REFUSED, CLOSED, NO_READER)),
    ],
)
def test_no_stream_is_a_bug(command: str, streams: str, tiny: Path, tmp_path: Path) -> None:
    more = {"inspect": [tiny], "generate": ["random", "--count", 1, "-o", tmp_path / "problems"]}.get(command, [])
    done = shell(streams, command, *more)
    if streams in REFUSED:
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith("error: Cannot write ")
        assert REFUSED[streams] in line
    else:
        codes = {CLOSED_ERROR: (0,), FULL_ERROR: (0,), CLOSED: (1,), NO_READER: (141,) if more else (1,)}[streams]
        assert (done.returncode, done.stderr) in [(code, "") for code in codes]
    if command == "generate":
        assert (tmp_path / "problems" / "index.json").exists()


@pytest.mark.parametrize("streams", ["", CLOSED_ERROR, FULL_ERROR])
def test_an_error_has_its_exit_code_whoever_reads_it(streams: str, tmp_path: Path) -> None:
    done = shell(streams, "inspect", tmp_path / "missing.onnx")
    assert (done.returncode, done.stdout) == (1, "")
    assert ("missing.onnx" in done.stderr) == (not streams)


def test_a_file_that_is_opened_gets_the_number_of_no_stream(tiny: Path, tmp_path: Path) -> None:
    """Libraries write to 1 and 2, whatever these are."""
    code = (
        "import os; from placeit.cli.streams import mend_streams; mend_streams(); "
        f"print(os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY), file=open({str(tmp_path / 'said')!r}, 'w'))"
    )
    subprocess.run(["bash", "-c", 'exec "$@" <&- >&- 2>&-', "bash", sys.executable, "-c", code], check=True)
    assert int((tmp_path / "said").read_text()) > 2


def test_what_libraries_say_when_the_process_ends_is_no_result() -> None:
    code = "import atexit, os; atexit.register(os.write, 1, b'late'); from placeit.cli import main; main(['--version'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.startswith("placeit ")
    assert (done.stdout.endswith("late"), done.stderr) == (False, "late")


@pytest.fixture(scope="module")
def nobody() -> list[str]:
    """What makes a command run as a user that the system does not know, without a home folder, as in many containers."""
    enter = ["unshare", "--user", "--map-user=12345", "--map-group=12345", "env", "-u", "HOME", "-u", "XDG_CACHE_HOME"]
    if subprocess.run([*enter, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this system lets nobody make user namespaces")
    return [*enter, "-u", "XDG_STATE_HOME", "-u", "PLACEIT_CACHE"]


@pytest.mark.parametrize("command", ["devices", "optimize"])
def test_a_user_without_a_name_and_a_home_can_work(
    command: str, nobody: list[str], tiny: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    more: list[object] = {
        "devices": ["--no-links"],
        "optimize": [tiny, "-d", cores[0], "--budget", 1, "--placer", "heft", "-o", tmp_path / "p.json"],
    }[command]
    line = [*nobody, sys.executable, "-m", "placeit", command, *map(str, more), "--json"]
    done = subprocess.run(line, capture_output=True, encoding="utf-8", check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)
    if command == "optimize":
        assert done.stderr.count("There is no cost cache") == 1
        assert "set HOME" in done.stderr


@pytest.mark.parametrize("command", [["up"], ["down"]])
def test_without_a_home_a_cluster_is_an_error_that_says_what_to_set(command: list[str], nobody: list[str]) -> None:
    pytest.importorskip("ray")
    line = [*nobody, sys.executable, "-m", "placeit", "cluster", *command]
    done = subprocess.run(line, capture_output=True, encoding="utf-8", check=False, timeout=240)
    assert done.returncode == 1
    assert "this user has none: set HOME" in done.stderr
