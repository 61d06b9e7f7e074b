"""Pins and memory limits on the command line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from placeit.core.placement import Placement


@pytest.mark.two_cores
def test_the_answer_to_pins_that_split_groups_runs(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    first, second = cores
    options = ("--placer", "heft", "--budget", 1, "-o", tmp_path / "p.json", "--json")
    pins = ("--pin", f"left={first}", "--pin", f"left_relu={second}")
    result = cli("optimize", tiny, "-d", ",".join(cores), *pins, *options)
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["graph"]["groups"] == 5
    assert data["pins"] == {"left": first, "left_relu": second}
    placed = Placement.load(tmp_path / "p.json").as_dict()
    assert (placed["left"], placed["left_relu"]) == (first, second)
    result = cli("run", tiny, "-p", tmp_path / "p.json", "--runs", 2)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize(
    ("pin", "says"),
    [("lft*={0}", "matches no op; there are ops such as 'left'"), ("left", "Cannot read --pin 'left'")],
)
def test_a_pin_that_fits_nothing_is_an_error(cli: Any, tiny: Path, cores: Sequence[str], pin: str, says: str) -> None:
    result = cli("optimize", tiny, "-d", cores[0], "--pin", pin.format(cores[0]))
    assert result.exit_code == 2
    assert says in result.stderr


def test_memory_limits_are_in_the_answer_and_an_impossible_one_is_explained(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    result = cli("optimize", tiny, "-d", cores[0], "--memory", f"{cores[0]}=1MB", "--placer", "heft", "--budget", 1, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["memory_limits"] == {cores[0]: 1e6}
    result = cli("optimize", tiny, "-d", cores[0], "--memory", f"{cores[0]}=1kB", "--placer", "heft", "--budget", 1)
    assert result.exit_code == 1
    assert f"the devices may hold {cores[0]} 1 kB" in result.stderr


@pytest.mark.usefixtures("steady")
def test_an_answer_is_a_start_of_the_next_search(cli: Any, tiny: Path, placement: Path, cores: Sequence[str]) -> None:
    options = ("-d", ",".join(cores), "--placer", "heft", "--budget", 1)
    result = cli("optimize", tiny, *options, "--start", placement, "--json")
    assert result.exit_code == 0, result.stderr
    placers = [candidate["placer"] for candidate in json.loads(result.stdout)["candidates"]]
    assert ("start" in placers) == (len(cores) > 1)
    result = cli("optimize", tiny, *options, "--start", placement, "-o", placement)
    assert result.exit_code == 2
    assert "named twice" in result.stderr
