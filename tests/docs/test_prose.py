"""Docstrings, comments, messages and pages do without the phrases that CONTRIBUTING.md retires."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

FOLDERS = ("placeit", "benchmarks", "examples", "tests", "tools", "native", "docs")
_CODE = re.compile(r"```.*?^ *```$|``[^`]*``|`[^`]*`", re.DOTALL | re.MULTILINE)
_LIST = re.compile(r"^Retired phrases: (.*?)\n\n", re.DOTALL | re.MULTILINE)


def retired() -> re.Pattern[str]:
    """Return what matches a retired phrase, also where a line ends in the middle of it."""
    found = _LIST.search((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert found is not None
    phrases = re.findall(r"`([^`]+)`", found[1])
    assert len(phrases) > 10
    choices = [f"[{phrase[0].upper()}{phrase[0]}]{phrase[1:]}" for phrase in sorted(phrases, key=len, reverse=True)]
    return re.compile(rf"\b(?:{'|'.join(choices)})\b".replace(" ", r"[\s#/]+"))


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield texts of a file, and the number of the first line of each, with code blanked."""
    text = path.read_text(encoding="utf-8")
    texts = [(1, text)]
    if path.suffix == ".py":
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        texts = [(one.start[0], one.string) for one in tokens if _is_read(one, path)]
    for line, one in texts:
        yield line, _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), one)


def _is_read(token: tokenize.TokenInfo, path: Path) -> bool:
    """Return whether a token is a comment, a docstring or a message; strings of tests are data."""
    if token.type == tokenize.STRING and path.is_relative_to(ROOT / "tests"):
        return token.string.startswith('"""')
    return token.type == tokenize.COMMENT or (token.type == tokenize.STRING and " " in token.string)


def files(folder: str) -> list[Path]:
    """Return the files of a folder that are written by hand."""
    found = [path for suffix in ("py", "hpp", "cpp", "md") for path in (ROOT / folder).rglob(f"*.{suffix}")]
    return [path for path in found if not {"results", "generated", "__pycache__"} & set(path.parts)]


@pytest.mark.parametrize("folder", [*FOLDERS, "README.md", "CONTRIBUTING.md"])
def test_no_retired_phrase_is_used(folder: str) -> None:
    pattern, place = retired(), ROOT / folder
    found = []
    for path in files(folder) if place.is_dir() else [place]:
        for line, text in prose(path):
            found += [
                f"{path.relative_to(ROOT)}:{line + text.count(chr(10), 0, phrase.start())}: {phrase[0]!r}"
                for phrase in pattern.finditer(text)
            ]
    assert not found, "Say what each of these stands for:\n" + "\n".join(found)
