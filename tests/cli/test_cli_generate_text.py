"""``placeit generate-text``, and ``placeit serve`` of a folder with a decoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.schema_check import check_schema
from tests.small_texts import write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("model"))


def test_the_text_is_printed_alone_on_standard_output(cli: Any, folder: Path) -> None:
    asked = ("generate-text", folder, "Once", "-d", "CPU@0", "--context", 64, "--tokens", 20)
    said = json.loads(cli(*asked, "--json").stdout)
    check_schema(said, "placeit.generate-text/1")
    assert (said["prompt_tokens"], said["tokens"], said["end"]) == (4, 20, "length")
    shown = cli(*asked).stdout
    assert len(shown) == len(said["text"]) + 1
    assert all(wanted in (char, "?") or char == "?" for char, wanted in zip(shown, said["text"], strict=False))


def test_a_message_is_answered_and_the_answer_drawn_by_a_seed(cli: Any, folder: Path) -> None:
    asked = ("generate-text", folder, "Hi", "-d", "CPU@0", "--context", 64, "--tokens", 8, "--json", "--chat")
    one, other = (json.loads(cli(*asked, "--temperature", 1, "--seed", 5).stdout) for _ in range(2))
    assert one["text"] == other["text"]
    assert one["prompt_tokens"] == len("<user>Hi<assistant>")


def test_wishes_that_cannot_be_met_are_refused_in_a_sentence(cli: Any, folder: Path, tmp_path: Path) -> None:
    asked = ("generate-text", folder, "Once", "-d", "CPU@0")
    assert "--context 1024" in " ".join(cli(*asked).stderr.split())
    assert "has a context of 8" in " ".join(cli(*asked, "--context", 8, "--tokens", 9).stderr.split())
    assert "top-p is 2" in cli(*asked, "--context", 8, "--top-p", 2).stderr
    (tmp_path / "openvino_model.xml").write_bytes((folder / "openvino_model.xml").read_bytes())
    (tmp_path / "openvino_model.bin").write_bytes((folder / "openvino_model.bin").read_bytes())
    missing = cli("generate-text", tmp_path, "Once", "-d", "CPU@0", "--context", 8)
    assert "tokenizer.json" in missing.stderr
