"""Find placers by name: placeit's heuristics, and the placers that packages declare as ``placeit.placers`` entry points."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from placeit.core.errors import FileError, UsageError
from placeit.core.registry import check_options, check_size, entry_table, load_entry, parse_options
from placeit.placers.base import Placer

__all__ = [
    "GROUP",
    "PlacerOption",
    "get_placer",
    "own_module",
    "parse_placer",
    "placer_names",
    "placer_options",
    "placer_summary",
    "placers_by_name",
]

GROUP = "placeit.placers"
"""The entry-point group in which a plug-in names its placers."""

_BUILTIN = {
    "annealing": "placeit.placers.annealing:Annealing",
    "best-list": "placeit.placers.best_list:BestList",
    "cp-sat": "placeit.placers.cp_sat:CpSat",
    "cpop": "placeit.placers.cpop:Cpop",
    "critical-path": "placeit.placers.critical_path:CriticalPath",
    "dp": "placeit.placers.dp:Dp",
    "enumerative": "placeit.placers.enumerative:Enumerative",
    "exact": "placeit.placers.exact:Exact",
    "fuser": "placeit.placers.fuser:Fuser",
    "heft": "placeit.placers.heft:Heft",
    "local-search": "placeit.placers.local_search:LocalSearch",
    "metis": "placeit.placers.metis:Metis",
    "peft": "placeit.placers.peft:Peft",
    "random": "placeit.placers.random_search:RandomSearch",
    "random-task-eft": "placeit.placers.random_task_eft:RandomTaskEft",
    "repeated": "placeit.placers.repeated:Repeated",
    "single": "placeit.placers.single:Single",
}


@dataclass(frozen=True)
class PlacerOption:
    """An option of a placer, for display on the command line.

    Attributes:
        name: the field's name.
        type: ``bool``, ``int``, ``float`` or ``str``.
        default: its default value.
        help: its effect.
        range: minimum and maximum of a number.
    """

    name: str
    type: type
    default: Any
    help: str
    range: tuple[float, float] = (-math.inf, math.inf)


def placer_names() -> tuple[str, ...]:
    """Return the names of all placers, sorted, without importing any of them.

    Raises:
        UsageError: two packages use the same name.
    """
    return tuple(sorted(_table()))


def placer_options(name: str) -> tuple[PlacerOption, ...]:
    """Return the options of a placer, in order of declaration.

    Raises:
        UsageError: the placer does not exist, or its package cannot be imported.
    """
    cls = _load(name)
    hints = typing.get_type_hints(cls)
    return tuple(
        PlacerOption(
            field.name,
            hints[field.name],
            field.default,
            field.metadata.get("help", ""),
            field.metadata.get("range", (-math.inf, math.inf)),
        )
        for field in dataclasses.fields(cls)
    )


def placer_summary(name: str) -> str:
    """Return a one-line description of a placer: the first line of its docstring.

    Raises:
        UsageError: the placer does not exist, or its package cannot be imported.
    """
    return (inspect.getdoc(_load(name)) or "").partition("\n")[0]


def get_placer(name: str, **options: Any) -> Placer:
    """Return a placer by name, with the given options.

    Args:
        name: one of :func:`placer_names`, or ``module:Class``.
        **options: the placer's options; the others keep their defaults.

    Raises:
        UsageError: the placer or the option does not exist, or the option has another type or is out of its range.
        FileError: a file that an option names is missing or damaged.
    """
    declared = {option.name: option for option in placer_options(name)}
    check_options("placer", name, options, declared)
    for key, value in options.items():
        expected = declared[key].type
        # an int is accepted for a float, but a bool is not accepted for a number
        accepted = (float, int) if expected is float else expected
        if not isinstance(value, accepted) or (isinstance(value, bool) and expected is not bool):
            raise UsageError(f"The option '{key}' of the placer '{name}' is of type {expected.__name__}; got {value!r}.")
        if isinstance(value, int | float) and not isinstance(value, bool):
            check_size("placer", name, key, value, *declared[key].range)
    try:
        placer: Placer = _load(name)(**options)
    except FileError as error:
        raise FileError(f"The placer '{name}' cannot be asked: {error}") from error
    except (TypeError, ValueError) as error:
        raise UsageError(f"The placer '{name}' cannot be made: {type(error).__name__}: {error}.") from error
    return placer


def parse_placer(text: str) -> Placer:
    """Return a placer from ``name`` or ``name:key=value,key=value``, as on the command line.

    Instead of a name, ``module:Class`` imports a placer that no package declares.

    Raises:
        UsageError: the text has another form, the placer or an option does not exist, or an option is not valid.
        FileError: a file that an option names is missing or damaged.
    """
    prefix = f"{module}:" if (module := own_module(text)) else ""

    def types(name: str) -> dict[str, type]:
        return {option.name: option.type for option in placer_options(prefix + name)}

    name, options = parse_options("placer", text.removeprefix(prefix), types)
    return get_placer(prefix + name, **options)


def placers_by_name(placers: Iterable[str | Placer]) -> dict[str, Placer]:
    """Return placers by name. The name of a string is the string; the name of an object is its class with its options.

    Raises:
        UsageError: two different placers have the same name, or :func:`parse_placer` refuses a string.
        FileError: a file that an option names is missing or damaged.
    """
    named = dict[str, Placer]()
    for item in placers:
        name, placer = (item, parse_placer(item)) if isinstance(item, str) else (_name(item), item)
        if named.setdefault(name, placer) != placer:
            raise UsageError(f"Two different placers have the name '{name}': name their classes differently.")
    return named


def _name(placer: Placer) -> str:
    """Return ``Class:option=value,option=value``, without the options that have their default values."""
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(placer) if dataclasses.is_dataclass(placer) else ()
    values = {field.name: getattr(placer, field.name) for field in fields if getattr(placer, field.name) != field.default}
    return f"{type(placer).__name__}:{','.join(f'{name}={value}' for name, value in values.items())}".removesuffix(":")


def own_module(text: str) -> str:
    """Return the module of a placer that is given as ``module:Class``; empty if it is given by name."""
    module, _, rest = text.partition(":")
    return module if rest and module not in _table() and "=" not in rest.partition(":")[0] else ""


@functools.cache
def _table() -> dict[str, EntryPoint]:
    return entry_table("placer", GROUP, _BUILTIN)


def _load(name: str) -> Any:
    table = _table() | ({name: EntryPoint(name, name, GROUP)} if ":" in name else {})
    cls = load_entry("placer", table, name)
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls) and hasattr(cls, "place")):
        raise UsageError(f"The placer '{name}' ({table[name].value}) is not a dataclass with a method 'place'.")
    return cls
