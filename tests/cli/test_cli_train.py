import csv
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.errors import ExecutionError
from placeit.learning.checkpoint import load_agent, read_checkpoint
from placeit.testing.problems import random_problem

AGENT = "placeto:devices=3,rounds=1"
DESCRIBED = """
devices:
  a: {catalog: jetson-orin-nano}
  b: {catalog: raspberry-pi-5}
links:
  - {between: [a, b], bandwidth: 1 Gbit/s, latency: 1 ms}
"""
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
    assert data["stopped"] is None
    (came_to,) = data["stage_results"]
    assert came_to == {
        "cost": "simulated",
        "before": data["evaluation"]["before"],
        "best": data["evaluation"]["best"],
        "best_at": data["evaluation"]["best_at"]["update"],
        "dropped": 0,
        "found": None,
    }


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
        (("--evaluate-on", "nowhere"), "nowhere does not exist: name a folder of problems"),
        (("--stage", "reinforce:cost=measured"), "give --model and --devices, not --problems"),
        (("--stage", "reinforce:cost=guessed"), "the cost 'guessed', and there is only: simulated."),
        (("--stage", "reinforce:seconds=0"), "'seconds' of a training stage is 0.0"),
        (("--model", "tiny.onnx"), "Give either --problems or --model"),
        (("--devices", "CPU@0"), "--devices goes with --model"),
        (("--objective", "energy"), "--objective goes with --model"),
    ],
)
def test_what_cannot_be_trained_is_an_error_in_a_sentence(train: Any, args: tuple[str, ...], message: str) -> None:
    result = train(*args)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not Path("out.safetensors").exists()


def test_an_unknown_agent_or_source_is_an_error_that_lists_the_known_ones(cli: Any, train: Any) -> None:
    assert "the agents are doppler, giph, hdp, hsdag, placeto" in train(agent="girafe").stderr
    result = cli("train", AGENT, "--problems", "multiple", "-o", "out.safetensors")
    assert result.exit_code == 2
    assert "'multiple' is neither a folder of problems nor a set of them" in result.stderr


def test_where_weights_cannot_be_written_is_noticed_before_any_work(cli: Any, problems: Path) -> None:
    result = cli("train", AGENT, "--problems", problems, "-o", "nowhere/out.safetensors")
    assert result.exit_code == 1
    assert "Cannot write nowhere/out.safetensors" in result.stderr


@pytest.fixture
def train_tiny(cli: Any, tiny: Path, cores: Sequence[str]) -> Any:
    """Call ``placeit train`` on a tiny model, on real devices."""
    on = ("--model", tiny, "--devices", ",".join(cores))
    return lambda *args: cli("train", f"placeto:devices={len(cores)},rounds=1", *on, "-o", "out.safetensors", *args)


