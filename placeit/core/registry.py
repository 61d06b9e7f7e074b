"""Find built-in and plug-in entry points by name, and parse the notation ``name:option=value,option=value``."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from placeit.core.errors import UsageError
from placeit.core.extras import install
from placeit.core.nearest import nearest
from placeit.core.units import parse_duration

__all__ = ["check_options", "check_size", "entry_table", "load_entry", "parse_options"]


def check_options(what: str, name: str, options: Iterable[str], known: Collection[str]) -> None:
    """Raise UsageError, which lists the known options, if an option is unknown."""
    for option in options:
        if option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise UsageError(f"The {what} '{name}' has no option '{option}'; {has}{nearest(option, known)}.")


def check_size(what: str, name: str, option: str, value: float, low: float, high: float) -> None:
    """Check the value of an option, before anything of that size is allocated. Raises UsageError, which states the range."""
    if not low <= value <= high:
        bounds = f"at most {high:,g}" if low == -math.inf else f"from {low:,g} to {high:,g}"
        bounds = f"at least {low:,g}" if high == math.inf else bounds
        given = str(value) if abs(value) < 10**15 else "a number far beyond that"
        raise UsageError(f"The option '{option}' of the {what} '{name}' must be {bounds}; got {given}.")


def entry_table(what: str, group: str, builtin: Mapping[str, str]) -> dict[str, EntryPoint]:
    """Return the entry points of a group by name, without importing them.

    Args:
        what: the kind of thing, for messages: ``placer``.
        group: the entry-point group in which plug-ins, and placeit's own learning half, register.
        builtin: entries that always exist: ``module:attribute`` by name.

    Raises:
        UsageError: two packages use the same name.
    """
    table = {name: EntryPoint(name, target, group) for name, target in builtin.items()}
    for entry in entry_points(group=group):
        if entry.name in table:
            raise UsageError(
                f"Two {what}s are named '{entry.name}': {table[entry.name].value} and {entry.value}. Uninstall the package of "
                "one of them, or rename its entry point."
            )
        table[entry.name] = entry
    return table


def load_entry(what: str, table: Mapping[str, EntryPoint], name: str) -> Any:
    """Import the object that a name stands for.

    Raises:
        UsageError: the name does not exist, or its package cannot be imported.
    """
    if name not in table:
        raise UsageError(f"There is no {what} '{name}'; the {what}s are {', '.join(sorted(table))}{nearest(name, table)}.")
    entry = table[name]
    try:
        return entry.load()
    except Exception as error:
        by_path, missing = name == entry.value, isinstance(error, ImportError | AttributeError)
        if entry.dist is None and not by_path and not missing:
            raise  # a bug of placeit itself
        remedy = "Install or repair its package."
        if by_path:
            remedy = "Correct the name, or the module, which has to be installed or in the working directory."
        if isinstance(error, ImportError) and entry.extras:
            remedy = f"Install what it needs: {install(','.join(entry.extras), entry.dist.name if entry.dist else 'placeit')}"
        which = f"'{name}'" if by_path else f"'{name}' ({entry.module}:{entry.attr})"
        reason = f"{error}" if missing else f"{type(error).__name__}: {error}"
        raise UsageError(f"The {what} {which} cannot be loaded: {reason}. {remedy}") from error


def _items(text: str, known: Mapping[str, type]) -> list[str]:
    """Split ``option=value,option=value`` at commas, except inside a value that has options itself."""
    items: list[str] = []
    for item in text.split(","):
        if items and ":" in items[-1] and item.partition("=")[0] not in known:
            items[-1] += f",{item}"
        else:
            items.append(item)
    return items


def parse_options(what: str, text: str, types: Callable[[str], Mapping[str, type]]) -> tuple[str, dict[str, Any]]:
    """Read ``name`` or ``name:option=value,option=value``.

    A value may have options itself, as in ``policy:agent=doppler:updates=9,samples=4,state=FILE``: options that the name does
    not have belong to the value before them.

    Args:
        what: the kind of thing, for messages: ``placer``.
        text: the text.
        types: function that returns the type of each option of a name: bool, int, float or str. The value of an unknown option
            stays text; the caller refuses the option.

    Returns:
        The name, and the options.

    Raises:
        UsageError: the text has another form, or a value has another type.
    """
    name, colon, rest = text.partition(":")
    known = types(name)
    options: dict[str, Any] = {}
    for item in _items(rest, known) if colon else []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise UsageError(f"Cannot read '{item}' in the {what} '{text}'; write name:option=value,option=value.")
        if key in options:
            raise UsageError(f"The {what} '{text}' gives the option '{key}' twice.")
        options[key] = _parse_value(what, text, key, value, known[key]) if key in known else value
    return name, options


def _parse_value(what: str, text: str, key: str, value: str, kind: type) -> bool | int | float | str:
    if kind is str:
        return value
    if kind is bool and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if kind in (int, float):
        try:
            number: int | float = parse_duration(value) if key == "seconds" else kind(value)
        except (ValueError, UsageError):
            pass
        else:
            return number
    forms: dict[type, str] = {bool: "true or false", int: "a whole number", float: "a number"}
    form = forms.get(kind, f"a {kind.__name__}, which cannot be given as text")
    raise UsageError(f"The option '{key}' in the {what} '{text}' must be {form}; got '{value}'.")
