"""Segments of PyTorch programs, compiled by AOTInductor in a child process and kept on disk."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.utils import _pytree as pytree

from placeit import _core
from placeit.backends.torch.bundled import write_segment
from placeit.backends.torch.state import state_updates
from placeit.backends.torch.tracing import FAILURES, first_paragraph
from placeit.core.errors import DeviceError, FileError, ModelError, first_line, not_in_time
from placeit.core.files import cache_folder, own_folder, temporary_folder
from placeit.core.version import __version__
from placeit.devices.compiled import VARIABLE
from placeit.devices.host import cpu_name

__all__ = ["CompiledSegment", "compile_package", "compile_segment", "is_kept"]

_log = logging.getLogger("placeit")

_MAX_BYTES = 1e9  # limit on the size of all packages on disk
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt)\b.*")
_UNFROZEN = "compiled without freezing: "  # what the child process writes before the reason
_PROGRAM = """
import sys
source, target, threads, *sys.path = sys.argv[1:]
from placeit.backends.torch.inductor import compile_package
compile_package(source, target, int(threads))
"""


@dataclass(frozen=True, eq=False)
class Boxed:
    """A compiled segment that PyTorch's loader runs on contiguous tensors, holding Python's global interpreter lock."""

    run: Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

    def forward(self, *inputs: torch.Tensor) -> Sequence[torch.Tensor]:
        """Compute the outputs. The code is for contiguous inputs, and does not check that."""
        return self.run([tensor.contiguous() for tensor in inputs])


@dataclass(frozen=True, eq=False)
class CompiledSegment:
    """A compiled segment, which contains its weights.

    Attributes:
        code: its library, which runs without Python; or the loader of PyTorch, for ops that the library alone does not find.
        from_disk: whether an earlier compilation was loaded from disk.
    """

    code: _core.CompiledProgram | Boxed
    from_disk: bool


def compile_segment(module: torch.nn.Module, threads: int, seconds: float = math.inf) -> CompiledSegment:
    """Compile a segment for the CPU, or load an earlier result for an equal segment.

    Args:
        module: the segment, as ``TorchModel.segment`` returns it.
        threads: number of threads that kernels are divided among.
        seconds: time limit for the compilation.

    Raises:
        DeviceError: Inductor does not compile it.
        ExecutionError: the time limit was reached.
    """
    if not isinstance(module, GraphModule):
        raise DeviceError("Inductor compiles programs of PyTorch, and the segment is a plain module.")
    if state_updates(module):
        raise DeviceError("Inductor compiles programs without state, and the segment has some.")
    cached = _cache_path(module, threads)
    if cached is not None and cached.is_file():
        with contextlib.suppress(OSError):
            os.utime(cached)
        with contextlib.suppress(*FAILURES, zipfile.BadZipFile):  # damaged, or of another build of PyTorch: compile again
            return _load(cached, from_disk=True)
    with temporary_folder() as folder:
        package = _compile(module, threads, seconds, folder)
        try:
            found = _load(package, from_disk=False)
        except FAILURES as error:
            raise DeviceError(f"A segment that Inductor compiled cannot be loaded: {first_line(error)}") from error
        if cached is not None:
            with contextlib.suppress(OSError):
                _store(package, cached)
    return found


def is_kept(module: torch.nn.Module, threads: int) -> bool:
    """Return whether a segment was compiled before and is on disk."""
    cached = _cache_path(module, threads) if isinstance(module, GraphModule) else None
    return cached is not None and cached.is_file()


def compile_package(source: str, target: str, threads: int) -> None:
    """Compile an exported program to a package. The child process calls this function.

    The program is frozen if its outputs stay the same: normalizations are folded into the weights of convolutions, and weights
    are stored in the order in which kernels read them.

    Args:
        source: path of the program.
        target: path of the package.
        threads: number of threads that kernels are divided among.
    """
    program = torch.export.load(source)
    options = {"cpp.threads": threads, "compile_threads": 1}
    compile_it = functools.partial(torch._inductor.aoti_compile_and_package, program, package_path=target)
    with torch.no_grad():
        try:
            compile_it(inductor_configs={**options, "freezing": True})
            why = "" if _agrees(program, torch._inductor.aoti_load_package(target)) else "its outputs would differ"
        except FAILURES as error:
            why = first_paragraph(error)
        if why:
            compile_it(inductor_configs=options)
            sys.stderr.write(f"{_UNFROZEN}{why}\n")


def _agrees(program: ExportedProgram, compiled: Callable[..., Any]) -> bool:
    """Return whether compiled code has the outputs of a program, for random numbers and, for integers, the example inputs."""
    (examples, _), generator = program.example_inputs or ((), {}), torch.Generator().manual_seed(0)
    inputs = [
        torch.randn(example.shape, generator=generator).to(example.dtype) if example.is_floating_point() else example
        for example in examples
    ]
    values = [leaf for node in program.graph.nodes for leaf in pytree.tree_leaves(node.meta.get("val"))]
    kinds = {one.dtype for one in values if isinstance(one, torch.Tensor) and one.is_floating_point()}
    tolerance = 1e-3 + 8 * max((torch.finfo(kind).eps for kind in kinds), default=0.0)
    pairs = zip(pytree.tree_leaves(compiled(*inputs)), pytree.tree_leaves(program.module()(*inputs)), strict=True)
    return all(_is_close(actual, expected, tolerance) for actual, expected in pairs)


def _is_close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    floats = expected.is_floating_point() and expected.numel()
    scale = float(expected.nan_to_num(0, 0, 0).abs().max()) if floats else 0.0
    return torch.allclose(actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def _compile(module: GraphModule, threads: int, seconds: float, folder: Path) -> Path:
    source, target = folder / "segment.pt2", folder / "package.pt2"
    try:
        write_segment(module, source, source)
    except ModelError as error:
        raise DeviceError(f"Inductor cannot compile a segment: {error}") from error
    arguments = [sys.executable, "-c", _PROGRAM, str(source), str(target), str(threads), *sys.path]
    seconds = max(0.0, seconds)
    limit = None if math.isinf(seconds) else seconds
    try:
        code, errors = _run(arguments, limit)
    except subprocess.TimeoutExpired as error:
        raise not_in_time("Inductor", seconds) from error
    except OSError as error:
        raise DeviceError(f"Inductor cannot be started: {error.strerror or error}.") from error
    lines = errors.decode(errors="replace").splitlines()
    if code != 0 or not target.is_file():
        cause = next(
            (line for line in reversed(lines) if _ERROR.fullmatch(line)), lines[-1] if lines else "it does not say why"
        )
        why = cause.strip().rstrip(".")
        raise DeviceError(f"Inductor does not compile a segment: {why}.")
    for line in lines:
        if line.startswith(_UNFROZEN):
            _warn_unfrozen(line.removeprefix(_UNFROZEN))
    return target


@functools.cache
def _warn_unfrozen(why: str) -> None:
    """Log, once for each reason, that a segment is compiled without freezing."""
    _log.warning("Inductor compiles a segment without freezing its weights, so that it may be slower: %s.", why.rstrip("."))


def _run(arguments: Sequence[str], limit: float | None) -> tuple[int, bytes]:
    """Run a command; return its exit code and what it wrote to standard error. The processes that it starts end with it.

    Raises:
        TimeoutExpired: it did not end within the limit, seconds.
        OSError: it cannot be started.
    """
    quiet = subprocess.DEVNULL
    with subprocess.Popen(arguments, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, start_new_session=True) as child:
        try:
            _, errors = child.communicate(timeout=limit)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            raise
    return child.returncode, errors


def _load(package: Path, *, from_disk: bool) -> CompiledSegment:
    with zipfile.ZipFile(package) as archive, temporary_folder() as folder:
        members = [name for name in archive.namelist() if "/data/aotinductor/" in name]
        needed = [name for name in members if not name.endswith((".cpp", "_metadata.json"))]
        if len(needed) == 1 and needed[0].endswith(".so"):
            with contextlib.suppress(RuntimeError):  # this version of PyTorch lacks a function of the interface
                return CompiledSegment(_core.CompiledProgram(archive.extract(needed[0], folder)), from_disk)
    compiled: Any = torch._inductor.aoti_load_package(str(package))
    return CompiledSegment(Boxed(compiled.loader.boxed_run), from_disk)


def _store(package: Path, target: Path) -> None:
    """Move a package to the cache, and delete the least recently used packages beyond the size limit. Raises OSError."""
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    shutil.move(package, draft)
    draft.replace(target)
    total = 0
    for path in sorted(target.parent.glob("*.pt2"), key=lambda path: -path.stat().st_mtime):
        total += path.stat().st_size
        if total > _MAX_BYTES and path != target:
            path.unlink(missing_ok=True)


def _cache_path(module: GraphModule, threads: int) -> Path | None:
    """Return the path of a segment's package in the cache; None if the cache is off, or its folder cannot be used."""
    if os.environ.get(VARIABLE, "").strip() == "0":
        return None
    try:
        folder = cache_folder() / "inductor"
        os.close(own_folder(folder))  # code from a folder that others can write to would be run
    except FileError:
        return None
    return folder / f"{_digest(module, threads)}.pt2"


def _digest(module: GraphModule, threads: int) -> str:
    """Return a digest of all that compiled code depends on: the program, its weights, and the machine."""
    machine = cpu_name(), torch.backends.cpu.get_cpu_capability(), os.environ.get("CXX", "")
    digest = hashlib.sha256(repr((__version__, torch.__version__, machine, threads, module.code)).encode())
    for node in module.graph.find_nodes(op="placeholder"):
        digest.update(repr((node.name, tuple(node.meta["val"].shape), node.meta["val"].dtype)).encode())
    for name, tensor in module.named_buffers(remove_duplicate=False):
        digest.update(repr((name, tuple(tensor.shape), tensor.stride(), tensor.dtype)).encode())
        values: Any = tensor.reshape(-1).view(torch.uint8).numpy()
        digest.update(values)
    return digest.hexdigest()[:32]
