"""The examples, run as a user would run them."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from examples import models
from placeit import read_cluster
from placeit.devices.host import allowed_cores
from placeit.profiler.trace import write_chrome_trace
from placeit.runtime.spans import Span
from placeit.workload.entries import Workload

ROOT = Path(__file__).parents[1]

Example = Callable[..., str]


def test_the_first_line_of_a_program_says_how_long_it_takes() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        text = path.read_text(encoding="utf-8")
        if "__main__" in text:
            assert re.search(r"takes .* minutes?|in a second|until Ctrl-C", text.partition("\n")[0]), path


class SmallVision(torch.nn.Module):
    """Scores of five classes, by two branches of convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList(
            torch.nn.Sequential(torch.nn.Conv2d(3, 8, size, stride=8), torch.nn.ReLU(), torch.nn.Conv2d(8, 5, 3))
            for size in (7, 5)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(image).mean((2, 3)) for branch in self.branches], 1) @ torch.ones(10, 5)


class SmallText(torch.nn.Module):
    """A hidden state of every token, and one of the sentence, by two layers beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = torch.stack([ids * mask, types], -1).float() / 30_000
        hidden = self.left(both).tanh() + self.right(both).tanh()
        return hidden, hidden.mean(1).tanh()


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Example:
    """Run an example in a separate process and return its output; all examples share measured costs."""
    cache = tmp_path_factory.mktemp("costs")

    def run(name: str, *arguments: str | Path) -> str:
        command = [sys.executable, "-m", f"examples.{name}", *map(str, arguments)]
        environment = os.environ | {"PLACEIT_CACHE": str(cache)}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def small_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Example:
    """Run an example in this process, with a small model of the real one's inputs and outputs; return what it printed."""
    monkeypatch.setattr(models, "build_model", lambda name, seed: SmallText() if name == "bert_base" else SmallVision())
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path))
    monkeypatch.chdir(ROOT)

    def run(name: str, *arguments: str) -> str:
        importlib.import_module(f"examples.{name}").main([*arguments])
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    ("name", "options", "answers"),
    [
        ("resnet50", ["--batch", "2"], "image 1: classes "),
        pytest.param("inception_v3", [], "image 0: classes ", marks=pytest.mark.nightly),
        pytest.param("bert_base", ["--batch", "2", "--seq", "64"], "sentence 1: 2 numbers", marks=pytest.mark.nightly),
    ],
)
def test_a_learned_placement_is_executed_checked_traced_and_raced(
    name: str, options: list[str], answers: str, small_example: Example, tmp_path: Path
) -> None:
    if not {0, 1} <= set(allowed_cores()):
        pytest.skip("needs the CPU cores 0 and 1, which the example's cluster file names")
    short = ["--placer", "heft", "--budget", "100", "--runs", "6", "--folder", str(tmp_path / "placed")]
    printed = small_example(name, *options, *short)
    assert re.search(r"^chosen: .*, (found by|a single device)", printed, re.MULTILINE)
    assert re.search(r"^policy doppler: .* measured \d+ placements?; .*learning (paid|did not pay)", printed, re.MULTILINE)
    assert re.search(r"^measured times while learning, .* ms: [▁-█]+$", printed, re.MULTILINE)
    assert raced(printed) >= {"fast", "slow", "search", "heft", "giph", "policy doppler"}
    assert traced(tmp_path) == {"giph.trace.json", "policy-doppler.trace.json"}
    assert (tmp_path / "placed" / "search.jsonl.doppler.safetensors").exists()
    assert "measured placement" in (tmp_path / "placed" / "report.html").read_text(encoding="utf-8")
    assert answers in printed


def test_a_search_without_time_to_learn_races_the_rest_and_says_how_to_go_on(small_example: Example, tmp_path: Path) -> None:
    if not {0, 1} <= set(allowed_cores()):
        pytest.skip("needs the CPU cores 0 and 1, which the example's cluster file names")
    printed = small_example(
        "resnet50", "--placer", "heft", "--budget", "0.1", "--runs", "6", "--folder", str(tmp_path / "placed")
    )
    assert "The policy measured nothing. Run again with --resume" in printed
    assert raced(printed) >= {"fast", "slow", "search", "heft", "giph"}
    assert traced(tmp_path) == {"giph.trace.json"}


