"""Ctrl-C at random moments of every command: ``python -m tests.interrupt_commands [COUNT [SEED]]``.

A moment is the call of a function in the main thread, drawn from the calls that the command makes without an interrupt; every
other moment is a fraction of the command's seconds. These have to hold at any moment: exit code 130 (or the end by the
signal, before and after the command's own time), no traceback, no process, and no file that is half-written or temporary.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.cli.table import ROWS, made, words

__all__ = ["Command", "Trial", "commands", "interrupt_all"]

_ENDS_S = 600.0  # what hangs would do so for hours
_BAD = ("Traceback", "Exception ignored", "bug in placeit")
_CHILD = """
import atexit, os, signal, sys
at, told = int(sys.argv.pop(1)), int(sys.argv.pop(1))
from placeit.__main__ import main
calls = 0
def count(frame, event, argument):
    global calls
    if event == "call":
        calls += 1
        if calls == at:
            sys.setprofile(None)
            os.write(told, b"interrupted")
            os.kill(os.getpid(), signal.SIGINT)
if not at:
    atexit.register(lambda: (sys.setprofile(None), os.write(told, str(calls).encode())))
signal.signal(signal.SIGINT, signal.SIG_DFL)  # as main does first
os.write(told, b"!")
if at >= 0:
    sys.setprofile(count)
main()
"""


@dataclass
class Command:
    """A command line, and how long it is.

    Attributes:
        arguments: the words after ``placeit``; each command runs in a separate folder.
        nodes: whether it needs Ray.
        calls: how many calls its main thread makes; 0 as long as that is not known.
        seconds: how long it takes without being interrupted.
        keeps: names of what it leaves among temporary files then, as libraries do.
    """

    arguments: Sequence[object]
    nodes: bool = False
    calls: int = 0
    seconds: float = 0.0
    keeps: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Trial:
    """What became of an interrupted command.

    Attributes:
        command: its arguments.
        moment: number of the call, or the share of the seconds.
        code: how it ended.
        late: whether it had ended before.
        faults: what is wrong, in words; empty if nothing is.
    """

    command: str
    moment: float
    code: int
    late: bool
    faults: tuple[str, ...]


def commands(folder: Path, model: Path, placement: Path, devices: Sequence[str], *, nodes: bool) -> list[Command]:
    """Return the examples of all commands, made longer; commands that start clusters only if ``nodes`` is set.

    Files that they read are written to the folder.
    """
    stand_for = made(folder, model, placement, devices)
    found = [Command(words(row, stand_for, longer=True)) for row in ROWS if row.longer is not None]
    if nodes:
        there = ["--devices", f"head/{devices[0]}"]
        found += [
            Command(["cluster", "up", "--nodes", 2], nodes=True),
            Command(["devices", *there, "--no-links"], nodes=True),
            Command(["profile", model, *there, "--no-cache"], nodes=True),
        ]
    return found


def interrupt_all(todo: Sequence[Command], count: int, seed: int, folder: Path, cache: Path) -> Iterator[Trial]:
    """Interrupt commands in turn, at random moments, ``count`` times in all."""
    draw = random.Random(seed)
    for number, command in zip(range(count), itertools.cycle(todo), strict=False):
        if not command.calls:
            code, _, told, error, command.seconds = _run(command, 0, folder / f"whole{number}", cache)
            if code or not told.isdecimal():
                raise RuntimeError(f"{command.arguments} fails without an interrupt ({code}): {error}")
            command.calls = int(told)
            command.keeps = frozenset(path.name for path in (folder / f"whole{number}" / "tmp").iterdir())
            _down(command, folder / f"whole{number}", cache)
        moment = draw.randrange(1, command.calls + 1) if number // len(todo) % 2 == 0 else draw.random()
        place = folder / f"turn{number}"
        yield _interrupted(command, moment, place, cache)
        shutil.rmtree(place, ignore_errors=True)


def _interrupted(command: Command, moment: float, place: Path, cache: Path) -> Trial:
    code, sent, _, error, _ = _run(command, moment, place, cache)
    faults = [f"it says '{word}': {error}" for word in _BAD if word in error]
    if sent and code not in (130, -signal.SIGINT):
        faults.append(f"exit code {code}: {error}")
    if not sent and code:
        faults.append(f"exit code {code} without an interrupt: {error}")
    if sent:
        faults += [f"process left: {line}" for line in _processes(place).values()]
        faults += [f"file left: {path}" for path in _leftovers(place, command.keeps)]
    _down(command, place, cache)
    words = " ".join(map(str, command.arguments))
    return Trial(words, moment, code, not sent, tuple(faults))


def _run(command: Command, moment: float, place: Path, cache: Path) -> tuple[int, bool, str, str, float]:
    """Return the exit code, whether it was interrupted, what the child told, its messages and its seconds."""
    for folder in (place, place / "tmp", place / "state", place / "work"):
        folder.mkdir()
    reading, told = os.pipe()
    at = moment if isinstance(moment, int) else -1
    line = [sys.executable, "-c", _CHILD, str(at), str(told), *map(str, command.arguments)]
    said = {"XDG_STATE_HOME": str(place / "state"), "TMPDIR": str(place / "tmp"), "PLACEIT_CACHE": str(cache)}
    begin = time.monotonic()
    with subprocess.Popen(
        line,
        env=os.environ | said,
        cwd=place / "work",
        pass_fds=[told],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        preexec_fn=_hear,  # noqa: PLW1509 (no other thread runs here)
    ) as process:
        os.close(told)
        sent = False
        try:
            os.read(reading, 1)  # before that, it is Python that begins
            if isinstance(moment, float):
                try:
                    process.wait(moment * command.seconds)
                except subprocess.TimeoutExpired:
                    process.send_signal(signal.SIGINT)
                    sent = True
            _, error = process.communicate(timeout=_ENDS_S)
        finally:
            process.kill()
    with os.fdopen(reading) as source:
        answer = source.read()
    return process.returncode, sent or answer == "interrupted", answer, error, time.monotonic() - begin


def _hear() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell has started in the background ignores it


def _down(command: Command, place: Path, cache: Path) -> None:
    """End what an uninterrupted command, or one with a fault, has left."""
    if command.nodes:
        said = {"XDG_STATE_HOME": str(place / "state"), "PLACEIT_CACHE": str(cache)}
        subprocess.run(
            [sys.executable, "-m", "placeit", "cluster", "down"], env=os.environ | said, check=False, capture_output=True
        )
    for pid in _processes(place):
        os.kill(pid, signal.SIGKILL)


def _processes(place: Path) -> dict[int, str]:
    """Command lines of processes that commands in a place have started and that run still."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if f"XDG_STATE_HOME={place / 'state'}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")[:200]
        except (OSError, ValueError):
            continue  # no process, or one that has ended since
    return {pid: line for pid, line in found.items() if line}


