"""Ctrl-C to real processes at random moments: they end soon, without a traceback, and no measurement is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placeit.core.interrupts import INTERRUPTED
from placeit.core.threads import Gate
from placeit.devices.host import allowed_cores
from placeit.runtime.devices.base import BufferSpec
from placeit.runtime.devices.emulated import EmulatedLink
from placeit.runtime.devices.host_buffer import HostBuffer
from tests import interrupt_commands

TIMEOUT_S = 60.0  # for a process to end; what hangs would do so for hours
CORES = allowed_cores()
pytestmark = pytest.mark.two_cores


def start(folder: Path, cache: Path, *args: object, code: str | None = None) -> subprocess.Popen[str]:
    environment = os.environ | {"PLACEIT_CACHE": str(cache)}
    how = ["-m", "placeit"] if code is None else ["-c", code]
    command = [sys.executable, *how, *map(str, args)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, **pipes, encoding="utf-8", cwd=folder, env=environment)


def interrupted(process: subprocess.Popen[str], after: float) -> tuple[int, str, str]:
    """Send Ctrl-C after a number of seconds; return how the process ended."""
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    try:
        out, error = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return process.returncode, out, error


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """Ctrl-C has its effect in the processes that a test starts, though a shell may have started this one without."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def cluster(folder: Path, *, bandwidth: str = "10 Gbit/s", slowdown: float = 1.5) -> Path:
    path = folder / "cluster.yaml"
    path.write_text(
        f"devices:\n  a: {{runs_on: CPU@{CORES[0]}}}\n  b: {{runs_on: CPU@{CORES[-1]}, slowdown: {slowdown}}}\n"
        f"links:\n  - {{between: [a, b], bandwidth: {bandwidth}, latency: 50 us}}\n"
    )
    return path


def check(code: int, out: str, error: str) -> None:
    assert "Traceback" not in error
    assert "Exception ignored" not in error
    assert "bug in placeit" not in error
    # ended by the signal itself while nothing had begun; or it had ended before
    assert code in (INTERRUPTED, -signal.SIGINT, 0), error


@pytest.mark.parametrize(
    ("first", "last", "count"),
    [(0, 3, 2), pytest.param(3, 12, 8, marks=[pytest.mark.nightly, pytest.mark.timeout(3000)])],
)
def test_ctrl_c_at_random_moments(
    first: int, last: int, count: int, tiny: Path, tmp_path: Path, cost_cache: Path, place_on: Any
) -> None:
    devices = [f"CPU@{CORES[0]}", f"CPU@{CORES[-1]}"]
    todo = interrupt_commands.commands(tmp_path, tiny, place_on(devices), devices, nodes=False)[first:last]
    trials = [*interrupt_commands.interrupt_all(todo, count, 1, tmp_path, cost_cache)]
    assert [trial for trial in trials if trial.faults] == []
    assert not all(trial.late for trial in trials)


@pytest.mark.nightly
@pytest.mark.timeout(3000)
def test_ctrl_c_ends_the_cluster_of_a_command(tmp_path: Path, cost_cache: Path, tiny: Path, place_on: Any) -> None:
    pytest.importorskip("ray")
    devices = [f"CPU@{CORES[0]}", f"CPU@{CORES[-1]}"]
    todo = [one for one in interrupt_commands.commands(tmp_path, tiny, place_on(devices), devices, nodes=True) if one.nodes]
    trials = [*interrupt_commands.interrupt_all(todo, len(todo), 1, tmp_path, cost_cache)]
    assert [trial for trial in trials if trial.faults] == []
    assert not all(trial.late for trial in trials)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_undo_what_must_not_stay_too(number: signal.Signals, tmp_path: Path, cost_cache: Path) -> None:
    code = """
import signal
import time
from placeit.core.files import temporary_folder
from placeit.core.interrupts import guarded
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who has started the tests may ignore it
def run():
    with temporary_folder() as folder:
        print(folder, flush=True)
        time.sleep(1000)
guarded(run)
"""
    process = start(tmp_path, cost_cache, code=code)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert folder.is_dir()
    process.send_signal(number)
    try:
        assert process.wait(TIMEOUT_S) == 128 + number
    finally:
        process.kill()
        process.communicate()
    assert not folder.exists()


def test_ctrl_c_undoes_what_a_hung_command_has_made(tmp_path: Path, cost_cache: Path) -> None:
    code = """
import ctypes
from placeit.core.files import temporary_folder
from placeit.core.interrupts import guarded
def run():
    with temporary_folder() as folder:
        print(folder, flush=True)
        ctypes.CDLL(None).sleep(1000)
guarded(run)
"""
    process = start(tmp_path, cost_cache, code=code)
    assert process.stdout is not None
    folder = Path(process.stdout.readline().strip())
    assert interrupted(process, 0.0)[0] == INTERRUPTED
    assert not folder.exists()


TOLD = """
import sys
from placeit.__main__ import main
from placeit.measuring.measure import Race
from placeit.runtime.plan_executor import PlanExecutor
told = set()
def tell(word):
    if word not in told:
        told.add(word)
        sys.stderr.write(word + "\\n")
        sys.stderr.flush()
race, run = Race.run, PlanExecutor.set_inputs
def raced(self, *, progress=None, **options):
    return race(self, progress=lambda *now: [tell("raced"), progress and progress(*now)], **options)
def begun(self, *values, **options):
    tell("begins")
    return run(self, *values, **options)
Race.run, PlanExecutor.set_inputs = raced, begun
main()
"""


