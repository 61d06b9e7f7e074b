"""Prompts of texts, on the command line or in a file."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer

from placeit.core.errors import FileError, UsageError
from placeit.core.files import read_text

__all__ = ["PromptOptions"]


@dataclass(frozen=True)
class PromptOptions:
    """Prompts, and how many of them are continued at the same time."""

    HEADING: ClassVar = "Prompts"

    prompts: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="Texts to continue, or messages.")] = None
    prompts_file: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help='File with a prompt on each line, as text or as JSON ("a prompt" or {"prompt": "a prompt"}); '
            "- reads standard input.",
        ),
    ] = None
    texts: Annotated[
        int | None,
        typer.Option(
            "--texts",
            metavar="N",
            min=1,
            help="Most texts to generate at the same time; default: as many as there are prompts, up to 8.",
        ),
    ] = None
    chat: Annotated[bool, typer.Option("--chat", help="Answer each prompt as a message, by the model's chat template.")] = False

    @property
    def is_single(self) -> bool:
        """True for a single prompt on the command line, whose text is printed while it is generated."""
        return self.prompts_file is None and len(self.prompts or ()) == 1

    def read(self) -> list[str]:
        """Return the prompts. Raises UsageError or FileError."""
        if self.prompts and self.prompts_file is not None:
            raise UsageError("Prompts are given both as arguments and with --prompts: give all of them in one way.")
        if self.prompts:
            return self.prompts
        if self.prompts_file is None:
            raise UsageError("There is nothing to continue: give a prompt, or a file of prompts with --prompts.")
        if str(self.prompts_file) == "-":
            if sys.stdin is None:
                raise FileError("Cannot read standard input, since it is closed: write the prompts to it, or give a file.")
            return _prompts(read_text(Path("standard input"), sys.stdin.buffer), "Standard input", json_lines=False)
        text = read_text(self.prompts_file)
        return _prompts(text, str(self.prompts_file), json_lines=self.prompts_file.suffix == ".jsonl")


def _prompts(text: str, name: str, *, json_lines: bool) -> list[str]:
    """Return the prompts in a text: its lines, or the JSON values of the lines if the first line is JSON. Raises UsageError."""
    numbered = enumerate(text.removeprefix("\ufeff").split("\n"), 1)
    lines = {number: line.removesuffix("\r") for number, line in numbered if line.strip()}
    if not lines:
        raise UsageError(f"{name} has no prompts: write one on each line.")
    if not json_lines and not isinstance(_value(next(iter(lines.values()))), str | dict):
        return [*lines.values()]
    found = []
    for number, line in lines.items():
        value = _value(line)
        prompt = value.get("prompt") if isinstance(value, dict) else value
        if not isinstance(prompt, str):
            raise UsageError(
                f'Line {number} of {name} is not a prompt in JSON, and other lines are: write "a prompt" or '
                '{"prompt": "a prompt"} on each line.'
            )
        found.append(prompt)
    return found


def _value(line: str) -> Any:
    """Return the value of a line of JSON; None if it is not JSON."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
