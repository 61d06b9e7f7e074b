"""The fields of ``--json`` are those of docs/json.md, for scripts that rely on them."""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.profiler.recording import write_recording
from tests.report.made_recordings import a_recording

PAGE = (Path(__file__).parents[2] / "docs/json.md").read_text(encoding="utf-8")
DOCUMENTED = {name: json.loads(block) for name, block in re.findall(r"## placeit (\w+)\n.*?```json\n(.*?)```", PAGE, re.DOTALL)}


def differences(found: Any, documented: Any, where: str = "") -> list[str]:
    """Fields that one of the two lacks; what is null has none."""
    if isinstance(documented, dict) and found is not None:
        assert isinstance(found, dict), where
        if "NAME" in documented:
            return [text for name in found for text in differences(found[name], documented["NAME"], f"{where}.NAME")]
        missing = [f"{where}.{name}" for name in found.keys() ^ documented.keys()]
        common = found.keys() & documented.keys()
        return missing + [text for name in common for text in differences(found[name], documented[name], f"{where}.{name}")]
    if isinstance(documented, list) and found is not None:
        assert isinstance(found, list), where
        return [text for one in found for text in differences(one, documented[0], f"{where}[]")]
    assert found is None or not isinstance(found, dict | list), where
    return []


def candidates_written_out(documented: dict[str, Any]) -> dict[str, Any]:
    one = documented["chosen"]
    ratio = {"ratio": "number", "ratio_ci": ["low", "high"]}
    reference = one | ratio | {"target": "what OpenVINO compiled for", "used": ["device"]}
    lists = {"candidates": [one], "precisions": [one | ratio | {"of": "name"}], "references": [reference]}
    return documented | lists | {"best_single": one}


def references_written_out(documented: dict[str, Any]) -> dict[str, Any]:
    """Of ``placeit compare``."""
    return documented | {"references": [documented["candidates"][0] | {"used": ["device"], "not_run": "text"}]}


@pytest.fixture
def commands(tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path) -> dict[str, tuple[object, ...]]:
    recording = tmp_path / "run.json"
    write_recording(recording, a_recording(10))
    devices = ("-d", ",".join(cores))
    other = shutil.copy(placement, tmp_path / "other.json")
    return {
        "devices": (),
        "inspect": (tiny, "--groups"),
        "estimate": (tiny, *devices),
        "profile": (tiny, *devices),
        "optimize": (tiny, *devices, "--budget", 2, "--placer", "heft", "--compare-precisions", "-o", "p.json"),
        "run": (tiny, "-p", placement, "--runs", 2),
        "build": (tiny, "-p", placement, "-o", "app.placeit"),
        "compare": (tiny, "-p", placement, "--runs", 6, *devices),
        "explain": (tiny, "-p", placement, *devices),
        "diff": (tiny, placement, other, "--measure", "--runs", 6, *devices),
        "report": (recording, "-o", "report.html"),
        "export": (tiny, "-p", placement, "-o", "hetero.xml", *(f"--map={core}=CPU" for core in cores)),
    }


@pytest.mark.parametrize("command", [command for command in DOCUMENTED if command != "serve"])
def test_the_fields_are_the_documented_ones(cli: Any, commands: dict[str, tuple[object, ...]], command: str) -> None:
    if command == "estimate":
        assert cli("profile", *commands["profile"]).exit_code == 0
    result = cli(command, *commands[command], "--json")
    assert result.exit_code == 0, result.stderr
    documented = DOCUMENTED[command]
    if command == "optimize":
        documented = candidates_written_out(documented)
    assert differences(json.loads(result.stdout), documented) == []


def test_every_command_that_is_tested_is_documented(commands: dict[str, tuple[object, ...]]) -> None:
    assert commands.keys() | {"serve"} == DOCUMENTED.keys()  # which test_cli_serve.py has end


def test_a_field_that_is_missing_or_new_is_noticed() -> None:
    assert differences({"a": [{"b": 1}], "d": None}, {"a": [{"b": "x", "c": "y"}], "d": {"e": "z"}}) == [".a[].c"]
    found = differences({"a": 1, "b": {"x": {"y": 1}}}, {"b": {"NAME": {"z": "q"}}})
    assert set(found) == {".a", ".b.NAME.y", ".b.NAME.z"}
