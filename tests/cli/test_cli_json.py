"""What ``--json`` prints has a schema, which scripts rely on; the fixture ``cli`` checks it in all tests of commands."""

import copy
import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from placeit.profiler.recording import write_recording
from placeit.report.schemas import schemas
from tests.recorded_run import RECORDING
from tests.report.made_recordings import a_recording
from tests.schema_check import check_schema

FILES = {"placeit.benchmark/1", "placeit.recording/1"}
"""Schemas of other programs and files; tests/benchmarks/test_benchmark_smoke.py checks the benchmarks' schema."""
ELSEWHERE = {"placeit.cluster.up/1", "placeit.cluster.down/1", "placeit.serve/1", "placeit.train/1"}
"""Commands that take long: tests/cli/test_cli_cluster.py, test_cli_serve.py and test_cli_train.py call them."""


@pytest.fixture
def commands(tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path) -> dict[str, tuple[object, ...]]:
    recording = tmp_path / "run.json"
    write_recording(recording, a_recording(10))
    devices = ("-d", ",".join(cores))
    other = shutil.copy(placement, tmp_path / "other.json")
    return {
        "demo": ("--budget", "1s"),
        "devices": (),
        "inspect": (tiny, "--groups"),
        "profile": (tiny, *devices),
        "estimate": (tiny, *devices),
        "optimize": (tiny, *devices, "--budget", 2, "--placer", "heft", "--compare-precisions", "-o", "p.json"),
        "run": (tiny, "-p", placement, "--runs", 2),
        "build": (tiny, "-p", placement, "-o", "app.placeit"),
        "compare": (tiny, "-p", placement, "--runs", 6, *devices),
        "explain": (tiny, "-p", placement, *devices),
        "diff": (tiny, placement, other, "--measure", "--runs", 6, *devices),
        "report": (recording, "-o", "report.html"),
        "export": (tiny, "-p", placement, "-o", "hetero.xml", *(f"--map={core}=CPU" for core in cores)),
        "generate": ("random", "-n", 1, "-o", "problems"),
        "schema": ("optimize",),
    }


@pytest.mark.usefixtures("steady")
def test_every_command_prints_what_its_schema_says(cli: Any, commands: dict[str, tuple[object, ...]]) -> None:
    for command, words in commands.items():
        result = cli(command, *words, "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["schema"] == f"placeit.{command}/1"
    assert schemas().keys() == {f"placeit.{name}/1" for name in commands} | FILES | ELSEWHERE


def test_a_schema_is_printed_alone_and_all_of_them_are_listed(cli: Any) -> None:
    assert cli("schema").stdout.split() == list(schemas())
    assert json.loads(cli("schema", "cluster.down").stdout) == schemas()["placeit.cluster.down/1"]
    refused = cli("schema", "optimise")
    assert refused.exit_code == 2
    assert "no schema of 'optimise'; there are devices, inspect" in refused.stderr


def objects(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        if "properties" in schema:
            yield schema
        for value in schema.values():
            yield from objects(value)
    elif isinstance(schema, list):
        for value in schema:
            yield from objects(value)


@pytest.mark.parametrize("name", list(schemas()))
def test_schemas_are_valid_and_strict(name: str) -> None:
    Draft202012Validator.check_schema(schemas()[name])
    for one in objects(schemas()[name]):
        assert one["additionalProperties"] is False
        assert set(one["properties"]) - set(one["required"]) <= {"points", "part", "placement_file", "recording_file"}


def test_a_recording_with_something_in_each_list_is_as_its_schema_says(tmp_path: Path) -> None:
    write_recording(tmp_path / "run.json", replace(RECORDING, costs=None, search=None))
    written = json.loads((tmp_path / "run.json").read_text())
    check_schema(written, "placeit.recording/1")
    for change in ({"new": 1}, {"flops": "many"}):
        changed = copy.deepcopy(written)
        changed["graph"]["ops"][0].update(change)
        with pytest.raises(ValidationError):
            check_schema(changed, "placeit.recording/1")
