"""Compiling with Numba, and keeping on disk what was compiled.

Numba's own cache (``cache=True``) knows the file of a function only. What was compiled with another function, a constant or a
named tuple of a file that has changed since would be run as it was, and what names a module that has moved ends in an error.
So here a file is named by a digest of everything that the machine code comes from, and what cannot be read is compiled anew.
"""

from __future__ import annotations

import contextlib
import hashlib
import pickle
import re
import uuid
from collections.abc import Callable, Collection, Generator, Iterator
from functools import cached_property
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.caching import CompileResultCacheImpl
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.serialize import dumps

__all__ = ["jit"]

F = TypeVar("F", bound=Callable[..., Any])

_DAMAGED = (
    OSError,
    EOFError,
    pickle.PickleError,
    ImportError,
    AttributeError,
    LookupError,
    TypeError,
    ValueError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    RuntimeError,
)
"""What is raised where a file of the cache is not there, damaged, or names what is no more."""


def jit(function: F, *, forceinline: bool = False, counted: bool = True) -> F:
    """Compile with Numba on first call, without the GIL; kept on disk where a folder can be written.

    That is Numba's choice: beside the function's file (``__pycache__``), else in the user's cache, or where ``NUMBA_CACHE_DIR``
    says. Several processes may use a folder at once.

    Args:
        function: what to compile.
        forceinline: inline it wherever it is called.
        counted: count references to arrays, which a function that makes and keeps none can do without.
    """
    options: dict[str, Any] = {"forceinline": forceinline, "_nrt": counted}  # Numba has the latter for its own functions
    compiled = numba.njit(function, nogil=True, error_model="numpy", **options)
    with contextlib.suppress(RuntimeError):  # Numba finds no folder that it may write to
        compiled._cache = _KernelCache(compiled)  # as Dispatcher.enable_caching sets Numba's own
    return cast(F, compiled)


class _KernelCache:
    """One file for each signature of a function: ``MODULE.FUNCTION-CODE-SIGNATURE.pyXY.nbc``, the latter two as digests.

    It has the methods of ``numba.core.caching._Cache``.
    """

    def __init__(self, compiled: Any) -> None:
        self._compiled, self._on = compiled, True
        self._numba = CompileResultCacheImpl(compiled.py_func)
        self._folder = Path(self._numba.locator.get_cache_path())
        function = compiled.py_func
        self._name = f"{Path(function.__code__.co_filename).stem}.{re.sub('[<>]', '', function.__qualname__)}"

    @property
    def cache_path(self) -> str:
        return str(self._folder)

    def enable(self) -> None:
        self._on = True

    def disable(self) -> None:
        self._on = False

    def flush(self) -> None:
        self._forget()

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature; None if that is not there, or cannot be read."""
        if not self._on:
            return None
        target_context.refresh()
        try:
            kept = self._file(sig, target_context.codegen()).read_bytes()
            return self._numba.rebuild(target_context, pickle.loads(kept))  # noqa: S301  as Numba keeps it, in a folder of ours
        except _DAMAGED:
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled for a signature, in place of what was kept of other versions of the function."""
        if not self._on or not self._numba.check_cachable(data):
            return
        file = self._file(sig, data.codegen)
        draft = file.with_name(f"{file.name}.{uuid.uuid4().hex[:16]}")
        with contextlib.suppress(OSError):  # a full disk, or a folder that has become read-only since
            self._numba.locator.ensure_cache_path()
            try:
                draft.write_bytes(dumps(self._numba.reduce(data)))
                draft.replace(file)
            finally:
                draft.unlink(missing_ok=True)
            self._forget(but=f"{self._name}-{self._code}-")

    def _forget(self, but: str | None = None) -> None:
        for kept in self._folder.glob(f"{self._name}-*.nb[ci]"):
            if but is None or not kept.name.startswith(but):
                with contextlib.suppress(OSError):
                    kept.unlink()

    @cached_property
    def _code(self) -> str:
        # asked for when the function is first called: all that it names is there by then
        return _digest(numba.__version__, *_ingredients(self._compiled, set()))

    def _file(self, sig: Any, codegen: Any) -> Path:
        kinds = [part for kind in getattr(sig, "args", sig) for part in _described(kind)]
        python = self._numba.filename_base.rpartition(".")[2]
        return self._folder / f"{self._name}-{self._code}-{_digest(str(codegen.magic_tuple()), *kinds)}.{python}.nbc"


def _digest(*parts: str) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _described(kind: Any) -> Iterator[str]:
    """Tell a type of Numba's from all others; the name of a named tuple's leaves out the fields."""
    yield str(kind)
    if hasattr(kind, "instance_class"):
        yield from _ingredients(kind.instance_class, set())
    for part in getattr(kind, "types", ()):
        yield from _described(part)


def _ingredients(value: Any, seen: set[int], attributes: Collection[str] = ()) -> Iterator[str]:
    """Yield all that machine code comes from: instructions, and the constants, functions and types that they name.

    What is added to Numba by ``overload`` is not seen.

    Args:
        value: a compiled function, or what one names.
        seen: identities of functions that have had their turn.
        attributes: what may be read of a module.
    """
    match value:
        case Dispatcher():
            yield repr(sorted(value.targetoptions.items()))
            yield from _function(value.py_func, seen)
        case _Intrinsic():
            yield from _function(value._defn, seen)
        case ModuleType():
            yield value.__name__
            for name in sorted(set(attributes) & vars(value).keys()):
                yield name
                yield from _ingredients(vars(value)[name], seen)
        case type():
            yield f"{value.__module__}.{value.__qualname__} {getattr(value, '_fields', ())}"
        case np.ndarray():
            yield f"{value.dtype!r} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
        case tuple() | list():
            for part in value:
                yield from _ingredients(part, seen)
        case frozenset() | set():
            yield repr(sorted(map(repr, value)))
        case _ if callable(value):  # what Numba knows by name
            yield str(getattr(value, "__qualname__", type(value).__qualname__))
        case _:
            yield repr(value)


def _function(function: FunctionType, seen: set[int]) -> Iterator[str]:
    yield f"{function.__module__}.{function.__qualname__}"
    if id(function) in seen:
        return
    seen.add(id(function))
    names = yield from _instructions(function.__code__, seen)
    names |= set(re.findall(r"\w+", " ".join(map(str, function.__annotations__.values()))))
    for name in sorted(names & function.__globals__.keys()):
        yield name
        yield from _ingredients(function.__globals__[name], seen, names)
    yield from _ingredients(function.__defaults__ or (), seen)
    for cell in function.__closure__ or ():
        yield from _ingredients(cell.cell_contents, seen)


def _instructions(code: CodeType, seen: set[int]) -> Generator[str, None, set[str]]:
    """Yield what a function does, those inside it included; return what it reads by name."""
    yield code.co_code.hex()
    yield repr((code.co_varnames, code.co_cellvars, code.co_freevars, code.co_names))
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= yield from _instructions(constant, seen)
        else:
            yield from _ingredients(constant, seen)
    return names
