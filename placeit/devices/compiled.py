"""Compiled models on disk: OpenVINO's ``CACHE_DIR``, with a digest beside each file, since OpenVINO does not check them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import locale
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from placeit import _core
from placeit.core.errors import FileError, PlaceitError
from placeit.core.files import cache_folder, own_folder, user_folder
from placeit.core.telemetry import import_openvino
from placeit.core.version import __version__
from placeit.devices.openvino_errors import what_openvino_says
from placeit.devices.openvino_shared import openvino_core

__all__ = ["VARIABLE", "CompiledModels", "compile_cached", "compiles_slowly", "from_cache", "is_kept"]

VARIABLE = "PLACEIT_MODEL_CACHE"
"""Environment variable: ``0`` for no cache; ``1`` for a cache that CPUs use as well, or the path of its folder. Without the
variable, only devices that compile slowly have a cache."""

_MAX_BYTES = 2e9  # of all compiled models in the cache, by default
_FAILURES = (RuntimeError, OSError)
_FOLDER_NAMES = "[0-9a-f]" * 16
_DRIVER_LIBRARIES = re.compile(r"/lib(OpenCL|igdrcl|intelocl|ze_\w+)\.")
_log = logging.getLogger("placeit")


def compile_cached(core: Any, model: Any, target: str, config: Mapping[str, Any], identity: str = "") -> Any:
    """Compile a model with OpenVINO, or load an earlier result if there is a cache for the device.

    Args:
        core: OpenVINO's core, or an object that compiles like it.
        model: an ``openvino.Model``.
        target: OpenVINO's name of the device.
        config: properties.
        identity: identity of the model's structure, by which :func:`is_kept` finds it; equal for models of equal structure.
    """
    folder = _folder(target)

    def compile_model() -> Any:
        # unlike the GPU plugin, the CPU plugin does not report for a cached model which ops a kernel stands for
        if folder is None or (config.get("PERF_COUNT") and not compiles_slowly(target)):
            return core.compile_model(model, target, dict(config))
        return _opened(folder).compile(
            core, model, target, config, identity or f"{model.get_friendly_name()} {len(model.get_ops())}"
        )

    if str(config.get("NUM_STREAMS")) == "0" and config.get("INFERENCE_NUM_THREADS") == 1:
        # otherwise the plugin divides kernels among all cores, and one thread runs all parts, which takes up to twice the time
        return _core.in_arena_of_one(str(_threading_library()), compile_model)
    return compile_model()


@functools.cache
def _threading_library() -> Path:
    """Return the path of the oneTBB library in the OpenVINO package."""
    return Path(import_openvino().__file__).parent / "libs" / "libtbb.so.12"


def is_kept(target: str, config: Mapping[str, Any], identity: Callable[[], str]) -> bool:
    """Return whether a model of this structure is in the cache, so that it most likely need not be compiled."""
    folder = _folder(target)
    return folder is not None and _opened(folder).holds(target, config, identity())


def from_cache(compiled: Any) -> bool:
    """Return whether a compiled model was loaded from the cache."""
    get_property = getattr(compiled, "property", None) or compiled.get_property  # of the C library, or of the Python binding
    try:
        return str(get_property("LOADED_FROM_CACHE")) in ("True", "YES")
    except (RuntimeError, PlaceitError):  # a plugin without this property
        return False


@functools.cache
def compiles_slowly(target: str) -> bool:
    """Return whether a device compiles for seconds to minutes and its plugin can store the result: a GPU or an NPU."""
    names = [name for name in _devices_of(target) if not name.startswith("CPU")]
    return bool(names) and all("EXPORT_IMPORT" in _property(name, "OPTIMIZATION_CAPABILITIES") for name in names)


class _Locale:
    """Guard of the process's locale, which OpenVINO sets to ``C`` while it reads or writes a compiled model.

    If several threads do so, OpenVINO may take ``C`` for the original locale, and leave it set
    (https://github.com/openvinotoolkit/openvino/pull/24431). The last thread restores the locale that the first one saved.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._saved = "C"

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._saved = locale.setlocale(locale.LC_ALL)
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and locale.setlocale(locale.LC_ALL) != self._saved:
                    locale.setlocale(locale.LC_ALL, self._saved)


_locale = _Locale()


class CompiledModels:
    """A cache of compiled models in a folder.

    There is a sub-folder for each model structure, device with its driver, configuration, version of placeit and of OpenVINO.
    In it, OpenVINO finds entries by the model's computation, including its weights. Before a model is looked up, each file
    whose digest is missing or differs is deleted: OpenVINO would compute with damaged weights without an error. Whenever a file
    is written, the least recently used files beyond ``max_bytes`` are deleted. If the folder cannot be used, one warning is
    logged, and models are compiled without it. This includes another user's folder, since its content would be run.

    Args:
        folder: path of the folder.
        max_bytes: largest size of all entries together; a model with more weights is not stored.
    """

    def __init__(self, folder: Path, *, max_bytes: float = _MAX_BYTES) -> None:
        self.folder = folder = Path(os.path.realpath(folder))  # so that no link to it can be replaced later
        self._max_bytes = max_bytes
        self._locks: dict[Path, threading.Lock] = {}
        self._trimming = threading.Lock()
        self._usable = True
        try:
            os.close(own_folder(folder, group=True))
            self._trim()
        except (FileError, OSError) as error:
            self._disable(error)

    def compile(self, core: Any, model: Any, target: str, config: Mapping[str, Any], identity: str = "") -> Any:
        """Compile a model or load it from the folder. Raises the errors of OpenVINO's compilation without a cache."""
        folder = self.folder / _folder_name(target, config, identity)
        if not self._usable or folder.is_symlink() or _weight_bytes(model) > self._max_bytes:
            return core.compile_model(model, target, dict(config))
        with self._locks.setdefault(folder, threading.Lock()):  # the second of two equal devices finds the result of the first
            try:
                _delete_damaged(folder)
                with _locale.kept():
                    compiled = core.compile_model(model, target, {**config, "CACHE_DIR": str(folder)})
            except _FAILURES as error:
                compiled = core.compile_model(model, target, dict(config))  # raises if the model itself is at fault
                with contextlib.suppress(OSError):
                    for blob in folder.glob("*.blob"):
                        _delete(blob)
                self._disable(error)
                return compiled
            with contextlib.suppress(OSError):
                self._write_digests(folder)
        return compiled

    def holds(self, target: str, config: Mapping[str, Any], identity: str) -> bool:
        """Return whether the folder holds a model of this structure."""
        return self._usable and any((self.folder / _folder_name(target, config, identity)).glob("*.sha256"))

    def _write_digests(self, folder: Path) -> None:
        """Write the digest of each new file beside it; mark the other files as used now."""
        new = False
        for blob in folder.glob("*.blob"):
            seal = blob.with_suffix(".sha256")
            if seal.exists():
                os.utime(blob)
            else:
                seal.write_text(_digest(blob), encoding="ascii")
                new = True
        if new:
            self._trim()

    def _trim(self) -> None:
        """Delete the least recently used files beyond the bound."""
        with self._trimming:
            found: list[tuple[float, int, Path]] = []
            for blob in (
                blob for folder in self.folder.glob(_FOLDER_NAMES) if not folder.is_symlink() for blob in folder.glob("*.blob")
            ):
                with contextlib.suppress(FileNotFoundError):  # another process has deleted it
                    status = blob.lstat()
                    found.append((status.st_mtime, status.st_size, blob))
            total = 0
            for _, size, blob in sorted(found, reverse=True):
                total += size
                if total > self._max_bytes:
                    _delete(blob)
                    with contextlib.suppress(OSError):  # the folder has other files
                        blob.parent.rmdir()

    def _disable(self, error: Exception) -> None:
        if self._usable:
            self._usable = False
            _log.warning("Cannot keep compiled models in %s (%s); continuing without.", self.folder, what_openvino_says(error))


def _folder(target: str) -> Path | None:
    """Return the folder in which compiled models of a device are kept; None if they are not kept."""
    setting = os.environ.get(VARIABLE, "").strip()
    if setting == "0" or (not setting and not compiles_slowly(target)):
        return None
    try:
        return (cache_folder() / "compiled" if setting in ("", "1") else user_folder(setting)).absolute()
    except FileError as error:
        _warn_no_folder(str(error))
        return None


@functools.cache
def _warn_no_folder(why: str) -> None:
    _log.warning("Compiled models are not kept: %s Or set %s to a folder.", why, VARIABLE)


@functools.cache
def _opened(folder: Path) -> CompiledModels:
    return CompiledModels(folder)


def _folder_name(target: str, config: Mapping[str, Any], identity: str) -> str:
    # the configuration is part of the key, as OpenVINO does not tell all configurations apart
    key = [__version__, *_device_key(target), sorted((name, str(value)) for name, value in config.items()), identity]
    return hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]


