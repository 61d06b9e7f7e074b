"""``placeit report``: a recorded run as a page."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placeit.core import extras
from placeit.profiler.recording import write_recording
from tests.report.made_recordings import a_recording, a_search


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    write_recording(path, replace(a_recording(), search=a_search()))
    return path


def test_a_recording_becomes_one_file_that_may_load_no_other(cli: Any, recording: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = cli("report", recording, "-o", page, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout) == {"schema": "placeit.report/1", "recording": str(recording), "output": str(page)}
    text = page.read_text(encoding="utf-8")
    assert "annealing is chosen" in text
    assert "default-src 'none'" in text
    assert page.stat().st_size < 5e6


def test_a_page_has_the_name_of_its_recording_if_it_is_given_none(cli: Any, recording: Path) -> None:
    result = cli("report", recording)
    assert result.exit_code == 0, result.stderr
    assert recording.with_suffix(".html").is_file()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[: len(text) // 2], "is not valid JSON"),
        (lambda text: text.replace('"version": 1', '"version": 99'), "has version 99"),
        (lambda text: text.replace('"kind":"compute"', '"kind":"compile"', 1), "'spans[0].kind' must be one of"),
        (lambda text: "{}", "is not a placeit-recording file"),
    ],
    ids=["cut short", "of another version", "edited", "another file"],
)
def test_a_recording_that_is_damaged_is_an_error_that_names_the_field(
    cli: Any, recording: Path, tmp_path: Path, damage: Any, said: str
) -> None:
    recording.write_text(damage(recording.read_text(encoding="utf-8")), encoding="utf-8")
    page = tmp_path / "page.html"
    result = cli("report", recording, "-o", page)
    assert result.exit_code == 1
    assert said in result.stderr
    assert not page.exists()


def test_a_page_is_html_and_no_other_kind_of_file(cli: Any, recording: Path) -> None:
    result = cli("report", recording, "-o", "page.pdf")
    assert (result.exit_code, Path("page.pdf").exists()) == (2, False)
    assert "give a name that ends in .html or .htm" in result.stderr


def test_a_folder_that_is_missing_is_an_error(cli: Any, recording: Path, tmp_path: Path) -> None:
    result = cli("report", recording, "-o", tmp_path / "none" / "page.html")
    assert result.exit_code == 1
    assert "Cannot write" in result.stderr


def test_a_full_disk_is_an_error_and_leaves_nothing(cli: Any, recording: Path) -> None:
    result = cli("report", recording, "-o", "/dev/full")
    assert result.exit_code == 1
    assert "No space left" in result.stderr


def test_without_bokeh_the_command_says_what_to_install_before_it_reads_anything(
    cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "installed", lambda module: module != "bokeh")
    result = cli("report", tmp_path / "none.json")
    assert result.exit_code == 2
    assert "The report page needs Bokeh, which is not installed: pip install 'placeit[report]'" in result.stderr
