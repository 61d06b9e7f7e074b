"""What ``--json`` prints has a schema, which scripts rely on; the fixture ``cli`` checks it in all tests of commands."""

import copy
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator, ValidationError

from placeit.profiler.recording import write_recording
from placeit.report.schemas import schemas
from tests.cli.table import ROWS, made, words
from tests.recorded_run import RECORDING
from tests.schema_check import check_schema

OTHERS = {"placeit.benchmark/1", "placeit.recording/1", "placeit.tokens/1", "placeit.workload/1"}
"""Schemas of other programs, files and inputs, some of which other tests check (benchmark_smoke, cli_tokens, cli_workload)."""


@pytest.mark.usefixtures("steady")
def test_every_command_prints_what_its_schema_says(cli: Any, tiny: Path, placement: Path, cores: Sequence[str]) -> None:
    stand_for = made(Path(), tiny, placement, cores)
    for row in sorted(ROWS, key=lambda row: bool(row.before)):
        if not row.elsewhere:
            result = cli(*words(row, stand_for), "--json")
            assert result.exit_code == 0, result.stderr
            assert json.loads(result.stdout)["schema"] == f"placeit.{row.name.replace(' ', '.')}/1"
    assert schemas().keys() == {f"placeit.{row.name.replace(' ', '.')}/1" for row in ROWS} | OTHERS


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
