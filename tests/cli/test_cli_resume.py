"""Resuming a search from the command line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.usefixtures("steady")


def test_a_search_is_kept_and_gone_on_with(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    options = ("-d", ",".join(cores), "--placer", "heft", "--budget", 1, "--resume", tmp_path / "search.jsonl")
    assert cli("optimize", tiny, *options, "-q").exit_code == 0
    known = {json.loads(line)["name"] for line in (tmp_path / "search.jsonl").read_text().splitlines()[1:]}
    assert known >= set(cores)
    result = cli("optimize", tiny, *options, "--json")
    assert result.exit_code == 0, result.stderr
    assert {candidate["name"] for candidate in json.loads(result.stdout)["candidates"]} >= known


def test_the_file_is_no_other_input(cli: Any, tiny: Path) -> None:
    before = tiny.read_bytes()
    result = cli("optimize", tiny, "--resume", tiny)
    assert result.exit_code == 1
    assert "not a file that a search can be resumed from" in result.stderr
    assert tiny.read_bytes() == before


def test_a_policy_is_kept_beside_the_file(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    options = ("-d", ",".join(cores), "--placer", "heft", "--policy", "doppler", "--resume", tmp_path / "search.jsonl")
    result = cli("optimize", tiny, *options, "--budget", 60, "--json")
    assert result.exit_code == 0, result.stderr
    (part,) = [one for one in json.loads(result.stdout)["spending"] if one["what"].startswith("policy")]
    kept = tmp_path / "search.jsonl.doppler.safetensors"
    assert kept.exists() or part["note"].startswith("not asked: ")
    assert cli("optimize", tiny, "--policy", "dopler").exit_code == 2


@pytest.mark.parametrize("budget", ["0", "-1"])
def test_a_budget_that_is_not_positive_is_refused(cli: Any, tiny: Path, budget: str) -> None:
    result = cli("optimize", tiny, "--budget", budget)
    assert result.exit_code == 2
    assert "must be positive" in result.stderr
