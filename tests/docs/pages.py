"""Pages of docs/ as programs: what they show is run, block by block, in the order of the page."""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from typer.testing import CliRunner

from placeit.cli import app
from placeit.devices.nodes import connection

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
USERS = ["index.md", "start.md", "when.md", "how_to.md", "troubleshooting.md", "reference/environment.md"]
PAGES = USERS + sorted(str(path.relative_to(DOCS)) for path in DOCS.glob("tutorials/*.md"))

_BLOCK = re.compile(r'^(?:<!-- ([^\n]+) -->\n)?```(\w+)(?: title="([^"\n]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
_EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]


class Block(NamedTuple):
    """A block of code of a page.

    Attributes:
        note: the comment before it: ``slow``, ``needs DEVICE``, or ``not run: REASON``; empty without one.
        kind: its language; ``python``, ``sh`` and ``console`` are run.
        title: the name of the file that it is, if it is one.
    """

    note: str
    kind: str
    title: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """Yield the blocks of a page, with a budget of a second wherever it has one, so that searches are short."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for match in _BLOCK.finditer(re.sub(r"(?<=budget[ =])\d+", "1", text)):
        yield Block(*(group or "" for group in match.groups()))


class Reader:
    """Does what a page says, in the current folder, as a reader would. Snippets of Python share their names."""

    def __init__(self) -> None:
        self.names: dict[str, Any] = {"__name__": "page"}

    def read(self, page: str, note: str = "") -> None:
        """Run the blocks of a page that have this note, or none. Raises AssertionError where it is not as shown."""
        for block in blocks(page):
            if block.note == note:
                self._do(block)

    def _do(self, block: Block) -> None:
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.kind == "python":
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(block.text, "<page>", "exec"), self.names)
        elif block.kind == "sh":
            for line in block.text.replace("\\\n", "").splitlines():
                self.command(line)
        elif block.kind == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                line, _, shown = part.partition("\n")
                self.command(line, shown)

    def command(self, line: str, shown: str = "") -> None:
        """Run a command, which has to fail only if an error is shown, and to print lines that begin as those shown do."""
        words = shlex.split(line, comments=True)
        match words[:1]:
            case ["placeit"]:
                try:
                    result = CliRunner().invoke(app, words[1:])
                finally:
                    connection.disconnect()  # as the end of a process would
                assert (result.exit_code != 0) == ("error: " in shown), f"$ {line}\n{result.output}"
                printed = result.output
            case ["python"]:
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    runpy.run_path(words[1], run_name="__main__")
                printed = output.getvalue()
            case ["cd"]:
                os.chdir(words[1])
                return
            case ["pip"]:
                asked = {name for word in words for group in re.findall(r"\[(.+)\]", word) for name in group.split(",")}
                assert asked <= _EXTRAS.keys(), line
                return
            case _:
                raise AssertionError(f"The page has a command that no test runs: {line}")
        for row in filter(None, (row.strip() for row in shown.splitlines())):
            if row.startswith("error: "):
                pattern = ".*".join(map(re.escape, row.split("...")))
            elif row == "..." or re.search(r"\d", row):  # figures, and what is chosen by them, depend on the machine
                continue
            else:
                pattern = re.escape(row.split()[0])
            assert re.search(rf"^\s*{pattern}", printed, re.MULTILINE), f"$ {line}\nprints nothing like '{row}':\n{printed}"
