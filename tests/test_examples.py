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

ROOT = Path(__file__).parents[1]

Example = Callable[..., str]


class SmallVision(torch.nn.Module):
    """Scores of five classes by the mean of each channel."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return image.mean((2, 3)) @ torch.ones(3, 5)


class SmallText(torch.nn.Module):
    """A hidden state of every token, and one of the sentence: two numbers each."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.stack([ids * mask, types], -1).float()
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


def test_a_placement_on_an_emulated_cluster_is_found_compared_and_run(small_example: Example) -> None:
    if not {0, 1} <= set(allowed_cores()):
        pytest.skip("needs the CPU cores 0 and 1, which the example's cluster file names")
    printed = small_example(
        "resnet50", "--devices", "examples/cluster.yaml", "--placer", "heft", "--budget", "1", "--learn", "3"
    )
    assert "chosen: " in printed
    assert re.search("^learning: ", printed, re.MULTILINE)
    assert "speed-up over " in printed
    assert {line.split()[0] for line in printed.splitlines() if line} >= {"search", "image"}
    assert "image 0: classes " in printed


@pytest.mark.parametrize(
    ("name", "options", "answers"),
    [
        ("resnet50", ["--batch", "2"], "image 1: classes "),
        ("inception_v3", [], "image 0: classes "),
        ("bert_base", ["--batch", "2", "--seq", "8"], "sentence 1: 2 numbers"),
    ],
)
def test_a_model_runs_whole_where_there_is_one_device(
    name: str, options: list[str], answers: str, small_example: Example
) -> None:
    printed = small_example(name, *options, "--devices", "CPU", "--placer", "heft", "--budget", "1")
    assert re.search("^chosen: (ort:)?CPU;", printed, re.MULTILINE)
    assert "learning: 0 s; not asked: there is nothing to place" in printed
    assert answers in printed


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "answers"),
    [("resnet50", "image 0: classes "), ("inception_v3", "image 0: classes "), ("bert_base", "sentence 0: 768 numbers")],
)
def test_a_model_of_full_size_is_placed_and_run(name: str, answers: str, example: Example) -> None:
    printed = example(name, "--budget", "1", "--learn", "3")
    assert "chosen: " in printed
    assert answers in printed


def test_an_example_says_what_is_wrong_in_a_sentence(small_example: Example) -> None:
    with pytest.raises(SystemExit, match=r"^There is no device 'GPU\.7' on this machine"):
        small_example("resnet50", "--devices", "GPU.7")


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
    assert re.search(rf"by that, \d+\.\d+ pictures per second at most: {core} is busy all the time then", printed)
    assert "5 pictures in, 5 out, 5 read as they were written" in printed
    assert "5 requests to the detector, 6 requests to the classifier, 6 requests to the recogniser" in printed
    assert re.search(r"pictures per second; latency p50 \d+ ms, p95 \d+ ms from arrival", printed)
