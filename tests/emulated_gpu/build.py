"""Build emulated Intel GPUs in a cache folder, and run a command with them: ``python -m tests.emulated_gpu COMMAND...``.

The wheels of Intel's OpenCL runtime come from PyPI under Intel's end-user license for developer tools. They are for these tests
only: no dependency of placeit, never committed, never passed on. Only the standard library is needed to build.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import fnmatch
import hashlib
import os
import shlex
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.emulators import UnavailableError, cache_of, call

__all__ = ["MISSING", "environment", "main"]

MISSING = "EMULATED_GPU_MISSING"
"""Environment variable for a command that runs without the GPUs: why they could not be built."""

_SOURCE = Path(__file__).with_name("opencl.c")
_PINS = ("intel-opencl-rt==2026.2.0", "intel-cmplr-lib-rt==2026.2.0", "tbb==2023.2.0")
_LIBRARIES = (  # what the runtime opens, of 1 GB in the wheels
    *("libintelocl.so", "libcommon_clang.so.*", "libocl_svml_*.so", "cl.cfg", "*.rtl", "cllibrary*.o"),
    *("libimf.so", "libintlc.so.5", "libirng.so", "libsvml.so", "libtbb.so.12"),
)
_TBB, _PRIVATE_TBB = b"libtbb.so.12", b"libtbX.so.12"  # of one length, since it is replaced in the files
_FLAGS = ("-O1", "-g", "-Wall", "-Wextra", "-shared", "-fPIC", "-Wl,-soname,libOpenCL.so.1")
_FAILURE = "Cannot build the emulated GPUs"


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Build the emulated GPUs unless they are in the cache, and return the variables that show them to OpenVINO.

    The variables have to be set before the process starts: the dynamic linker reads ``LD_LIBRARY_PATH`` then.

    Args:
        given: variables that are set already. ``EMULATED_GPUS`` (default 2) and ``PLACEIT_CACHE`` keep their values.

    Returns:
        ``LD_LIBRARY_PATH``, ``EMULATED_GPUS``, and ``PLACEIT_CACHE``: costs of emulated GPUs stay out of the user's cache.

    Raises:
        UnavailableError: pip, gcc, the network or room on the disk is missing.
    """
    try:
        library = _built(cache_of("emulated-gpu", given))
    except OSError as error:
        raise UnavailableError(f"{_FAILURE}: {error}.") from error
    paths = [str(library.parent), *filter(None, given.get("LD_LIBRARY_PATH", "").split(":"))]
    return {
        "LD_LIBRARY_PATH": ":".join(dict.fromkeys(paths)),
        "EMULATED_GPUS": given.get("EMULATED_GPUS", "2"),
        "PLACEIT_CACHE": given.get("PLACEIT_CACHE", str(cache_of("emulated-gpu", given) / "placeit")),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command with the emulated GPUs in place of this process, or print their environment for a shell."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.emulated_gpu",
        description="Run a command where OpenVINO finds Intel GPUs: real ones, or else emulated ones, built if need be. "
        "Without a command, print the environment of the emulated ones for a shell.",
    )
    parser.add_argument(
        "--optional", action="store_true", help="run it without GPUs if they cannot be built, unless $CI is set"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the command with its arguments")
    asked = parser.parse_args(arguments)
    try:
        changes = {} if asked.command and _openvino_finds_one() else environment()
    except UnavailableError as error:
        if not asked.optional or os.environ.get("CI"):
            sys.exit(str(error))
        changes = {MISSING: str(error)}
    if asked.command:
        os.execvpe(asked.command[0], asked.command, os.environ | changes)
    for name, value in changes.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def _openvino_finds_one() -> bool:
    from placeit.devices.openvino import openvino_core

    return any(name.split(".")[0] == "GPU" for name in openvino_core().available_devices)


def _built(cache: Path) -> Path:
    """Return the path of libOpenCL.so.1, built if it is not in the cache. Raises UnavailableError and OSError."""
    runtime = cache / f"runtime-{_digest(*_PINS, *_LIBRARIES)}"
    library = cache / f"opencl-{_digest(_SOURCE.read_text(), str(runtime), *_FLAGS)}" / "libOpenCL.so.1"
    if library.exists() and runtime.exists():
        return library
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building
        if not runtime.exists():
            with _appearing(runtime) as folder:
                _fetch_runtime(folder)
        if not library.exists():
            with _appearing(library.parent) as folder:
                define = f'-DRUNTIME="{runtime / "libintelocl.so"}"'
                call(_FAILURE, "gcc", *_FLAGS, define, str(_SOURCE), "-o", str(folder / library.name), "-ldl", "-lpthread")
    return library


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@contextlib.contextmanager
def _appearing(folder: Path) -> Iterator[Path]:
    """Give an empty folder beside the one that is wanted; rename it if the block succeeds, delete it otherwise."""
    temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    try:
        yield temporary
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fetch_runtime(folder: Path) -> None:
    sys.stderr.write("Downloading Intel's OpenCL runtime for the emulated GPUs (270 MB) ...\n")
    wheels = folder / "wheels"
    call(
        _FAILURE,
        *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
        "--dest",
        str(wheels),
        *_PINS,
    )
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = Path(member.filename).name
                if "/lib/" in member.filename and any(fnmatch.fnmatch(name, pattern) for pattern in _LIBRARIES):
                    with archive.open(member) as source, (folder / name).open("wb") as sink:
                        shutil.copyfileobj(source, sink)
    shutil.rmtree(wheels)
    # The runtime needs a newer TBB than the one of the same name that OpenVINO has loaded: it gets one of another name.
    for name in ("libintelocl.so", _TBB.decode()):
        path = folder / name
        path.write_bytes(path.read_bytes().replace(_TBB, _PRIVATE_TBB))
    (folder / _TBB.decode()).rename(folder / _PRIVATE_TBB.decode())


if __name__ == "__main__":
    main()