@pytest.mark.two_cores
def test_a_model_on_devices_is_its_own_problem(train_tiny: Any, tiny: Path) -> None:
    result = train_tiny(*SHORT, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["problems"] == {"source": str(tiny), "learned_from": 1, "held_out": 0, "unit": "critical path"}
    (best,) = data["stage_results"][0]["found"]
    assert best["cost"] > 0
    assert len(best["placement"]) == 4
    assert "the model itself" in train_tiny(*SHORT).stdout


@pytest.mark.slow
def test_another_objective_is_learned_measured_and_decided_by(train_tiny: Any) -> None:
    stages = (*SHORT, "--stage", "reinforce:updates=1,problems=2,cost=measured", "--folder", "run", "--objective", "throughput")
    result = train_tiny(*stages, "--placement", "best.json", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["problems"]["unit"] == "least seconds per request"
    assert data["answer"]["objective"] == "throughput"
    assert data["placements"]["measured"] > 0
    other = train_tiny(*SHORT, "--folder", "run", "--resume")
    assert other.exit_code == 2
    assert Path("best.json").is_file()


@pytest.mark.two_cores
def test_a_stage_can_measure_and_measures_nothing_twice(train_tiny: Any) -> None:
    stages = (*SHORT, "--stage", "reinforce:updates=2,problems=2,cost=measured,evaluate_every=2", "--folder", "run")
    result = train_tiny(*stages, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    simulated, measured = data["stage_results"]
    assert (simulated["cost"], measured["cost"]) == ("simulated", "measured")
    assert data["evaluation"]["best"] == measured["best"]
    assert data["evaluation"]["before"] == measured["before"]
    files = {name: Path("run", name).read_bytes() for name in ("costs.jsonl", "runs.jsonl", "problem.json")}
    lines = [json.loads(line) for line in files["costs.jsonl"].splitlines()][1:]
    (best,) = measured["found"]
    assert best["cost"] == np.nanmin([float(line["value"]) for line in lines])  # some may have been dropped
    assert best["placement"] in [line["placement"] for line in lines if line["value"] == best["cost"]]
    assert "holds the state of a training already" in train_tiny(*stages).stderr
    Path("run/state.safetensors").unlink()  # as if it had been killed before the first state was kept
    again = json.loads(train_tiny(*stages, "--resume", "--json", "--no-cache").stdout)
    assert again["stage_results"] == data["stage_results"]
    known = {name: Path("run", name).read_bytes() for name in files}
    assert known.pop("runs.jsonl").startswith(files.pop("runs.jsonl"))  # and the last race, which is always run
    assert known == files


@pytest.mark.slow
def test_a_command_that_was_killed_at_any_moment_goes_on_and_measures_nothing_twice(
    train_tiny: Any, tiny: Path, cores: Sequence[str]
) -> None:
    stages = ("--stage", "reinforce:cost=measured,updates=12,problems=3,evaluate_every=4", "--folder", "run", "--resume")
    on = ("--model", str(tiny), "--devices", ",".join(cores), "-o", "out.safetensors")
    words = [sys.executable, "-m", "placeit", "train", f"placeto:devices={len(cores)},rounds=1", *on, *stages]
    journal = Path("run/costs.jsonl")
    for known in (1, 6):  # lines: the first says what the journal is about
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
            while not journal.exists() or len(journal.read_bytes().splitlines()) < known:
                assert child.poll() is None, "it ended before it was killed"
                time.sleep(0.01)
            child.kill()
    result = train_tiny(*stages, "--placement", "best.json", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["stages"][0]["updates"] == 12
    assert load_agent("out.safetensors").name == "placeto"
    lines = [json.loads(line) for line in Path("run/costs.jsonl").read_text().splitlines()][1:]
    known = [tuple(line["placement"]) for line in lines if line["value"] != "nan"]
    assert len(known) == len(set(known)) > 0
    log = list(csv.DictReader(Path("run/log.csv").read_text().splitlines()))
    assert [int(row["update"]) for row in log] == list(range(13))


@pytest.mark.two_cores
def test_the_best_placement_is_raced_once_more_and_written(cli: Any, train_tiny: Any, tiny: Path, cores: Sequence[str]) -> None:
    stages = ("--stage", "reinforce:cost=measured,problems=2,updates=2,seconds=10")
    result = train_tiny(*stages, "--placement", "best.json", "--json")
    assert result.exit_code == 0, result.stdout + result.stderr
    data = json.loads(result.stdout)
    answer = data["answer"]
    assert (answer["placement_file"], answer["budget"]["asked_s"]) == ("best.json", pytest.approx(2))
    assert answer["best_single"] is not None
    assert set(data["placements"]) == {"measured", "estimated", "failed", "dropped", "infeasible"}
    assert data["placements"]["measured"] > 0
    assert cli("run", tiny, "-p", "best.json", "--devices", ",".join(cores), "--runs", "3").exit_code == 0
    shown = train_tiny(*stages)
    assert shown.exit_code == 0, shown.stdout + shown.stderr
    for words in ("chosen", "why", "speed-up over", " measured"):
        assert words in shown.stdout
    assert "best.json" not in shown.stdout


@pytest.mark.two_cores
def test_devices_that_run_nothing_any_more_cost_the_placement_and_not_the_weights(
    train_tiny: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dead(*_: Any, **__: Any) -> Any:
        raise ExecutionError("The device fell silent.")

    monkeypatch.setattr("placeit.workbench.reference.Reference.check", dead)
    result = train_tiny(*SHORT, "--placement", "best.json", "--json")
    assert result.exit_code == 1
    data = json.loads(result.stdout)
    assert data["answer"] is None
    assert "The device fell silent." in data["no_answer"]
    assert load_agent("out.safetensors").name == "placeto"
    assert not Path("best.json").exists()
    assert "There is no placement: " in train_tiny(*SHORT, "--placement", "best.json").stdout


@pytest.mark.two_cores
def test_without_a_measured_stage_the_answer_is_raced_if_it_is_asked_for(train_tiny: Any) -> None:
    data = json.loads(train_tiny(*SHORT, "--placement", "best.json", "--json").stdout)
    assert data["placements"] is None
    assert data["answer"]["chosen"]["measured_s"] is not None
    assert Path("best.json").is_file()
    assert json.loads(train_tiny(*SHORT, "--json").stdout)["answer"] is None


def test_described_devices_have_an_answer_by_simulation(cli: Any, tiny: Path) -> None:
    Path("cluster.yaml").write_text(DESCRIBED)
    on = ("--model", tiny, "--devices", "cluster.yaml", "-o", "x.safetensors", "--placement", "best.json")
    data = json.loads(cli("train", "placeto:devices=2", *on, *SHORT, "--json").stdout)
    assert "nothing was measured" in data["answer"]["reason"]
    assert Path("best.json").is_file()


def test_one_device_has_its_answer_without_training(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    on = ("--model", tiny, "--devices", cores[0], "-o", "x.safetensors", "--placement", "best.json")
    result = cli("train", "doppler", *on, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["not_trained"] == "there is one device, and every placement is on it"
    assert (data["checkpoint"], data["updates"], data["stage_results"]) == (None, 0, [])
    assert data["answer"]["chosen"]["name"] in (cores[0], f"ort:{cores[0]}", "ort:CPU")
    assert Path("best.json").is_file()
    assert not Path("x.safetensors").exists()
    assert "Nothing was trained, and no weights are written: there is one device" in cli("train", "doppler", *on).stdout


def test_one_group_is_placed_on_the_best_device_without_training(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    on = ("--model", tiny, "--devices", ",".join(cores), "--max-groups", "1", "-o", "x.safetensors")
    data = json.loads(cli("train", "doppler", *on, "--json").stdout)
    assert data["not_trained"] == (
        "there is one device, and every placement is on it"
        if len(cores) == 1
        else "the model is one group, and every placement is on one device"
    )
    assert data["answer"]["chosen"]["placer"] == "single"


def test_a_trained_policy_goes_on_learning_on_another_model(train: Any, train_tiny: Any) -> None:
    assert train(*SHORT, "--held-out", "0").exit_code == 0
    again = train("--stage", "reinforce:updates=1,learning_rate=0", agent="placeto:weights=first.safetensors")
    assert "first.safetensors" in again.stderr  # which is not there
    Path("out.safetensors").rename("first.safetensors")
    still = ("--stage", "reinforce:updates=1,learning_rate=0", "--folder", "run")
    assert train(*still, agent="placeto:weights=first.safetensors").exit_code == 0
    first, second = (read_checkpoint(name).weights for name in ("first.safetensors", "out.safetensors"))
    assert all((first[name] == second[name]).all() for name in first)
    assert read_checkpoint("out.safetensors").about["weights"] == "first.safetensors"
    assert "weights" in train(*still, "--resume").stderr  # the folder is of a training that began with others
    for wrong, words in (
        ("hdp:weights=first.safetensors", "of 'placeto', not of 'hdp'"),
        (
            "placeto:devices=2,weights=first.safetensors",
            "leave out 'devices'",
        ),
    ):
        assert words in train(*SHORT, agent=wrong).stderr


@pytest.mark.usefixtures("steady")
@pytest.mark.two_cores
def test_hsdag_learns_in_simulation_and_then_by_measured_runs(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    on = ("--model", tiny, "--devices", ",".join(cores), "-o", "hsdag.safetensors", "--json")
    stages = ("--stage", "reinforce:updates=2,problems=1", "--stage", "reinforce:cost=measured,updates=1,problems=1,seconds=60")
    result = cli("train", "hsdag:width=8,steps=4", *on, *stages)
    assert result.exit_code == 0, result.stderr
    simulated, measured = json.loads(result.stdout)["stage_results"]
    assert (simulated["cost"], measured["cost"]) == ("simulated", "measured")
    assert len(measured["found"][0]["placement"]) == 4
    placer = "hsdag:weights=hsdag.safetensors"
    answer = cli("optimize", tiny, "--devices", ",".join(cores), "--placer", placer, "--budget", "2", "--json")
    assert answer.exit_code == 0, answer.stderr


def test_devices_that_are_only_described_measure_nothing(cli: Any, tiny: Path) -> None:
    Path("cluster.yaml").write_text(DESCRIBED)
    result = cli(
        "train", "placeto", "--model", tiny, "--devices", "cluster.yaml", "-o", "x", "--stage", "reinforce:cost=measured"
    )
    assert result.exit_code == 2, result.stderr
    assert "Devices that are only described run nothing, so there is nothing to measure" in result.stderr


def test_a_tensor_program_is_a_model_by_its_name(cli: Any, cores: Sequence[str]) -> None:
    def train(model: str) -> Any:
        on = ("--model", model, "--devices", ",".join(cores), "--stage", "reinforce:updates=1,problems=1")
        return cli("train", f"placeto:devices={len(cores)},rounds=1", *on, "-o", "out.safetensors", "--json")

    result = train("chain-mm:shards=2,size=32")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["problems"]["source"] == "chain-mm:shards=2,size=32"


@pytest.mark.two_cores
def test_doppler_learns_from_a_teacher_by_simulation_and_by_measuring(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    devices = "".join(f"  d{n}: {{runs_on: {core}}}\n" for n, core in enumerate(cores))
    Path("cluster.yaml").write_text(f"devices:\n{devices}")
    on = ("--model", "chain-mm:shards=2,size=32", "--devices", "cluster.yaml", "--output", "doppler.safetensors")
    stages = ("imitation:teacher=critical-path", "reinforce:cost=simulated", "reinforce:cost=measured,seconds=600")
    short = [word for one in stages for word in ("--stage", f"{one},updates=1,problems=1")]
    result = cli("train", "doppler", *on, *short, "--json")
    assert result.exit_code == 0, result.stderr
    assert [one["teacher"] for one in json.loads(result.stdout)["stages"]] == ["critical-path", None, None]
    again = ("--devices", "cluster.yaml", "-o", "again.safetensors", "--stage", "reinforce:updates=1")
    other = cli("train", "doppler:weights=doppler.safetensors", "--model", tiny, *again)  # with ops that it has not seen
    assert other.exit_code == 0, other.stderr
    missing = cli("train", "doppler", "--model", "nowhere.onnx", "-o", "x", "--stage", "imitation:teacher=socrates")
    assert missing.exit_code == 2  # before the model is opened
    assert "for imitation, critical-path, heft" in missing.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "Give either --problems or --model"),
        (("--problems", "single", "--placement", "best.json"), "--placement is for the placement of a model"),
        (("--model", "nowhere.onnx", "--held-out", "1"), "leave out --held-out and --evaluate-on"),
        (("--model", "nowhere.onnx", "--objective", "speed"), "The objective 'speed' is not known"),
        (("--model", "nowhere.onnx"), "nowhere.onnx"),
    ],
)
def test_a_model_that_cannot_be_trained_on_is_an_error_in_a_sentence(cli: Any, args: tuple[str, ...], message: str) -> None:
    result = cli("train", AGENT, "-o", "out.safetensors", *args)
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith("error: ")
    assert message in result.stderr


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
