import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.broken_executors import NO_ROOM, broken, devices_of


def test_placements_race_against_every_single_device(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], singles: Sequence[str], tmp_path: Path
) -> None:
    other = Path(shutil.copy(placement, tmp_path / "other.json"))
    result = cli("compare", tiny, "-p", placement, "-p", other, "-d", ",".join(cores), "--runs", 8, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    candidates = {candidate["name"]: candidate for candidate in data["candidates"]}
    assert set(candidates) == {*singles, str(placement), str(other)}
    assert data["rounds"] == 8
    times = [candidate["measured_s"] for candidate in data["candidates"]]
    assert times == sorted(times)
    for name, candidate in candidates.items():
        assert candidate["placement_file"] == (None if name in singles else name)
        assert set(candidate["speedup_over"]) == set(singles)
        low, high = candidate["ci_s"]
        assert low <= candidate["measured_s"] <= high
        assert candidate["output_error"]["max_rel"] < 1e-5
        assert sum(candidate["devices"].values()) == 8
    assert candidates[cores[0]]["speedup_over"][cores[0]]["ratio"] == 1


def test_the_table_has_a_speed_up_for_each_single_device(cli: Any, tiny: Path, placement: Path, cores: Sequence[str]) -> None:
    result = cli("compare", tiny, "-p", placement, "--runs", 7)
    assert result.exit_code == 0, result.stderr
    for core in cores:
        assert f"speed-up over {core}" in result.stdout
    assert str(placement) in result.stdout


def test_the_same_file_twice_is_a_usage_error(cli: Any, tiny: Path, placement: Path) -> None:
    result = cli("compare", tiny, "-p", placement, "-p", placement)
    assert result.exit_code == 2
    assert "twice" in result.stderr


@pytest.mark.parametrize("stage", ["opening", "race", "wrong"])
@pytest.mark.two_cores
def test_what_fails_is_a_row_with_its_reason_and_the_others_are_compared(
    cli: Any,
    tiny: Path,
    placement: Path,
    cores: Sequence[str],
    singles: Sequence[str],
    monkeypatch: pytest.MonkeyPatch,
    stage: str,
) -> None:
    broken(monkeypatch, stage, lambda plan: len(devices_of(plan)) > 1)
    command = ("compare", tiny, "-p", placement, "-d", ",".join(cores), "--runs", 7)
    result = cli(*command, "--json")
    assert result.exit_code == 1, result.stderr
    *others, failed = json.loads(result.stdout)["candidates"]
    assert failed["name"] == str(placement)
    reason = {"opening": NO_ROOM, "race": "fell silent.", "wrong": "Its outputs are wrong: they are off by 1.0e-02"}[stage]
    assert reason in failed["failed"]
    assert failed["measured_s"] is None
    assert failed["speedup_over"] == dict.fromkeys(singles)
    assert (failed["output_error"] is None) == (stage == "opening")
    assert {single["name"] for single in others} == set(singles)
    for single in others:
        assert single["failed"] is None
        assert single["speedup_over"][cores[0]]["ratio"] > 0
    table = cli(*command)
    assert table.exit_code == 1
    _, why = (line for line in table.stdout.splitlines() if line.startswith(str(placement)))
    assert why.startswith(f"{placement}: ")
    assert reason in why


def test_if_everything_fails_that_is_an_error_with_all_reasons(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "opening", lambda plan: True)
    result = cli("compare", tiny, "-p", placement, "-d", ",".join(cores), "--runs", 7)
    assert result.exit_code == 1
    for name in (*cores, placement):
        assert f"{name}: {NO_ROOM}" in result.stderr
