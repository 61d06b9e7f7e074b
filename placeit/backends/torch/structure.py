"""Nested arguments and results of PyTorch programs: names of their tensors, and the types of their containers."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from collections.abc import Collection, Iterator
from typing import Any

from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

__all__ = ["arranged", "leaf_names", "plain_structure", "plain_types", "shown"]


def leaf_names(spec: pytree.TreeSpec, root: str) -> list[str]:
    """Return a name for each leaf of a nested value: its keys joined by dots, ``output.1.0`` or ``last_hidden_state``.

    A list, a tuple, or a registered type that keeps no names of its children has positions as keys.

    Args:
        spec: structure of the value.
        root: first part of the name of a leaf whose first key is not a string.
    """
    names: list[str] = []
    for path in _paths(spec):
        keys = path if path and isinstance(path[0], str) else (root, *path)
        name = ".".join(map(str, keys)) or root
        while name in names:  # a key may contain a dot
            name += "_"
        names.append(name)
    return names


def arranged(value: Any, spec: pytree.TreeSpec) -> Any:
    """Return a nested value with the keys of its dictionaries in the order of a structure, where it has the same keys."""
    children = spec.children()
    if spec.type not in (dict, list, tuple) or type(value) is not spec.type or len(value) != len(children):
        return value
    if spec.type is not dict:
        return spec.type(map(arranged, value, children))
    if value.keys() != set(spec.context):
        return value
    return {key: arranged(value[key], child) for key, child in zip(spec.context, children, strict=True)}


def shown(spec: pytree.TreeSpec) -> str:
    """Return a structure as text, with ``*`` for each leaf: ``{'x': *, 'rest': [*, *]}``."""
    if spec.is_leaf():
        return "*"
    parts = [shown(child) for child in spec.children()]
    if spec.type is dict:
        return "{" + ", ".join(f"{key!r}: {part}" for key, part in zip(spec.context, parts, strict=True)) + "}"
    inside = ", ".join(parts)
    if spec.type is tuple:
        return f"({inside},)" if len(parts) == 1 else f"({inside})"
    return f"[{inside}]" if spec.type is list else f"{spec.type.__name__}({inside})"


def _paths(spec: pytree.TreeSpec) -> Iterator[tuple[Any, ...]]:
    if spec.is_leaf():
        yield ()
        return
    for key, child in zip(_keys(spec), spec.children(), strict=True):
        for path in _paths(child):
            yield (key, *path)


def _keys(spec: pytree.TreeSpec) -> Collection[Any]:
    """Return keys for the children of a node. Its context has them: registered types need not have keyed flattening."""
    count, context = len(spec.children()), spec.context
    if spec.type in (dict, OrderedDict):
        return list(context)
    nested = context if isinstance(context, list | tuple) else ()
    for names in (getattr(context, "_fields", None), context, *nested):  # of a named tuple, and of registered types
        if isinstance(names, list | tuple) and len(names) == count and all(isinstance(name, str) for name in names):
            return names
    return range(count)


@contextlib.contextmanager
def plain_types(names: Collection[str]) -> Iterator[None]:
    """Make PyTorch read some types in the structure of inputs and outputs as tuples, whether or not they are registered.

    Args:
        names: names of these types in the file.
    """
    table = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
    before = {name: table[name] for name in names if name in table}
    pytree.treespec_loads.cache_clear()  # a structure that was read before has the registered types, and one read here has not
    table.update(dict.fromkeys(names, tuple))
    try:
        yield
    finally:
        for name in names:
            del table[name]
        table.update(before)
        pytree.treespec_loads.cache_clear()


@contextlib.contextmanager
def plain_structure(program: ExportedProgram) -> Iterator[None]:
    """Make a program take and return dictionaries and tuples in place of registered types, which may compute when made.

    ``DynamicCache`` of transformers does: PyTorch cannot lower a program in which it is an argument.
    """
    signature = program.module_call_graph[0].signature
    if signature is None:
        yield
        return
    before = signature.in_spec, signature.out_spec
    signature.in_spec, signature.out_spec = map(_plain, before)
    try:
        yield
    finally:
        signature.in_spec, signature.out_spec = before


def _plain(spec: pytree.TreeSpec) -> pytree.TreeSpec:
    if spec.is_leaf():
        return spec
    children = list(map(_plain, spec.children()))
    if spec.type in (dict, list, tuple):
        return pytree.TreeSpec(spec.type, spec.context, children)
    keys = _keys(spec)
    return pytree.TreeSpec(tuple, None, children) if isinstance(keys, range) else pytree.TreeSpec(dict, list(keys), children)
