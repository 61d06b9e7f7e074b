"""A process that runs cases of the fuzzer, and judges the outcome of each.

It is a separate process because the cases may crash or hang. :mod:`benchmarks.fuzz` sends the cases, and starts another process
when this one has ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import re
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks._child import peak_memory
from benchmarks._fuzz_cases import Case, make_case, unpack

__all__ = ["GIVEN", "STATUSES", "Outcome", "execute", "serve"]

STATUSES = ("done", "refused", "crashed", "hung", "bug", "unclear", "exit code", "wrote", "ran code", "memory")
"""The first two are correct outcomes: a result, or an error of one clear paragraph."""

GIVEN = "given"
"""Folder with the files of the case as they were given to the command."""

_MEMORY = 1 << 30  # bytes of memory that a command on such small files may use
_ADDRESSES = 3 << 30  # address space beyond what the process has, so that a case cannot take all memory of the machine
_LONGEST = 1500  # characters of an error
_NOISE = re.compile(
    r"Exception from |Check '.*' failed|std::|\w\.cpp:\d+|0x[0-9a-f]{6,}|<\w+ object at|See where it happened"
    r"|\b(Key|Type|Index|Attribute|Assertion|Recursion|UnicodeDecode|UnicodeEncode|ZeroDivision|Overflow|Unpickling)Error\b"
)
"""Text that no error message for users should contain."""
_PROGRESS = re.compile(r"\d+ s: .+, \d+ %")
"""Progress messages of a command that takes seconds, if standard error is not a terminal."""
_RUNS_CODE = (
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "subprocess.Popen",
    "socket.connect",
    "os.startfile",
    "pty.spawn",
)
_CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate")
_LIBRARIES = ("tmp/torchinductor_",)
"""Folders for temporary files in which libraries keep generated files."""

Main = Callable[[tuple[str, ...]], None]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case.

    Attributes:
        status: one of :data:`STATUSES`.
        reason: the error, or what is wrong.
    """

    status: str
    reason: str = ""


def serve(
    connection: Connection, log: str, seeds: str, devices: tuple[str, str], seed: int, case_s: float, main: Main | None
) -> None:
    """Answer requests, each a case number or a kept case, with the :class:`Outcome`, until None is received.

    Args:
        connection: to the parent.
        log: for the tracebacks of crashes and hangs; all files that cases read and write are in its folder.
        seeds: the folder that :func:`benchmarks._fuzz_seeds.make_seeds` has filled.
        devices: devices of the seeds.
        seed: of the run.
        case_s: seconds after which a case counts as hung.
        main: the function to run; None for placeit.
    """
    room = Path(log).parent
    for name in ("home", "tmp"):
        (room / name).mkdir(exist_ok=True)
    os.environ |= {"HOME": str(room / "home"), "TMPDIR": str(room / "tmp"), "PLACEIT_CACHE": "cache", "COLUMNS": "80"}
    # PyTorch leaves the folder of its cache in the environment, where children find it
    for name in [name for name in os.environ if name.startswith("XDG_") or name == "TORCHINDUCTOR_CACHE_DIR"]:
        del os.environ[name]
    tempfile.tempdir = None
    for number, name in ((1, "out.txt"), (2, "err.txt")):
        stream = os.open(room / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC)
        os.dup2(stream, number)
        os.close(stream)
    watch = _Watch(room)
    sys.addaudithook(watch)
    with Path(log).open("w", encoding="utf-8") as trace:
        faulthandler.enable(trace)
        main = main or _placeit()
        connection.send("ready")
        while (request := connection.recv()) is not None:
            case = unpack(request) if isinstance(request, bytes) else make_case(Path(seeds), devices, seed, request)
            connection.send(f"placeit {' '.join(case.argv)}")
            faulthandler.dump_traceback_later(0.9 * case_s, file=trace)
            outcome = execute(case, room, watch, main)
            faulthandler.cancel_dump_traceback_later()
            connection.send(outcome)


def _placeit() -> Main:
    """Import modules that commands import when they run, so that no case has to, and return the function that runs commands."""
    import onnx  # noqa: F401
    import torch  # noqa: F401

    from placeit.cli import main
    from placeit.devices.openvino import openvino_core

    openvino_core().get_versions("CPU")
    return main


