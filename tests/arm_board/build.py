"""Build an emulated ARM board in a cache folder, and run a command on it: ``python -m tests.arm_board COMMAND...``."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.emulators import UnavailableError, cache_of, call

__all__ = ["board", "main", "on_board"]

_ROOT = Path(__file__).parents[2]
_BINFMT = Path("/proc/sys/fs/binfmt_misc")
# programs that begin with the header of an ELF file for aarch64 are run by qemu (flag F: opened now, so that a chroot finds it)
_MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
_MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
_QEMU = "/usr/bin/qemu-aarch64-static"
_SITE = "opt/site"
_FAILURE = "Cannot build the ARM board"


def board() -> Path:
    """Return the root folder of the board, with placeit's newest wheel for aarch64 installed.

    Raises:
        UnavailableError: root's rights, a program, the network, or the wheel is missing.
    """
    wheels = sorted((_ROOT / "dist").glob("placeit-*cp311*aarch64.whl"))
    if os.geteuid() or None in map(shutil.which, ("debootstrap", _QEMU)):
        raise UnavailableError(f"{_FAILURE}: it takes root's rights, debootstrap and qemu-user-static.")
    if not wheels:
        raise UnavailableError(f"{_FAILURE}: there is no wheel for aarch64 in dist/; make wheel.")
    folder = cache_of("arm-board")
    folder.mkdir(parents=True, exist_ok=True)
    root, work = folder / "root", folder / "work"
    work.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be building
        if not (_BINFMT / "register").exists():
            call(_FAILURE, "mount", "-t", "binfmt_misc", "binfmt_misc", str(_BINFMT))
        if not (_BINFMT / "qemu-aarch64").exists():
            (_BINFMT / "register").write_text(f":qemu-aarch64:M::{_MAGIC}:{_MASK}:{_QEMU}:OCF")
        if not (folder / "base").exists():
            shutil.rmtree(root, ignore_errors=True)
            packages = "--include=python3,python3-venv,ca-certificates"
            call(_FAILURE, "debootstrap", "--arch=arm64", "--variant=minbase", packages, "bookworm", str(root))
            (folder / "base").touch()
        digest = hashlib.sha256(wheels[-1].read_bytes()).hexdigest()
        installed = folder / "installed"
        if not installed.exists() or installed.read_text() != digest:
            installed.unlink(missing_ok=True)
            _install(root, wheels[-1], folder / "uv")
            installed.write_text(digest)
    return root


def _install(root: Path, wheel: Path, uv: Path) -> None:
    """Install the wheel and what it needs, from wheels alone, as pip would on the board, where emulation makes it slow."""
    call(_FAILURE, sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(uv), "uv")
    site = root / _SITE
    shutil.rmtree(site, ignore_errors=True)
    platform = ("--python-platform", "aarch64-manylinux_2_36", "--python-version", "3.11", "--only-binary", ":all:")
    call(
        _FAILURE,
        str(uv / "bin" / "uv"),
        "pip",
        "install",
        "--quiet",
        "--system-certs",
        *platform,
        "--target",
        str(site),
        f"{wheel}[ray]",
    )
    for program in (site / "bin").iterdir():  # which name the Python that has installed them
        first, _, rest = program.read_bytes().partition(b"\n")
        if first.startswith(b"#!"):
            program.write_bytes(b"#!/usr/bin/python3\n" + rest)


def on_board(root: Path, work: Path, *command: str) -> list[str]:
    """Return the command that runs another one on the board, with ``work`` as its folder ``/work``.

    Arguments may be appended to it. What it mounts is seen by the command alone, and gone when it ends. Of this process's
    environment, the variables of pip, placeit and Ray are kept.
    """
    (root / "work").mkdir(exist_ok=True)
    mounts = [("--rbind", f"/{name}", root / name) for name in ("proc", "sys", "dev")] + [("--bind", str(work), root / "work")]
    mount = " && ".join(shlex.join(["mount", how, what, str(where)]) for how, what, where in mounts)
    left = [f"--unset={name}" for name in os.environ if not name.startswith(("PIP_", "PLACEIT_", "RAY_"))]
    given = {"PATH": f"/{_SITE}/bin:/usr/bin:/bin", "PYTHONPATH": f"/{_SITE}", "HOME": "/root", "LANG": "C.UTF-8"}
    given["QEMU_CPU"] = os.environ.get("QEMU_CPU", "cortex-a72")
    variables = [*left, *(f"{name}={value}" for name, value in given.items())]
    entered = shlex.join(["chroot", str(root), "/usr/bin/env", "-C", "/work", *variables])
    return ["unshare", "--mount", "--propagation", "private", "sh", "-ec", f'{mount} && exec {entered} "$@"', "sh", *command]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command on the board in place of this process."""
    command = list(sys.argv[1:] if arguments is None else arguments)
    if not command:
        sys.exit("usage: python -m tests.arm_board COMMAND...")
    try:
        root = board()
    except UnavailableError as error:
        sys.exit(str(error))
    called = on_board(root, root.parent / "work", *command)
    os.execvp(called[0], called)
