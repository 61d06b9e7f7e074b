"""The example that generates text, on a decoder of two layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.decoder import TINY, write_decoder
from examples.generate_text import main

SHORT = ["--prompt", "5", "--tokens", "6", "--texts", "3", "--budget", "5"]


@pytest.mark.two_cores
@pytest.mark.parametrize("file", ["decoder.xml", "decoder.onnx"])
@pytest.mark.parametrize(
    "how",
    [["--halves"], ["--measure", "text"], pytest.param(["--measure", "many"], marks=pytest.mark.slow)],
    ids=["halves", "text", "many"],
)
def test_tokens_are_those_of_the_uncut_model(
    tmp_path: Path, file: str, how: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(write_decoder(TINY, tmp_path / file)), *SHORT, *how]) == 0
    printed, progress = capsys.readouterr()
    assert progress == ""  # it is not a terminal
    assert "tokens: the same as uncut" in printed
    assert "3 at once" in printed


def test_a_file_that_is_not_a_model_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "decoder.xml").write_text("<net/>")
    assert main([str(tmp_path / "decoder.xml"), *SHORT]) == 1
    assert "error: " in capsys.readouterr().err