class _Watch:
    """An audit hook that records which processes, connections and files outside the room Python makes while a case runs."""

    def __init__(self, room: Path) -> None:
        self.room = room.resolve()
        self.on, self.ran, self.wrote = False, [], []  # type: ignore[var-annotated]

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.on:
            return
        if event in _RUNS_CODE:
            self.ran.append(f"{event} {str(args)[:200]}")
        elif event in _CHANGES or (event == "open" and (args[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            self._file(event, args[0])

    def _file(self, event: str, path: Any) -> None:
        if not isinstance(path, str | bytes | os.PathLike):
            return  # an open file
        found = Path(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 (links are not to be followed)
        if not (found.is_relative_to(self.room) or found.is_relative_to("/dev") or "__pycache__" in found.parts):
            self.wrote.append(f"{event} {found}")


def execute(case: Case, room: Path, watch: _Watch, main: Main) -> Outcome:
    """Run a case in a fresh folder, and judge it."""
    folder = room / "case"
    for path in (folder, room / GIVEN):
        shutil.rmtree(path, ignore_errors=True)
        _write(case, path)
    before = _listing(room)
    os.truncate(room / "out.txt", 0)
    os.truncate(room / "err.txt", 0)
    watch.ran, watch.wrote = [], []
    start = peak_memory(reset=True)
    code, trace = 0, ""
    with contextlib.chdir(folder), _limited():
        watch.on = True
        try:
            main(case.argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:  # noqa: BLE001 (tests which exceptions escape)
            trace = traceback.format_exc()
        finally:
            watch.on = False
            with contextlib.suppress(OSError, ValueError):
                sys.stdout.flush()
                sys.stderr.flush()
    peak = peak_memory() - start
    out, err = (Path(room / name).read_text(encoding="utf-8", errors="replace") for name in ("out.txt", "err.txt"))
    if trace or code == 70 or "Traceback (most recent call last)" in err or "bug in placeit" in err:
        return Outcome("bug", " / ".join((trace or err).strip().splitlines()[-6:]))
    if watch.ran or (folder / "harm").exists():
        return Outcome("ran code", "; ".join(watch.ran))
    if code not in (0, 1, 2):
        return Outcome("exit code", f"{code}: {err.strip()[-300:]}")
    allowed = (*case.outputs, "cache/", *(case.results if code == 0 or out else ()))
    wrong = watch.wrote + _differences(before, _listing(room), tuple(f"case/{path}" for path in allowed))
    if wrong:
        return Outcome("wrote", "; ".join(wrong))
    if peak > _MEMORY and not case.measures:
        return Outcome("memory", f"{peak / (1 << 30):.1f} GiB more than before; {err.strip()[:200]}")
    return _told(case, code, out, err)


def _told(case: Case, code: int, out: str, err: str) -> Outcome:
    """Judge the output of a command."""
    lines = err.splitlines()
    errors = [line for line in lines if not line.startswith("warning: ") and not _PROGRESS.fullmatch(line)]
    if code == 0 or out:
        if errors:
            return Outcome("unclear", f"beside a result: {err.strip()[:300]}")
        if not out:
            return Outcome("unclear", "neither a result nor an error")
        try:
            if "--json" in case.argv:
                json.loads(out, parse_constant=_refuse)
        except ValueError as error:
            return Outcome("unclear", f"the result is no JSON: {error}")
        return Outcome("done")
    if problem := _unclear(errors):
        return Outcome("unclear", f"{problem}: {err.strip()[:400]}")
    return Outcome("refused", errors[0])


def _unclear(errors: list[str]) -> str:
    """Return why the text on standard error is not one clear paragraph; empty if it is one."""
    if len(errors) != 1:
        return f"{len(errors)} lines"
    [line] = errors
    if not line.startswith("error: "):
        return "no error of placeit's"
    if not line.isprintable():
        return "it holds what cannot be printed"
    if len(line) > _LONGEST:
        return f"{len(line)} characters"
    if found := _NOISE.search(line):
        return f"it says '{found[0]}'"
    if not line.endswith((".", "?", ")")):
        return "it is no sentence"
    return ""


def _refuse(constant: str) -> None:
    raise ValueError(f"it holds {constant}")


def _write(case: Case, folder: Path) -> None:
    folder.mkdir()
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content is None:
            os.mkfifo(path)
        else:
            path.write_bytes(content)


def _listing(room: Path) -> dict[str, str]:
    """Return the digest of each file below a folder, by path."""
    found = {}
    for path in sorted(room.rglob("*")):
        name = str(path.relative_to(room))
        if name not in ("out.txt", "err.txt", "log.txt") and not name.startswith(_LIBRARIES):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    return found


def _differences(before: dict[str, str], after: dict[str, str], allowed: tuple[str, ...]) -> list[str]:
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    return [f"{'changed' if name in before else 'new'}: {name}" for name in changed if not name.startswith(allowed)]


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    """Limit the address space of the process to some gigabytes beyond its present size."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + _ADDRESSES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
