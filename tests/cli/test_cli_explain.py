"""``placeit explain`` and ``placeit diff``, on described devices unless something is raced."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from placeit.profiler.recording import write_recording
from tests.broken_executors import broken, devices_of
from tests.recorded_run import RECORDING

NAMES = ("a", "b")


@pytest.fixture
def described(tmp_path: Path) -> Path:
    """A file of two devices that exist in simulation only."""
    path = tmp_path / "cluster.yaml"
    device = "{flops: 1 GFLOP/s, memory_bandwidth: 1 GB/s}"
    links = ", ".join(f"{{from: {a}, to: {b}, bandwidth: 1 GB/s, latency: 10 us}}" for a, b in (NAMES, NAMES[::-1]))
    path.write_text(f"devices: {{a: {device}, b: {device}}}\nlinks: [{links}]\n", encoding="utf-8")
    return path


@pytest.fixture
def halves(place_on: Callable[[Sequence[str]], Path]) -> Path:
    return place_on(NAMES)


@pytest.fixture
def whole(place_on: Callable[[Sequence[str]], Path], halves: Path, tmp_path: Path) -> Path:
    """The same with the left branch on the first device, too."""
    data = json.loads(halves.read_text(encoding="utf-8"))
    data["ops"] = dict.fromkeys(data["ops"], "a")
    path = tmp_path / "whole.json"
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_an_op_is_explained_without_measuring(cli: Any, tiny: Path, halves: Path, described: Path) -> None:
    command = ("explain", tiny, "-p", halves, "-d", described, "--op", "left")
    result = cli(*command, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    (one,) = found["ops"]
    assert (found["profiled"], one["op"], one["device"]) == (None, "left", "b")
    assert {crossing["way"]: (crossing["src"], crossing["dst"]) for crossing in one["transfers"]} == {
        "in": ("a", "b"),
        "out": ("b", "a"),
    }
    assert {(move["what"], move["device"]) for move in one["moves"]} == {("group", "a"), ("segment", "a")}
    table = cli(*command).stdout
    for words in ("left (Convolution) on b", "b (here)", "moving the segment", "unknown: the placement file does not say"):
        assert words in table


def test_without_an_op_the_worst_groups_are_explained(cli: Any, tiny: Path, halves: Path, described: Path) -> None:
    result = cli("explain", tiny, "-p", halves, "-d", described, "--worst", 2, "--json")
    assert result.exit_code == 0, result.stderr
    assert len(json.loads(result.stdout)["ops"]) == 2


def test_what_cannot_be_explained_is_said(cli: Any, tiny: Path, halves: Path, described: Path) -> None:
    command = ("explain", tiny, "-p", halves, "-d", described)
    unknown = cli(*command, "--op", "lefd")
    assert (unknown.exit_code, "did you mean 'left'" in unknown.stderr) == (2, True)
    both = cli(*command, "--op", "left", "--worst", 3)
    assert (both.exit_code, "either --op or --worst" in both.stderr) == (2, True)


def test_moves_between_placements_are_listed(cli: Any, tiny: Path, halves: Path, whole: Path, described: Path) -> None:
    result = cli("diff", tiny, halves, whole, "-d", described, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    (move,) = found["moved"]
    assert ("left" in move["ops"], move["src"], move["dst"]) == (True, "b", "a")
    first, second = found["placements"]
    assert move["change_s"] == found["change_s"] == second["replanned_s"] - first["replanned_s"]
    assert (first["name"], second["name"], found["measured"]) == (str(halves), str(whole), None)
    assert "all together" in cli("diff", tiny, halves, whole, "-d", described).stdout


def test_equal_placements_are_said_to_be_equal(cli: Any, tiny: Path, halves: Path, described: Path, tmp_path: Path) -> None:
    same = shutil.copy(halves, tmp_path / "same.json")
    result = cli("diff", tiny, halves, same, "-d", described)
    assert result.exit_code == 0, result.stderr
    assert "Both have all ops on the same devices, and the same segments." in result.stdout


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--measure",), "exist in simulation only"),
        (("--runs", 3), "--runs is about a race"),
        (("--measure", "--runs", 3, "--duration", 1), "either --runs or --duration"),
    ],
)
def test_a_race_that_cannot_be_is_a_usage_error(
    cli: Any, tiny: Path, halves: Path, whole: Path, described: Path, more: tuple[object, ...], said: str
) -> None:
    result = cli("diff", tiny, halves, whole, "-d", described, *more)
    assert (result.exit_code, said in result.stderr) == (2, True), result.stderr


def test_one_file_is_not_raced_against_itself(cli: Any, tiny: Path, halves: Path, described: Path) -> None:
    result = cli("diff", tiny, halves, halves, "-d", described, "--measure")
    assert (result.exit_code, "given twice" in result.stderr) == (2, True)


@pytest.mark.two_cores
def test_a_placement_on_the_whole_cpu_is_not_told_apart_from_one_on_core_sets(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    plain = tmp_path / "plain.json"
    data = json.loads(placement.read_text(encoding="utf-8"))
    plain.write_text(json.dumps(data | {"devices": ["CPU"], "ops": dict.fromkeys(data["ops"], "CPU")}), encoding="utf-8")
    result = cli("diff", tiny, placement, plain, "-d", ",".join(cores))
    assert (result.exit_code, f"{plain} has the whole model on CPU" in result.stderr) == (2, True), result.stderr


def test_both_placements_are_raced_if_asked_for(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    other = shutil.copy(placement, tmp_path / "other.json")
    command = ("diff", tiny, placement, other, "-d", ",".join(cores), "--measure", "--runs", 6)
    result = cli(*command, "--json")
    assert result.exit_code == 0, result.stderr
    measured = json.loads(result.stdout)["measured"]
    assert [one["name"] for one in measured["placements"]] == [str(placement), str(other)]
    assert all(one["measured_s"] > 0 for one in measured["placements"])
    assert measured["rounds"] == 6
    assert measured["speedup"]["ratio"] > 0


@pytest.mark.two_cores
def test_a_placement_that_fails_in_the_race_is_said_to(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch, "opening", lambda plan: len(devices_of(plan)) > 1)
    other = shutil.copy(placement, tmp_path / "other.json")
    command = ("diff", tiny, placement, other, "-d", ",".join(cores), "--measure", "--runs", 6)
    result = cli(*command, "--json")
    assert result.exit_code == 1, result.stderr
    measured = json.loads(result.stdout)["measured"]
    assert measured["speedup"] is None
    assert all(one["failed"] for one in measured["placements"])
    table = cli(*command)
    assert table.exit_code == 1, table.stderr


def test_described_devices_are_not_estimated_from_a_history(cli: Any, tiny: Path, described: Path) -> None:
    result = cli("estimate", tiny, "-d", described)
    assert result.exit_code == 1
    assert "exists in simulation only" in result.stderr


def test_the_story_of_a_search_is_shown_from_its_recording(cli: Any, tiny: Path, described: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    result = cli("optimize", tiny, "-d", described, "--placer", "heft", "-o", tmp_path / "p.json", "--record", run, "--json")
    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout)["chosen"]["name"]
    shown = cli("explain", run, "--search").stdout
    lines = shown.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")][:5] == ["load", "profile", "bound", "enter", "propose"]
    assert f"{answer}: chosen; " in " ".join(shown.split())
    said = json.loads(cli("explain", run, "--search", "--json").stdout)
    assert said["events"][-1]["what"] == "chosen"
    assert {one["candidate"] for one in said["events"] if one["what"] == "proposed"} == said["states"].keys()


def test_a_recording_without_a_story_says_so(cli: Any, tiny: Path, tmp_path: Path) -> None:
    for search, says in (({"objective": "latency"}, "has no story"), (None, "of a run, not of a search")):
        write_recording(tmp_path / "run.json", replace(RECORDING, search=search))
        assert says in " ".join(cli("explain", tmp_path / "run.json", "--search").stdout.split())
    assert "Give the placement to explain" in cli("explain", tiny).stderr
    assert "leave out --placement" in cli("explain", tiny, "--search", "-p", "p.json").stderr
