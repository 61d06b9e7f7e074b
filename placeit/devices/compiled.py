"""Compiled models on disk: OpenVINO's ``CACHE_DIR``, with a digest beside each file, since OpenVINO trusts what is there."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from placeit.core.files import cache_folder
from placeit.core.telemetry import import_openvino
from placeit.core.version import __version__

__all__ = ["VARIABLE", "CompiledModels", "compile_cached"]

VARIABLE = "PLACEIT_MODEL_CACHE"
"""Environment variable: ``1`` for a folder in placeit's cache folder, or the path of one; nothing or ``0`` for none."""

_MOST_BYTES = 2e9
_FAILURES = (RuntimeError, OSError)
_log = logging.getLogger("placeit")


def compile_cached(core: Any, model: Any, target: str, config: Mapping[str, Any]) -> Any:
    """Compile a model with OpenVINO, or reuse an earlier result if :data:`VARIABLE` enables this."""
    asked = os.environ.get(VARIABLE, "").strip()
    if asked in ("", "0") or config.get("PERF_COUNT"):  # what comes from a cache does not say which ops its kernels stand for
        return core.compile_model(model, target, dict(config))
    folder = cache_folder() / "compiled" if asked == "1" else Path(asked).expanduser()
    return _opened(folder.absolute()).compile(core, model, target, config)


class CompiledModels:
    """A folder of compiled models, one sub-folder for each configuration, version of placeit and version of OpenVINO.

    OpenVINO finds entries by what the model computes, its weights included. A file whose digest is not beside it, as it was
    when it was written, is deleted when the folder is opened: OpenVINO would compute with damaged weights without a word. So
    are the oldest ones beyond a bound. A folder that cannot be used costs one warning, and models are compiled without it.

    Args:
        folder: where.
        most_bytes: what entries may take when the folder is opened.
    """

    def __init__(self, folder: Path, *, most_bytes: float = _MOST_BYTES) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._under_way = 0
        self._works = True
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._check(most_bytes)
        except OSError as error:
            self._give_up(error)

    def compile(self, core: Any, model: Any, target: str, config: Mapping[str, Any]) -> Any:
        """Compile a model or load it from the folder. Raises what OpenVINO raises without a cache."""
        if not self._works:
            return core.compile_model(model, target, dict(config))
        with self._lock:
            self._under_way += 1
        try:
            return core.compile_model(model, target, {**config, "CACHE_DIR": str(self.folder / _name(target, config))})
        except _FAILURES as error:
            compiled = core.compile_model(model, target, dict(config))  # is it the model?
            self._give_up(error)
            return compiled
        finally:
            with self._lock:
                self._under_way -= 1
                if not self._under_way:  # nothing is half-written
                    with contextlib.suppress(OSError):
                        self._seal()

    def _seal(self) -> None:
        """Write the digest of each new file beside it."""
        for blob in self.folder.glob("*/*.blob"):
            seal = blob.with_suffix(".sha256")
            if not seal.exists():
                seal.write_text(_digest(blob), encoding="ascii")

    def _check(self, most_bytes: float) -> None:
        """Delete files that are not what they were, and the oldest ones beyond the bound."""
        sizes: list[tuple[float, int, Path]] = []
        for blob in self.folder.glob("*/*.blob"):
            if blob.is_symlink() or not blob.is_file() or not _sealed(blob):
                _log.warning("The compiled model %s is damaged; it is compiled again.", blob)
                _delete(blob)
            else:
                found = blob.stat()
                sizes.append((found.st_mtime, found.st_size, blob))
        total = 0
        for _, size, blob in sorted(sizes, reverse=True):
            total += size
            if total > most_bytes:
                _delete(blob)

    def _give_up(self, error: Exception) -> None:
        if self._works:
            self._works = False
            why = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            _log.warning("Cannot keep compiled models in %s (%s); continuing without.", self.folder, why)


@functools.cache
def _opened(folder: Path) -> CompiledModels:
    return CompiledModels(folder)


def _name(target: str, config: Mapping[str, Any]) -> str:
    # OpenVINO does not tell all configurations apart
    key = [__version__, import_openvino().get_version(), target, sorted((name, str(value)) for name, value in config.items())]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _sealed(blob: Path) -> bool:
    seal = blob.with_suffix(".sha256")
    return seal.is_file() and seal.read_bytes() == _digest(blob).encode()


def _delete(blob: Path) -> None:
    blob.unlink()
    blob.with_suffix(".sha256").unlink(missing_ok=True)
