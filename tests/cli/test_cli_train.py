import csv
import json
from pathlib import Path
from typing import Any

import pytest

from placeit.placers.learned.checkpoint import load_agent, read_checkpoint
from placeit.testing.problems import random_problem

AGENT = "placeto:devices=3,rounds=1"
SHORT = ("--stage", "reinforce:updates=4,problems=1,evaluate_every=2")


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    """Five small problems."""
    folder = tmp_path / "problems"
    folder.mkdir()
    for seed in range(5):
        random_problem(5, 3, seed).to_json(folder / f"p{seed}.json")
    return folder


@pytest.fixture
def train(cli: Any, problems: Path) -> Any:
    """Call ``placeit train`` on the small problems."""
    return lambda *args, agent=AGENT: cli("train", agent, "--problems", problems, "-o", "out.safetensors", *args)


def test_training_writes_a_checkpoint_that_loads(train: Any) -> None:
    result = train(*SHORT, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["agent"], data["config"]) == ("placeto", {"devices": 3, "rounds": 1})
    assert (data["problems"]["learned_from"], data["problems"]["held_out"]) == (4, 1)
    assert data["updates"] == 4
    assert data["evaluation"]["best"] <= data["evaluation"]["before"]
    assert data["checkpoint"] == "out.safetensors"
    assert load_agent("out.safetensors").config == data["config"]
    about = read_checkpoint("out.safetensors").about
    assert about["evaluation"] == data["evaluation"]["best"]
    assert about["stages"] == data["stages"]


def test_what_is_evaluated_on_can_be_a_folder_of_its_own(train: Any, problems: Path) -> None:
    data = json.loads(train(*SHORT, "--evaluate-on", problems, "--json").stdout)
    assert (data["problems"]["learned_from"], data["problems"]["held_out"]) == (5, 5)


def test_the_table_says_what_was_learned_and_how_well(train: Any, problems: Path) -> None:
    text = train(*SHORT, "--stage", "reinforce:updates=1,problems=2").stdout
    assert "1 reinforce" in text
    assert "2 reinforce" in text
    assert f"problems  {problems}: 4 to learn from, 1 held out" in text
    assert "unit      critical path" in text
    assert "mean of the problems held out" in text
    assert "weights   out.safetensors" in text


def test_without_stages_the_agent_s_own_are_taken_and_updates_say_how_long(train: Any) -> None:
    data = json.loads(train("--updates", "2", "--json").stdout)
    assert data["updates"] == 2


def test_the_same_seed_gives_the_same_file(train: Any) -> None:
    def content(seed: int) -> bytes:
        assert train(*SHORT, "--seed", seed).exit_code == 0
        return Path("out.safetensors").read_bytes()

    assert content(1) == content(1)
    assert content(1) != content(2)


def test_a_training_is_kept_in_a_folder_and_can_be_resumed(train: Any) -> None:
    assert train(*SHORT, "--folder", "run").exit_code == 0
    first = Path("out.safetensors").read_bytes()
    with Path("run/log.csv").open(newline="") as file:
        assert [row["update"] for row in csv.DictReader(file)] == ["0", "1", "2", "3", "4"]
    refused = train(*SHORT, "--folder", "run")
    assert refused.exit_code == 2
    assert "run holds the state of a training already" in refused.stderr
    resumed = train(*SHORT, "--folder", "run", "--resume")
    assert resumed.exit_code == 0, resumed.stderr
    assert Path("out.safetensors").read_bytes() == first
    other = train(*SHORT, "--folder", "run", "--resume", "--seed", "3")
    assert other.exit_code == 2
    assert "seed is 0 there and 3 here" in other.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--resume",), "--resume needs --folder"),
        (("--tensorboard",), "--tensorboard needs --folder"),
        (("--stage", "reinforce:speed=3"), "has no option 'speed'"),
        (("--stage", "reinforce:updates=1", "--stage", "dreaming"), "'dreaming'"),
        (("--held-out", "5"), "it needs 6 at least"),
        (("--held-out", "1", "--evaluate-on", "."), "either --held-out or --evaluate-on"),
        (("--evaluate-on", "nowhere"), "no problems 'nowhere'"),
    ],
)
def test_what_cannot_be_trained_is_an_error_in_a_sentence(train: Any, args: tuple[str, ...], message: str) -> None:
    result = train(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("out.safetensors").exists()


def test_an_unknown_agent_or_source_is_an_error_that_lists_the_known_ones(cli: Any, train: Any) -> None:
    assert "the agents are giph, hdp, placeto" in train(agent="girafe").stderr
    result = cli("train", AGENT, "--problems", "multiple", "-o", "out.safetensors")
    assert result.exit_code == 2
    assert "no problems 'multiple'" in result.stderr


def test_where_weights_cannot_be_written_is_noticed_before_any_work(cli: Any, problems: Path) -> None:
    result = cli("train", AGENT, "--problems", problems, "-o", "nowhere/out.safetensors")
    assert result.exit_code == 1
    assert "Cannot write nowhere/out.safetensors" in result.stderr


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("edges", [[0, 1], [2]]),
        ("edge_tensor", [[0], 1]),
        ("compute", [[10**399, 1, 1]]),
        ("ops", 3),
        ("ops", [["a"], "b"]),
        ("devices", [None, 1, 2]),
    ],
)
def test_a_problem_file_that_holds_other_things_is_an_error_that_names_it(
    train: Any, problems: Path, key: str, value: object
) -> None:
    file = problems / "p0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    result = train(*SHORT)
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {file}: '{key}' ")
    assert len(result.stderr.splitlines()) == 1
