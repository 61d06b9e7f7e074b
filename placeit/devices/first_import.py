"""Try the first import of an optional runtime in a child process: on some machines, it ends the process that does it.

The answer is kept on disk for each version of the package, Python and machine, so that an import is tried once.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import platform
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from placeit.core.errors import FileError
from placeit.core.files import cache_folder, read_text, write_text
from placeit.devices.host import cpu_name

__all__ = ["import_failure", "known_failure"]

_LONGEST_S = 60.0
_PROGRAM = """
import sys
module, function, *sys.path = sys.argv[1:]
getattr(__import__(module, fromlist=[function]), function)()
"""


def import_failure(package: str, function: str) -> str:
    """Return why an installed package cannot be imported; empty if it can, or if this process has imported it.

    Args:
        package: name of the package.
        function: function of :mod:`placeit.core.telemetry` that imports it, which a child process calls.
    """
    return "" if package in sys.modules else _tried(package, function, tuple(sys.path))


def known_failure(package: str) -> str:
    """Return how the import of a package has ended a child process before; empty if it has not, or has not been tried."""
    answer = None if package in sys.modules else _answer(package)
    return "" if answer is None else _kept(answer) or ""


@functools.cache
def _tried(package: str, function: str, path: tuple[str, ...]) -> str:
    answer = _answer(package)
    if answer is not None and (known := _kept(answer)) is not None:
        return known
    if not sys.executable:  # in a program that embeds Python
        return ""
    arguments = [sys.executable, "-c", _PROGRAM, "placeit.core.telemetry", function, *path]
    try:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {_LONGEST_S:g} s"
    except OSError:  # no more processes, for example
        return ""
    if done.returncode > 0:  # an error, which the user may mend: it is not kept
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return f"importing it fails: {lines[-1] if lines else 'Python does not say why'}"
    why = "" if done.returncode == 0 else f"importing it ends the process by {_signal(-done.returncode)}"
    if answer is not None:
        with contextlib.suppress(OSError, FileError):  # the next process tries again
            answer.parent.mkdir(parents=True, exist_ok=True)
            write_text(answer, f"{why}\n", sync=False)
    return why


def _answer(package: str) -> Path | None:
    """Return the file of an answer; None if the package cannot be found, or the user has no folder for caches."""
    spec = find_spec(package)
    try:
        if spec is None or spec.origin is None:
            return None
        about = Path(spec.origin).stat()
        machine = cpu_name(), platform.platform(), sys.version
        key = hashlib.sha256(repr((spec.origin, about.st_mtime_ns, about.st_size, *machine)).encode()).hexdigest()[:16]
        return cache_folder() / "imports" / f"{package}-{key}.txt"
    except (OSError, FileError):
        return None


def _kept(answer: Path) -> str | None:
    """Return an answer from its file; None if the file does not exist."""
    try:
        why = read_text(answer).strip()
    except FileError:
        return None
    return f"{why} (it did so once; delete {answer} to try again)" if why else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
