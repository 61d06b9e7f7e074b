import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import placeit
from placeit.cli.commands import Commands
from tests.cli.table import ROWS, Row

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = [row.name for row in ROWS]


@pytest.mark.parametrize("command", ["placeit", *COMMANDS])
def test_help_reads_as_it_should(cli: Any, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = cli(*([] if command == "placeit" else command.split()), "--help")
    assert result.exit_code == 0
    golden = GOLDEN / f"{command.replace(' ', '_')}.txt"
    assert result.stdout == golden.read_text(encoding="utf-8"), f"to accept it: write it to {golden}"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_has_examples(cli: Any, command: str) -> None:
    text = cli(*command.split(), "--help").stdout
    assert f"  placeit {command} " in text.partition("Examples:")[2].replace("\n", " \n")


def test_without_arguments_the_help_is_shown(cli: Any) -> None:
    result = cli()
    assert "Commands:" in result.stdout + result.stderr


def test_the_version_is_the_packages_own(cli: Any) -> None:
    result = cli("--version")
    assert (result.exit_code, result.stdout) == (0, f"placeit {placeit.__version__}\n")


def test_every_command_is_in_the_table_and_has_a_golden() -> None:
    assert {name.split()[0] for name in COMMANDS} == set(Commands().list_commands(None))
    assert {path.stem for path in GOLDEN.iterdir()} == {"placeit", *(name.replace(" ", "_") for name in COMMANDS)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_wrong_command_line_exits_with_2(cli: Any, row: Row) -> None:
    for words in (row.bad.split(), ["--bogus"]):
        result = cli(*row.name.split(), *words)
        assert result.exit_code == 2
        assert "Usage:" in result.stderr
        assert result.stdout == ""
    assert row.says in cli(*row.name.split(), *row.bad.split()).stderr


def test_a_command_that_there_is_not_exits_with_2(cli: Any) -> None:
    result = cli("optimise")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Usage:" in result.stderr


def test_the_command_answers_help_without_importing_anything_heavy() -> None:
    heavy = [
        "numpy",
        "placeit._core",
        "openvino",
        "onnx",
        "torch",
        "rich",
        "ray",
        "yaml",
        "placeit.session",
        "placeit.optimizer",
    ]
    code = (
        "import json, sys\n"
        "from placeit.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit as end:\n"
        f"    print(json.dumps([end.code, [name for name in {heavy!r} if sys.modules.get(name)]]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.startswith("Usage:")
    assert json.loads(done.stdout.splitlines()[-1]) == [0, []]
