import dataclasses

import pytest
import torch

from placeit.core.errors import FileError, UsageError
from placeit.learning.checkpoint import save_agent, weights_of
from placeit.learning.training.loop import train
from tests.learning.toy_agent import FEW, ExploringAgent, ToyAgent, draw_toys, same, stage, toy

STAGES = (
    {"updates": 9, "baseline": "moving", "entropy": 0.1, "final_entropy": 0.0, "normalize": False, "clip": 0.5},
    {"updates": 3, "kind": "imitation"},
    {"updates": 30, "patience": 2, "schedule": "linear", "episodes": 2, "learning_rate": 1e-3},
)


@pytest.mark.parametrize("cls", [ToyAgent, ExploringAgent])
@pytest.mark.parametrize("crashes", [(1,), (2, 2), (7,), (10,), (13, 4)])
def test_a_training_that_crashed_goes_on_to_the_same_result_bit_for_bit(tmp_path, cls, crashes):
    calls = [0]

    def draw(rng, count, progress):
        if calls[0] == 1:
            raise RuntimeError("power cut")
        calls[0] -= 1
        return draw_toys(rng, count, progress)

    options = {"explore": 0.5, "final_explore": 0.0} if cls is ExploringAgent else {}
    plan = [dataclasses.replace(stage(**one), draw=draw, **options) for one in STAGES]

    def run(folder, crash):
        calls[0] = crash
        with torch.random.fork_rng():
            torch.manual_seed(crash)  # the weights that count are those in the state
            if not folder.exists():
                torch.manual_seed(0)
            agent = cls()
        return agent, train(agent, plan, evaluate_on=FEW, seed=5, folder=folder, resume=True, save_every=2)

    for crash in crashes:
        with pytest.raises(RuntimeError, match="power cut"):
            run(tmp_path / "crashed", crash)
    agents, results = zip(run(tmp_path / "crashed", 0), run(tmp_path / "whole", 0), strict=True)
    assert same(*map(weights_of, agents))
    assert results[0].best_at == results[1].best_at
    logs = [[dataclasses.replace(record, seconds=0.0) for record in result.history] for result in results]
    assert logs[0] == logs[1]
    tables = [(tmp_path / name / "log.csv").read_text().splitlines() for name in ("crashed", "whole")]
    assert [row.split(",")[:2] for row in tables[0]] == [row.split(",")[:2] for row in tables[1]]


def test_a_finished_training_is_not_done_again(tmp_path):
    agent, again = toy(), toy(1)
    first = train(agent, [stage()], evaluate_on=FEW, seed=0, folder=tmp_path)
    second = train(again, [stage()], evaluate_on=FEW, seed=0, folder=tmp_path, resume=True)
    assert second.history == first.history
    assert same(weights_of(agent), weights_of(again))


@pytest.mark.parametrize(
    ("agent", "options", "seed", "about", "message"),
    [
        ({}, {"learning_rate": 0.02}, 0, {}, "learning_rate of stage 1 is 0.03 there and 0.02 here"),
        ({}, {}, 1, {}, "seed is 0 there and 1 here"),
        ({"hidden": 5}, {}, 0, {}, "its configuration is {'hidden': 4, 'pace': 1.0} there"),
        ({}, {}, 0, {"problems": "multi"}, "problems is None there and multi here"),
    ],
)
def test_a_state_of_another_training_is_refused(tmp_path, agent, options, seed, about, message):
    train(toy(), [stage(1)], evaluate_on=FEW, seed=0, folder=tmp_path)
    with pytest.raises(UsageError, match=message):
        train(toy(**agent), [stage(1, **options)], evaluate_on=FEW, seed=seed, folder=tmp_path, resume=True, about=about)


def test_a_folder_with_a_state_is_not_overwritten(tmp_path):
    train(toy(), [stage(1)], evaluate_on=FEW, seed=0, folder=tmp_path)
    with pytest.raises(UsageError, match="holds the state of a training already: resume it, or choose another folder"):
        train(toy(), [stage(1)], evaluate_on=FEW, seed=0, folder=tmp_path)


def test_a_damaged_state_is_an_error(tmp_path):
    train(toy(), [stage(1)], evaluate_on=FEW, seed=0, folder=tmp_path)
    path = tmp_path / "state.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(FileError, match=r"state\.safetensors is not a safetensors file, or it is damaged"):
        train(toy(), [stage(1)], evaluate_on=FEW, seed=0, folder=tmp_path, resume=True)


def test_a_file_that_is_no_state_is_said_with_what_to_do(tmp_path):
    save_agent(toy(), tmp_path / "state.safetensors")
    with pytest.raises(FileError, match=r"holds the weights of a policy, not the state of a training .*Choose the folder of a"):
        train(toy(), [stage(1)], evaluate_on=FEW, seed=0, folder=tmp_path, resume=True)
    with pytest.raises(UsageError, match=r"state\.safetensors is a file; a training is kept in a folder"):
        train(toy(), [stage(1)], evaluate_on=FEW, seed=0, folder=tmp_path / "state.safetensors", resume=True)


def test_a_folder_without_a_training_is_said_and_training_starts(tmp_path, caplog):
    assert train(toy(), [stage(1)], evaluate_on=FEW, seed=0, folder=tmp_path / "run", resume=True).history
    assert "run has no training to resume: it starts at the beginning" in caplog.text


def test_resuming_needs_a_folder():
    with pytest.raises(UsageError, match="without the folder that holds its state"):
        train(toy(), [stage(1)], evaluate_on=FEW, seed=0, resume=True)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="Cannot make the folder"):
        train(toy(), [stage()], evaluate_on=(), seed=0, folder=tmp_path / "file" / "folder")
