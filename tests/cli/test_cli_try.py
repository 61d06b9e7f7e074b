"""``placeit try``: the gain with a model, from one command without options, as a page to send."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.open_models import onnx_attention


@pytest.mark.usefixtures("steady")
def test_an_open_batch_is_guessed_and_the_page_says_what_was_run(cli: Any, tiny_open: Path) -> None:
    result = cli("try", tiny_open, "--budget", "2s", "--output", "page.html")
    assert result.exit_code == 0, result.stderr
    verdict, guess, *_ = result.stdout.splitlines()
    assert verdict.startswith(("You gain a factor of ", "Keep what you have if "))
    assert "x:1,3,16,16" in guess
    assert "--input-shape" in guess
    command = f"placeit try {tiny_open} --budget 2s --output page.html"
    for heading in ("hardware", "versions  placeit", f"command   {command}", "page      page.html"):
        assert heading in result.stdout
    page = Path("page.html").read_text(encoding="utf-8")
    assert verdict in page
    assert command in page
    assert Path(f"{tiny_open}.placement.json").is_file()


@pytest.mark.usefixtures("steady")
def test_an_open_sequence_is_guessed_and_told_to_scripts(cli: Any, tmp_path: Path) -> None:
    model = onnx_attention(tmp_path)
    result = cli("try", model, "--budget", "2s", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["guessed"] == {"ids": [1, 128], "mask": [1, 128]}
    assert data["page_file"] == f"{model}.try.html"
    assert data["verdict"]
    again = cli("run", model, "-p", data["placement_file"], "--runs", 1)  # the placement keeps the guess
    assert again.exit_code == 0, again.stderr


def test_sizes_that_are_given_are_not_guessed(cli: Any, tiny_open: Path) -> None:
    result = cli("try", tiny_open, "--batch", 2, "--budget", "1s", "--json", "-o", "page.html")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["guessed"] == {}


@pytest.mark.parametrize("pictures", [True, False])
@pytest.mark.parametrize(
    ("page", "code", "why"),
    [("missing/page.html", 1, "missing"), ("page.pdf", 2, "give a name that ends in .html or .htm")],
)
def test_a_page_that_cannot_be_written_is_an_error_before_anything_runs(
    cli: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch, page: str, code: int, why: str, pictures: bool
) -> None:
    if not pictures:
        monkeypatch.setattr("placeit.cli.try_model.installed", lambda extra: False)
    result = cli("try", tiny, "-o", page)
    assert (result.exit_code, result.stdout) == (code, "")
    assert why in result.stderr
