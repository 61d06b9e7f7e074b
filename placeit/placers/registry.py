"""Placers by name: the ones that ship with placeit and the ones that plug-ins declare as ``placeit.placers`` entry points."""

from __future__ import annotations

import dataclasses
import functools
import typing
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from placeit.errors import UsageError
from placeit.placers.base import Placer

__all__ = ["GROUP", "PlacerOption", "get_placer", "parse_placer", "placer_names", "placer_options"]

GROUP = "placeit.placers"
"""The entry-point group in which a plug-in names its placers."""

_BUILTIN = {
    "annealing": "placeit.placers.annealing:Annealing",
    "cp-sat": "placeit.placers.cp_sat:CpSat",
    "cpop": "placeit.placers.cpop:Cpop",
    "critical-path": "placeit.placers.critical_path:CriticalPath",
    "exact": "placeit.placers.exact:Exact",
    "hdp": "placeit.placers.learned.hdp:Hdp",
    "heft": "placeit.placers.heft:Heft",
    "local-search": "placeit.placers.local_search:LocalSearch",
    "metis": "placeit.placers.metis:Metis",
    "placeto": "placeit.placers.learned.placeto:Placeto",
    "random": "placeit.placers.random_search:RandomSearch",
    "random-task-eft": "placeit.placers.random_task_eft:RandomTaskEft",
    "single": "placeit.placers.single:Single",
}


@dataclass(frozen=True)
class PlacerOption:
    """An option of a placer, as the command line shows it.

    Attributes:
        name: the field's name.
        type: ``bool``, ``int``, ``float`` or ``str``.
        default: value if it is not given.
        help: what it does.
    """

    name: str
    type: type
    default: Any
    help: str


def placer_names() -> tuple[str, ...]:
    """Names of all placers, sorted; nothing is imported.

    Raises:
        UsageError: two packages use the same name.
    """
    return tuple(sorted(_table()))


def placer_options(name: str) -> tuple[PlacerOption, ...]:
    """Options of a placer, in the order in which it declares them.

    Raises:
        UsageError: there is no such placer, or its package cannot be imported.
    """
    cls = _load(name)
    hints = typing.get_type_hints(cls)
    return tuple(
        PlacerOption(field.name, hints[field.name], field.default, field.metadata.get("help", ""))
        for field in dataclasses.fields(cls)
    )


def get_placer(name: str, **options: Any) -> Placer:
    """Make a placer.

    Args:
        name: one of :func:`placer_names`.
        **options: its options; what is left out keeps its default.

    Raises:
        UsageError: there is no such placer, it has no such option, or the option has another type.
    """
    known = {option.name: option for option in placer_options(name)}
    for key, value in options.items():
        if key not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise UsageError(f"The placer '{name}' has no option '{key}'; {has}.")
        wanted = known[key].type
        # a whole number will do as a float; a bool will not do as a number
        accepted = (float, int) if wanted is float else wanted
        if not isinstance(value, accepted) or (isinstance(value, bool) and wanted is not bool):
            raise UsageError(f"The option '{key}' of the placer '{name}' is of type {wanted.__name__}; got {value!r}.")
    placer: Placer = _load(name)(**options)
    return placer


def parse_placer(text: str) -> Placer:
    """Make a placer from ``name`` or ``name:key=value,key=value``, the form that the command line takes.

    Raises:
        UsageError: the text has another form, or as for :func:`get_placer`.
    """
    name, colon, rest = text.partition(":")
    known = {option.name: option for option in placer_options(name)}
    options: dict[str, Any] = {}
    for item in rest.split(",") if colon else []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageError(f"Cannot read '{item}' in the placer '{text}'; write name:option=value,option=value.")
        if key in options:
            raise UsageError(f"The placer '{text}' gives the option '{key}' twice.")
        options[key] = _parse_value(text, key, value, known[key].type) if key in known else value
    return get_placer(name, **options)


def _parse_value(text: str, key: str, value: str, wanted: type) -> bool | int | float | str:
    if wanted is str:
        return value
    if wanted is bool and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if wanted in (int, float):
        try:
            number: int | float = wanted(value)
        except ValueError:
            pass
        else:
            return number
    forms: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
    form = forms.get(wanted, f"a {wanted.__name__}, which cannot be given as text")
    raise UsageError(f"The option '{key}' in the placer '{text}' must be {form}; got '{value}'.")


@functools.cache
def _table() -> dict[str, EntryPoint]:
    table = {name: EntryPoint(name, target, GROUP) for name, target in _BUILTIN.items()}
    for entry in entry_points(group=GROUP):
        if entry.name in table:
            raise UsageError(
                f"Two placers are named '{entry.name}': {table[entry.name].value} and {entry.value}. Uninstall the package of "
                "one of them, or rename its entry point."
            )
        table[entry.name] = entry
    return table


def _load(name: str) -> Any:
    table = _table()
    if name not in table:
        raise UsageError(f"There is no placer '{name}'; the placers are {', '.join(sorted(table))}.")
    try:
        cls = table[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"The placer '{name}' ({table[name].value}) cannot be loaded: {error}. Install or repair its package."
        ) from error
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls) and hasattr(cls, "place")):
        raise UsageError(f"The placer '{name}' ({table[name].value}) is not a dataclass with a method 'place'.")
    return cls
