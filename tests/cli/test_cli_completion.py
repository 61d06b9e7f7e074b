"""What a shell completes, and what is suggested for a word that is misspelt."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from placeit.cli.commands import Commands
from placeit.cli.values import complete_devices, complete_objectives
from placeit.devices.host import allowed_cores
from placeit.placers import placer_names
from placeit.simulator.objectives.registry import objective_names

_HEAVY = ("openvino", "onnx", "torch", "rich.table")


def placeit(*args: str, **environment: str) -> str:
    """Run the command in a separate process, as a shell does; return what it prints."""
    code = "import sys; sys.argv[0] = 'placeit'; from placeit.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *args],
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def completed(monkeypatch: pytest.MonkeyPatch, cli: Any, line: str) -> list[str]:
    """Return what bash is offered at the end of a line."""
    words = line.split(" ")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    monkeypatch.setenv("_PLACEIT_COMPLETE", "complete_bash")
    return [*cli().stdout.split("\n")][:-1]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("placeit ", Commands().list_commands(None)),
        ("placeit opt", ["optimize"]),
        ("placeit cluster ", ["up", "down"]),
        ("placeit optimize --bud", ["--budget"]),
        ("placeit optimize --placer ", placer_names()),
        ("placeit optimize --placer he", ["heft"]),
        ("placeit optimize --objective ", objective_names()),
        ("placeit compare --objective thr", ["throughput"]),
        ("placeit train --objective en", ["energy"]),
        ("placeit optimize --precision ", ["f32", "bf16", "f16"]),
        ("placeit train hsd", ["hsdag"]),
        ("placeit run model.onnx -d CP", ["CPU", *(f"CPU@{core}" for core in allowed_cores())]),
        ("placeit run mod", [""]),  # so that the shell completes the name of a file
    ],
)
def test_names_are_completed(cli: Any, monkeypatch: pytest.MonkeyPatch, line: str, offered: list[str]) -> None:
    assert completed(monkeypatch, cli, line) == list(offered)


def test_objectives_that_are_completed_are_all_there_are() -> None:
    assert tuple(complete_objectives("")) == objective_names() == ("latency", "throughput", "total-cost", "energy")


def test_the_last_of_several_devices_is_completed() -> None:
    first = f"CPU@{allowed_cores()[0]}"
    assert complete_devices(f"{first},") == [f"{first},CPU", *(f"{first},CPU@{core}" for core in allowed_cores()[1:])]
    assert complete_devices("au") == ["auto"]
    assert complete_devices("cluster.y") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete_and_remembers_it(tmp_path: Path, shell: str) -> None:
    environment = {"HOME": str(tmp_path), "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    assert "_PLACEIT_COMPLETE" in placeit("--show-completion", shell, **environment)
    assert f"{shell} completion installed in" in placeit("--install-completion", shell, **environment)
    assert any("_PLACEIT_COMPLETE" in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_completing_imports_nothing_heavy() -> None:
    line = {"COMP_WORDS": "placeit optimize --placer he", "COMP_CWORD": "3", "_PLACEIT_COMPLETE": "complete_bash"}
    code = (
        "import sys\nfrom placeit.cli import main\nsys.argv = ['placeit']\n"
        "try:\n    main()\nexcept SystemExit:\n"
        f"    print([name for name in {_HEAVY!r} if sys.modules.get(name)])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | line, capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.split() == ["heft", "[]"]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        (["optimise"], "'optimize'"),
        (["cluster", "upp"], "'up'"),
        (["optimize", "MODEL", "--bugdet", "3"], "--budget"),
        (["optimize", "MODEL", "--placer", "HEFT"], "'heft'"),
        (["optimize", "MODEL", "--placer", "annealing:evaluation=3"], "'evaluations'"),
        (["optimize", "MODEL", "--objective", "trouhgput"], "'throughput'"),
        (["compare", "MODEL", "--objective", "latancy"], "'latency'"),
        (["optimize", "MODEL", "--precision", "fp16"], "'f16'"),
        (["run", "MODEL", "-d", "CPUU"], "'CPU'"),
        (["run", "MODEL", "-d", "gpu"], "'GPU'"),
        (["run", "MODEL", "-d", "gpu0"], "'GPU.0'"),
        (["run", "MODEL", "-d", "cuda0"], "'cuda:0'"),
        (["run", "MODEL", "-d", "CPU", "--rate", "1", "--arrivals", "poison"], "'poisson'"),
        (["generate", "radnom", "-o", "x"], "'random'"),
        (["train", "gihp", "--problems", "random", "-o", "x"], "'giph'"),
        (["train", "giph", "--problems", "random", "-o", "x", "--stage", "reinforce:update=3"], "'updates'"),
        (["train", "giph", "--problems", "radnom", "-o", "x"], "'random'"),
        (["inspect", "chain-nm:shards=4"], "'chain-mm'"),
    ],
)
def test_what_was_meant_is_suggested(cli: Any, tiny: Path, line: list[str], meant: str) -> None:
    result = cli(*(str(tiny) if word == "MODEL" else word for word in line))
    assert result.exit_code in (1, 2)
    said = result.stderr.lower()
    assert "did you mean" in said or "possible options" in said
    assert meant.lower() in said.replace("possible options: ", "")
