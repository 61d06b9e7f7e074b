import json
from pathlib import Path
from typing import Any

import pytest

from placeit.core.problem import Problem


@pytest.mark.parametrize("kind", ["random", "single", "multi", "churn", "recurrent", "sensor-fusion"])
def test_problems_of_every_kind_are_written_with_an_index(cli: Any, kind: str) -> None:
    result = cli("generate", kind, "--count", 2, "--seed", 4, "--output", "out", "--json")
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    index = json.loads(Path("out/index.json").read_text())
    split = None if kind in ("random", "churn") else "train"
    assert (said["kind"], said["split"], said["seed"], said["output"]) == (kind, split, 4, "out")
    assert (index["format"], index["kind"], index["seed"]) == ("placeit-problems", kind, 4)
    assert len(index["problems"]) == 2
    for listed in index["problems"]:
        problem = Problem.from_json(Path("out") / listed["file"])
        size = {"ops": len(problem), "edges": len(problem.edges), "devices": problem.devices}
        assert listed == {"file": listed["file"], **size, "parameters": listed["parameters"]}
        assert listed["parameters"]
    assert said["problems"] == 2
    for key in ("ops", "edges", "devices"):
        sizes = [problem[key] for problem in index["problems"]]
        assert said[key] == {"least": min(sizes), "most": max(sizes)}


def test_problems_of_every_kind_can_be_mixed(cli: Any) -> None:
    assert cli("generate", "any", "-n", 4, "-o", "out").exit_code == 0
    assert len({Problem.from_json(path).key for path in Path("out").glob("any-*.json")}) == 4


def test_people_read_how_large_the_problems_are(cli: Any) -> None:
    result = cli("generate", "recurrent", "-n", 2, "-o", "out")
    assert result.stdout.splitlines()[0] == "written  2 problems and index.json to out"
    assert "ops      40" in result.stdout
    assert "devices  8" in result.stdout


def test_the_same_seed_writes_the_same_files_and_the_test_split_others(cli: Any) -> None:
    for folder, more in (("a", []), ("b", []), ("c", ["--split", "test"])):
        assert cli("generate", "multi", "-n", 2, "--seed", 1, "-o", folder, *more).exit_code == 0
    texts = [[path.read_text() for path in sorted(Path(folder).glob("multi-*.json"))] for folder in "abc"]
    assert texts[0] == texts[1]
    assert not set(texts[0]) & set(texts[2])


def test_parameters_are_taken_from_the_command_line(cli: Any) -> None:
    options = ["--graph", "tasks=4,5", "--graph", "alpha=0.5", "--network", "devices=3", "--max-tasks", "9"]
    assert cli("generate", "random", "-n", 12, "-o", "out", *options).exit_code == 0
    index = json.loads(Path("out/index.json").read_text())["problems"]
    assert {problem["parameters"]["graph"]["tasks"] for problem in index} == {4, 5}
    assert {problem["parameters"]["graph"]["alpha"] for problem in index} == {0.5}
    assert {problem["devices"] for problem in index} == {3}
    assert max(problem["ops"] for problem in index) <= 9


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (
            ["everything"],
            2,
            "no data set 'everything'; the data sets are any, churn, multi, random, recurrent, sensor-fusion, single",
        ),
        (["any", "--split", "test"], 2, "'any' have no --split"),
        (["random", "--count", "0"], 2, "'--count'"),
        (["random", "--seed", "-1"], 2, "'--seed'"),
        (["random", "--max-tasks", "2"], 2, "'--max-tasks'"),
        (["random", "--split", "test"], 2, "'random' have no --split; take another --seed"),
        (["recurrent", "--graph", "tasks=5"], 2, "'recurrent' take no --graph"),
        (["sensor-fusion", "--max-tasks", "5"], 2, "'sensor-fusion' take no --graph"),
        (["random", "--graph", "tasks"], 2, "Cannot read --graph 'tasks'; write NAME=VALUES"),
        (["random", "--network", "devices=few"], 2, "Cannot read --network 'devices=few'"),
        (["random", "--graph", "alpha=1", "--graph", "alpha=2"], 2, "--graph names 'alpha' twice"),
        (["random", "--graph", "depth=3"], 2, "has no parameter 'depth'; its parameters are tasks"),
        (["random", "--network", "devices=2.5"], 2, "'devices' of DeviceNetworkParameters must be a whole number"),
        (["random", "--network", "support=nan"], 2, "'support' of DeviceNetworkParameters must be a number"),
        (["random", "--graph", "hardware_types=9"], 1, "generate both with the same 'hardware_types'"),
        (["churn", "--network", "devices=6"], 2, "cannot shrink to 2 devices"),
        (["multi", "--count", "1201", "--graph", "tasks=1", "--network", "devices=2"], 2, "only 1200 problems"),
    ],
)
def test_what_makes_no_sense_is_an_error_and_writes_nothing(cli: Any, arguments: list[str], code: int, said: str) -> None:
    result = cli("generate", *arguments, "--output", "out")
    assert result.exit_code == code
    assert said in " ".join(result.stderr.split())
    assert result.stdout == ""
    assert not Path("out").exists()


def test_a_folder_that_holds_something_is_left_alone(cli: Any) -> None:
    assert cli("generate", "random", "-n", 1, "-o", "out").exit_code == 0
    before = {path.name: path.read_text() for path in Path("out").iterdir()}
    result = cli("generate", "random", "-n", 1, "--seed", 1, "-o", "out")
    assert result.exit_code == 1
    assert "The folder out is not empty" in result.stderr
    assert {path.name: path.read_text() for path in Path("out").iterdir()} == before
