"""Checks what ``--json`` prints, and the recordings that it names, against the schemas that ship."""

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from placeit.report.schemas import schemas

__all__ = ["check_printed", "check_schema"]


def check_schema(value: Any, name: str) -> None:
    """Check a value against a schema, by its identity. Raises jsonschema.ValidationError."""
    Draft202012Validator(schemas()[name]).validate(value)


def check_printed(text: str) -> Any:
    """Check what a command has printed, and return it."""
    printed = json.loads(text)
    check_schema(printed, printed["schema"])
    recording = printed.get("recording_file")
    if recording is not None and Path(recording).is_file():  # a device may have no end
        check_schema(json.loads(Path(recording).read_text(encoding="utf-8")), "placeit.recording/1")
    return printed