@functools.cache
def _device_key(target: str) -> list[str]:
    """Return the facts that a device's compiled models depend on: its name, the versions of OpenVINO and of its driver."""
    names = _devices_of(target)
    key = [import_openvino().get_version(), "" if names == [target] else target]
    for name in names:
        family = name.split(".")[0]
        key += [
            family,
            *(_property(name, what) for what in ("FULL_DEVICE_NAME", "DEVICE_ARCHITECTURE", f"{family}_DRIVER_VERSION")),
        ]
    if any(not name.startswith("CPU") for name in names):
        key += _loaded_drivers()
    return key


def _loaded_drivers() -> list[str]:
    """Return names, sizes and dates of the drivers that this process has loaded; the GPU plugin does not report a version."""
    found: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
        for path in sorted({line.split(maxsplit=5)[-1] for line in lines if _DRIVER_LIBRARIES.search(line)}):
            status = Path(path).stat()
            found.append(f"{path} {status.st_size} {status.st_mtime_ns}")
    return found


def _devices_of(target: str) -> list[str]:
    """Return the devices that an OpenVINO device name stands for: ``GPU.0`` and ``CPU`` for ``MULTI:GPU.0,CPU``."""
    return [name.partition("(")[0] for name in target.partition(":")[2].split(",")] if ":" in target else [target]


def _property(name: str, what: str) -> str:
    """Return a property of a device as text, empty if it has none."""
    try:
        return str(openvino_core().get_property(name, what))
    except (RuntimeError, TypeError):
        return ""


def _weight_bytes(model: Any) -> float:
    return float(sum(op.get_byte_size() for op in model.get_ops() if op.get_type_name() == "Constant"))


def _delete_damaged(folder: Path) -> None:
    """Delete files that have changed since their digest was written, and files without a digest."""
    for blob in folder.glob("*.blob"):
        seal = blob.with_suffix(".sha256")
        if blob.is_symlink() or not seal.is_file():
            _delete(blob)
        elif seal.read_bytes() != _digest(blob).encode():
            _log.warning("The compiled model %s is damaged; it is compiled again.", blob)
            _delete(blob)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _delete(blob: Path) -> None:
    blob.unlink(missing_ok=True)
    blob.with_suffix(".sha256").unlink(missing_ok=True)