def _leftovers(place: Path, keeps: frozenset[str]) -> list[Path]:
    """Temporary files, drafts, and what remembers clusters."""
    kept = keeps | {f"placeit-weights-{os.geteuid()}"}
    temporary = [path for path in (place / "tmp").iterdir() if path.name not in kept]
    return [*temporary, *place.glob("state/placeit/*"), *(path for path in place.rglob("work/**/.*"))]


def _main(count: int = 1000, seed: int = 0) -> int:
    from placeit.devices.host import allowed_cores

    wrong = late = 0
    with tempfile.TemporaryDirectory(prefix="i", dir="/tmp") as name:  # short, for the sockets of clusters
        folder = Path(name)
        devices = [f"CPU@{core}" for core in allowed_cores()[:2]]
        todo = commands(folder, *_model(folder, devices), devices, nodes=True)
        for trial in interrupt_all(todo, count, seed, folder, folder / "cache"):
            wrong, late = wrong + bool(trial.faults), late + trial.late
            for fault in trial.faults:
                print(f"{trial.command} at {trial.moment}: {fault}", flush=True)  # noqa: T201
    print(f"{count} interrupts (seed {seed}): {wrong} with faults, {late} that came too late")  # noqa: T201
    return 1 if wrong else 0


def _model(folder: Path, devices: Sequence[str]) -> tuple[Path, Path]:
    """Write a small model, and a placement of it on all devices."""
    import numpy as np
    import openvino

    from placeit.backends import load
    from placeit.core.placement import Placement
    from tests.small_models import inception_like

    model, placement = folder / "model.xml", folder / "placement.json"
    openvino.save_model(inception_like().ov_model, model, compress_to_fp16=False)
    graph = load(model).graph
    Placement(
        graph.names, (np.arange(len(graph)) * len(devices) // len(graph)).astype(np.int32), tuple(devices), graph.hash
    ).save(placement)
    return model, placement


if __name__ == "__main__":
    sys.exit(_main(*map(int, sys.argv[1:3])))
