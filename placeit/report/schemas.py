"""JSON Schemas (draft 2020-12) of ``--json`` output and of recordings.

They are generated from ``schemas.yaml``, which names the dataclasses that are written as JSON, and describes the other fields.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
import types
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

__all__ = ["identity", "schemas"]

_TYPES = {"text": "string", "integer": "integer", "number": "number", "flag": "boolean"}


def identity(name: str) -> str | None:
    """Return the value of ``schema`` in a command's JSON, such as ``placeit.optimize/1``; None if it has no schema.

    Args:
        name: name of the command; ``group.command`` for a command in a group.
    """
    found = re.search(rf"^{re.escape(name)}/\d+(?=:)", _text(), re.MULTILINE)
    return found and f"placeit.{found[0]}"


@functools.cache
def schemas() -> Mapping[str, dict[str, Any]]:
    """Return all schemas, by identity; each is self-contained."""
    import yaml

    forms = yaml.safe_load(_text())
    del forms["shared"]
    return {f"placeit.{name}": _document(f"placeit.{name}", form) for name, form in forms.items()}


@functools.cache
def _text() -> str:
    return Path(__file__).with_name("schemas.yaml").read_text(encoding="utf-8")


def _document(title: str, form: Any) -> dict[str, Any]:
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title}
    if isinstance(form, list):
        return head | {"oneOf": [_output(title, one) for one in form]}
    if "format" in form:  # a file, which states its format instead of a schema
        return head | _schema(form)
    return head | _output(title, form)


def _output(title: str, form: Mapping[str, Any]) -> dict[str, Any]:
    return _schema({"schema": title, **form})


def _schema(form: Any) -> dict[str, Any]:
    match form:
        case {"NAME": of} if len(form) == 1:
            return {"type": "object", "additionalProperties": _schema(of)}
        case {"NAME~": of}:
            return {"type": "object", "additionalProperties": _or_null(_schema(of))}
        case dict():
            properties: dict[str, Any] = {}
            for name, of in form.items():
                if name == "FIELDS":
                    properties |= _of_type(_named(of))["properties"]
                else:
                    properties[name.rstrip("~-")] = _or_null(_schema(of)) if name.endswith("~") else _schema(of)
            return _object(properties, {name.rstrip("-") for name in form if name.endswith("-")})
        case [of]:
            return {"type": "array", "items": _schema(of)}
        case list():
            return {"type": "array", "prefixItems": [_schema(of) for of in form], "items": False, "minItems": len(form)}
    kind, _, text = form.partition(" ")
    found: dict[str, Any]
    if kind == "interval":
        found = {"type": "array", "items": {"type": ["number", "null"]}, "minItems": 2, "maxItems": 2}
    elif kind == "any":
        found = {}
    elif "|" in kind:
        found = {"enum": kind.split("|")}
    else:
        found = {"const": kind} if kind.startswith("placeit") else {"type": _TYPES[kind]}
    return found | ({"description": text} if text else {})


def _object(properties: Mapping[str, Any], optional: Collection[str] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _named(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _of_type(kind: Any) -> dict[str, Any]:
    """Return the schema of a type. For a dataclass, it has the descriptions of attributes from the docstring."""
    origin, of = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        (some,) = (one for one in of if one is not type(None))
        return _or_null(_of_type(some))
    if origin is Literal:
        return {"enum": list(of)}
    if origin in (Mapping, dict):
        return {"type": "object", "additionalProperties": _of_type(of[1])}
    if origin is tuple and of[-1] is not Ellipsis:
        return {"type": "array", "prefixItems": [_of_type(one) for one in of], "items": False, "minItems": len(of)}
    if origin is not None:  # a list of any length
        return {"type": "array", "items": _of_type(of[0])}
    if is_dataclass(kind):
        hints, described = get_type_hints(kind), _descriptions(kind)
        properties = {field.name: _of_type(hints[field.name]) | described.get(field.name, {}) for field in fields(kind)}
        return _object(properties)
    return {} if kind is Any else {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}


def _descriptions(kind: Any) -> dict[str, dict[str, str]]:
    """Return the descriptions of a dataclass's attributes, from its docstring."""
    text = inspect.getdoc(kind) or ""
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", text.partition("Attributes:")[2], re.MULTILINE)
    plain = {
        name: re.sub(r":\w+:`[~.]*([^`]*)`|``|\s+", lambda at: at[1] or " " * at[0].isspace(), words) for name, words in found
    }
    return {name: {"description": re.sub(r"\bNone\b", "null", words).rstrip(".")} for name, words in plain.items()}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    return schema | {"type": [schema["type"], "null"]} if "type" in schema else schema
