"""Tables of the documentation name what the code has: variables of the environment, exit codes, errors."""

import ast
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import placeit
from placeit import errors
from placeit.cli import command
from placeit.core.interrupts import INTERRUPTED
from tests.docs.pages import DOCS

MODULES = [ast.parse(path.read_text(encoding="utf-8")) for path in Path(placeit.__file__).parent.rglob("*.py")]
NODES = [node for tree in MODULES for node in ast.walk(tree)]
TEXTS = {node.value for node in NODES if isinstance(node, ast.Constant) and isinstance(node.value, str)}
ENVIRONMENT = (DOCS / "reference/environment.md").read_text(encoding="utf-8")
TROUBLE = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")


def asked() -> Iterator[str]:
    """Yield the texts with which the package asks ``environ`` or ``getenv``."""
    for node in NODES:
        match node:
            case (
                ast.Call(func=ast.Attribute(value=ast.Attribute(attr="environ")), args=[ast.Constant(str(name)), *_])
                | ast.Call(func=ast.Attribute(attr="getenv"), args=[ast.Constant(str(name)), *_])
                | ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(str(name)))
                | ast.Compare(left=ast.Constant(str(name)), comparators=[ast.Attribute(attr="environ")])
            ):
                yield name


def test_each_variable_of_the_environment_that_the_code_names_is_described() -> None:
    named = set(asked())
    assert {"PLACEIT_CACHE", "XDG_STATE_HOME"} <= named
    named |= {text for text in TEXTS if re.fullmatch(r"(PLACEIT|RAY|XDG|ORT|OMP|CUDA|TORCH)_[A-Z_]+", text)}
    assert {name for name in named if f"`{name}`" not in ENVIRONMENT} == set()


def test_each_exit_code_is_described() -> None:
    raised = {getattr(errors, name).exit_code for name in errors.__all__}
    ends = {128 + signal.SIGTERM, 128 + signal.SIGHUP}
    described = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", ENVIRONMENT, re.MULTILINE) for code in row.split(",")}
    assert described == {0, *raised, *ends, command.BUG, command.FAILED, command.BROKEN_PIPE, INTERRUPTED}


def test_each_error_is_explained_by_messages_that_the_code_has() -> None:
    assert {name for name in errors.__all__ if not re.search(rf"\b{name}\b", TROUBLE)} == set()
    messages = re.findall(r"^\| `(.+?)` \|", TROUBLE, re.MULTILINE)
    assert len(messages) > 30
    parts = {part for message in messages for part in message.split("...") if part.strip(" '") and part != "No such command"}
    assert {part for part in parts if not any(part in text for text in TEXTS)} == set()
