import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def test_placements_race_against_every_single_device(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    other = Path(shutil.copy(placement, tmp_path / "other.json"))
    result = cli("compare", tiny, "-p", placement, "-p", other, "-d", ",".join(cores), "--runs", 8, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    candidates = {candidate["name"]: candidate for candidate in data["candidates"]}
    assert set(candidates) == {*cores, str(placement), str(other)}
    assert data["rounds"] == 8
    times = [candidate["measured_s"] for candidate in data["candidates"]]
    assert times == sorted(times)
    for name, candidate in candidates.items():
        assert candidate["placement_file"] == (None if name in cores else name)
        assert list(candidate["speedup_over"]) == list(cores)
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