def raced(printed: str) -> set[str]:
    """Return the names in the table of the race; each has right outputs."""
    rows = dict(re.findall(r"^(.{16}) +[\d.]+ ms  .*  ([\d.e+-]+|exact)$", printed, re.MULTILINE))
    assert all(float(error.replace("exact", "0")) < 1e-3 for error in rows.values())
    return {row.strip() for row in rows}


def traced(folder: Path) -> set[str]:
    return {file.name for file in (folder / "placed").glob("*.trace.json")}


def test_a_model_runs_whole_where_there_is_one_device(small_example: Example, tmp_path: Path) -> None:
    printed = small_example(
        "resnet50", "--devices", "CPU", "--placer", "heft", "--budget", "1", "--folder", str(tmp_path / "placed")
    )
    assert re.search("^chosen: (ort:)?CPU, a single device;", printed, re.MULTILINE)
    assert re.search("^policy doppler: .*; not asked: there is nothing to place$", printed, re.MULTILINE)
    assert "--resume" not in printed
    assert "image 0: classes " in printed


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "answers"),
    [("resnet50", "image 0: classes "), ("inception_v3", "image 0: classes "), ("bert_base", "sentence 0: 768 numbers")],
)
def test_a_model_of_full_size_is_placed_and_run(name: str, answers: str, example: Example, tmp_path: Path) -> None:
    printed = example(name, "--folder", tmp_path)
    assert "learning paid" in printed or "learning did not pay" in printed
    assert "chosen: " in printed
    assert answers in printed


def test_an_example_says_what_is_wrong_in_a_sentence(small_example: Example, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^There is no device 'GPU\.7' on this machine"):
        small_example("resnet50", "--devices", "GPU.7", "--folder", str(tmp_path / "placed"))


@pytest.mark.parametrize(("option", "says"), [("--pictures", "at least 1"), ("--rate", "positive and finite")])
def test_reading_no_pictures_or_none_per_second_is_refused(option: str, says: str) -> None:
    command = [sys.executable, "-m", "examples.read_text", option, "0"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_a_timeline_shows_which_devices_work_at_the_same_time(example: Example, tmp_path: Path) -> None:
    ran = [("CPU@0", 0.0, 1.0, "first"), ("CPU@0", 1.0, 3.0, "left"), ("CPU@1", 1.0, 4.0, "right")]
    spans = [Span("compute", (where,), 0, None, start, finish, name) for where, start, finish, name in ran]
    write_chrome_trace(tmp_path / "t.json", spans)
    first, second, axis, *letters = example("timeline", tmp_path / "t.json").splitlines()
    assert re.fullmatch(r"CPU@0 \|a{19}b{38} {19}\|", first)
    assert re.fullmatch(r"CPU@1 \| {19}c{57}\|", second)
    assert axis.endswith(" 4000 ms")
    assert letters == ["a first", "b left", "c right"]


def test_the_cluster_file_describes_an_emulated_pair() -> None:
    cluster = read_cluster(ROOT / "examples" / "cluster.yaml", check=False)
    assert [device.slowdown for device in cluster.devices] == [1.0, 1.5]
    assert {link.origin for link in cluster.links.values()} == {"emulated"}


@pytest.mark.slow
def test_pictures_are_read_by_three_models_in_a_row_and_none_is_lost(example: Example) -> None:
    core = f"CPU@{allowed_cores()[0]}"
    printed = example("read_text", "--devices", core, "--pictures", "5", "--rate", "20")
    for name in ("detector", "classifier", "recogniser"):
        assert f"{name} on {core}\n" in printed
    assert re.search(rf"at most \d+\.\d+ pictures per second by measured times: then {core} is always busy", printed)
    assert "5 pictures in, 5 out, 5 read as they were written" in printed
    assert "5 requests to the detector, 6 requests to the classifier, 6 requests to the recogniser" in printed
    assert re.search(r"pictures per second; latency p50 \d+ ms, p95 \d+ ms from arrival", printed)


def test_the_workload_names_the_models_that_are_exported() -> None:
    workload = Workload.load(ROOT / "examples" / "workload.yaml")
    assert {entry.model for entry in workload} == {ROOT / "examples" / "models" / f"{name}.onnx" for name in models.MODELS}
