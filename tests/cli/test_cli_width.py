"""What every command prints fits a terminal of 80 columns, and a pipe, whatever is asked about."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.cli.terminal import Output, Terminal
from placeit.devices.host import allowed_cores
from tests.cli.conftest import make_tiny, split
from tests.cli.table import ROWS, Row, Words, made, words

ANSI = re.compile("\x1b\\[[0-9;]*m")
PREFIX = f"/encoder/{'layer.0/' * 5}"  # of names of ops, which no table may depend on
BOXES = re.compile("[\u2500-\u257f]")


@pytest.fixture(scope="module")
def devices() -> tuple[str, ...]:
    """Several devices, so that tables by device are wide."""
    return ("CPU", *(f"CPU@{core}" for core in allowed_cores()[:2]))


@pytest.fixture
def stand_for(cli: Any, devices: Sequence[str]) -> Words:
    """Write the files of examples to the folder that commands run in: longer names than the line do not fit."""
    model = make_tiny(Path("model.onnx"), batch=1, prefix=PREFIX)
    return made(Path(), model, split(model, devices, Path("first.json"), prefix=PREFIX), devices)


@pytest.fixture
def shown(cli: Any, stand_for: Words, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[..., str]]:
    """Run a command, and return what prints its result: in a pipe, or on a terminal that is that wide."""

    def result_of(row: Row, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
        outputs: list[Output] = []
        with monkeypatch.context() as patch:
            patch.setattr(Terminal, "print", lambda self, output, *, err: outputs.append(output))
            for one in (*(other for other in ROWS if other.name == row.before), row):
                ran = cli(*words(one, stand_for))
                assert ran.exit_code == 0, ran.stderr

        def text(columns: int | None, *, terminal: bool = False, **options: bool) -> str:
            with monkeypatch.context() as patch:
                patch.delenv("COLUMNS") if columns is None else patch.setenv("COLUMNS", str(columns))
                patch.setenv("FORCE_COLOR", "1" if terminal else "")
                capsys.readouterr()
                Terminal(**options).print(outputs[-1])
                return ANSI.sub("", capsys.readouterr().out)

        return text

    return result_of


@pytest.mark.parametrize("row", [row for row in ROWS if not row.elsewhere], ids=lambda row: row.name)
def test_no_line_is_longer_than_80_columns_and_no_box_is_broken(
    shown: Callable[..., Callable[..., str]], capsys: pytest.CaptureFixture[str], row: Row
) -> None:
    text = shown(row, capsys)
    piped, terminal, wide = text(None), text(80, terminal=True), text(None, wide=True)
    for one in (piped, terminal):
        assert one
        assert [line for line in one.splitlines() if len(line) > 80] == []
    assert not BOXES.search(piped)
    rules = [line for line in terminal.splitlines() if BOXES.search(line)]
    assert all(re.fullmatch("\u2500+", rule) for rule in rules)
    assert len(rules) <= len(piped.splitlines())
    assert "--wide shows" not in wide
    answer = text(None, quiet=True)
    if not row.silent:
        assert answer.count("\n") == 1
