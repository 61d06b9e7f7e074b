"""``placeit generate-text``, and ``placeit serve`` of a folder with a decoder."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from placeit.cli.prompts import PromptOptions
from placeit.core.errors import FileError, UsageError
from placeit.core.interrupts import INTERRUPTED
from placeit.text.generating import TextModel
from tests.schema_check import check_schema
from tests.small_texts import failing_sampler, write_folder


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


def test_a_draft_proposes_tokens_and_the_text_is_the_same(cli: Any, tmp_path: Path) -> None:
    folder = write_folder(tmp_path, exact=True)
    asked = ("generate-text", folder, "Once", "-d", "CPU@0", "--context", 64, "--json")
    alone, drafted = (json.loads(cli(*asked, *more).stdout) for more in (["--logits", "all"], ["--draft", folder]))
    assert (alone["text"], alone["draft"]) == (drafted["text"], None)
    assert drafted["draft"]["kept"] == drafted["draft"]["proposed"] > 0
    check_schema(drafted, "placeit.generate-text/1")
    check_schema(json.loads(cli(*asked, "Twice", "--draft", folder).stdout), "placeit.generate-text/1")
    assert "place it with --logits all" in cli(*asked, "--logits", "last", "--draft", folder).stderr
    assert "give its folder with --draft" in cli(*asked, "--draft-device", "CPU@0").stderr


def test_a_message_is_answered_and_the_answer_drawn_by_a_seed(cli: Any, folder: Path) -> None:
    asked = ("generate-text", folder, "Hi", "-d", "CPU@0", "--context", 64, "--tokens", 8, "--json", "--chat")
    one, other = (json.loads(cli(*asked, "--temperature", 1, "--seed", 5).stdout) for _ in range(2))
    assert one["text"] == other["text"]
    assert one["prompt_tokens"] == len("<user>Hi<assistant>")


def test_wishes_that_cannot_be_met_are_refused_in_a_sentence(cli: Any, folder: Path, tmp_path: Path) -> None:
    asked = ("generate-text", folder, "Once", "-d", "CPU@0")
    assert "--context 1024" in " ".join(cli(*asked).stderr.split())
    assert "exceed the model's context of 8" in " ".join(cli(*asked, "--context", 8, "--tokens", 9).stderr.split())
    assert "top-p is 2" in cli(*asked, "--context", 8, "--top-p", 2).stderr
    (tmp_path / "openvino_model.xml").write_bytes((folder / "openvino_model.xml").read_bytes())
    (tmp_path / "openvino_model.bin").write_bytes((folder / "openvino_model.bin").read_bytes())
    missing = cli("generate-text", tmp_path, "Once", "-d", "CPU@0", "--context", 8)
    assert "tokenizer.json" in missing.stderr


def test_texts_of_several_prompts_are_printed_in_their_order_with_a_summary(cli: Any, folder: Path, tmp_path: Path) -> None:
    prompts, file = ["Once", "a much longer prompt", 'say "x"\n'], tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    options = ("-d", "CPU@0", "--context", 64, "--tokens", 20, "--stop", "z")
    said = json.loads(cli("generate-text", folder, "--prompts", file, "--texts", 2, *options, "--json").stdout)
    texts = said["texts"]
    assert [one["prompt"] for one in texts] == prompts
    assert (said["at_once"], said["interrupted"], said["alone"]) == (2, False, None)
    assert said["tokens"] == sum(one["tokens"] for one in texts)
    assert sum(int(rows) * runs for rows, runs in said["steps"].items()) == said["tokens"]
    shown = cli("generate-text", folder, *prompts, *options).stdout
    places = [shown.index(f"==> {number} of 3: {json.dumps(prompt)} <==\n") for number, prompt in enumerate(prompts, 1)]
    assert places == sorted(places)
    facts = dict(line.rsplit("  ", 1) for line in shown[shown.rindex("\n\n") :].split("\n") if line)
    assert facts.pop("texts            ") == "3"
    assert {name.strip() for name in facts} == {"tokens", "tokens per second", "joined steps"}
    quiet = cli("generate-text", folder, *prompts, *options, "--quiet").stdout
    assert shown.startswith(quiet)
    assert quiet.count("==>") == 3


def test_ctrl_c_prints_what_there_is_of_each_text(cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    generate = TextModel.generate_all

    def interrupted(*args: Any, **options: Any) -> Iterator[Any]:
        for place, piece in enumerate(generate(*args, **options)):
            yield piece
            if place == 5:
                raise KeyboardInterrupt

    monkeypatch.setattr(TextModel, "generate_all", interrupted)
    asked = ("generate-text", folder, "Once", "Twice", "-d", "CPU@0", "--context", 64, "--texts", 1)
    result, machine = cli(*asked), cli(*asked, "--json")
    assert (result.exit_code, machine.exit_code) == (INTERRUPTED, INTERRUPTED)
    assert '==> 1 of 2, cut short: "Once" <==\n' in result.stdout
    assert "Twice" not in result.stdout
    assert "0 of 2, ended by Ctrl-C" in result.stdout
    said = json.loads(machine.stdout)
    assert said["interrupted"]
    assert [(one["tokens"], one["end"]) for one in said["texts"]] == [(6, None), (0, None)]


def test_several_prompts_that_cannot_be_continued_are_refused_in_a_sentence(
    cli: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusal(*words: object) -> str:
        result = cli("generate-text", folder, *words, "-d", "CPU@0", "--context", 16)
        assert result.exit_code
        assert result.stdout == ""
        return " ".join(result.stderr.split())

    assert "give a prompt, or a file of prompts with --prompts" in refusal()
    assert "give all of them in one way" in refusal("Once", "--prompts", tmp_path / "none.txt")
    assert "'--texts'" in refusal("Once", "Twice", "--texts", 0)


def test_a_prompt_that_is_too_long_or_empty_is_told_and_the_others_are_continued(cli: Any, folder: Path) -> None:
    result = cli("generate-text", folder, "Once", "x" * 17, "", "Twice", "-d", "CPU@0", "--context", 16, "--tokens", 3)
    assert result.exit_code == 1
    assert "Text 2 of 4 has failed: The prompt has 17 tokens" in result.stderr
    assert "Text 3 of 4 has failed: The prompt has no tokens" in result.stderr
    assert "2 of 4, 2 failed" in result.stdout


def test_a_text_that_fails_is_told_and_the_others_are_printed(cli: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("-d", "CPU@0", "--context", 64, "--tokens", 6, "--temperature", 1, "--seed", 5)
    asked = ("generate-text", folder, "Once", "Twice", "x", *options)
    with monkeypatch.context() as changed:
        changed.setattr("placeit.text.generating.Sampler", failing_sampler(seed=6, after=3))
        result, machine = cli(*asked), cli(*asked, "--json")
    assert (result.exit_code, machine.exit_code) == (1, 1)
    assert '==> 2 of 3, cut short: "Twice" <==\n' in result.stdout
    assert '==> 3 of 3: "x" <==\n' in result.stdout
    assert "Text 2 of 3 has failed: put in" in result.stderr
    assert "2 of 3, 1 failed" in result.stdout
    said = json.loads(machine.stdout)
    check_schema(said, "placeit.generate-text/1")
    assert [(one["end"] == "error", one["error"]) for one in said["texts"]] == [(False, None), (True, "put in"), (False, None)]
    monkeypatch.setattr("placeit.serving.sequences.free_bytes", lambda: 6_000)
    result = cli(*asked, "--texts", 3)
    assert result.exit_code == 1
    assert "has no room" in result.stderr
    assert "Generate fewer texts at the same time with --texts" in result.stderr


def prompts_of(path: Path, text: str | bytes) -> list[str]:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return PromptOptions(prompts_file=path).read()


def test_prompts_are_the_lines_of_a_file_or_of_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prompts.txt"
    assert prompts_of(file, "\ufeff Once\r\n\n1\u20282\n") == [" Once", "1\u20282"]
    assert prompts_of(file, '"a\\nb"\n\n{"prompt": "c", "id": 1}\n') == ["a\nb", "c"]
    assert prompts_of(file, '17\n"a"\n') == ["17", '"a"']
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Once\nTwice")))
    assert PromptOptions(prompts_file=Path("-")).read() == ["Once", "Twice"]


def test_files_without_prompts_are_refused_with_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, lines = tmp_path / "prompts.txt", tmp_path / "prompts.jsonl"
    with pytest.raises(UsageError, match=r"prompts.txt has no prompts: write one on each line"):
        prompts_of(file, " \n\n")
    with pytest.raises(FileError, match=r"prompts.txt: it is not a text file"):
        prompts_of(file, b"Once\n\xff")
    with pytest.raises(FileError, match="No such file"):
        PromptOptions(prompts_file=tmp_path / "none.txt").read()
    for path, text, number in ((file, '"a"\n\nb\n', 3), (lines, "a\n", 1), (lines, '{"text": "a"}', 1)):
        with pytest.raises(UsageError, match=f"Line {number} of .* is not a prompt in JSON"):
            prompts_of(path, text)
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(FileError, match="standard input, since it is closed"):
        PromptOptions(prompts_file=Path("-")).read()
