"""What builds emulated hardware in a cache folder: ``tests/emulated_gpu`` and ``tests/arm_board``."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

__all__ = ["UnavailableError", "cache_of", "call"]

_KEPT = 2000  # characters of what a failed command printed last


class UnavailableError(Exception):
    """Emulated hardware cannot be built here; the text says why."""


def cache_of(name: str, given: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which emulated hardware of a name is kept."""
    shared = Path(given.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "placeit-tests" / name


def call(failure: str, *command: str) -> None:
    """Run a command. Raises UnavailableError, which begins with ``failure``, if it is missing or fails."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", check=False)
    except FileNotFoundError:
        raise UnavailableError(f"{failure}: {command[0]} is not installed.") from None
    if done.returncode:
        raise UnavailableError(f"{failure}: {shlex.join(command)}\n{done.stdout.strip()[-_KEPT:]}")
