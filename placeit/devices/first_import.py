"""Try the first import of an optional runtime in a child process: on some machines, it ends the process that does it.

The result is cached on disk for each version of the package, Python and machine, so that an import is tried once.
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

_TIMEOUT_S = 60.0
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
    return "" if package in sys.modules else _try_import(package, function, tuple(sys.path))


def known_failure(package: str) -> str:
    """Return how the import of a package ended a child process earlier; empty if it did not, or has not been tried."""
    file = None if package in sys.modules else _cache_file(package)
    return "" if file is None else _read_cached(file) or ""


@functools.cache
def _try_import(package: str, function: str, path: tuple[str, ...]) -> str:
    file = _cache_file(package)
    if file is not None and (cached := _read_cached(file)) is not None:
        return cached
    if not sys.executable:  # in a program that embeds Python
        return ""
    arguments = [sys.executable, "-c", _PROGRAM, "placeit.core.telemetry", function, *path]
    try:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"importing it takes more than {_TIMEOUT_S:g} s"
    except OSError:  # no more processes, for example
        return ""
    if done.returncode > 0:  # an error, which the user may mend: it is not cached
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        return f"importing it fails: {lines[-1] if lines else 'Python does not say why'}"
    why = "" if done.returncode == 0 else f"importing it ends the process by {_signal(-done.returncode)}"
    if file is not None:
        with contextlib.suppress(OSError, FileError):  # the next process tries again
            file.parent.mkdir(parents=True, exist_ok=True)
            write_text(file, f"{why}\n", sync=False)
    return why


def _cache_file(package: str) -> Path | None:
    """Return the file for the result; None if the package cannot be found, or the user has no folder for caches."""
    spec = find_spec(package)
    try:
        if spec is None or spec.origin is None:
            return None
        status = Path(spec.origin).stat()
        machine = cpu_name(), platform.platform(), sys.version
        key = hashlib.sha256(repr((spec.origin, status.st_mtime_ns, status.st_size, *machine)).encode()).hexdigest()[:16]
        return cache_folder() / "imports" / f"{package}-{key}.txt"
    except (OSError, FileError):
        return None


def _read_cached(file: Path) -> str | None:
    """Return the result in a file; None if the file cannot be read."""
    try:
        why = read_text(file).strip()
    except FileError:
        return None
    return f"{why} (it did so once; delete {file} to try again)" if why else ""


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
