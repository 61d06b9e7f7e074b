"""JSON Schemas (draft 2020-12) of ``--json`` output and of recordings, generated from ``schemas.yaml``."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
            fields = {name.rstrip("~-"): (name, of) for name, of in form.items()}
            return {
                "type": "object",
                "properties": {
                    field: _or_null(_schema(of)) if name.endswith("~") else _schema(of) for field, (name, of) in fields.items()
                },
                "required": [field for field, (name, _) in fields.items() if not name.endswith("-")],
                "additionalProperties": False,
            }
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


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema:
        return schema | {"enum": [*schema["enum"], None]}
    return schema | {"type": [schema["type"], "null"]} if "type" in schema else schema