def interrupted_after(word: str, process: subprocess.Popen[str], after: float = 0.0) -> tuple[int, str, str]:
    """Send Ctrl-C some seconds after a process has announced a round of a race, or the inputs of a run."""
    assert process.stderr is not None
    while word not in (line := process.stderr.readline()):
        assert line, f"it has ended and never said '{word}'"
    return interrupted(process, after)


@pytest.mark.parametrize(
    ("command", "machine"),
    [
        ("run", True),
        pytest.param("run", False, marks=pytest.mark.slow),
        pytest.param("compare", True, marks=pytest.mark.slow),
        pytest.param("compare", False, marks=pytest.mark.slow),
    ],
)
def test_what_was_measured_is_kept(
    command: str, machine: bool, tiny: Path, tmp_path: Path, cost_cache: Path, place_on: Any
) -> None:
    options = ["--devices", cluster(tmp_path), "--runs", 10_000_000, *(["--json"] if machine else [])]
    process = start(tmp_path, cost_cache, command, tiny, "-p", place_on(("a", "b")), *options, code=TOLD)
    code, out, error = interrupted_after("raced", process)
    assert code == INTERRUPTED, error
    assert "Traceback" not in error
    if machine:
        data = json.loads(out)
        assert data["interrupted"]
        medians = [row["measured_s"] for row in data["candidates"]] if command == "compare" else [data["latency_s"]["median"]]
        assert all(median > 0 for median in medians)
    else:
        assert "nded by Ctrl-C" in out


@pytest.mark.slow
def test_optimize_keeps_the_best_so_far(tiny: Path, tmp_path: Path, cost_cache: Path) -> None:
    options = ["--devices", cluster(tmp_path), "--budget", 150, "--placer", "heft", "--json"]
    process = start(
        tmp_path, cost_cache, "optimize", tiny, *options, "--placer", "annealing:evaluations=1000000000000", code=TOLD
    )
    code, out, error = interrupted_after("raced", process, 1.0)
    check(code, out, error)
    assert code == INTERRUPTED
    assert json.loads(out)["interrupted"]
    assert tiny.with_name("tiny.onnx.placement.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "compare"])
def test_no_emulated_sleep_is_too_long(command: str, tiny: Path, tmp_path: Path, cost_cache: Path, place_on: Any) -> None:
    placement, clusters = place_on(("a", "b")), cluster(tmp_path, bandwidth="1 bit/s")
    process = start(tmp_path, cost_cache, command, tiny, "-p", placement, "--devices", clusters, code=TOLD)
    code, out, error = interrupted_after("begins", process, 0.5)  # the first transfer takes a day
    check(code, out, error)
    assert code == INTERRUPTED
    assert not out


def test_closing_wakes_an_emulated_link_that_sleeps() -> None:
    link = EmulatedLink("a -> b", bandwidth=1e-9, latency=0.0)
    ended = Gate()
    buffer = HostBuffer(BufferSpec((1024,), "float32"))
    link.start(buffer, buffer, lambda *_: ended.open())
    assert not ended.wait(0.05)
    link.close()
    assert ended.wait(TIMEOUT_S)


def test_a_process_that_ignores_ctrl_c_goes_on_to_do_so(tiny: Path, tmp_path: Path, cost_cache: Path) -> None:
    code = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); from placeit.__main__ import main; main()"
    process = start(tmp_path, cost_cache, "inspect", tiny, code=code)
    assert interrupted(process, 1.5)[0] == 0


def test_after_the_command_ctrl_c_ends_the_process_without_a_word(tiny: Path, tmp_path: Path, cost_cache: Path) -> None:
    code = "import atexit, time; atexit.register(time.sleep, 1000); from placeit.__main__ import main; main()"
    process = start(tmp_path, cost_cache, "inspect", tiny, "--json", code=code)
    assert process.stdout is not None
    while process.stdout.readline() != "}\n":
        pass
    ended, _, error = interrupted(process, 1.0)
    assert ended in (-signal.SIGINT, INTERRUPTED)
    assert error == ""


@pytest.mark.parametrize("swallow", ["finalizer", "handler", "library"])
def test_an_interrupt_that_is_swallowed_ends_the_process_all_the_same(swallow: str, tmp_path: Path, cost_cache: Path) -> None:
    code = f"""
import time
import placeit.core.interrupts as interrupts
class Finalized:
    def __del__(self):
        time.sleep(1000)
def run():
    print("running", flush=True)
    if "{swallow}" == "finalizer":
        Finalized()
        time.sleep(1000)
    elif "{swallow}" == "handler":
        while True:
            try:
                time.sleep(1000)
            except BaseException:
                pass
    else:
        import ctypes
        ctypes.CDLL(None).sleep(1000)
interrupts.guarded(run)
"""
    process = start(tmp_path, cost_cache, code=code)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    ended, _, error = interrupted(process, 0.5)
    assert ended == INTERRUPTED
    assert error in ("", "interrupted\n")


def test_ctrl_c_waits_for_an_extension_module_to_be_loaded(tmp_path: Path, cost_cache: Path) -> None:
    """Some crash where their initialisation meets an exception: onnx did, in three of three hundred commands."""
    code = """
import os, signal, sys, time
from importlib.machinery import ExtensionFileLoader
from placeit.core import interrupts
create = ExtensionFileLoader.create_module
def slowly(loader, spec):
    if spec.name == "_lsprof":
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        print("loaded", flush=True)
    return create(loader, spec)
ExtensionFileLoader.create_module = slowly
def run():
    sys.modules.pop("_lsprof", None)
    import _lsprof
    print("goes on", flush=True)
interrupts.guarded(run)
"""
    process = start(tmp_path, cost_cache, code=code)
    out, error = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (INTERRUPTED, "loaded\n")
    assert error in ("", "interrupted\n")
