"""What every command prints fits a terminal of 80 columns, and a pipe, whatever is asked about."""

import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.cli.commands import Commands
from placeit.cli.terminal import Output, Terminal
from placeit.devices.host import allowed_cores
from placeit.profiler.recording import write_recording
from placeit.testing.problems import random_problem
from tests.cli.conftest import make_tiny, split
from tests.report.made_recordings import a_recording

ANSI = re.compile("\x1b\\[[0-9;]*m")
PREFIX = f"/encoder/{'layer.0/' * 5}"  # of names of ops, which no table may depend on
BOXES = re.compile("[\u2500-\u257f]")

Commanded = dict[str, tuple[object, ...]]


@pytest.fixture(scope="module")
def devices() -> tuple[str, ...]:
    """Several devices, so that tables by device are wide."""
    return ("CPU", *(f"CPU@{core}" for core in allowed_cores()[:2]))


@pytest.fixture
def commands(cli: Any, devices: Sequence[str]) -> Commanded:
    """Arguments of every command, with files in the folder that it runs in: longer names than the line do not fit."""
    model = make_tiny(Path("model.onnx"), batch=1, prefix=PREFIX)
    first = split(model, devices, Path("first.json"), prefix=PREFIX)
    shutil.copy(first, "second.json")
    write_recording(Path("run.json"), a_recording(10))
    Path("problems").mkdir()
    random_problem(5, 3, 0).to_json("problems/p.json")
    on = ("-d", ",".join(devices))
    boards = [
        f"{name}: {{runs_on: CPU@{core}, busy_power: 9 W, idle_power: 1 W}}"
        for name, core in zip("ab", allowed_cores()[:2], strict=False)
    ]
    Path("boards.yaml").write_text(f"devices: {{{', '.join(boards)}}}\n")
    return {
        "demo": ("--budget", "1s"),
        "devices": (),
        "inspect": (model, "--groups"),
        "estimate": (model, *on),
        "profile": (model, *on),
        "optimize": (model, "-d", "boards.yaml", "--budget", "2s", "--pareto", "-o", "found.json"),
        "run": (model, "-p", first, "--runs", 2, "--trace", "trace.json"),
        "compare": (model, "-p", first, "--runs", 2, *on),
        "explain": (model, "-p", first, *on),
        "diff": (model, first, "second.json", "--measure", "--runs", 2, *on),
        "report": ("run.json", "-o", "report.html"),
        "export": (model, "-p", first, "-o", "hetero.xml", *(f"--map={device}=CPU" for device in devices)),
        "build": (model, "-p", first, "-o", "model.placeit"),
        "generate": ("random", "-o", "more", "-n", 1),
        "cluster": ("down",),
        "schema": (),
        "train": ("placeto:devices=3,rounds=1", "--problems", "problems", "--held-out", 0, "--updates", 1, "-o", "weights"),
    }


@pytest.fixture
def shown(cli: Any, commands: Commanded, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Callable[..., str]]:
    """Run a command, and return what prints its result: in a pipe, or on a terminal that is that wide."""

    def result_of(name: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
        outputs: list[Output] = []
        with monkeypatch.context() as patch:
            patch.setattr(Terminal, "print", lambda self, output, *, err: outputs.append(output))
            for one in ("profile", name) if name == "estimate" else (name,):
                ran = cli(one, *commands[one])
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


def test_every_command_is_tried(commands: Commanded) -> None:
    assert commands.keys() | {"serve"} == set(Commands().list_commands(None))  # which ends when it is told to


@pytest.mark.parametrize(
    "name",
    [
        *("demo", "devices", "inspect", "profile", "estimate", "optimize", "run", "compare", "explain", "diff"),
        *("report", "export", "build", "generate", "cluster", "schema", "train"),
    ],
)
def test_no_line_is_longer_than_80_columns_and_no_box_is_broken(
    shown: Callable[..., Callable[..., str]], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = shown(name, capsys)
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
    if name not in ("devices", "inspect", "explain", "schema"):
        assert answer.count("\n") == 1
