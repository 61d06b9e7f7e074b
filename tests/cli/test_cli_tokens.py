"""``placeit optimize --objective tokens``: texts of a decoder that are generated at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from placeit.profiler.recording import read_recording
from tests.schema_check import check_schema
from tests.small_texts import write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


@pytest.mark.two_cores
def test_on_the_command_line_the_file_generates_texts(cli: Any, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    asked = ("optimize", folder, "--context", 32, "--texts", 2, "-d", "CPU@0,CPU@1", "--objective", "tokens", "-o", path)
    said = json.loads(cli(*asked, "--budget", "1s", "--json").stdout)
    check_schema(said, "placeit.tokens/1")
    assert (said["texts"], said["prompt_tokens"]) == (2, 16)
    assert {one["placement"] for one in said["settings"]} >= {"CPU"}  # as its runtime uses it by itself
    assert said["chosen"] in [one["name"] for one in said["settings"] if one["tokens_per_s"] is not None]
    page, recording = tmp_path / "p.html", tmp_path / "run.json"
    shown = cli(*asked, "--budget", "1s", "--no-cache", "--page", page, "--record", recording)
    assert shown.exit_code == 0
    assert read_recording(recording).tuning["texts"] == 2
    text = page.read_text(encoding="utf-8")
    assert "2 texts are generated at once, each with a prompt of 16 tokens" in text
    assert 'class="marked"' in text  # the chosen settings
    assert f"page {page}" in " ".join(shown.stdout.split())
    assert "2 at once, with prompts of 16 tokens" in shown.stdout
    assert "placeit generate-text" in shown.stdout
    text = json.loads(cli("generate-text", folder, "Once", "-p", path, "--tokens", 5, "--json").stdout)
    assert text["tokens"] == 5


@pytest.mark.two_cores
def test_a_search_starts_from_a_placement_and_resumes_from_measured_steps(cli: Any, folder: Path, tmp_path: Path) -> None:
    asked = ("optimize", folder, "--context", 32, "--texts", 2, "-d", "CPU@0,CPU@1", "--budget", "1s", "--no-cache", "--json")
    first, steps = tmp_path / "first.json", tmp_path / "steps.jsonl"
    asked = (*asked, "--placer", "heft")
    assert cli(*asked, "--objective", "tokens", "-o", first, "--resume", steps).exit_code == 0
    runs = steps.read_bytes()
    again = cli(*asked, "--objective", "tokens", "-o", tmp_path / "p.json", "--resume", steps, "--start", first)
    assert again.exit_code == 0
    assert json.loads(again.stdout)["chosen"]
    assert steps.read_bytes().startswith(runs)
    other = cli(*asked, "-o", tmp_path / "p.json", "--resume", steps)  # a search for the time of a single text
    assert other.exit_code == 2
    assert "steps.jsonl" in " ".join(other.stderr.split())
    unread = cli(*asked, "--objective", "tokens", "--start", steps)
    assert unread.exit_code == 1
    assert "steps.jsonl" in " ".join(unread.stderr.split())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--policy", "hsdag"], "--policy is not for the objective 'tokens'"),
        (["--in-flight", 2], "--in-flight is not for the objective 'tokens'"),
        (["--live"], "--live is not for the objective 'tokens'"),
    ],
)
def test_options_of_other_objectives_are_refused(cli: Any, folder: Path, more: list[Any], message: str) -> None:
    refused = cli("optimize", folder, "--context", 32, "--objective", "tokens", *more)
    assert refused.exit_code == 2
    assert message in " ".join(refused.stderr.split())


def test_a_model_without_a_context_is_told_how_to_have_one(cli: Any, tiny: Path) -> None:
    refused = cli("optimize", tiny, "-d", "CPU@0", "--objective", "tokens")
    assert refused.exit_code == 2
    assert "--context" in refused.stderr
